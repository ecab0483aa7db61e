package pgbackend

import (
	"bytes"
	"crypto/subtle"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
)

// coalesced issues operations in one call and waits for them.
func coalesced(g *Group, calls []runner.Coalesced) error {
	work, f := g.IssueCoalesced(calls)
	if f == nil {
		f = finish(work)
		work.Release()
	}
	return asError(f)
}

// carryOut issues operations in one call and checks their results.
func carryOut(g *Group, all []expectation) error {
	calls := make([]runner.Coalesced, len(all))
	for i, e := range all {
		calls[i] = e.Coalesced
	}
	if err := coalesced(g, calls); err != nil {
		return err
	}
	for _, e := range all {
		if err := e.check(); err != nil {
			return err
		}
	}
	return nil
}

// bytesOf returns the bytes that one rank has for another one in operation i.
func bytesOf(i, from, to, n int) []byte { return pattern(from*100+to, i, n) }

// expectation is an operation with its expected result.
type expectation struct {
	runner.Coalesced
	want []byte
}

// operation returns the i-th operation of a kind on one rank, with n elements of a type.
func operation(kind coll.Kind, dtype coll.DataType, i, count, rank, size int) expectation {
	n := count * dtype.Size()
	root := 0
	blocks := func(f func(r int) []byte) (all []byte) {
		for r := range size {
			all = append(all, f(r)...)
		}
		return all
	}
	op := coll.Op{Kind: kind, Type: dtype, Reduce: coll.BXor, Root: root}
	var in, out, want []byte
	switch kind {
	case coll.AllReduce, coll.Reduce:
		in, out, want = bytesOf(i, rank, 0, n), make([]byte, n), make([]byte, n)
		if kind == coll.AllReduce || rank == root {
			for r := range size {
				subtle.XORBytes(want, want, bytesOf(i, r, 0, n))
			}
		}
	case coll.ReduceScatter:
		in, out, want = blocks(func(r int) []byte { return bytesOf(i, rank, r, n) }), make([]byte, n), make([]byte, n)
		for r := range size {
			subtle.XORBytes(want, want, bytesOf(i, r, rank, n))
		}
	case coll.Broadcast:
		out, want = make([]byte, n), bytesOf(i, root, 0, n)
		if rank == root {
			out = bytesOf(i, root, 0, n)
			in = out
		}
	case coll.AllGather, coll.Gather:
		in = bytesOf(i, rank, 0, n)
		if kind == coll.AllGather || rank == root {
			out, want = make([]byte, n*size), blocks(func(r int) []byte { return bytesOf(i, r, 0, n) })
		}
	case coll.Scatter:
		if rank == root {
			in = blocks(func(r int) []byte { return bytesOf(i, root, r, n) })
		}
		out, want = make([]byte, n), bytesOf(i, root, rank, n)
	case coll.AllToAll:
		in, out = blocks(func(r int) []byte { return bytesOf(i, rank, r, n) }), make([]byte, n*size)
		want = blocks(func(r int) []byte { return bytesOf(i, r, rank, n) })
	case coll.Send:
		op.Root, in = (rank+1)%size, bytesOf(i, rank, 0, n)
	case coll.Recv:
		from := (rank + size - 1) % size
		op.Root, out, want = from, make([]byte, n), bytesOf(i-1, from, 0, n)
	}
	return expectation{runner.Coalesced{Op: op, In: pieces(in), Out: pieces(out)}, want}
}

// pieces returns a buffer as one segment, or no segment if it is empty.
func pieces(b []byte) [][]byte {
	if b == nil {
		return nil
	}
	return one(b)
}

func (e expectation) check() error {
	if got := slices.Concat(e.Out...); e.Out != nil && !bytes.Equal(got, e.want) {
		return fmt.Errorf("%v of %d bytes: wrong", e.Op.Kind, len(got))
	}
	return nil
}

var coalescedLengths = []int{0, 1, 3, 100, 2048, 40_000, 300_000}

// Operations of one kind with mixed types and lengths: packed operations cross the edges of chunks at odd places.
func TestCoalescedOperationsOfOneKind(t *testing.T) {
	inWorlds(t, func(t *testing.T, w *world) {
		size := len(w.groups)
		for kind := range coll.KindCount {
			if kind == coll.Barrier || !kind.Collective() {
				continue
			}
			for round := range 2 {
				w.each(func(g *Group) error {
					random, own := rand.New(rand.NewPCG(uint64(kind), uint64(round))), rand.New(rand.NewPCG(0, uint64(g.rank)))
					var all []expectation
					for i := range 9 {
						dtype := []coll.DataType{coll.Uint8, coll.Int32}[random.IntN(2)]
						e := operation(kind, dtype, i, coalescedLengths[random.IntN(len(coalescedLengths))], g.rank, size)
						e.Op.Async = round%2 == 1
						if kind != coll.Broadcast && e.In != nil && own.IntN(2) == 0 {
							e.In = cut(e.In[0], dtype.Size(), own)
						}
						all = append(all, e)
					}
					return carryOut(g, all)
				})
			}
		}
	})
}

// All kinds in one call, in an order that no single program can have, with sends and recvs around a ring of ranks,
// where each recv stands behind the send that it needs.
func TestCoalescedOperationsOfAllKinds(t *testing.T) {
	inWorlds(t, func(t *testing.T, w *world) {
		size := len(w.groups)
		for round := range 4 {
			w.each(func(g *Group) error {
				random := rand.New(rand.NewPCG(uint64(round), 7))
				var all []expectation
				add := func(kind coll.Kind, count int) {
					e := operation(kind, coll.Int32, len(all), count, g.rank, size)
					e.Op.Async = round%2 == 1
					all = append(all, e)
				}
				for range 12 {
					count := coalescedLengths[random.IntN(len(coalescedLengths))]
					switch kind := coll.Kind(random.IntN(int(coll.KindCount))); kind {
					case coll.Send, coll.Recv:
						add(coll.Send, count)
						add(coll.Recv, count)
					default:
						add(kind, count)
						if random.IntN(2) == 0 {
							add(kind, 10)
						}
					}
				}
				return carryOut(g, all)
			})
		}
	})
}

// Packed operations count as one collective, and the next collective has the next number.
func TestCoalescedOperationsShareANumber(t *testing.T) {
	w := newWorld(t, 2)
	w.each(func(g *Group) error {
		var entered []uint64       // by calls that were made before; the least counts, see TestCacheHitsDoNotEnterGo
		for round := range 2 + 5 { // every rank makes all of them
			before := g.run.Sequence()
			calls := make([]runner.Coalesced, 10)
			for i := range calls {
				b := one(make([]byte, 2048))
				calls[i] = runner.Coalesced{Op: coll.Op{Kind: coll.AllReduce, Type: coll.Float32}, In: b, Out: b}
			}
			entries := runner.GoEntries()
			if err := coalesced(g, calls); err != nil {
				return err
			}
			if n := g.run.Sequence() - before; n != 1 {
				return fmt.Errorf("round %d: %d collectives", round, n)
			}
			if round >= 2 {
				entered = append(entered, runner.GoEntries()-entries)
			}
			if err := call(g, coll.Op{Kind: coll.Barrier}, nil, nil); err != nil {
				return err
			}
		}
		if slices.Min(entered) != 0 {
			return fmt.Errorf("Go was entered %v times in calls that were made before", entered)
		}
		return nil
	})
}

func TestNothingCoalesced(t *testing.T) {
	w := newWorld(t, 2)
	w.each(func(g *Group) error { return coalesced(g, nil) })
}

// If one operation of a call is refused, all are, and no peer has seen any of them.
func TestCoalescedCallIsRefusedAsAWhole(t *testing.T) {
	w := newWorld(t, 2)
	good := func() runner.Coalesced {
		b := one(make([]byte, 16))
		return runner.Coalesced{Op: coll.Op{Kind: coll.AllReduce, Type: coll.Int32}, In: b, Out: b}
	}
	shared := good()
	base := make([]byte, 64)
	piece := func(from, to int) runner.Coalesced {
		b := one(base[from:to])
		return runner.Coalesced{Op: coll.Op{Kind: coll.AllReduce, Type: coll.Int32}, In: b, Out: b}
	}
	reads := func(in, out []byte) runner.Coalesced {
		return runner.Coalesced{Op: coll.Op{Kind: coll.AllReduce, Type: coll.Int32}, In: one(in), Out: one(out)}
	}
	odd := runner.Coalesced{Op: coll.Op{Kind: coll.AllReduce, Type: coll.Int32}, In: one(make([]byte, 8)), Out: one(make([]byte, 16))}
	undefined := good()
	undefined.Op.Type, undefined.Op.Reduce = coll.Float32, coll.BAnd
	for _, c := range []struct {
		name  string
		calls []runner.Coalesced
		text  string
	}{
		{"lengths", []runner.Coalesced{good(), odd}, "expected equal lengths"},
		{"reduction", []runner.Coalesced{good(), undefined}, "BAND is not defined for float32"},
		{"one buffer twice", []runner.Coalesced{good(), shared, shared}, "operations 1 and 2 of one coalesced call"},
		{"overlap", []runner.Coalesced{piece(0, 32), good(), piece(28, 64)}, "operations 0 and 2 of one coalesced call"},
		{"one within", []runner.Coalesced{piece(0, 64), piece(16, 32)}, "operations 0 and 1 of one coalesced call"},
		{"a later input", []runner.Coalesced{reads(base[:16], base[32:48]), reads(base[40:44], base[60:64])}, "operations 0 and 1 of one"},
		{"a far input", []runner.Coalesced{reads(base[:48], make([]byte, 48)), reads(base[:16], make([]byte, 16)), reads(make([]byte, 4), base[44:48])},
			"operations 0 and 2 of one"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for rank, f := range w.eachFailure(func(g *Group) *coll.Failure {
				_, f := g.IssueCoalesced(c.calls)
				return f
			}) {
				if err := expect(f, coll.Invalid, c.text); err != nil {
					t.Errorf("rank %d: %v", rank, err)
				}
			}
		})
	}
	t.Run("inputs may be shared", func(t *testing.T) {
		w.each(func(g *Group) error {
			in := make([]byte, 16)
			return coalesced(g, []runner.Coalesced{reads(in, make([]byte, 16)), reads(in, make([]byte, 16)), good()})
		})
	})
	if n := w.groups[0].run.Sequence(); n != 1 {
		t.Errorf("%d collectives, expected the last one only", n)
	}
}

// Ranks that pack differently get a mismatch, even if their numbers of bytes are equal.
func TestCoalescedCallsThatDiffer(t *testing.T) {
	for _, c := range []struct {
		name  string
		other []int
		text  string
	}{
		{"number", []int{64, 64, 64, 64}, "batch of 4"},
		{"lengths", []int{128, 64, 64}, "batch of 3"},
		{"one by itself", []int{256}, "64 elements"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, 2)
			for rank, f := range w.eachFailure(func(g *Group) *coll.Failure {
				lengths := []int{64, 64, 128}
				if g.rank == 1 {
					lengths = c.other
				}
				var calls []runner.Coalesced
				for _, n := range lengths {
					b := one(make([]byte, n))
					calls = append(calls, runner.Coalesced{Op: coll.Op{Kind: coll.AllReduce, Type: coll.Int32}, In: b, Out: b})
				}
				_, f := g.IssueCoalesced(calls)
				return f
			}) {
				if err := expect(f, coll.Mismatch, c.text); err != nil {
					t.Errorf("rank %d: %v", rank, err)
				}
			}
		})
	}
}

// A work that stands for several operations fails with the group, once nothing touches their buffers any more.
func TestCoalescedWorkFailsAsAWhole(t *testing.T) {
	w := newWorld(t, 2)
	for rank, f := range w.eachFailure(func(g *Group) *coll.Failure {
		if g.rank == 1 {
			g.Abort("for a test")
			return g.failed()
		}
		calls := []runner.Coalesced{
			{Op: coll.Op{Kind: coll.Recv, Type: coll.Int32, Root: 1, Async: true}, Out: one(make([]byte, 16))},
			{Op: coll.Op{Kind: coll.Recv, Type: coll.Int32, Root: 1, Tag: 1}, Out: one(make([]byte, 16))},
			{Op: coll.Op{Kind: coll.Barrier}},
		}
		work, f := g.IssueCoalesced(calls)
		if f != nil {
			return f
		}
		heard := make(chan *coll.Failure, 1)
		work.OnDone(func(f *coll.Failure) { heard <- f })
		defer work.Release()
		select {
		case f = <-heard:
			return f
		case <-time.After(hangAfter):
			t.Error("the work does not end")
			return nil
		}
	}) {
		if err := expect(f, coll.Aborted, "for a test"); err != nil {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}
