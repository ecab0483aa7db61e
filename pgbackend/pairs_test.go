package pgbackend

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
)

// met returns the ranks of other hosts with which a rank has made pairs, in their order.
func (g *Group) met() []int {
	m := &g.links.met
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(slices.Values(m.ranks))
}

// peersOf returns the ranks with which a rank exchanges messages in a collective of n bytes.
func (g *Group) peersOf(kind coll.Kind, root, n int) (list []int, err error) {
	if kind == coll.AllToAll || kind == coll.Barrier {
		n = 0 // by which these are chosen
	}
	class := g.selector.Choose(kind, uint64(n))
	p, err := g.selector.SendRecvPlan(kind, class, g.rank, root)
	for _, s := range p.Steps {
		if s.Op == plan.Send || s.Op == plan.Recv || s.Op == plan.RecvReduce {
			list = append(list, s.Peer)
		}
	}
	return list, err
}

// A group makes the pairs that its plans need, and no other one: none before its first operation.
func TestPairsThatPlansNeed(t *testing.T) {
	const hosts = "0123456789abcdef"
	w := newHostsWorld(t, hosts)
	wanted := make([]map[int]bool, len(hosts))
	for rank, g := range w.groups {
		wanted[rank] = map[int]bool{}
		require.Empty(t, g.met(), rank)
	}
	check := func(what string) {
		for rank, g := range w.groups {
			var ranks []int
			for peer := range wanted[rank] {
				ranks = append(ranks, peer)
			}
			require.Equal(t, slices.Sorted(slices.Values(ranks)), g.met(), "rank %d behind %s", rank, what)
		}
	}
	collectives := func(list ...transfer) {
		for _, x := range list {
			n := x.length(0, 0)
			for rank, g := range w.groups {
				peers, err := g.peersOf(x.kind, x.root, n)
				require.NoError(t, err)
				for _, peer := range peers {
					wanted[rank][peer] = true
				}
			}
			w.each(func(g *Group) error { return g.try(x, coll.Op{}) })
			check(fmt.Sprintf("%v of %d bytes", x.kind, n))
		}
	}
	collectives(transfer{coll.AllReduce, 0, 0, equalLength(8)}, transfer{coll.Barrier, 0, 1, equalLength(0)})
	require.NotContains(t, wanted[0], 11)
	require.Less(t, len(wanted[0]), len(hosts)-1)
	buffer := make([]byte, 100_000)
	send := make(chan error, 1)
	go func() {
		send <- call(w.groups[0], coll.Op{Kind: coll.Send, Type: coll.Uint8, Root: 11}, one(buffer), nil)
	}()
	require.NoError(t, call(w.groups[11], coll.Op{Kind: coll.Recv, Type: coll.Uint8, Root: 0}, nil, one(make([]byte, len(buffer)))))
	require.NoError(t, <-send)
	wanted[0][11], wanted[11][0] = true, true
	check("send and recv")
	collectives(transfer{coll.AllReduce, 0, 2, equalLength(100_000)}, transfer{coll.Broadcast, 3, 3, equalLength(1000)},
		transfer{coll.ReduceScatter, 0, 4, equalLength(1000)}, transfer{coll.AllGather, 0, 5, equalLength(1000)},
		transfer{coll.AllToAll, 0, 7, equalLength(10)})
}

// Ranks hear of a rank that leaves, and of one that dies, without a pair.
func TestGoodbyesAndDeathsWithoutPairs(t *testing.T) {
	w := newHostsWorld(t, "01234")
	require.NoError(t, w.groups[4].Destroy())
	for _, g := range w.groups[:4] {
		require.Eventually(t, func() bool {
			_, left := g.run.LastCall(4)
			return left
		}, opTimeout, time.Millisecond)
	}
	err := call(w.groups[0], coll.Op{Kind: coll.Recv, Type: coll.Uint8, Root: 4}, nil, one(make([]byte, 8)))
	require.ErrorContains(t, err, "rank 4")
	w = newHostsWorld(t, "0123")
	cutOff(w, 3)
	for _, g := range w.groups[:3] {
		require.Eventually(t, func() bool { return g.failed() != nil }, opTimeout, time.Millisecond)
		require.Equal(t, coll.PeerFailure, g.failed().Status)
		require.Equal(t, 3, g.failed().Rank)
		require.Empty(t, g.met())
	}
}
