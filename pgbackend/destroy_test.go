package pgbackend

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/coll"
)

// impatient sets how long Destroy waits for operations. What an earlier test has waited for in vain does not make that
// shorter.
func impatient(t *testing.T, d time.Duration) {
	t.Helper()
	p := Get()
	p.mu.Lock()
	p.inVain = time.Time{}
	p.mu.Unlock()
	before := destroyTimeout
	destroyTimeout = d
	t.Cleanup(func() { destroyTimeout = before })
}

// Destroy waits for the operations that all ranks have issued, in whatever order ranks and groups are destroyed.
func TestDestroyWithWorksInFlight(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for round := range 6 {
		worlds := []*world{newWorld(t, 3), newWorld(t, 3), newWorld(t, 3)}
		order := make([][]int, 3)
		for rank := range order {
			order[rank] = random.Perm(3)
		}
		ranksOf(t, 3, func(rank int) error {
			var results [][]byte
			for _, w := range worlds {
				b := contributionBytes(coll.Int32, coll.Sum, rank, 3, 70_000)
				work, f := w.groups[rank].Issue(coll.Op{Kind: coll.AllReduce, Type: coll.Int32, Async: true}, one(b), one(b))
				if f != nil {
					return f
				}
				defer work.Release()
				results = append(results, b)
				tag := coll.Op{Kind: coll.Recv, Root: (rank + 2) % 3, Async: true, Type: coll.Uint8}
				got := make([]byte, 100_000)
				recv, f := w.groups[rank].Issue(tag, nil, one(got))
				if f != nil {
					return f
				}
				defer recv.Release()
				tag.Kind, tag.Root = coll.Send, (rank+1)%3
				send, f := w.groups[rank].Issue(tag, one(make([]byte, 100_000)), nil)
				if f != nil {
					return f
				}
				defer send.Release()
			}
			for _, i := range order[rank] {
				if err := worlds[i].groups[rank].Destroy(); err != nil {
					return err
				}
			}
			want := reducedBytes(coll.Int32, coll.Sum, 3, 70_000)
			for i, b := range results {
				if !bytes.Equal(b, want) {
					return fmt.Errorf("round %d, group %d: destroyed before its operation was complete", round, i)
				}
			}
			return nil
		})
	}
}

// An operation that a peer never joins fails when its rank destroys the group. The peers' errors name that rank.
func TestDestroyOfWhatNobodyJoins(t *testing.T) {
	impatient(t, 50*time.Millisecond)
	w := newWorld(t, 3)
	w.each(func(g *Group) error {
		if g.rank == 2 {
			return nil
		}
		work, f := sumAsync(g, 10)
		if f != nil {
			return f
		}
		recv, f := g.Issue(coll.Op{Kind: coll.Recv, Root: 2, Async: true, Type: coll.Uint8}, nil, one(make([]byte, 1)))
		if f != nil {
			return f
		}
		if err := g.Destroy(); err != nil {
			return err
		}
		for _, w := range []interface {
			Wait(time.Duration) (bool, *coll.Failure)
		}{work, recv} {
			done, f := w.Wait(0)
			if !done {
				return fmt.Errorf("not complete after Destroy")
			}
			if err := expect(f, coll.Aborted, "; wait for all works before destroying the group"); err != nil {
				return err
			}
		}
		return nil
	})
	// The first rank may succeed, if the others had published enough before they left.
	f := sum(w.groups[2], 10)
	if f == nil {
		f = sum(w.groups[2], 10)
	}
	if err := expect(f, coll.PeerFailure, "left"); err != nil {
		t.Error(err)
	}
}

func TestDestroyTwiceAndUseAfterIt(t *testing.T) {
	w := newWorld(t, 2)
	w.each(func(g *Group) error { return asError(sum(g, 10)) })
	w.each(func(g *Group) error {
		if err := g.Destroy(); err != nil {
			return err
		}
		if err := g.Destroy(); err == nil {
			return fmt.Errorf("a second Destroy succeeded")
		}
		return nil
	})
	w.each(func(g *Group) error {
		for _, op := range []coll.Op{{Kind: coll.Barrier}, {Kind: coll.Barrier, Async: true}, {Kind: coll.Send, Root: 1}, {Kind: coll.Recv, Root: coll.AnySource}} {
			if _, f := g.Issue(op, nil, nil); f == nil || f.Status != coll.Invalid {
				return fmt.Errorf("%v on a destroyed group: %v", op.Kind, f)
			}
		}
		if Get().Group(g.Handle()) != nil {
			return fmt.Errorf("the handle is still good")
		}
		g.Abort("late")
		if _, err := g.Stats(); err == nil {
			return fmt.Errorf("there are statistics of a destroyed group")
		}
		if err := g.SetTimeout(time.Second); err == nil {
			return fmt.Errorf("a destroyed group takes a timeout")
		}
		return nil
	})
}

// All memory of groups is freed when the last rank has left: shared blocks, large slots and fifos.
func TestDestroyFreesMemory(t *testing.T) {
	before := inUse(t)
	for range 3 {
		w := newWorld(t, 4)
		for i := range 40 { // more than the list of recorders keeps of one group
			w.groups[1].Describe(fmt.Sprint("name ", i))
		}
		w.each(func(g *Group) error {
			if f := sum(g, 100_000); f != nil { // large slots
				return f
			}
			op := coll.Op{Kind: coll.Send, Root: (g.rank + 1) % 4, Async: true, Type: coll.Uint8} // fifos
			send, f := g.Issue(op, one(make([]byte, 100)), nil)
			if f != nil {
				return f
			}
			defer send.Release()
			op.Kind, op.Root, op.Async = coll.Recv, (g.rank+3)%4, false
			_, f = g.Issue(op, nil, one(make([]byte, 100)))
			return asError(f)
		})
		if inUse(t) <= before {
			t.Fatal("four groups take no memory")
		}
		w.destroy()
		w.groups[1].Describe("too late")
		if before == 0 {
			before = 4096 // the engine's bell stays
		}
		if now := inUse(t); now != before {
			t.Fatalf("%d bytes in use after all groups were destroyed, %d before they were made", now, before)
		}
	}
}

// Calls of any kind may be under way while another thread destroys the group: they succeed or are refused.
func TestDestroyAgainstEverything(t *testing.T) {
	impatient(t, 5*time.Millisecond)
	for range 25 {
		w := newWorld(t, 2)
		w.each(func(g *Group) error {
			var others sync.WaitGroup
			enough := make(chan struct{})
			again := func(f func()) {
				others.Go(func() {
					for {
						select {
						case <-enough:
							return
						default:
							f()
						}
					}
				})
			}
			lonely := func(op coll.Op, in, out [][]byte) func() {
				return func() {
					work, f := g.Issue(op, in, out)
					if f == nil {
						work.Wait(50 * time.Microsecond)
						work.Release()
					}
				}
			}
			if g.rank == 0 { // the other rank takes part in none of this
				again(lonely(coll.Op{Kind: coll.Barrier, Async: true}, nil, nil))
				again(lonely(coll.Op{Kind: coll.Recv, Root: 1, Async: true, Type: coll.Uint8}, nil, one(make([]byte, 8))))
				again(lonely(coll.Op{Kind: coll.Send, Root: 1, Tag: 1, Async: true, Type: coll.Uint8}, one(make([]byte, 100)), nil))
			}
			again(func() { _, _ = g.Stats() })
			again(func() { _ = g.SetTimeout(time.Minute) })
			again(func() { _ = g.run.Error() })
			err := g.Destroy()
			again(func() { g.Abort("too late") })
			close(enough)
			others.Wait()
			return err
		})
	}
}

// The memory of a group stays while a call is inside, because the call would touch the memory of another group
// otherwise.
func TestDestroyWaitsForCallsInside(t *testing.T) {
	g := newWorld(t, 1).groups[0]
	if !g.life.acquire() {
		t.Fatal("a group that is new lets no call in")
	}
	destroyed := make(chan error, 1)
	go func() { destroyed <- g.Destroy() }()
	select {
	case err := <-destroyed:
		t.Fatalf("destroyed under a call: %v", err)
	case <-time.After(30 * time.Millisecond): // a Destroy that does not wait takes about one
	}
	if f := g.run.FirstCause(); f != nil { // reads the shared block
		t.Error(f)
	}
	if g.life.acquire() {
		t.Error("another call got in")
	}
	g.life.release()
	if err := <-destroyed; err != nil {
		t.Error(err)
	}
}

// So does the memory of peers: they learn that this rank does not touch it any more when the last call has returned.
func TestDestroyKeepsTheMemoryOfPeersForCallsInside(t *testing.T) {
	w := newWorld(t, 2)
	first, second := w.groups[0], w.groups[1]
	require.True(t, first.life.acquire())
	require.NoError(t, second.Destroy())
	destroyed := make(chan error, 1)
	go func() { destroyed <- first.Destroy() }()
	for end := time.Now().Add(hangAfter); first.life.now() != leaving; runtime.Gosched() {
		require.False(t, time.Now().After(end), "it is %v", first.life.now())
	}
	require.False(t, second.peersLeft())
	first.life.release()
	require.NoError(t, <-destroyed)
	require.True(t, second.peersLeft())
}

// Shutdown destroys all groups.
func TestShutdown(t *testing.T) {
	a, b := newWorld(t, 2), newWorld(t, 3)
	a.each(func(g *Group) error { return asError(sum(g, 10)) })
	Get().Shutdown()
	for _, g := range append(a.groups, b.groups...) {
		if err := g.Destroy(); err == nil {
			t.Errorf("rank %d of %d was still there", g.rank, g.size)
		}
	}
}

// Of groups that are destroyed one after the other, only the first waits for peers for the whole limit.
func TestDestroysShareTheirTimeout(t *testing.T) {
	impatient(t, time.Second)
	var worlds []*world
	for range 6 {
		w := newWorld(t, 2)
		work, f := sumAsync(w.groups[0], 10)
		if f != nil {
			t.Fatal(f)
		}
		defer work.Release()
		worlds = append(worlds, w)
	}
	begin := time.Now()
	for _, w := range worlds {
		if err := w.groups[0].Destroy(); err != nil {
			t.Error(err)
		}
	}
	measure(t, "destroying 6 groups, about 1 s,", time.Since(begin), 4*time.Second)
}

// The end of a process whose rank has left does not drop p2p operations between other ranks.
func TestDestroyFinishesP2PBetweenOthers(t *testing.T) {
	for _, ended := range []bool{false, true} {
		w := newWorld(t, 3)
		w.each(func(g *Group) error { return asError(sum(g, 10)) })
		require.NoError(t, w.groups[2].Destroy())
		if ended {
			w.groups[0].peerDied(2)
			w.groups[1].peerDied(2)
		}
		leaving := make(chan struct{})
		ranksOf(t, 2, func(rank int) error {
			g, b := w.groups[rank], make([]byte, 1<<20)
			if rank == 1 {
				<-leaving
				return asError(p2p(g, coll.Recv, 0, 0, b))
			}
			work, f := g.Issue(coll.Op{Kind: coll.Send, Type: coll.Uint8, Root: 1, Async: true}, one(b), nil)
			if f != nil {
				return f
			}
			defer work.Release()
			close(leaving)
			if err := g.Destroy(); err != nil {
				return err
			}
			return asError(finish(work))
		})
	}
}

// Peers have left when they have destroyed the group or have died, and it was destroyed here. Whoever asks finds that
// out when the group's memory is gone, too.
func TestPeersThatHaveLeft(t *testing.T) {
	w := newWorld(t, 2)
	first, second := w.groups[0], w.groups[1]
	require.False(t, first.peersLeft())
	require.NoError(t, first.Destroy())
	require.False(t, first.peersLeft(), "the other rank has not")
	require.False(t, second.peersLeft(), "it was not destroyed here")
	require.NoError(t, second.Destroy())
	require.True(t, first.peersLeft())
	require.True(t, second.peersLeft())
}
