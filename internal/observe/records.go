package observe

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"sagecomm/internal/pickle"
	"sagecomm/internal/runner"
)

// flightVariables are the variables that torch's own recorder reads for its capacity, in its order. The first one that is
// not empty counts; 0 turns recording off.
var flightVariables = []string{"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"}

// defaultFlights is the capacity of a recorder if no variable sets it.
const defaultFlights = 2000

// MaxFlights is the largest capacity of a recorder, which then takes 128 MiB.
const MaxFlights = 1 << 20

// FlightCapacity returns the number of operations that the recorder of a new group keeps.
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

// flightGroup is one lane of a group in the result of FlightRecords. Dumps contain its fields from Config on.
type flightGroup struct {
	*Header
	Lane    string        `json:"lane"`
	PGID    int64         `json:"pg_id"` // key of the status in "pg_status", unique in the rank's process
	Total   uint64        `json:"total"` // operations since the group was made; the entries are the last of them
	Failure string        `json:"failure,omitempty"`
	Config  pickle.Dict   `json:"config"` // this field and the next ones have torch's format, see torch_trace.go
	Status  pickle.Dict   `json:"status"`
	Entries []pickle.Dict `json:"entries"`
}

// FlightRecords returns the contents of the flight recorders of all groups, as JSON, those of a group's device lane behind those
// of its host lane. A group whose recorder is on is included from its creation until it is destroyed, even after it has failed;
// its device lane once the lane is open.
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

// snapshot is the content of one recorder at one moment. It remains valid after its group is released.
type snapshot struct {
	*Header
	lane    runner.Lane
	issued  uint64 // collectives that the rank has issued in the lane
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
		for _, lane := range g.Lanes() {
			s := snapshot{Header: h, lane: lane.Number, issued: lane.Run.Issued(), log: lane.Run.Flights()}
			if f := g.Cause(); f != nil {
				s.failure = f.Message
			}
			list = append(list, s)
		}
	}
	return list
}

// inTorchTerms returns the snapshot with keys and values as torch's flight recorder has them.
func (s snapshot) inTorchTerms() flightGroup {
	return flightGroup{Header: s.Header, Lane: laneName(s.lane), PGID: s.pgID(), Total: s.log.Total, Failure: s.failure,
		Config: s.config(), Status: traceStatus(s.issued, s.log), Entries: s.entries()}
}
