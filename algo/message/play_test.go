// Playing: shared links, turned plans, and that the order of play makes no difference.

package message

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"sagecomm/internal/coll"
)

// turnedBy is the plan of rank 0 as [Turns] says that it is for another one. Which cells of scratch memory it uses is left out.
func turnedBy(p Plan, rank int) Plan {
	shift := func(regions []Region) []Region {
		list := slices.Clone(regions)
		for i, r := range list {
			switch {
			case !flat(p.Kind):
				list[i].Block = mod(r.Block+rank, p.Size)
			case p.Pieces == p.Size && r.Count < p.Pieces:
				list[i].First = mod(r.First+rank, p.Pieces)
			}
			if r.Space == Scratch {
				list[i].Cell, list[i].Block = 0, 0
			}
		}
		return list
	}
	steps := slices.Clone(p.Steps)
	for i, s := range steps {
		steps[i].From, steps[i].To = shift(s.From), shift(s.To)
		if s.Op <= RecvReduce {
			steps[i].Peer = mod(s.Peer+rank, p.Size)
		}
	}
	p.Rank, p.Steps = rank, steps
	return p
}

// turns says whether the plans of all ranks are rank 0's turned.
func turns(plans []Plan) bool {
	for rank, p := range plans {
		if fmt.Sprint(turnedBy(plans[0], rank).Steps) != fmt.Sprint(turnedBy(p, 0).Steps) {
			return false
		}
	}
	return true
}

func TestPlansThatTurnDo(t *testing.T) {
	for _, f := range families {
		for _, size := range []int{1, 2, 3, 5, 8, 12, 13, 33} {
			at := Place{Size: size, Chunk: 4 * Unit}
			if got := turns(buildAll(t, f, at)); Turns(f.kind, f.name) && !got {
				t.Errorf("%v %s, %d ranks: the plans are not those of rank 0 turned", f.kind, f.name, size)
			}
		}
	}
	// The test would notice: neighbours in a tree are at other distances.
	if turns(buildAll(t, family{coll.Barrier, Binomial, TreeBarrier}, Place{Size: 8, Chunk: Unit})) {
		t.Error("a tree turns")
	}
}

// hostCosts are of hosts of so many ranks that share an uplink and a downlink, behind one switch each for two hosts.
func hostCosts(width, hosts int) Costs {
	c := Costs{
		Links:  []Link{{Latency: 1e-6, Byte: 1e-10, Step: 2e-7}, {Latency: 9e-6, Byte: 1e-9, Step: 1e-6}},
		Class:  func(from, to int) int { return min(1, max(from/width, to/width)-min(from/width, to/width)) },
		Reduce: gamma, Copy: 1e-10, Capacity: 2, Shared: make([]float64, 4*hosts),
	}
	for i := range c.Shared {
		c.Shared[i] = 1e-9
	}
	c.Route = func(from, to int, via []int) []int {
		a, b := from/width, to/width
		switch {
		case a == b:
			return via
		case a/2 == b/2:
			return append(via, a, hosts+b)
		}
		return append(via, a, 2*hosts+a/2, 3*hosts+b/2, hosts+b)
	}
	return c
}

func TestTurnedGroupsTakeTheSameTime(t *testing.T) {
	for _, f := range families {
		if !Turns(f.kind, f.name) {
			continue
		}
		for _, size := range []int{1, 2, 6, 9, 16} {
			for _, bytes := range []uint64{0, 1, 5*Unit + 3, 40 * Unit} {
				plans := buildAll(t, f, Place{Size: size, Chunk: 12 * Unit})
				g := Group{Size: size, Build: func(rank int) Plan { return plans[rank] }}
				want, err := Play(g, Lengths{Bytes: bytes}, hostCosts(3, 6))
				if err != nil {
					t.Fatal(err)
				}
				g.Turned = true
				if got, err := Play(g, Lengths{Bytes: bytes}, hostCosts(3, 6)); err != nil || got != want {
					t.Errorf("%v %s, %d ranks, %d bytes: %+v turned (%v), else %+v", f.kind, f.name, size, bytes, got, err, want)
				}
				if outputBlocks(f.kind) && f.kind != coll.AllToAll {
					blocks := make([]uint64, size)
					for i := range blocks {
						blocks[i] = bytes
					}
					if got, err := Play(g, Lengths{Blocks: blocks}, hostCosts(3, 6)); err != nil || got != want {
						t.Errorf("%v %s, %d blocks of %d bytes: %+v (%v), want %+v", f.kind, f.name, size, bytes, got, err, want)
					}
				}
			}
		}
	}
}

// Plans that are prepared once are played for any chunk and length as those that are built for them.
func TestPreparedPlansServeAllLengths(t *testing.T) {
	const width, hosts = 4, 3
	for _, f := range families {
		at := Place{Size: width * hosts, Root: 5, Chunk: Unit}
		for h := range hosts {
			at.Hosts = append(at.Hosts, circle(h*width, width, at.Size))
		}
		group := func(chunk int) Group {
			at := at
			at.Chunk = chunk
			plans := buildAll(t, f, at)
			return Group{Size: at.Size, Build: func(rank int) Plan { return plans[rank] }, Turned: Turns(f.kind, f.name)}
		}
		prepared := Prepare(group(Unit))
		for _, chunk := range []int{Unit, 5 * Unit, 100 * Unit} {
			for _, bytes := range []uint64{0, 1, 40*Unit + 3} {
				want, err := Play(group(chunk), Lengths{Bytes: bytes}, hostCosts(width, hosts+1))
				if err != nil {
					t.Fatal(err)
				}
				if got, err := prepared.Play(chunk, bytes, hostCosts(width, hosts+1)); err != nil || got != want {
					t.Errorf("%v %s, %d bytes in chunks of %d: %+v (%v), want %+v", f.kind, f.name, bytes, chunk, got, err, want)
				}
			}
		}
	}
}

// across has each rank of the first half send to the one as far into the second half.
func across(size int) Group {
	return Group{Size: size, Build: func(rank int) Plan {
		m := newMaker(Place{Rank: rank, Size: size, Chunk: 1 << 20}, coll.AllGather, "across", 1)
		if rank < size/2 {
			m.send(rank+size/2, m.blockOf(Input, rank))
		} else {
			m.recv(rank-size/2, m.blockOf(Output, rank-size/2))
		}
		return m.done()
	}}
}

// Four ranks send n bytes at once: one after the other through an uplink, its switch's two links, and a downlink.
func TestSharedLinksPassOneMessageAfterTheOther(t *testing.T) {
	const n = 100_000
	for _, c := range []struct {
		name   string
		width  int
		hosts  int
		slower float64 // than the uplink: the switch
		want   time.Duration
	}{
		{"an uplink each", 1, 8, 1, 11*time.Microsecond + n},
		{"one uplink", 4, 2, 1, 11*time.Microsecond + 4*n},
		{"two hosts behind one switch", 2, 4, 1, 11*time.Microsecond + 4*n},
		{"a switch that takes twice as long", 2, 4, 2, 11*time.Microsecond + 8*n},
		{"a switch that takes a tenth", 2, 4, 0.1, 11*time.Microsecond + 2*n},
	} {
		costs := hostCosts(c.width, c.hosts)
		for i := 2 * c.hosts; i < len(costs.Shared); i++ {
			costs.Shared[i] *= c.slower
		}
		if c.width == 1 {
			// Of eight hosts the first half is behind two switches, which are not what is looked at.
			costs.Route = func(from, to int, via []int) []int { return append(via, from, 8+to) }
		}
		got, err := Play(across(8), Lengths{Bytes: n}, costs)
		if want := (Outcome{c.want, 1, n}); err != nil || got.Messages != want.Messages || got.Sent != want.Sent ||
			got.Time < want.Time || got.Time > want.Time+n/5 {
			t.Errorf("%s: %+v (%v), want %+v", c.name, got, err, want)
		}
	}
}

// Whoever is looked at first, the result is the same, also where ranks meet on links.
func TestTheOrderOfPlayMakesNoDifference(t *testing.T) {
	const seed = 20261122
	rng := rand.New(rand.NewPCG(seed, 0))
	for _, f := range families {
		at := Place{Size: 24, Root: 5, Chunk: 8 * Unit}
		for h := range 6 {
			at.Hosts = append(at.Hosts, circle(4*h, 4, 24))
		}
		plans := buildAll(t, f, at)
		g := Group{Size: at.Size, Build: func(rank int) Plan { return plans[rank] }}
		want, err := Play(g, Lengths{Bytes: 30 * Unit}, hostCosts(4, 6))
		if err != nil {
			t.Fatal(err)
		}
		for range 5 {
			p := newPlay(Prepare(g), at.Chunk, Lengths{Bytes: 30 * Unit}, hostCosts(4, 6))
			rng.Shuffle(len(p.ready), func(i, j int) { p.ready[i], p.ready[j] = p.ready[j], p.ready[i] })
			if end, err := p.finish(); err != nil || time.Duration((end+999_999)/1_000_000) != want.Time {
				t.Errorf("%v %s, seed %d: %v fs (%v), want %v", f.kind, f.name, seed, end, err, want.Time)
			}
		}
	}
}

func TestMessagesThatNobodySendsOrTakesAreADeadlock(t *testing.T) {
	plans := buildAll(t, family{coll.AllGather, Ring, RingAllGather}, Place{Size: 3, Chunk: Unit})
	plans[1].Steps = nil
	g := Group{Size: 3, Build: func(rank int) Plan { return plans[rank] }}
	_, err := Play(g, Lengths{Bytes: 1}, flatCosts())
	rejected(t, err, "rank 0 never gets beyond step", "deadlock")
	half := across(2)
	g = Group{Size: 2, Build: func(rank int) Plan {
		p := half.Build(rank)
		if rank == 1 {
			p.Steps = nil
		}
		return p
	}}
	_, err = Play(g, Lengths{Bytes: 1}, flatCosts())
	rejected(t, err, "a message to rank 1 is not taken")
}

func TestWhatTakesTooLongIsNotCounted(t *testing.T) {
	c := flatCosts()
	for _, slow := range []Costs{
		{Links: []Link{{Latency: 1e3}}, Capacity: 1},
		{Links: []Link{{Byte: 1}}, Capacity: 1},
		{Links: c.Links, Reduce: 1, Capacity: 1},
		{Links: c.Links, Shared: []float64{1}, Route: func(_, _ int, via []int) []int { return append(via, 0) }, Capacity: 1},
	} {
		plans := ringOf(t, 4)
		_, err := Play(Group{Size: 4, Build: func(rank int) Plan { return plans[rank] }}, Lengths{Bytes: 1 << 20}, slow)
		rejected(t, err, "more than 38m", "femtoseconds")
	}
}
