package pgbackend

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/coll"
	"sagecomm/tests/quick"
)

// orders are those of the streams of a device.
var orders = map[string]order{"any": anyStream, "newest first": newestFirst, "oldest first": oldestFirst}

func TestProgramsThroughALibrary(t *testing.T) { testPrograms(t, true) }
func TestProgramsThroughStaged(t *testing.T)   { testPrograms(t, false) }

func testPrograms(t *testing.T, throughLibrary bool) {
	seeds := uint64(6)
	if quick.Only() {
		seeds = 1
	}
	for name, order := range orders {
		for seed := range seeds {
			t.Run(fmt.Sprintf("%s, seed %d", name, seed), func(t *testing.T) {
				n := 2 + int(seed%2)
				useNewPool(t)
				devices := fakeDevices(t, n, seed, true)
				for _, d := range devices {
					d.order = order
				}
				var library *fakeLibrary
				if throughLibrary {
					library = useLibrary(t, devices)
				}
				list := newProgram(rand.New(rand.NewPCG(seed, 3)), n, 60)
				want, reads := carriedOut(list, n)
				w := newWorld(t, n)
				w.each(func(g *Group) error {
					buffers, read, err := runProgram(g, devices[g.rank], list, seed%3 == 1 && g.rank == 0)
					if err != nil {
						return err
					}
					for i, b := range buffers {
						if !bytes.Equal(b, want[g.rank][i]) {
							return fmt.Errorf("buffer %d has a wrong content", i)
						}
					}
					for i, b := range read {
						if !bytes.Equal(b, reads[g.rank][i]) {
							return fmt.Errorf("read %d of the caller: a wrong content", i)
						}
					}
					return nil
				})
				w.destroy()
				if throughLibrary {
					library.endInPeace(t, n)
				}
			})
		}
	}
}

// carriedOut returns the buffers of all ranks behind a program, and what their callers read.
func carriedOut(list []programStep, n int) (all, reads [][][]byte) {
	all, reads = make([][][]byte, n), make([][][]byte, n)
	for rank := range all {
		for range programBuffers {
			all[rank] = append(all[rank], make([]byte, programBytes))
		}
	}
	for _, s := range list {
		read := s.carryOut(all)
		for rank := range n {
			if s.reads {
				reads[rank] = append(reads[rank], read[rank])
			}
		}
	}
	return all, reads
}

// endInPeace expects that the communicators of a group that was destroyed are ended together, and none of them is
// aborted: a peer may still need what the library does for it.
func (l *fakeLibrary) endInPeace(t *testing.T, n int) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	require.Len(t, l.made, n)
	for _, c := range l.made {
		require.Eventually(t, c.Settled, hangAfter, time.Millisecond)
		require.True(t, c.destroyed.Load())
		require.False(t, c.aborted.Load())
	}
}

// Threads that issue at the same time have their operations in the stream in the order of their numbers: each gets the
// sum of those that have its number. They share the memory in which buffers of several segments are gathered, and have
// it one after the other.
func TestThreadsThroughALibrary(t *testing.T) {
	const n, threads, each = 2, 3, 60
	useNewPool(t)
	devices := fakeDevices(t, n, 1, true)
	useLibrary(t, devices)
	type operation struct{ in, out []byte }
	var mu sync.Mutex
	all := [n]map[uint64]operation{}
	newWorld(t, n).each(func(g *Group) error {
		d := devices[g.rank]
		all[g.rank] = map[uint64]operation{}
		var running sync.WaitGroup
		failed := make([]error, threads)
		for thread := range threads {
			running.Go(func() {
				random := rand.New(rand.NewPCG(uint64(thread), uint64(g.rank)))
				var works []deviceWork
				for range each {
					o := operation{randomBytes(random, 64), d.buffer(64)}
					b := d.buffer(64)
					d.fill(b, o.in)
					w, f := issueOn(g, d, coll.Op{Kind: coll.AllReduce, Type: coll.Int32}, [][]byte{b[:24], b[24:]}, [][]byte{o.out[:40], o.out[40:]})
					if f != nil {
						failed[thread] = f
						return
					}
					mu.Lock()
					all[g.rank][w.Sequence()] = o
					mu.Unlock()
					works = append(works, w)
				}
				for _, w := range works {
					if f := w.finish(); f != nil {
						failed[thread] = f
						return
					}
				}
			})
		}
		running.Wait()
		for _, err := range failed {
			if err != nil {
				return err
			}
		}
		return nil
	})
	for number := uint64(1); number <= threads*each; number++ {
		var in [][]byte
		for rank := range n {
			require.Contains(t, all[rank], number)
			in = append(in, all[rank][number].in)
		}
		for rank := range n {
			require.Equal(t, sumOf(in), all[rank][number].out, "operation %d on rank %d", number, rank)
		}
	}
}

// Operations that a group which is aborted reports as successes have their outputs, whichever engine has carried them
// out. No stream waits any more, and a later group has the streams.
func TestAbortOfProgramsThroughALibrary(t *testing.T) {
	const n = 2
	for name, order := range orders {
		t.Run(name, func(t *testing.T) {
			useNewPool(t)
			devices := fakeDevices(t, n, 5, true)
			for _, d := range devices {
				d.order = order
			}
			useLibrary(t, devices)
			for _, late := range []bool{true, false, false} {
				w := newWorld(t, n)
				w.each(func(g *Group) error { return abortedProgram(g, devices[g.rank], late) })
				w.destroy()
				Get().sweep()
			}
		})
	}
}

// abortedProgram issues operations, of which the second half waits for the caller of rank 1 where that is late, and
// aborts them.
func abortedProgram(g *Group, d *fakeDevice, late bool) error {
	const half = 12
	var works []deviceWork
	var outputs, want [][]byte
	finish := func(from int) (ended []*coll.Failure) {
		for _, work := range works[from:] {
			ended = append(ended, work.finish())
		}
		return ended
	}
	var ended []*coll.Failure
	for i := range 2 * half {
		if i == half && late {
			ended = finish(0)
			d.hold(g.rank == 1)
		}
		op := coll.Op{Kind: coll.AllReduce, Type: coll.Int32, Reduce: []coll.ReduceOp{coll.Sum, coll.Max}[i%2]}
		in := [][]byte{bytes.Repeat([]byte{byte(i), 1, 0, 0}, 500), bytes.Repeat([]byte{byte(i + 100), 2, 0, 0}, 500)}
		b := d.buffer(2000)
		d.fill(b, in[g.rank])
		work, f := issueOn(g, d, op, one(b), one(b))
		if f != nil {
			return f
		}
		result := sumOf(in)
		if op.Reduce == coll.Max {
			result = in[1]
		}
		works, outputs, want = append(works, work), append(outputs, b), append(want, result)
	}
	if f := sum(g, 1); f != nil { // both ranks have issued all
		return f
	}
	if g.rank == 0 {
		g.Abort("the test")
	}
	ended = append(ended, finish(len(ended))...)
	d.hold(false)
	d.drain()
	for i, f := range ended {
		switch {
		case f == nil && !bytes.Equal(outputs[i], want[i]):
			return fmt.Errorf("operation %d is a success with a wrong output", i)
		case late && (f == nil) != (i < half):
			return fmt.Errorf("operation %d ended with %v", i, f)
		}
	}
	return nil
}
