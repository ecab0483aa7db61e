package pgbackend

import (
	"fmt"
	"sync"
)

// state is where a group is in its life.
type state int

const (
	meeting    state = iota // Create meets the other ranks; nothing else knows the group
	ready                   // this rank has told the others that it is ready: some of them may have the group already
	live                    // the process shows the group; calls come and go
	destroying              // Destroy waits for operations; calls still come and go
	leaving                 // no call gets in any more; peers may still touch the memory of this rank
	freed                   // the memory is given back
)

func (s state) String() string {
	return [...]string{"meeting", "ready", "live", "destroying", "leaving", "freed"}[s]
}

// moves are all moves of a state, with the one function that makes each.
var moves = []struct {
	from, to state
	by       string
}{
	{meeting, ready, "exchange: before this rank tells the others that it has their memory"},
	{ready, meeting, "exchange: all ranks have heard that a rank failed, so nobody has the group; there may be a second try"},
	{meeting, freed, "giveUp: nobody can have the group"},
	{ready, leaving, "giveUp: peers may have the group and find the reason in this rank's memory"},
	{ready, live, "publish, at the end of Create"},
	{live, destroying, "Destroy: the first call of it"},
	{destroying, leaving, "Destroy: once nothing is unfinished"},
	{leaving, freed, "sweep: once no peer touches the memory any more"},
}

// lifetime is the state of a group with what depends on it. Its lock is held for moments only and no other lock is taken
// while it is held.
type lifetime struct {
	mu    sync.Mutex
	state state
	users int           // calls inside
	last  chan struct{} // closed by the last user; nil: nobody waits for that
	gone  []bool        // by rank: its process has ended, or it has given up
}

// move moves to another state. It reports false, and does nothing, where moves has no such move.
func (l *lifetime) move(to state) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range moves {
		if m.from == l.state && m.to == to {
			l.state = to
			return true
		}
	}
	return false
}

// mustMove is move where only a fault of the library can be in the way.
func (l *lifetime) mustMove(to state) {
	if !l.move(to) {
		panic(fmt.Sprintf("a group that is %v cannot become %v", l.now(), to))
	}
}

func (l *lifetime) now() state {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state
}

// acquire lets a call in: what the group uses stays in place until release. It reports false where there is no such group
// yet, or any more; then nothing of the runner's may be touched.
func (l *lifetime) acquire() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state != live && l.state != destroying {
		return false
	}
	l.users++
	return true
}

func (l *lifetime) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.users--; l.users == 0 && l.last != nil {
		close(l.last)
		l.last = nil
	}
}

// publish makes the group live with its caller inside.
func (l *lifetime) publish() {
	l.mustMove(live)
	l.acquire()
}

// leave lets no call in any more, and returns when none is inside. No call stays long.
func (l *lifetime) leave() {
	l.mustMove(leaving)
	l.mu.Lock()
	if l.users > 0 {
		l.last = make(chan struct{})
	}
	last := l.last
	l.mu.Unlock()
	if last != nil {
		<-last
	}
}

// dead returns the ranks that are gone.
func (l *lifetime) dead() (list []int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for rank, gone := range l.gone {
		if gone {
			list = append(list, rank)
		}
	}
	return list
}

// lost notes that a rank is gone, and reports whether the group is live: only then does that make it fail.
func (l *lifetime) lost(rank int) (matters bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gone[rank] = true
	return l.state == live
}
