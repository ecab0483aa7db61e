package pgbackend

import (
	"encoding/json"
	"os"
	"time"

	"sagecomm/internal/bootstrap"
	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
)

// processStatus is the answer to who asks how this process is doing.
type processStatus struct {
	Host   string        `json:"host"`
	PID    int           `json:"pid"`
	Time   int64         `json:"time_ns"`
	Groups []groupStatus `json:"groups"`
}

type groupStatus struct {
	Group       string        `json:"group"`
	Description string        `json:"desc"`
	Rank        int           `json:"rank"`
	Size        int           `json:"size"`
	Failure     *coll.Failure `json:"failure,omitempty"`
	Ranks       []rankStatus  `json:"ranks"` // all of them, as seen from here
}

// rankStatus is one rank as another one of its host sees it: what lies in its memory, whether it runs or not.
type rankStatus struct {
	Rank       int    `json:"rank"`
	GlobalRank int    `json:"global_rank"`
	Host       string `json:"host"`
	PID        int    `json:"pid"`
	State      string `json:"state"`  // in, done, failed (of its last collective), idle (none yet), left, dead
	Issued     uint64 `json:"issued"` // collectives that it has begun
	Op         string `json:"op,omitempty"`
	Since      int64  `json:"since_ns,omitempty"` // when it began, or ended
	WaitsFor   *int   `json:"waits_for,omitempty"`
	Message    string `json:"message,omitempty"` // its last send or recv, if it goes on
}

// Status is how this process's groups are doing, as JSON. It takes no lock that an operation holds.
func (p *Process) Status() (text []byte) {
	defer recoverFrom("the answer to who asks for the status")
	out := processStatus{Host: bootstrap.HostName(), PID: os.Getpid(), Time: time.Now().UnixNano(), Groups: []groupStatus{}}
	groups := p.held()
	defer release(groups)
	for _, g := range groups {
		out.Groups = append(out.Groups, g.status())
	}
	text, err := json.Marshal(out)
	if err != nil { // numbers and texts only
		panic(err)
	}
	return text
}

func (g *Group) status() groupStatus {
	out := groupStatus{Group: g.name, Description: g.describedAs(), Rank: g.rank, Size: g.size, Failure: g.cause.Load(), Ranks: make([]rankStatus, g.size)}
	dead := make([]bool, g.size)
	for _, rank := range g.dead() {
		dead[rank] = true
	}
	for rank := range g.size {
		out.Ranks[rank] = g.rankStatus(rank, dead[rank])
	}
	return out
}

// unixNS is 0 for what has not happened, or happened a moment ago.
func unixNS(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

func (g *Group) rankStatus(rank int, dead bool) rankStatus {
	m := g.members[rank]
	last, left := g.run.LastCall(rank)
	s := rankStatus{Rank: rank, GlobalRank: g.globalRank(rank), Host: m.Host, PID: m.PID, Issued: last, State: "idle"}
	if call, ok := g.run.Announced(rank, last); ok {
		s.Op, s.State = describe(call.Op, last), "in"
	}
	if f, ok := g.run.Recorder(rank).Last(false); ok {
		// The recorder is ahead of the record of calls by an instant.
		s.Issued, s.Op, s.Since = f.Number, describe(f.Op, f.Number), unixNS(f.Started)
		switch f.Progress {
		case runner.Completed:
			s.State, s.Since = "done", unixNS(f.Completed)
		case runner.Failed:
			s.State, s.Since = "failed", unixNS(f.Completed)
		default:
			s.State = "in"
		}
	}
	if f, ok := g.run.Recorder(rank).Last(true); ok && f.Progress == runner.Started {
		s.Message = describe(f.Op, 0)
	}
	if next := g.run.Awaits(rank); s.State == "in" && next >= 0 {
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
