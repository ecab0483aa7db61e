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
	Failure     *coll.Failure `json:"failure,omitempty"`
	Ranks       []RankStatus  `json:"ranks"` // all ranks of the group, as this process sees them
}

// RankStatus is the status of one rank. This process reads it from the memory of that rank, even if the rank does not run.
type RankStatus struct {
	Rank       int    `json:"rank"`
	GlobalRank int    `json:"global_rank"`
	Host       string `json:"host"`
	PID        int    `json:"pid"`
	State      string `json:"state"`  // state of its last collective: in, done, failed; or idle (no collective yet), left, dead
	Issued     uint64 `json:"issued"` // collectives that the rank has begun
	Op         string `json:"op,omitempty"`
	Since      int64  `json:"since_ns,omitempty"` // when the last collective began or, in the states done and failed, ended
	WaitsFor   *int   `json:"waits_for,omitempty"`
	Message    string `json:"message,omitempty"` // its last send or recv, if not complete
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
	h, members := g.Header(), g.Members()
	out := GroupStatus{Group: h.Group, Description: h.Description, Rank: h.Rank, Size: h.Size, Failure: g.Cause(), Ranks: make([]RankStatus, h.Size)}
	dead := make([]bool, h.Size)
	for _, rank := range g.Dead() {
		dead[rank] = true
	}
	for rank, m := range members {
		out.Ranks[rank] = rankStatus(g.Run(), rank, dead[rank])
		out.Ranks[rank].GlobalRank, out.Ranks[rank].Host, out.Ranks[rank].PID = h.GlobalRank(rank), m.Host, m.PID
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

func rankStatus(run Run, rank int, dead bool) RankStatus {
	last, left := run.LastCall(rank)
	s := RankStatus{Rank: rank, Issued: last, State: "idle"}
	if call, ok := run.Announced(rank, last); ok {
		s.Op, s.State = call.Op.Describe(last), "in"
	}
	if f, ok := run.Recorder(rank).Last(false); ok {
		// The recorder may be an instant ahead of the announced call, so it takes precedence.
		s.Issued, s.Op, s.Since = f.Number, f.Op.Describe(f.Number), unixNS(f.Started)
		switch f.Progress {
		case runner.Completed:
			s.State, s.Since = "done", unixNS(f.Completed)
		case runner.Failed:
			s.State, s.Since = "failed", unixNS(f.Completed)
		default:
			s.State = "in"
		}
	}
	if f, ok := run.Recorder(rank).Last(true); ok && f.Progress == runner.Started {
		s.Message = f.Op.Describe(0)
	}
	if next := run.Awaits(rank); s.State == "in" && next >= 0 {
		s.WaitsFor = &next
	}
	switch {
	case left:
		s.State = "left"
	case dead:
		s.State = "dead"
	}
	return s
}
