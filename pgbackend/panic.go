package pgbackend

import (
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"weak"

	"sagecomm/internal/coll"
	"sagecomm/internal/observe"
)

// recoverInto turns a panic into a failure of the group. Functions that C calls, and goroutines, defer it.
// Requires: the group is acquired.
func (g *Group) recoverInto(f **coll.Failure) {
	if r := recover(); r != nil {
		*f = g.fault(r)
		g.declareFault(*f)
	}
}

// guard calls f, whose panic makes the group fail. What a goroutine or a timer of a group does is in it, unless it
// recovers otherwise.
func (g *Group) guard(f func()) {
	defer func() {
		if r := recover(); r != nil {
			g.Panicked(r)
		}
	}()
	f()
}

// lastingGuard returns guard for goroutines that may outlive the group, of which they keep nothing: once it is
// collected, a panic is only printed.
func (g *Group) lastingGuard() func(f func()) {
	group := weak.Make(g)
	return func(f func()) {
		defer func() {
			if r := recover(); r != nil {
				if g := group.Value(); g != nil {
					g.Panicked(r)
				} else {
					fault(r)
				}
			}
		}()
		f()
	}
}

// Panicked makes a recovered panic the failure of the group and returns that failure. If the group's memory is gone
// already it only prints the panic.
func (g *Group) Panicked(r any) *coll.Failure {
	f := g.fault(r)
	g.panicked(f)
	return f
}

// panicked declares the failure of a panic, unless the group's memory is gone.
func (g *Group) panicked(f *coll.Failure) {
	if g.life.acquire() {
		defer g.life.release()
		g.declareFault(f)
	}
}

// declareFault makes a panic the failure of the group. To take the group down calls engines, and what has panicked once
// may panic there again: the peers know by then, and the process goes on.
func (g *Group) declareFault(f *coll.Failure) {
	defer recoverFrom("the end of a group that has failed by a panic")
	g.declareFailure(f)
}

// fault prints the stack of a recovered panic and returns the failure that describes it.
func (g *Group) fault(r any) *coll.Failure {
	observe.Log("WARN", fmt.Sprintf("panic in group %q: %v\n%s", g.name, r, strings.TrimSpace(string(debug.Stack()))))
	return &coll.Failure{Status: coll.Internal, Rank: g.rank, PID: os.Getpid(), Group: g.name,
		Message: fmt.Sprintf("sagecomm: group %q: internal error on %s: %v; its stack is on its standard error; please report both", g.title(), g.number(g.rank), r)}
}

// recoverAll turns a panic into a failure of all groups. Functions that serve all groups defer it. Those over several
// hosts wait for their verdicts at the same time.
func (p *Process) recoverAll() {
	if r := recover(); r != nil {
		var all sync.WaitGroup
		for _, g := range p.snapshot() {
			f := g.fault(r) // here is the stack
			all.Go(func() {
				defer recoverFrom("the failure of a group")
				g.panicked(f)
			})
		}
		all.Wait()
	}
}

// recoverFrom turns a panic into a warning. Functions that only report about groups defer it, so that a panic there
// fails no group.
func recoverFrom(what string) {
	if r := recover(); r != nil {
		observe.Warn("panic in %s: %v\n%s", what, r, strings.TrimSpace(string(debug.Stack())))
	}
}

// fault prints the stack of a recovered panic of code that has no group yet and returns the failure that describes it.
func fault(r any) *coll.Failure {
	observe.Log("WARN", fmt.Sprintf("panic: %v\n%s", r, strings.TrimSpace(string(debug.Stack()))))
	return &coll.Failure{Status: coll.Internal, Rank: -1, PID: os.Getpid(),
		Message: fmt.Sprintf("sagecomm: internal error: %v; its stack is on standard error; please report both", r)}
}
