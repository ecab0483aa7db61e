package pgbackend

import (
	"errors"
	"fmt"

	"sagecomm/algo"
	"sagecomm/internal/coll"
)

// Measurements holds what was measured in a group of this process, and the tuning file so far.
type Measurements struct {
	Group uint64     `json:"group"` // handle of the group
	Name  string     `json:"name"`  // name of the file, for messages
	File  string     `json:"file"`  // text of the file; empty: there is no file
	Rows  []measured `json:"rows"`

	Propose bool `json:"propose"` // requests the rows to confirm instead of the entry to write
}

// measured is a row of [Measurements]: one algorithm at one length. Chunk 0 means the predicted one. Ratio is the ratio
// to the time of the group's own choice in the same rounds. [algo.Measured] explains the other fields.
type measured struct {
	Op        string  `json:"op"`
	Bytes     uint64  `json:"bytes"`
	Algorithm string  `json:"algorithm"`
	Chunk     int     `json:"chunk"`
	Seconds   float64 `json:"seconds"`
	Ratio     float64 `json:"ratio"`
	Dropped   bool    `json:"dropped"`
	Confirmed float64 `json:"confirmed"` // 0: not yet
}

// openRule is a rule for a length that a run of its own has not confirmed yet.
type openRule struct {
	Op        string `json:"op"`
	Bytes     uint64 `json:"bytes"`
	Algorithm string `json:"algorithm"`
	Chunk     int    `json:"chunk"`
}

// Tuned is the result of [Process.Tune]: the entry for groups of this shape on this machine, and the text of the file
// with that entry; or the rules to confirm first.
type Tuned struct {
	Entry       algo.Entry `json:"entry"`
	File        string     `json:"file"`
	Unconfirmed []openRule `json:"unconfirmed"` // rules that would change the entry if confirmed
}

// Tune turns measurements into an entry of a tuning file.
func (p *Process) Tune(m Measurements) (*Tuned, error) {
	g := p.Group(m.Group)
	if g == nil {
		return nil, errors.New("tune: the group was destroyed")
	}
	file := &algo.File{Version: algo.FileVersion}
	if m.File != "" {
		known, err := algo.ParseFile(m.Name, []byte(m.File))
		if err != nil {
			return nil, fmt.Errorf("tune: %w", err)
		}
		file = known
	}
	var list []algo.Measured
	for _, row := range m.Rows {
		kind, ok := coll.ParseKind(row.Op)
		if !ok {
			return nil, fmt.Errorf("tune: %q is no collective: there are %s", row.Op, collectives())
		}
		list = append(list, algo.Measured{Kind: kind, Bytes: row.Bytes, Algorithm: row.Algorithm, Chunk: row.Chunk,
			Seconds: row.Seconds, Ratio: row.Ratio, Dropped: row.Dropped, Confirmed: row.Confirmed})
	}
	out := &Tuned{Unconfirmed: []openRule{}}
	if m.Propose {
		open, err := g.selector.Unconfirmed(list)
		if err != nil {
			return nil, fmt.Errorf("tune: %w", err)
		}
		for _, one := range open {
			out.Unconfirmed = append(out.Unconfirmed, openRule{one.Kind.String(), one.Bytes, one.Algorithm, one.Chunk})
		}
		return out, nil
	}
	entry, err := g.selector.Tuned(Machine(), list)
	if err != nil {
		return nil, fmt.Errorf("tune: %w", err)
	}
	if out.Entry, err = file.Put(entry); err != nil {
		return nil, fmt.Errorf("tune: %w", err)
	}
	text, err := file.Write()
	out.File = string(text)
	return out, err
}
