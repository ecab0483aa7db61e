package cost

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/algo/plan"
	"sagecomm/algo/sendrecv"
	"sagecomm/internal/coll"
)

// twoClasses returns costs of the order of shared memory inside hosts and of a network between them.
func twoClasses(ranksPerHost int) Costs {
	c := channelCosts()
	c.Links = append(c.Links, Link{Latency: 25e-6, Byte: 320e-12, Step: 3e-6})
	c.RanksPerHost = ranksPerHost
	c.Class = func(from, to int) int {
		if from/ranksPerHost == to/ranksPerHost {
			return 0
		}
		return 1
	}
	return c
}

// alikeGroup returns a group of hosts, whose chunk has pieces of equal length, and its quotient.
func alikeGroup(t *testing.T, f family, hosts, width int) (plan.Group, *quotient) {
	t.Helper()
	at := sendrecv.Place{Size: hosts * width}
	if f.name == sendrecv.Hierarchical {
		for h := range hosts {
			at.Hosts = append(at.Hosts, circle(h*width, width, at.Size))
		}
	}
	g, err := sendrecv.Plans(f.kind, f.name, at)
	require.NoError(t, err)
	at.Chunk = 4 * g.Build(0).Pieces * plan.Unit
	g, err = sendrecv.Plans(f.kind, f.name, at)
	require.NoError(t, err)
	return g, quotientOf(g, twoClasses(width))
}

// outcome is what a play of some ranks comes to, before times are rounded.
type outcome struct {
	time     Femto
	messages int
	sent     uint64
}

// played returns what all ranks come to and what the players of a quotient come to.
func played(t *testing.T, g plan.Group, q *quotient, bytes uint64, c Costs) (all, few outcome) {
	t.Helper()
	of := func(q *quotient) (o outcome) {
		prepared, _ := prepareUpTo(1<<30, g, q, false)
		p := newPlay(prepared, prepared.chunk, plan.Lengths{Bytes: bytes}, c)
		end, err := p.finish()
		require.NoError(t, err)
		o.time = end
		for i := range p.players {
			o.messages, o.sent = max(o.messages, p.players[i].messages), max(o.sent, p.players[i].sent)
		}
		return o
	}
	return of(nil), of(q)
}

// Ranks at the same place of their hosts are alike under a rotation of hosts, in hypercubes of powers of two all ranks
// are, and hierarchical plans are alike along their levels. A play of one rank for all that are alike takes exactly as
// long as the play of all, where pieces are of equal length, and else as long within 5 %.
func TestPlayersStandForAllRanks(t *testing.T) {
	seen := map[family]bool{}
	for _, width := range []int{1, 2, 8} {
		for _, hosts := range []int{8, 12, 25, 64} {
			if testing.Short() && hosts*width > 100 { // many ranks take seconds
				continue
			}
			for _, f := range families {
				g, q := alikeGroup(t, f, hosts, width)
				if q == nil {
					continue
				}
				seen[f] = true
				c, chunk := twoClasses(width), uint64(g.Build(0).Chunk)
				for _, bytes := range []uint64{0, chunk / 4, chunk, 3 * chunk} {
					if all, few := played(t, g, q, bytes, c); all != few {
						t.Errorf("%v %s, %d hosts of %d, %d bytes: %+v by %d players, %+v by all", f.kind, f.name, hosts, width,
							bytes, few, len(q.players), all)
					}
				}
				for _, bytes := range []uint64{1, 1000, chunk - 3*plan.Unit} {
					all, few := played(t, g, q, bytes, c)
					if few.time < all.time/100*95 || few.time > all.time/100*105 {
						t.Errorf("%v %s, %d hosts of %d, %d bytes: %v by %d players, %v by all", f.kind, f.name, hosts, width, bytes,
							few.time, len(q.players), all.time)
					}
				}
			}
		}
	}
	for _, f := range families {
		g, err := sendrecv.Plans(f.kind, f.name, sendrecv.Place{Size: 16, Hosts: [][]int{circle(0, 8, 16), circle(8, 8, 16)}})
		require.NoError(t, err)
		if g.Digits != nil && !seen[f] {
			t.Errorf("%v %s has ranks that are alike, and was not compared", f.kind, f.name)
		}
	}
}

func TestPlayersAreFew(t *testing.T) {
	for _, c := range []struct {
		of                    family
		hosts, width, players int
	}{
		{family{coll.AllGather, sendrecv.Ring}, 512, 8, 8},
		{family{coll.AllGather, sendrecv.Ring}, 63, 1, 1},
		{family{coll.AllReduce, sendrecv.RecursiveDoubling}, 512, 8, 1},
		{family{coll.AllReduce, sendrecv.Torus}, 512, 8, 8},   // 64 x 64: steps of 8 along a row, of 1 along a column
		{family{coll.AllReduce, sendrecv.Torus}, 123, 8, 328}, // 41 x 24: steps of 8 along a column
		{family{coll.AllReduce, sendrecv.Hierarchical}, 512, 8, 1},
		{family{coll.AllReduce, sendrecv.Hierarchical}, 500, 8, 500},
		{family{coll.ReduceScatter, sendrecv.Hierarchical}, 500, 8, 1},
	} {
		_, f := alikeGroup(t, c.of, c.hosts, c.width)
		require.NotNil(t, f)
		if len(f.players) != c.players {
			t.Errorf("%v %s, %d hosts of %d: %d players, expected %d", c.of.kind, c.of.name, c.hosts, c.width, len(f.players),
				c.players)
		}
	}
	if _, f := alikeGroup(t, family{coll.Broadcast, sendrecv.Binomial}, 16, 8); f != nil {
		t.Error("the ranks of a tree are alike")
	}
	// Ranks of hosts whose places are not known are not taken for one another.
	g, _ := alikeGroup(t, family{coll.AllGather, sendrecv.Ring}, 16, 8)
	c := twoClasses(8)
	c.RanksPerHost = 0
	if quotientOf(g, c) != nil {
		t.Error("one rank stands for others although hosts may differ")
	}
}

// One player for all ranks of a ring would take the link to the next host for every link: the comparison above notices
// players that are too few.
func TestTooFewPlayersAreNoticed(t *testing.T) {
	g, f := alikeGroup(t, family{coll.AllGather, sendrecv.Ring}, 8, 8)
	f.digits[0].step, f.players, f.player = 1, []int{0}, make([]int32, g.Size)
	if all, few := played(t, g, f, uint64(g.Build(0).Chunk), twoClasses(8)); all == few {
		t.Errorf("%+v by one player and by all ranks", few)
	}
}

// The longest path of an algorithm that is listed as logarithmic has few messages, each of which keeps a rank busy at both
// ends.
func TestLogarithmicPlansHaveFewSteps(t *testing.T) {
	const size, step = 64, 1e-6
	at := sendrecv.Place{Size: size}
	for h := range size / 8 {
		at.Hosts = append(at.Hosts, circle(8*h, 8, size))
	}
	most := 12 * time.Duration(lg(size)) * time.Microsecond
	for _, f := range families {
		g, err := sendrecv.Plans(f.kind, f.name, at)
		require.NoError(t, err)
		got, err := Price(g, plan.Lengths{}, Costs{Links: []Link{{Step: step}}, Capacity: plan.ChannelPlaces})
		require.NoError(t, err)
		if few := sendrecv.Logarithmic(f.kind, f.name); few && got > most ||
			!few && got <= most && (f.name == sendrecv.Ring || f.name == sendrecv.Chain) {
			t.Errorf("%v %s among %d ranks takes steps of %v; listed as logarithmic: %t", f.kind, f.name, size, got, few)
		}
	}
}

// Large groups have prices at the cost of a few ranks, and pricers that share a bound stop at it.
func TestWorkOfPrices(t *testing.T) {
	g, f := alikeGroup(t, family{coll.AllGather, sendrecv.Ring}, 128, 8)
	c := twoClasses(8)
	r := NewPricer(g, c)
	got := r.Price(uint64(g.Build(0).Chunk))
	if all, _ := played(t, g, f, uint64(g.Build(0).Chunk), c); got != all.time.Duration() {
		t.Errorf("%v, all ranks take %v", got, all.time.Duration())
	}
	if r.Work() > 100_000 {
		t.Errorf("the price took the work of %d steps, expected some for 8 ranks", r.Work())
	}
	left := r.Work() / 2
	one, other := NewPricer(g, c), NewPricer(g, c)
	one.Within(&left)
	other.Within(&left)
	if a, b := one.Price(1<<20), other.Price(1<<20); a != Unpriced || b != Unpriced {
		t.Errorf("prices are %v and %v, beyond all work", a, b)
	}
	if left < 0 {
		t.Errorf("%d is left", left)
	}
	// Trees are short for most ranks, though not for the root; a ring without equal hosts is long for all.
	tree, _ := alikeGroup(t, family{coll.AllReduce, sendrecv.Binomial}, 512, 8)
	c.RanksPerHost = 0
	if TooLong(tree, c) || !TooLong(g, c) {
		t.Errorf("too long: the tree %t, the ring %t", TooLong(tree, c), TooLong(g, c))
	}
	if NewPricer(tree, c).Price(64) >= time.Second || NewPricer(g, c).Price(64) != Unpriced {
		t.Error("the tree has no price, or the ring has one")
	}
}
