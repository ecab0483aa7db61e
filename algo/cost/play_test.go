package cost

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/algo/plan"
	"sagecomm/algo/sendrecv"
	"sagecomm/internal/coll"
)

// hostCosts returns the costs of hosts whose ranks share an uplink and a downlink. Two hosts each share a switch.
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
		if !sendrecv.Turns(f.kind, f.name) {
			continue
		}
		for _, size := range []int{1, 2, 6, 9, 16} {
			for _, bytes := range []uint64{0, 1, 5*plan.Unit + 3, 40 * plan.Unit} {
				plans := buildAll(t, f, sendrecv.Place{Size: size, Chunk: 12 * plan.Unit})
				g := plan.Group{Size: size, Build: func(rank int) plan.SendRecvPlan { return plans[rank] }}
				want, err := Play(g, plan.Lengths{Bytes: bytes}, hostCosts(3, 6))
				require.NoError(t, err)
				g.Turned = true
				if got, err := Play(g, plan.Lengths{Bytes: bytes}, hostCosts(3, 6)); err != nil || got != want {
					t.Errorf("%v %s, %d ranks, %d bytes: %+v turned (%v), else %+v", f.kind, f.name, size, bytes, got, err, want)
				}
				if plan.OutputBlocks(f.kind) && f.kind != coll.AllToAll {
					blocks := make([]uint64, size)
					for i := range blocks {
						blocks[i] = bytes
					}
					if got, err := Play(g, plan.Lengths{Blocks: blocks}, hostCosts(3, 6)); err != nil || got != want {
						t.Errorf("%v %s, %d blocks of %d bytes: %+v (%v), want %+v", f.kind, f.name, size, bytes, got, err, want)
					}
				}
			}
		}
	}
}

// Plans that are prepared once can be played for any chunk and length, with the same result as plans built for them.
func TestPreparedPlansServeAllLengths(t *testing.T) {
	const width, hosts = 4, 3
	for _, f := range families {
		at := sendrecv.Place{Size: width * hosts, Root: 5, Chunk: plan.Unit}
		for h := range hosts {
			at.Hosts = append(at.Hosts, circle(h*width, width, at.Size))
		}
		group := func(chunk int) plan.Group {
			at := at
			at.Chunk = chunk
			plans := buildAll(t, f, at)
			return plan.Group{Size: at.Size, Build: func(rank int) plan.SendRecvPlan { return plans[rank] }, Turned: sendrecv.Turns(f.kind, f.name)}
		}
		prepared := Prepare(group(plan.Unit))
		for _, chunk := range []int{plan.Unit, 5 * plan.Unit, 100 * plan.Unit} {
			for _, bytes := range []uint64{0, 1, 40*plan.Unit + 3} {
				want, err := Play(group(chunk), plan.Lengths{Bytes: bytes}, hostCosts(width, hosts+1))
				require.NoError(t, err)
				if got, err := prepared.Play(chunk, bytes, hostCosts(width, hosts+1)); err != nil || got != want {
					t.Errorf("%v %s, %d bytes in chunks of %d: %+v (%v), want %+v", f.kind, f.name, bytes, chunk, got, err, want)
				}
			}
		}
	}
}

// across returns plans in which each rank of the first half sends to the rank as far into the second half.
func across(size int) plan.Group {
	return plan.Group{Size: size, Build: func(rank int) plan.SendRecvPlan {
		p := plan.SendRecvPlan{Algorithm: "across", Kind: coll.AllGather, Rank: rank, Size: size, Chunk: 1 << 20, Pieces: 1}
		if rank < size/2 {
			p.Steps = []plan.Step{{Op: plan.Send, Peer: rank + size/2,
				From: []plan.Region{{Space: plan.Input, Block: rank, Count: 1}}}}
		} else {
			p.Steps = []plan.Step{{Op: plan.Recv, Peer: rank - size/2,
				To: []plan.Region{{Space: plan.Output, Block: rank - size/2, Count: 1}}}}
		}
		return p
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
			// The first half of eight hosts is behind two switches; this row leaves switches out.
			costs.Route = func(from, to int, via []int) []int { return append(via, from, 8+to) }
		}
		got, err := Play(across(8), plan.Lengths{Bytes: n}, costs)
		if want := (Outcome{c.want, 1, n}); err != nil || got.Messages != want.Messages || got.Sent != want.Sent ||
			got.Time < want.Time || got.Time > want.Time+n/5 {
			t.Errorf("%s: %+v (%v), want %+v", c.name, got, err, want)
		}
	}
}

// The result does not depend on the order in which ranks are played, even where they meet on links.
func TestTheOrderOfPlayMakesNoDifference(t *testing.T) {
	const seed = 20261122
	rng := rand.New(rand.NewPCG(seed, 0))
	for _, f := range families {
		at := sendrecv.Place{Size: 24, Root: 5, Chunk: 8 * plan.Unit}
		for h := range 6 {
			at.Hosts = append(at.Hosts, circle(4*h, 4, 24))
		}
		plans := buildAll(t, f, at)
		g := plan.Group{Size: at.Size, Build: func(rank int) plan.SendRecvPlan { return plans[rank] }}
		want, err := Play(g, plan.Lengths{Bytes: 30 * plan.Unit}, hostCosts(4, 6))
		require.NoError(t, err)
		for range 5 {
			p := newPlay(Prepare(g), at.Chunk, plan.Lengths{Bytes: 30 * plan.Unit}, hostCosts(4, 6))
			rng.Shuffle(len(p.ready), func(i, j int) { p.ready[i], p.ready[j] = p.ready[j], p.ready[i] })
			if end, err := p.finish(); err != nil || time.Duration((end+999_999)/1_000_000) != want.Time {
				t.Errorf("%v %s, seed %d: %v fs (%v), want %v", f.kind, f.name, seed, end, err, want.Time)
			}
		}
	}
}

func TestMessagesThatNobodySendsOrTakesAreADeadlock(t *testing.T) {
	plans := buildAll(t, family{coll.AllGather, sendrecv.Ring}, sendrecv.Place{Size: 3, Chunk: plan.Unit})
	plans[1].Steps = nil
	g := plan.Group{Size: 3, Build: func(rank int) plan.SendRecvPlan { return plans[rank] }}
	_, err := Play(g, plan.Lengths{Bytes: 1}, flatCosts())
	rejected(t, err, "rank 0 never gets beyond step", "deadlock")
	half := across(2)
	g = plan.Group{Size: 2, Build: func(rank int) plan.SendRecvPlan {
		p := half.Build(rank)
		if rank == 1 {
			p.Steps = nil
		}
		return p
	}}
	_, err = Play(g, plan.Lengths{Bytes: 1}, flatCosts())
	rejected(t, err, "a message to rank 1 is not taken")
}

func TestPlaysThatTakeTooLongAreErrors(t *testing.T) {
	c := flatCosts()
	for _, slow := range []Costs{
		{Links: []Link{{Latency: 1e3}}, Capacity: 1},
		{Links: []Link{{Byte: 1}}, Capacity: 1},
		{Links: c.Links, Reduce: 1, Capacity: 1},
		{Links: c.Links, Shared: []float64{1}, Route: func(_, _ int, via []int) []int { return append(via, 0) }, Capacity: 1},
	} {
		plans := ringOf(t, 4)
		_, err := Play(plan.Group{Size: 4, Build: func(rank int) plan.SendRecvPlan { return plans[rank] }}, plan.Lengths{Bytes: 1 << 20}, slow)
		rejected(t, err, "more than 38m", "longest time")
	}
}
