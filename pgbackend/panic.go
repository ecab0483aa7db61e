package pgbackend

import (
	"fmt"
	"os"
	"runtime/debug"
	"strings"

	"sagecomm/internal/coll"
	"sagecomm/internal/observe"
)

// recoverInto is deferred where C or nobody called: a panic takes the group down. The group is held.
func (g *Group) recoverInto(f **coll.Failure) {
	if r := recover(); r != nil {
		*f = g.fault(r)
		g.declare(*f)
	}
}

// Panicked takes the group down because of what recover gave, unless its memory is gone already, and says so.
func (g *Group) Panicked(r any) *coll.Failure {
	f := g.fault(r)
	if g.life.acquire() {
		defer g.life.release()
		g.declare(f)
	}
	return f
}

// fault prints the stack.
func (g *Group) fault(r any) *coll.Failure {
	observe.Log("WARN", fmt.Sprintf("panic in group %q: %v\n%s", g.name, r, strings.TrimSpace(string(debug.Stack()))))
	return &coll.Failure{Status: coll.Internal, Rank: g.rank, PID: os.Getpid(), Group: g.name,
		Message: fmt.Sprintf("sagecomm: group %q: internal error on %s: %v; its stack is on its standard error; please report both", g.title(), g.number(g.rank), r)}
}

// recoverAll is deferred by what serves all groups: a panic takes all of them down.
func (p *Process) recoverAll() {
	if r := recover(); r != nil {
		for _, g := range p.snapshot() {
			g.Panicked(r)
		}
	}
}

// recoverFrom is deferred by what only shows what groups do, or tells of it: a panic there harms none of them.
func recoverFrom(what string) {
	if r := recover(); r != nil {
		observe.Warn("panic in %s: %v\n%s", what, r, strings.TrimSpace(string(debug.Stack())))
	}
}
