package pgbackend

import (
	"encoding/json"

	"sagecomm/algo"
	"sagecomm/internal/coll"
)

type opStats struct {
	Count uint64 `json:"count"`
	Bytes uint64 `json:"bytes"`
}

type classStats struct {
	UpTo      uint64 `json:"up_to,omitempty"` // bytes, absent for the last class
	Algorithm string `json:"algorithm"`
	Chunk     int    `json:"chunk"`
}

// Stats describes the group and what it counted, as JSON.
func (g *Group) Stats() ([]byte, error) {
	if !g.hold() {
		return nil, destroyed(g.name)
	}
	defer g.letGo()
	c := g.run.Counters()
	out := struct {
		Group    string                  `json:"group"`
		Rank     int                     `json:"rank"`
		Size     int                     `json:"size"`
		Sequence uint64                  `json:"sequence"`
		Ops      map[string]opStats      `json:"ops"`
		Fast     uint64                  `json:"fast"`     // collectives that did not enter Go
		Blocked  uint64                  `json:"blocked"`  // waits that outlasted spinning
		Sleeps   uint64                  `json:"sleeps"`   // of those, turns of sleep
		Programs int                     `json:"programs"` // in the cache
		Classes  map[string][]classStats `json:"classes"`
		Failure  *coll.Failure           `json:"failure,omitempty"`
	}{g.name, g.rank, g.size, g.run.Sequence(), map[string]opStats{}, c.Fast, c.Blocked, c.Sleeps, c.Programs,
		map[string][]classStats{}, g.cause.Load()}
	for kind := range coll.KindCount {
		if c.Ops[kind] > 0 {
			out.Ops[kind.String()] = opStats{c.Ops[kind], c.Bytes[kind]}
		}
		for _, class := range g.classes[kind] {
			row := classStats{class.UpTo, class.Algorithm, class.Chunk}
			if class.UpTo == algo.NoLimit {
				row.UpTo = 0
			}
			out.Classes[kind.String()] = append(out.Classes[kind.String()], row)
		}
	}
	return json.Marshal(out)
}
