package pgbackend

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"sagecomm/internal/pickle"
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

// flightGroup is one group in a dump and in the answer of FlightRecords.
type flightGroup struct {
	*flightHeader
	Total   uint64        `json:"total"` // operations ever; the last of them are the entries
	Failure string        `json:"failure,omitempty"`
	Config  pickle.Dict   `json:"config"` // this and what follows as torch has it, see flight_trace.go
	Status  pickle.Dict   `json:"status"`
	Entries []pickle.Dict `json:"entries"`
}

// FlightRecords is what the flight recorders of all groups know, as JSON. A group is in it from its creation until it
// is destroyed, also while it has failed, unless its recorder is off.
func (p *Process) FlightRecords() ([]byte, error) {
	answer := struct {
		Groups []flightGroup `json:"groups"`
	}{[]flightGroup{}}
	groups := p.held()
	defer release(groups)
	for _, g := range groups {
		if g.flights > 0 {
			answer.Groups = append(answer.Groups, g.flightGroup())
		}
	}
	return json.Marshal(answer)
}

// inOrder is the groups in the order of their creation.
func (p *Process) inOrder() []*Group {
	groups := p.snapshot()
	slices.SortFunc(groups, func(a, b *Group) int { return cmp.Compare(a.number, b.number) })
	return groups
}

// flightGroup is what this rank's recorder of this group knows.
func (g *Group) flightGroup() flightGroup {
	out := g.flightHeader().with(g.run.Sequence(), g.run.Flights())
	if f := g.cause.Load(); f != nil {
		out.Failure = f.Message
	}
	return out
}

// with is a group of a rank that has issued `last` collectives.
func (h *flightHeader) with(last uint64, log runner.FlightLog) flightGroup {
	return flightGroup{flightHeader: h, Total: log.Total, Config: h.config(), Status: traceStatus(last, log),
		Entries: h.entries(last, log)}
}
