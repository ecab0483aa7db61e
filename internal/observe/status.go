package observe

import (
	"encoding/json"
	"os"
	"time"

	"sagecomm/internal/bootstrap"
	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
)

// ProcessStatus is the answer to a program that asks for the status of this process.
type ProcessStatus struct {
	Host   string        `json:"host"`
	PID    int           `json:"pid"`
	Time   int64         `json:"time_ns"`
	Groups []GroupStatus `json:"groups"`
}

// GroupStatus is the status of one group of the process.
type GroupStatus struct {
	Group       string        `json:"group"`
	Description string        `json:"desc"`
	Rank        int           `json:"rank"`
	Size        int           `json:"size"`
	Engine      string        `json:"engine"` // of the device lane
	Failure     *coll.Failure `json:"failure,omitempty"`
	Ranks       []RankStatus  `json:"ranks"` // all ranks of the group, as this process sees them
}

// RankStatus is the status of one rank. This process reads it from the memory of that rank, even if the rank does not run.
type RankStatus struct {
	Rank       int       `json:"rank"`
	GlobalRank int       `json:"global_rank"`
	Host       string    `json:"host"`
	PID        int       `json:"pid"`
	Position             // in the host lane
	Device     *Position `json:"device,omitempty"` // in the device lane; nil if no rank has used that lane
}

// Position is where a rank is in one lane of its group.
type Position struct {
	// State of its last collective: in, late (its stream has not reached the collective), done, failed; or idle (no collective
	// yet), left, dead.
	State    string `json:"state"`
	Issued   uint64 `json:"issued"` // collectives that the rank has begun
	Op       string `json:"op,omitempty"`
	Since    int64  `json:"since_ns,omitempty"` // when the last collective began or, in the states done and failed, ended
	WaitsFor *int   `json:"waits_for,omitempty"`
	Message  string `json:"message,omitempty"` // its last send or recv, if not complete
}

// Status returns the status of this process's groups, as JSON. It takes no lock that an operation holds.
func (o *Observers) Status() (text []byte) {
	defer recoverFrom("the answer to a program that asks for the status")
	out := ProcessStatus{Host: bootstrap.HostName(), PID: os.Getpid(), Time: time.Now().UnixNano(), Groups: []GroupStatus{}}
	groups := o.groups()
	defer releaseAll(groups)
	for _, g := range groups {
		out.Groups = append(out.Groups, status(g))
	}
	text, err := json.Marshal(out)
	if err != nil { // impossible: the status consists of numbers and texts
		panic(err)
	}
	return text
}

func status(g Group) GroupStatus {
	h, members, host := g.Header(), g.Members(), hostRun(g)
	out := GroupStatus{Group: h.Group, Description: h.Description, Rank: h.Rank, Size: h.Size, Engine: g.DeviceEngine(), Failure: g.Cause(), Ranks: make([]RankStatus, h.Size)}
	dead := make([]bool, h.Size)
	for _, rank := range g.Dead() {
		dead[rank] = true
	}
	var device Run // nil: this process has not opened the lane
	for _, lane := range g.Lanes()[1:] {
		device = lane.Run
	}
	onDevices := device != nil
	for rank := range members {
		_, used := host.LastIn(runner.DeviceLane, rank)
		onDevices = onDevices || used
	}
	for rank, m := range members {
		_, left := host.LastCall(rank)
		gone := ""
		switch {
		case left:
			gone = "left"
		case dead[rank]:
			gone = "dead"
		}
		s := &out.Ranks[rank]
		*s = RankStatus{Rank: rank, GlobalRank: h.GlobalRank(rank), Host: m.Host, PID: m.PID,
			Position: position(host, runner.HostLane, rank, host.Recorder(rank), host.Awaits(rank), gone)}
		if onDevices {
			recorder, awaits := m.recorder(runner.DeviceLane), -1
			if device != nil {
				recorder, awaits = device.Recorder(rank), device.Awaits(rank)
			}
			on := position(host, runner.DeviceLane, rank, recorder, awaits, gone)
			s.Device = &on
		}
	}
	return out
}

// unixNS returns t in nanoseconds since 1970, or 0 for the zero time, which stands for an event that has not been recorded.
func unixNS(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

// position returns where a rank is in a lane. recorder is the rank's recorder of the lane, awaits the rank that it sleeps for
// there, and gone its state if it takes part no more.
func position(host Run, lane runner.Lane, rank int, recorder runner.Recorder, awaits int, gone string) Position {
	p := Position{State: "idle"}
	call, called := host.LastIn(lane, rank)
	if called {
		p.Issued, p.Op, p.State = call.Sequence, call.Op.Describe(call.Sequence), "in"
	}
	if f, ok := recorder.Last(false); ok {
		// The recorder may be an instant ahead of the announced call, and counts the operations of the user, so it takes
		// precedence.
		p.Issued, p.Op, p.Since = f.Number, f.Op.Describe(f.Number), unixNS(f.Started)
		switch {
		case f.Progress == runner.Completed && called && call.Op.Bucket:
			// It is in an agreement, which the recorder does not have, about a bucket that begins with the next operation.
			p.Issued, p.Op, p.State, p.Since = f.Number+1, call.Op.Describe(0), "in", 0
		case f.Progress == runner.Completed:
			p.State, p.Since = "done", unixNS(f.Completed)
		case f.Progress == runner.Failed:
			p.State, p.Since = "failed", unixNS(f.Completed)
		default:
			p.State = "in"
		}
	}
	switch {
	case gone != "":
		p.State = gone
	case p.State == "in" && lane == runner.DeviceLane && host.Reached(rank) < p.Issued:
		p.State = "late" // it waits for its own device
	}
	if p.State == "in" && awaits >= 0 {
		p.WaitsFor = &awaits
	}
	if f, ok := recorder.Last(true); ok && f.Progress == runner.Started {
		p.Message = f.Op.Describe(0)
	}
	return p
}
