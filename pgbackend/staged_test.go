package pgbackend

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/coll"
	"sagecomm/internal/engine/staged"
	"sagecomm/internal/runner"
	"sagecomm/tests/quick"
)

// useNewPool gives the process a pool of its own for a test, and returns it.
func useNewPool(t *testing.T) *staged.Pool {
	p := Get()
	before := p.staging
	t.Cleanup(func() { p.staging = before })
	p.staging = staged.NewPool()
	return p.staging
}

// exchange is one call on one rank, with its buffers on the host.
type exchange struct {
	op      coll.Op
	in, out []byte // out is nil where there is none
	inPlace bool   // in and out are the same memory
}

// exchanges returns a call of every kind with blocks of count elements.
func exchanges(rank, n, count, root int) []exchange {
	sum := coll.Op{Type: coll.Float32, Reduce: coll.Sum, Root: root}
	of := func(kind coll.Kind) coll.Op {
		op := sum
		op.Kind = kind
		return op
	}
	mine := contributionBytes(coll.Float32, coll.Sum, rank, n, count)
	all := contributionBytes(coll.Float32, coll.Sum, rank, n, n*count)
	block, blocks := func() []byte { return make([]byte, 4*count) }, func() []byte { return make([]byte, 4*n*count) }
	list := []exchange{
		{of(coll.AllReduce), mine, block(), false},
		{of(coll.AllReduce), bytes.Clone(mine), nil, true},
		{of(coll.AllGather), mine, blocks(), false},
		{of(coll.ReduceScatter), all, block(), false},
		{of(coll.AllToAll), all, blocks(), false},
		{of(coll.Barrier), nil, nil, false},
	}
	if rank == root {
		return append(list, exchange{of(coll.Broadcast), bytes.Clone(mine), nil, true}, exchange{of(coll.Reduce), mine, block(), false},
			exchange{of(coll.Gather), mine, blocks(), false}, exchange{of(coll.Scatter), all, block(), false})
	}
	return append(list, exchange{of(coll.Broadcast), nil, block(), false}, exchange{of(coll.Reduce), mine, nil, false},
		exchange{of(coll.Gather), mine, nil, false}, exchange{of(coll.Scatter), nil, block(), false})
}

// buffers returns the operands as segments.
func (e exchange) buffers() (in, out [][]byte) {
	if e.in != nil {
		in = one(e.in)
	}
	switch {
	case e.inPlace:
		out = in
	case e.out != nil:
		out = one(e.out)
	}
	return in, out
}

func (e exchange) result() []byte {
	if e.inPlace {
		return e.in
	}
	return e.out
}

// Every collective on a device gives the bits that it gives on the host, in whatever order the streams run, with
// several operations under way.
func TestStagedCollectives(t *testing.T) {
	seeds := uint64(6)
	if testing.Short() {
		seeds = 2
	}
	if quick.Only() {
		seeds = 1
	}
	onBothKinds(t, func(t *testing.T, waits bool) {
		for _, n := range []int{1, 2, 3} {
			for seed := range seeds {
				t.Run(fmt.Sprintf("%d ranks, seed %d", n, seed), func(t *testing.T) {
					useNewPool(t)
					devices := fakeDevices(t, n, seed, waits)
					w := newWorld(t, n)
					w.each(func(g *Group) error { return stagedAsOnHost(g, devices[g.rank], seed) })
				})
			}
		}
	})
}

func stagedAsOnHost(g *Group, d *fakeDevice, seed uint64) error {
	random := rand.New(rand.NewPCG(seed, 2)) // the same on all ranks
	var list []exchange
	for _, count := range []int{0, 1, 1000, 70_000, 300_000 + random.IntN(1000)} {
		list = append(list, exchanges(g.rank, g.size, count, random.IntN(g.size))...)
	}
	random.Shuffle(len(list), func(i, k int) { list[i], list[k] = list[k], list[i] })
	works, results := make([]deviceWork, len(list)), make([][]byte, len(list))
	for i, e := range list {
		onDevice := e
		if e.in != nil {
			onDevice.in = d.buffer(len(e.in))
			d.fill(onDevice.in, e.in)
		}
		if e.out != nil {
			onDevice.out = d.buffer(len(e.out))
		}
		results[i] = onDevice.result()
		in, out := onDevice.buffers()
		var f *coll.Failure
		if works[i], f = issueOn(g, d, e.op, in, out); f != nil {
			return f
		}
		if i%3 == 2 {
			for k := i - 2; k <= i; k++ {
				if f := works[k].finish(); f != nil {
					return f
				}
			}
		}
	}
	for _, w := range works[len(list)-len(list)%3:] {
		if f := w.finish(); f != nil {
			return f
		}
	}
	for i, e := range list {
		e.in = bytes.Clone(e.in) // other operations have the same input
		in, out := e.buffers()
		if _, f := g.Issue(e.op, in, out); f != nil {
			return f
		}
		if !bytes.Equal(results[i], e.result()) {
			return fmt.Errorf("operation %d, %v of %d bytes: the device has other bits than the host", i, e.op.Kind, len(e.result()))
		}
	}
	return nil
}

// lateSum issues a sum over two ranks, of which rank 0 holds its stream.
func lateSum(g *Group, d *fakeDevice) (late deviceWork, b []byte, f *coll.Failure) {
	b = d.buffer(4000)
	d.hold(g.rank == 0)
	d.fill(b, contributionBytes(coll.Float32, coll.Sum, g.rank, 2, 1000))
	late, f = issueOn(g, d, coll.Op{Kind: coll.AllReduce, Type: coll.Float32}, one(b), one(b))
	return late, b, f
}

// A stream that is late holds up neither operations on the host nor those of another group, and keeps its result.
func TestLateStream(t *testing.T) {
	onBothKinds(t, func(t *testing.T, waits bool) {
		useNewPool(t)
		devices := fakeDevices(t, 2, 1, waits)
		w, other := newWorld(t, 2), newWorld(t, 2)
		w.each(func(g *Group) error {
			d := devices[g.rank]
			late, b, f := lateSum(g, d)
			if f != nil {
				return f
			}
			for range 100 {
				if f := sum(g, 100); f != nil {
					return f
				}
				if f := sum(other.groups[g.rank], 100); f != nil {
					return f
				}
			}
			if done, f := late.Wait(0); done {
				return fmt.Errorf("complete although the stream of a rank is held: %v", f)
			}
			if f := sum(g, 1); f != nil { // both ranks have looked
				return f
			}
			d.hold(false)
			if f := late.finish(); f != nil {
				return f
			}
			if !bytes.Equal(b, reducedBytes(coll.Float32, coll.Sum, 2, 1000)) {
				return fmt.Errorf("the sum is wrong")
			}
			return nil
		})
	})
}

// The pinned memory and the streams of a process are used again, by later groups too.
func TestStagingIsUsedAgain(t *testing.T) {
	onBothKinds(t, func(t *testing.T, waits bool) {
		useNewPool(t)
		devices := fakeDevices(t, 2, 3, waits)
		for range 3 {
			w := newWorld(t, 2)
			w.each(func(g *Group) error {
				d := devices[g.rank]
				for i := range 20 {
					b := d.buffer(4000 + 4*i)
					work, f := issueOn(g, d, coll.Op{Kind: coll.AllReduce, Type: coll.Int32}, one(b), one(b))
					if f == nil {
						f = work.finish()
					}
					if f != nil {
						return f
					}
				}
				return nil
			})
			w.destroy()
			Get().sweep()
		}
		for rank, d := range devices {
			d.mu.Lock()
			// Both ranks are in this process and share its pool, so each may take what the other one has given back.
			if pins, streams := d.pins, len(d.streams)-1; pins > 3 || streams > 2*3 {
				t.Errorf("rank %d has pinned memory %d times and made %d streams", rank, pins, streams)
			}
			d.mu.Unlock()
		}
	})
}

// A group that fails while a stream is late ends the operation. Its pinned memory and its streams, which wait for the
// late one, are not used again before the device is done.
func TestFailureWhileStreamIsLate(t *testing.T) {
	onBothKinds(t, func(t *testing.T, waits bool) {
		useNewPool(t)
		devices := fakeDevices(t, 2, 4, waits)
		w := newWorld(t, 2)
		w.each(func(g *Group) error {
			d := devices[g.rank]
			d.hold(true)
			b := d.buffer(100_000)
			work, f := issueOn(g, d, coll.Op{Kind: coll.AllReduce, Type: coll.Int32}, one(b), one(b))
			if f != nil {
				return f
			}
			if f := sum(g, 1); f != nil { // both ranks have issued it
				return f
			}
			if g.rank == 0 {
				g.Abort("the test")
			}
			if err := expect(work.finish(), coll.Aborted, "the test"); err != nil {
				return err
			}
			_, f = issueOn(g, d, coll.Op{Kind: coll.AllReduce, Type: coll.Int32}, one(b), one(b))
			return expect(f, coll.Aborted, "the test")
		})
		w.destroy()
		second := newWorld(t, 2)
		second.each(func(g *Group) error {
			d := devices[g.rank]
			b := d.buffer(100_000)
			work, f := issueOn(g, d, coll.Op{Kind: coll.AllReduce, Type: coll.Int32}, one(b), one(b))
			if f != nil {
				return f
			}
			d.mu.Lock()
			pins, made := d.pins, len(d.streams)-1
			d.mu.Unlock()
			if f := sum(g, 1); f != nil { // the ranks share a pool, and the other device is held until both have looked
				return f
			}
			d.hold(false)
			f = work.finish()
			if pins != 2 || made != 4 {
				return fmt.Errorf("pinned memory was allocated %d times and %d streams were made for two groups of a device that is held", pins, made)
			}
			return asError(f)
		})
	})
}

// An error of the device takes the group down with its text, whichever method it comes from, and peers learn of it. No
// stream waits for an operation that was queued in part, or queued but not issued.
func TestDeviceErrors(t *testing.T) {
	for _, method := range []string{"NewStream", "Pin", "Fork", "CopyIn", "WriteValue", "JoinLater", "WaitValue", "CopyOut", "Join"} {
		t.Run(method, func(t *testing.T) {
			useNewPool(t)
			devices := fakeDevices(t, 2, 5, method == "WaitValue" || method == "CopyOut" || method == "Join")
			devices[1].failing = method
			w := newWorld(t, 2)
			w.each(func(g *Group) error {
				d := devices[g.rank]
				b := d.buffer(4000)
				work, f := issueOn(g, d, coll.Op{Kind: coll.AllReduce, Type: coll.Int32}, one(b), one(b))
				if f == nil {
					f = work.finish()
				}
				if err := expect(f, coll.System, method+" failed", "rank 1"); err != nil {
					return err
				}
				d.drain()
				return nil
			})
		})
	}
}

// What the library does not do on devices is refused by name, and the group goes on.
func TestRefusedOnDevices(t *testing.T) {
	w := newWorld(t, 2)
	w.each(func(g *Group) error {
		b := make([]byte, 64)
		on := func(kind coll.Kind) coll.Op {
			return coll.Op{Kind: kind, Type: coll.Int32, Root: 1 - g.rank, Device: coll.Device{Type: coll.PrivateUse1, Index: g.rank}}
		}
		if _, f := g.Issue(on(coll.AllReduce), one(b), one(b)); f == nil || !strings.Contains(f.Message, "sagecomm_op.bridge") {
			return fmt.Errorf("all_reduce without a bridge: %v", f)
		}
		if _, f := g.Issue(on(coll.Send), one(b), nil); f == nil || !strings.Contains(f.Message, "sagecomm_op.bridge") {
			return fmt.Errorf("send without a bridge: %v", f)
		}
		beside := coll.Op{Kind: coll.AllReduce, Type: coll.Int32}
		calls := []runner.Coalesced{{Op: on(coll.AllReduce), In: one(b[:32]), Out: one(b[:32])}, {Op: beside, In: one(b[32:]), Out: one(b[32:])}}
		if _, f := g.IssueCoalesced(calls); f == nil || !strings.Contains(f.Message, "operation 1 of one coalesced call, counted from 0, is on cpu, and those before it are on privateuseone") {
			return fmt.Errorf("on two devices: %v", f)
		}
		calls[1] = runner.Coalesced{Op: on(coll.Broadcast), In: one(b[16:48]), Out: one(b[16:48])}
		if _, f := g.IssueCoalesced(calls); f == nil || !strings.Contains(f.Message, "operations 0 and 1 of one coalesced call, counted from 0, share memory") {
			return fmt.Errorf("shared memory: %v", f)
		}
		return asError(sum(g, 10))
	})
}

// The timeout of an operation on a device begins when the stream of the rank has reached it.
func TestTimeoutBeginsWithTheInput(t *testing.T) {
	waitingOnBothKinds(t, func(t *testing.T, waits bool) {
		useNewPool(t)
		devices := fakeDevices(t, 2, 6, waits)
		w := newWorld(t, 2)
		require.NoError(t, w.groups[0].SetTimeout(300*time.Millisecond))
		w.each(func(g *Group) error {
			if g.rank == 1 {
				return nil
			}
			d := devices[0]
			b := d.buffer(400)
			d.hold(true)
			work, f := issueOn(g, d, coll.Op{Kind: coll.AllReduce, Type: coll.Int32}, one(b), one(b))
			if f != nil {
				return f
			}
			if done, f := work.Wait(time.Second); done {
				return fmt.Errorf("ended although its stream is late: %v", f)
			}
			d.hold(false)
			return expect(work.finish(), coll.Timeout, "rank 1")
		})
	})
}

// A rank whose stream is late has called the operation. The timeout of the others says so, and names it.
func TestTimeoutNamesTheRankWhoseStreamIsLate(t *testing.T) {
	waitingOnBothKinds(t, func(t *testing.T, waits bool) {
		useNewPool(t)
		devices := fakeDevices(t, 3, 7, waits)
		w := newWorld(t, 3)
		require.NoError(t, w.groups[0].SetTimeout(time.Second))
		issued := make(chan struct{}, 2)
		w.each(func(g *Group) error {
			d := devices[g.rank]
			b := d.buffer(400)
			d.hold(g.rank == 2)
			if g.rank == 0 {
				<-issued
				<-issued
			}
			work, f := issueOn(g, d, coll.Op{Kind: coll.AllReduce, Type: coll.Int32}, one(b), one(b))
			issued <- struct{}{}
			if f != nil {
				return f
			}
			err := expect(work.finish(), coll.Timeout, "all ranks have called it, but the stream of rank 2")
			d.hold(false)
			return err
		})
	})
}
