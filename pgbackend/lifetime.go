package pgbackend

import (
	"fmt"
	"sync"
)

// state is the state of a group; moves lists the transitions. Failure is no state: a failed group has a cause
// (Group.cause) and DOWN in its group word.
type state int

const (
	meeting    state = iota // Create meets the other ranks; no other function of the process can find the group
	ready                   // this rank has told the others that it is ready: some of them may have the group already
	live                    // the group is visible in the process; calls enter and return
	destroying              // Destroy waits for operations; calls still enter and return
	leaving                 // no call enters any more; peers may still touch the memory of this rank
	freed                   // the memory is freed
)

func (s state) String() string {
	return [...]string{"meeting", "ready", "live", "destroying", "leaving", "freed"}[s]
}

// moves lists all transitions, each with the one function that makes it.
var moves = []struct {
	from, to state
	by       string
}{
	{meeting, ready, "attempt: before this rank tells the others that it has their memory"},
	{ready, meeting, "attempt: all ranks have heard that a rank failed, so nobody has the group; there may be a second try"},
	{meeting, freed, "giveUp: nobody can have the group"},
	{ready, leaving, "giveUp: peers may have the group and find the reason in this rank's memory"},
	{ready, live, "publish, at the end of Create"},
	{live, destroying, "Destroy or Leave: the first call of them"},
	{destroying, leaving, "depart: once nothing is unfinished"},
	{leaving, freed, "sweep: once no peer touches the memory any more"},
}

// lifetime holds the state of a group and the data that depends on the state. Its lock is held briefly, and no other
// lock is taken while it is held.
type lifetime struct {
	mu    sync.Mutex
	state state
	users int           // number of calls inside
	last  chan struct{} // closed by the last user's release; nil: leave does not wait
	gone  []bool        // by rank: its process has ended, or it has given up the group
	died  []bool        // by rank: its process has ended, or was lost, before the rank had left; nil: none
}

// move changes the state and reports true, or reports false if moves does not list the transition.
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

// mustMove is move for transitions that only a bug of the library can prevent. It panics then.
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

// acquire lets a call enter the group, whose memory stays in place until release. It reports false if the group is not
// live yet, or no longer; then the caller must not touch the runner's part of the group.
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

// publish makes the group live and acquires it for the caller.
func (l *lifetime) publish() {
	l.mustMove(live)
	l.acquire()
}

// leave lets no further call enter and returns when no call is inside. The wait is short: a control exchange ends when
// the group is being destroyed. A call that waits until kernels are loaded ends when the group goes down.
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

// isGone reports whether a rank is gone.
func (l *lifetime) isGone(rank int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.gone[rank]
}

// noteDeath notes that the process of a rank has ended, or was lost, before the rank had left.
func (l *lifetime) noteDeath(rank int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.died == nil {
		l.died = make([]bool, len(l.gone))
	}
	l.died[rank] = true
}

// hasDied reports whether noteDeath was called for a rank.
func (l *lifetime) hasDied(rank int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.died != nil && l.died[rank]
}

// lost notes that a rank is gone and returns the state at that moment.
func (l *lifetime) lost(rank int) state {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gone[rank] = true
	return l.state
}
