package pgbackend

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"sagecomm/internal/coll"
	"sagecomm/tests/quick"
)

// A long operation takes no more than 8 MiB of pinned memory where the streams of the device can wait, and has the bits
// of the host.
func TestLongOperationsGoThroughWindows(t *testing.T) {
	bytesOf := 20 << 20
	if !testing.Short() {
		bytesOf = 64 << 20
	}
	for _, e := range []struct {
		kind coll.Kind
		tune string
	}{{coll.AllReduce, ""}, {coll.AllReduce, "all_reduce:ring"}, {coll.Reduce, ""}, {coll.Broadcast, ""}} {
		t.Run(fmt.Sprint(e.kind, " ", e.tune), func(t *testing.T) {
			if e.tune != "" {
				quick.Skip(t, "the same with another algorithm")
			}
			useNewPool(t)
			devices := fakeDevices(t, 2, 8, true)
			w := newWorldWith(t, 2, time.Minute, map[string]string{"tune": e.tune})
			w.each(func(g *Group) error {
				d, n := devices[g.rank], bytesOf/4+1001
				op := coll.Op{Kind: e.kind, Type: coll.Float32}
				mine := contributionBytes(coll.Float32, coll.Sum, g.rank, 2, n)
				b := d.buffer(len(mine))
				d.fill(b, mine)
				in, out := one(b), one(b)
				if e.kind == coll.Broadcast && g.rank != 0 {
					in = nil
				}
				if e.kind == coll.Reduce && g.rank != 0 {
					out = nil
				}
				work, f := issueOn(g, d, op, in, out)
				if f == nil {
					f = work.finish()
				}
				if f != nil {
					return f
				}
				want := mine
				if e.kind == coll.AllReduce || g.rank == 0 {
					want = reducedBytes(coll.Float32, coll.Sum, 2, n)
				}
				if e.kind == coll.Broadcast {
					want = contributionBytes(coll.Float32, coll.Sum, 0, 2, n)
				}
				if !bytes.Equal(b, want) {
					return fmt.Errorf("wrong result")
				}
				d.mu.Lock()
				defer d.mu.Unlock()
				if d.pinned > 8<<20 {
					return fmt.Errorf("%d bytes of pinned memory for an operation of %d bytes", d.pinned, len(mine))
				}
				return nil
			})
		})
	}
}

// Each operation in flight has a block of pinned memory of its own: a window, or its whole length. Later operations use
// the blocks again.
func TestPinnedMemoryOfOperationsInFlight(t *testing.T) {
	const flights, length = 8, 12 << 20
	for _, e := range []struct {
		kind  coll.Kind
		block int // bytes
	}{{coll.AllReduce, 4 << 20}, {coll.AllToAll, 28 << 20}} {
		t.Run(e.kind.String(), func(t *testing.T) {
			if e.kind != coll.AllReduce {
				quick.Skip(t, "much memory")
			}
			useNewPool(t)
			devices := fakeDevices(t, 2, 8, true)
			issued := make(chan struct{}, 2)
			newWorld(t, 2).each(func(g *Group) error {
				d := devices[g.rank]
				for range 2 {
					if g.rank != 0 {
						<-issued
					}
					var works []deviceWork
					for range flights {
						work, f := issueOn(g, d, coll.Op{Kind: e.kind, Type: coll.Uint8}, one(d.buffer(length)), one(d.buffer(length)))
						if f != nil {
							return f
						}
						works = append(works, work)
					}
					if g.rank == 0 {
						issued <- struct{}{}
					}
					for _, work := range works {
						if f := work.finish(); f != nil {
							return f
						}
					}
					d.mu.Lock()
					pinned := d.pinned
					d.mu.Unlock()
					if g.rank == 0 && pinned != flights*e.block {
						t.Errorf("%d bytes of pinned memory for %d operations in flight", pinned, flights)
					}
				}
				return nil
			})
		})
	}
}

// The same for operations with a block for each rank, whether the buffers are one segment or several, in place or not.
func TestLongBlocksGoThroughWindows(t *testing.T) {
	count := 3<<20 + 1001
	if testing.Short() {
		count = 1<<20 + 1001
	}
	for _, e := range []struct {
		kind    coll.Kind
		tune    string
		inPlace bool
		split   int // bytes of the first segment of the longer side; 0: there is one
	}{
		{coll.AllGather, "", false, 0}, {coll.AllGather, "", true, 0}, {coll.AllGather, "all_gather:ring", false, 4 * (count - 7)},
		{coll.ReduceScatter, "", false, 4 * (count + 9)}, {coll.ReduceScatter, "", true, 0}, {coll.ReduceScatter, "reduce_scatter:ring", false, 0},
	} {
		t.Run(fmt.Sprint(e.kind, " ", e.tune, " in place: ", e.inPlace, ", split at ", e.split), func(t *testing.T) {
			if e.tune != "" {
				quick.Skip(t, "the same with another algorithm")
			}
			useNewPool(t)
			devices := fakeDevices(t, 3, 8, true)
			w := newWorldWith(t, 3, time.Minute, map[string]string{"tune": e.tune})
			w.each(func(g *Group) error {
				d := devices[g.rank]
				op := coll.Op{Kind: e.kind, Type: coll.Float32}
				mine := contributionBytes(coll.Float32, coll.Sum, g.rank, 3, count)
				all := contributionBytes(coll.Float32, coll.Sum, g.rank, 3, 3*count)
				longer, shorter := d.buffer(len(all)), d.buffer(len(mine))
				own := longer[g.rank*len(mine):][:len(mine)]
				if e.inPlace {
					shorter = own
				}
				parts := one(longer)
				if e.split > 0 {
					parts = [][]byte{longer[:e.split], longer[e.split:]}
				}
				hostIn, hostOut, result := mine, make([]byte, len(all)), longer
				in, out := one(shorter), parts
				if e.kind == coll.ReduceScatter {
					hostIn, hostOut, result = all, make([]byte, len(mine)), shorter
					in, out = out, in
					d.fill(longer, all)
				} else {
					d.fill(shorter, mine)
				}
				work, f := issueOn(g, d, op, in, out)
				if f == nil {
					f = work.finish()
				}
				if f == nil {
					_, f = g.Issue(op, one(hostIn), one(hostOut))
				}
				if f != nil {
					return f
				}
				if !bytes.Equal(result, hostOut) {
					return fmt.Errorf("the device has other bits than the host")
				}
				d.mu.Lock()
				defer d.mu.Unlock()
				if d.pinned > 8<<20 {
					return fmt.Errorf("%d bytes of pinned memory for an operation of %d bytes", d.pinned, len(all)+len(mine))
				}
				return nil
			})
		})
	}
}

// The stages of one operation overlap: while the program works on a group, of which the other rank's device has not
// brought all, this rank's device has brought the next groups and has taken the output of the ones before.
func TestCopiesOverlapTheProgram(t *testing.T) {
	const brought = 3
	for _, kind := range []coll.Kind{coll.AllReduce, coll.AllGather, coll.ReduceScatter} {
		t.Run(kind.String(), func(t *testing.T) {
			useNewPool(t)
			devices := fakeDevices(t, 2, 9, true)
			devices[1].stop = brought
			newWorld(t, 2).each(func(g *Group) error {
				d := devices[g.rank]
				in, out := d.buffer(16<<20), d.buffer(16<<20)
				switch kind {
				case coll.AllGather:
					in = in[:8<<20]
				case coll.ReduceScatter:
					out = out[:8<<20]
				}
				work, f := issueOn(g, d, coll.Op{Kind: kind, Type: coll.Uint8}, one(in), one(out))
				if f != nil {
					return f
				}
				if g.rank == 0 {
					devices[0].awaitWrites(brought-1+inWindow, brought-1)
					if done, _ := work.Wait(0); done {
						return fmt.Errorf("complete before the other rank's input has come")
					}
					devices[1].goOn()
				}
				return asError(work.finish())
			})
		})
	}
}

// inWindow is how many groups the input of an operation has room for: staged.inWindow.
const inWindow = 3

// awaitWrites waits until the device has brought at least so many groups of the input and taken at least so many of the
// output.
func (d *fakeDevice) awaitWrites(inputs, outputs int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for {
		most, least := 0, 1<<30
		for _, n := range d.writes {
			most, least = max(most, n), min(least, n)
		}
		if most >= inputs && least >= outputs && len(d.writes) == 2 {
			return
		}
		d.changed.Wait()
	}
}

func (d *fakeDevice) goOn() {
	d.mu.Lock()
	d.stop = 0
	d.mu.Unlock()
	d.changed.Broadcast()
}
