package pgbackend

import (
	"bytes"
	"fmt"
	"sync/atomic"
	"testing"

	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
)

var worldSizes = []int{1, 2, 3, 4, 8}

func inWorlds(t *testing.T, f func(t *testing.T, w *world)) {
	for _, n := range worldSizes {
		if n > 3 && testing.Short() {
			continue
		}
		t.Run(fmt.Sprintf("%d ranks", n), func(t *testing.T) { f(t, newWorld(t, n)) })
	}
}

func TestAllReduceOfEveryTypeAndReduction(t *testing.T) {
	inWorlds(t, func(t *testing.T, w *world) {
		n := len(w.groups)
		for dtype := range coll.DataTypeCount {
			for op := range coll.ReduceOpCount {
				if coll.Defined(op, dtype) != nil {
					b := one(make([]byte, 16))
					for rank, f := range w.eachFailure(func(g *Group) *coll.Failure {
						_, f := g.Issue(coll.Op{Kind: coll.AllReduce, Type: dtype, Reduce: op}, b, b)
						return f
					}) {
						if err := expect(f, coll.Invalid, fmt.Sprintf("all_reduce: %v is not defined for %v", op, dtype)); err != nil {
							t.Errorf("rank %d: %v", rank, err)
						}
					}
					continue
				}
				for _, count := range []int{1, 33, 40000 / dtype.Size()} { // the last takes three chunks
					want := reducedBytes(dtype, op, n, count)
					w.each(func(g *Group) error {
						in := contributionBytes(dtype, op, g.rank, n, count)
						out := make([]byte, len(in))
						if count == 33 {
							out = in // in place
						}
						_, f := g.Issue(coll.Op{Kind: coll.AllReduce, Type: dtype, Reduce: op, Factor: premulFactor}, one(in), one(out))
						if f != nil || !bytes.Equal(out, want) {
							return fmt.Errorf("%v of %d %v: %v; wrong: %t", op, count, dtype, f, !bytes.Equal(out, want))
						}
						return nil
					})
				}
			}
		}
	})
}

// The lengths reach from no byte over each class of the selector to several chunks of the largest class.
var lengths = []int{0, 4, 40, 64, 8192, 8196, 100_000, 1<<20 + 12}

func TestOtherCollectives(t *testing.T) {
	inWorlds(t, func(t *testing.T, w *world) {
		n := len(w.groups)
		for _, length := range lengths {
			w.each(func(g *Group) error {
				mine := pattern(g.rank, length, length)
				for root := range n {
					buffer := bytes.Clone(mine)
					op := coll.Op{Kind: coll.Broadcast, Type: coll.Uint8, Root: root}
					if _, f := g.Issue(op, nil, one(buffer)); g.rank != root && f != nil {
						return f
					} else if g.rank == root {
						// The root names its input; without one the call is refused, and the ranks go on together.
						if err := expect(f, coll.Invalid, "broadcast", "root"); length > 0 && err != nil {
							return err
						}
						if length > 0 {
							if _, f := g.Issue(op, one(buffer), one(buffer)); f != nil {
								return f
							}
						}
					}
					if !bytes.Equal(buffer, pattern(root, length, length)) {
						return fmt.Errorf("broadcast of %d bytes from %d gave something else", length, root)
					}
				}
				all := make([]byte, n*length)
				if _, f := g.Issue(coll.Op{Kind: coll.AllGather, Type: coll.Float8E5M2}, one(mine), one(all)); f != nil {
					return f
				}
				for q := range n {
					if !bytes.Equal(all[q*length:(q+1)*length], pattern(q, length, length)) {
						return fmt.Errorf("all_gather of %d bytes: block %d is wrong", length, q)
					}
				}
				for root := range n {
					in := contributionBytes(coll.Int32, coll.Max, g.rank, n, length/4)
					var out [][]byte
					if g.rank == root {
						out = one(make([]byte, len(in)))
					}
					if _, f := g.Issue(coll.Op{Kind: coll.Reduce, Type: coll.Int32, Reduce: coll.Max, Root: root}, one(in), out); f != nil {
						return f
					}
					if g.rank == root && !bytes.Equal(out[0], reducedBytes(coll.Int32, coll.Max, n, length/4)) {
						return fmt.Errorf("reduce of %d bytes to %d is wrong", length, root)
					}
				}
				_, f := g.Issue(coll.Op{Kind: coll.Barrier}, nil, nil)
				return asError(f)
			})
		}
	})
}

// No rank leaves a barrier before the last one enters it.
func TestBarrierHoldsUntilAllHaveCome(t *testing.T) {
	w := newWorld(t, 4)
	var inside atomic.Int32
	w.each(func(g *Group) error {
		for round := range 200 {
			inside.Add(1)
			if _, f := g.Issue(coll.Op{Kind: coll.Barrier}, nil, nil); f != nil {
				return f
			}
			if got := inside.Load(); got < int32(4*(round+1)) {
				return fmt.Errorf("round %d: left when %d calls had been made", round, got)
			}
		}
		return nil
	})
}

func TestSegments(t *testing.T) {
	w := newWorld(t, 3)
	w.each(func(g *Group) error {
		for _, count := range []int{20, 30_000} {
			in := contributionBytes(coll.Int64, coll.Sum, g.rank, 3, count)
			out := make([]byte, len(in))
			var pieces [][]byte
			for i := 0; i < len(in); { // more pieces than a call holds inline, with empty ones among them
				step := min(len(in)/12/8*8+8, len(in)-i)
				pieces = append(pieces, in[i:i+step], nil)
				i += step
			}
			if _, f := g.Issue(coll.Op{Kind: coll.AllReduce, Type: coll.Int64}, pieces, [][]byte{out[:8], out[8:]}); f != nil {
				return f
			}
			if !bytes.Equal(out, reducedBytes(coll.Int64, coll.Sum, 3, count)) {
				return fmt.Errorf("%d elements in %d pieces: wrong", count, len(pieces))
			}
		}
		return nil
	})
}

func TestP2P(t *testing.T) {
	inWorlds(t, func(t *testing.T, w *world) {
		n := len(w.groups)
		w.each(func(g *Group) error {
			to, from := (g.rank+1)%n, (g.rank+n-1)%n
			var sends []runner.Work
			for tag, length := range lengths {
				send, f := g.Issue(coll.Op{Kind: coll.Send, Root: to, Tag: tag, Async: true, Type: coll.Uint8}, one(pattern(g.rank, tag, length)), nil)
				if f != nil {
					return f
				}
				sends = append(sends, send)
			}
			for tag := len(lengths) - 1; tag >= 0; tag-- {
				got := make([]byte, lengths[tag])
				source := from
				if tag%2 == 1 {
					source = coll.AnySource
				}
				recv, f := g.Issue(coll.Op{Kind: coll.Recv, Root: source, Tag: tag, Async: true, Type: coll.Uint8}, nil, one(got))
				if f == nil {
					f = finish(recv)
				}
				if f != nil {
					return f
				}
				if !bytes.Equal(got, pattern(from, tag, lengths[tag])) {
					return fmt.Errorf("tag %d: not what rank %d sent", tag, from)
				}
				if s := recv.Source(); s != from && s != -1 { // -1: it was complete at once
					return fmt.Errorf("tag %d: source %d, expected %d", tag, s, from)
				}
				recv.Release()
			}
			for _, s := range sends {
				if f := finish(s); f != nil {
					return f
				}
				s.Release()
			}
			return nil
		})
	})
}
