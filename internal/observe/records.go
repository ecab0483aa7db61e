package observe

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"sagecomm/internal/pickle"
	"sagecomm/internal/runner"
)

// What torch's own recorder reads, in its order: the first that is not empty counts, 0 turns recording off.
var flightVariables = []string{"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"}

const defaultFlights = 2000

// MaxFlights is the largest capacity of a recorder: 128 MiB.
const MaxFlights = 1 << 20

// FlightCapacity returns how many operations the recorder of a new group keeps.
func FlightCapacity(environ []string) (int, error) {
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
			return max(0, min(n, MaxFlights)), nil
		}
	}
	return defaultFlights, nil
}

// flightGroup is one group in the answer of FlightRecords and, from Config on, in a dump.
type flightGroup struct {
	*Header
	Total   uint64        `json:"total"` // operations ever; the last of them are the entries
	Failure string        `json:"failure,omitempty"`
	Config  pickle.Dict   `json:"config"` // this and what follows as torch has it, see torch_trace.go
	Status  pickle.Dict   `json:"status"`
	Entries []pickle.Dict `json:"entries"`
}

// FlightRecords returns what the flight recorders of all groups know, as JSON. A group is in it from its creation until it
// is destroyed, also while it has failed, unless its recorder is off.
func (o *Observers) FlightRecords() ([]byte, error) {
	answer := struct {
		Groups []flightGroup `json:"groups"`
	}{[]flightGroup{}}
	groups := o.groups()
	list := ownFlights(groups)
	releaseAll(groups)
	for _, s := range list {
		answer.Groups = append(answer.Groups, s.inTorchTerms())
	}
	return json.Marshal(answer)
}

// snapshot is what one recorder knew at one moment. It holds no group.
type snapshot struct {
	*Header
	issued  uint64 // collectives that the rank has issued
	log     runner.FlightLog
	failure string // the first cause of failure, empty while there is none
}

// ownFlights takes snapshots of this process's recorders. Requires: the groups are acquired.
func ownFlights(groups []Group) (list []snapshot) {
	for _, g := range groups {
		h := g.Header()
		if h.Capacity == 0 {
			continue
		}
		s := snapshot{Header: h, issued: g.Run().Sequence(), log: g.Run().Flights()}
		if f := g.Cause(); f != nil {
			s.failure = f.Message
		}
		list = append(list, s)
	}
	return list
}

func (s snapshot) inTorchTerms() flightGroup {
	return flightGroup{Header: s.Header, Total: s.log.Total, Failure: s.failure, Config: s.config(), Status: traceStatus(s.issued, s.log),
		Entries: s.entries(s.issued, s.log)}
}
