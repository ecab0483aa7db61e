package pgbackend

import (
	"cmp"
	"slices"

	"sagecomm/algo"
	"sagecomm/internal/coll"
	"sagecomm/internal/env"
	"sagecomm/internal/observe"
	"sagecomm/internal/shmem"
)

// view implements observe.Group. Two views are equal if and only if they are of the same group.
type view struct{ g *Group }

var _ observe.Group = view{}

func (v view) Acquire() bool           { return v.g.life.acquire() }
func (v view) Release()                { v.g.life.release() }
func (v view) Settings() *env.Settings { return v.g.settings }
func (v view) Cause() *coll.Failure    { return v.g.cause.Load() }
func (v view) Dead() []int             { return v.g.life.dead() }
func (v view) DeviceEngine() string    { return v.g.engines().Engine }

func (v view) Lanes() []observe.Lane {
	var list []observe.Lane
	for _, l := range v.g.lanes() {
		one := observe.Lane{Number: l.run.Lane(), Engine: l.engine.Name(), Devices: l.devices(), Run: l.run, Transport: "shm"}
		if v.g.apart() {
			one.Transport += "+tcp"
		}
		if e, is := deviceEngines[one.Engine]; is && e.transport != "" {
			one.External, one.Staged = deviceTransports(), stagedEngine
		}
		if e, captures := l.engine.(interface{ Captured() uint64 }); captures {
			one.Captured = e.Captured()
		}
		list = append(list, one)
	}
	return list
}

func (v view) Classes(kind coll.Kind) []algo.Class { return v.g.selector.Boundaries(kind) }

func (v view) Header() *observe.Header {
	g := v.g
	return &observe.Header{ID: g.id, Group: g.name, Description: g.describedAs(), Rank: g.rank, Size: g.size, Global: g.global,
		Capacity: g.flights, Prefix: env.FlightPrefix.Get(g.settings)}
}

func (v view) Members() []observe.Member {
	list := make([]observe.Member, v.g.size)
	for rank := range list {
		m, mapped := v.g.members[rank], v.g.maps[rank]
		if mapped == nil { // on another host
			list[rank] = observe.Member{Host: m.Host, PID: m.PID}
			continue
		}
		list[rank] = observe.Member{Host: m.Host, PID: m.PID, Process: m.id(), Arena: mapped.Bytes(shmem.Range{Len: mapped.Size()}),
			Nonce: mapped.Nonce(), Front: v.g.peers[rank].Bell, Logs: m.FlightLog, Capacity: v.g.peers[rank].Flights, Stacks: m.Stacks}
	}
	return list
}

// acquired returns views of the groups in the order of their creation, each of them acquired.
func (p *Process) acquired() (list []observe.Group) {
	groups := p.snapshot()
	slices.SortFunc(groups, func(a, b *Group) int { return cmp.Compare(a.id, b.id) })
	for _, g := range groups {
		if g.life.acquire() {
			list = append(list, view{g})
		}
	}
	return list
}

// Observers returns the observers of this process's groups.
func (p *Process) Observers() *observe.Observers { return p.observers }

// list shows the group's recorders to every process that has the arena mapped, for as long as peers may use the group's
// memory: a rank that has destroyed the group is missed by those that go on.
func (g *Group) list() {
	if me := g.members[g.rank]; me.Flights != 0 {
		g.memory.listing.Put(g.memory.arena.Arena, g.memory.arena.front, view{g}.Header(), me.FlightLog, me.Stacks)
	}
}

// Describe sets the user's description of the group, which records and errors contain.
func (g *Group) Describe(text string) {
	g.description.Store(&text)
	g.list()
}

func (g *Group) describedAs() string {
	if text := g.description.Load(); text != nil && *text != "" {
		return *text
	}
	return observe.NoDescription
}

// RecordsStacks reports whether the flight recorder keeps the callers' stacks.
func (g *Group) RecordsStacks() bool { return g.flights > 0 && env.FlightStacks.Get(g.settings) }

// WaitsOnHost reports whether callers are to wait on the host for operations on devices.
func (g *Group) WaitsOnHost() bool { return env.BlockingWait.Get(g.settings) }

// Stack stores the text of a call stack in the flight recorder and returns its number, or 0 if there is no room.
func (g *Group) Stack(text string) int {
	if !g.life.acquire() {
		return 0
	}
	defer g.life.release()
	return g.stacks.Number(text)
}

// Stats returns the group's statistics.
func (g *Group) Stats() (observe.GroupStats, error) {
	if !g.life.acquire() {
		return observe.GroupStats{}, destroyed(g.name)
	}
	defer g.life.release()
	return observe.Stats(view{g}), nil
}
