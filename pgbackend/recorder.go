package pgbackend

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"sagecomm/internal/env"
	"sagecomm/internal/runner"
)

// What torch's own recorder reads, in its order: the first that is not empty counts, 0 turns recording off.
var flightVariables = []string{"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"}

const (
	defaultFlights = 2000
	maxFlights     = 1 << 20 // 128 MiB
)

// flightCapacity is how many operations the recorder of a new group keeps.
func flightCapacity(environ []string) (int, error) {
	for _, name := range flightVariables {
		for _, entry := range environ {
			value, ok := strings.CutPrefix(entry, name+"=")
			if !ok || value == "" {
				continue
			}
			n, err := strconv.Atoi(strings.TrimSpace(value))
			if err != nil {
				return 0, fmt.Errorf("sagecomm: %s=%q: a number of operations that the flight recorder keeps is expected, 0 to turn it off", name, value)
			}
			return max(0, min(n, maxFlights)), nil
		}
	}
	return defaultFlights, nil
}

// flightGroup is one group in the answer of FlightRecords.
type flightGroup struct {
	ID        uint64        `json:"id"` // of the group in this process, while it lives
	Group     string        `json:"group"`
	Rank      int           `json:"rank"`
	Size      int           `json:"size"`
	Prefix    string        `json:"prefix"`    // SAGECOMM_FR_PREFIX
	Sequence  uint64        `json:"sequence"`  // last collective that was created
	Started   uint64        `json:"started"`   // last collective that began
	Completed uint64        `json:"completed"` // last collective that succeeded
	Capacity  int           `json:"capacity"`
	Total     uint64        `json:"total"` // operations ever; the last of them are the entries
	Failure   string        `json:"failure,omitempty"`
	Entries   []flightEntry `json:"entries"`
}

// flightEntry is one operation. Times are ns of Unix time, 0 for what has not happened.
type flightEntry struct {
	Number      uint64 `json:"number"` // collectives and messages count apart
	Kind        string `json:"kind"`
	Type        string `json:"dtype"`
	ElementSize int    `json:"element_size"`
	Reduce      string `json:"reduce_op,omitempty"`
	Root        int    `json:"root"` // peer of a message, -1 for a recv from any source that has not met its message
	Tag         int    `json:"tag"`
	Bytes       uint64 `json:"bytes"`
	State       string `json:"state"`
	Created     int64  `json:"created_ns"`
	Started     int64  `json:"started_ns"`
	Completed   int64  `json:"completed_ns"`
	Thread      uint64 `json:"thread"`
	Async       bool   `json:"async"`
	TimeoutMS   int64  `json:"timeout_ms"`
}

// FlightRecords is what the flight recorders of all groups know, as JSON. A group is in it from its creation until it
// is destroyed, also while it has failed, unless its recorder is off.
func (p *Process) FlightRecords() ([]byte, error) {
	groups := p.snapshot()
	slices.SortFunc(groups, func(a, b *Group) int { return cmp.Compare(uint32(a.Handle()), uint32(b.Handle())) })
	answer := struct {
		Groups []flightGroup `json:"groups"`
	}{[]flightGroup{}}
	for _, g := range groups {
		if g.hold() {
			if g.flights > 0 {
				answer.Groups = append(answer.Groups, g.flightGroup())
			}
			g.letGo()
		}
	}
	return json.Marshal(answer)
}

func (g *Group) flightGroup() flightGroup {
	log := g.run.Flights()
	out := flightGroup{ID: uint64(uint32(g.Handle())), Group: g.name, Rank: g.rank, Size: g.size,
		Prefix: env.FlightPrefix.Get(g.settings), Sequence: g.run.Sequence(), Capacity: g.flights, Total: log.Total,
		Started: log.Started, Completed: log.Completed, Entries: make([]flightEntry, 0, len(log.Flights))}
	if f := g.cause.Load(); f != nil {
		out.Failure = f.Message
	}
	for i := range log.Flights {
		out.Entries = append(out.Entries, describeFlight(&log.Flights[i]))
	}
	return out
}

func describeFlight(f *runner.Flight) flightEntry {
	e := flightEntry{Number: f.Number, Kind: f.Op.Kind.String(), Type: f.Op.Type.String(), ElementSize: f.Op.Type.Size(),
		Root: f.Op.Root, Tag: f.Op.Tag, Bytes: f.Op.Bytes(), State: f.Progress.String(), Created: unixNS(f.Created),
		Started: unixNS(f.Started), Completed: unixNS(f.Completed), Thread: f.Thread, Async: f.Op.Async,
		TimeoutMS: f.Op.Timeout.Milliseconds()}
	if f.Op.Kind.Collective() {
		e.Kind = f.Op.Name()
	}
	if f.Op.Kind.Reduces() {
		e.Reduce = f.Op.Reduce.String()
	}
	return e
}

func unixNS(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}
