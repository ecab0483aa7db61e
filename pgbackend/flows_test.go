package pgbackend

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"sagecomm/algo"
	messageplan "sagecomm/algo/message"
	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
)

// byMessages has every rank carry a kind out by an algorithm of messages.
func (w *world) byMessages(kind coll.Kind, algorithm string) {
	size := len(w.groups)
	chunk := 1 << 20
	for ; chunk > messageplan.Unit; chunk /= 2 {
		longest := 0
		for rank := range size {
			p, err := messageplan.Build(kind, algorithm, messageplan.Place{Rank: rank, Size: size, Chunk: chunk})
			if err != nil {
				w.t.Fatal(err)
			}
			longest = max(longest, p.Largest())
		}
		if longest <= runner.FlowMessage {
			break
		}
	}
	for _, g := range w.groups {
		g.classes[kind] = []algo.Class{{UpTo: algo.NoLimit, Algorithm: algorithm, Chunk: chunk}}
		g.run.SetClasses(kind, nil)
	}
}

func TestX(t *testing.T) {
	for _, size := range []int{2, 3, 5, 8, 9} {
		for kind := range coll.KindCount {
			if !kind.Collective() {
				continue
			}
			for _, name := range messageplan.Algorithms(kind) {
				t.Run(fmt.Sprint(size, kind, name), func(t *testing.T) {
					w := newWorld(t, size)
					w.byMessages(kind, name)
					for salt, length := range []int{0, 1, 63, 1000, 70_000, 1<<20 + 12} {
						for root := range size {
							w.each(func(g *Group) error {
								return g.tryKind(kind, root, length, salt)
							})
							if !kind.Rooted() {
								break
							}
						}
					}
				})
			}
		}
	}
}

func (g *Group) tryKind(kind coll.Kind, root, length, salt int) error {
	rng := rand.New(rand.NewPCG(uint64(length), uint64(g.rank)))
	between := func(from, to int) []byte { return pattern(from*16+to, salt, length) }
	all := func(f func(r int) []byte) (b []byte) {
		for r := range g.size {
			b = append(b, f(r)...)
		}
		return b
	}
	op := coll.Op{Kind: kind, Type: coll.Uint8, Root: root, Async: salt%2 == 0}
	var in, out, want []byte
	sum := func(i int) []byte {
		b := make([]byte, length)
		for r := range g.size {
			for j, v := range between(r, i) {
				b[j] += v
			}
		}
		return b
	}
	switch kind {
	case coll.AllReduce:
		in, want = between(g.rank, 0), sum(0)
	case coll.Reduce:
		in = between(g.rank, 0)
		if g.rank == root {
			want = sum(0)
		}
	case coll.Broadcast:
		in = nil
		want = between(root, 0)
		if g.rank == root {
			in = bytes.Clone(want)
		}
	case coll.AllGather:
		in, want = between(g.rank, 0), all(func(r int) []byte { return between(r, 0) })
	case coll.ReduceScatter:
		in, want = all(func(r int) []byte { return between(g.rank, r) }), sum(g.rank)
	case coll.AllToAll:
		in, want = all(func(r int) []byte { return between(g.rank, r) }), all(func(r int) []byte { return between(r, g.rank) })
	case coll.Gather:
		in = between(g.rank, 0)
		if g.rank == root {
			want = all(func(r int) []byte { return between(r, 0) })
		}
	case coll.Scatter:
		want = between(root, g.rank)
		if g.rank == root {
			in = all(func(r int) []byte { return between(root, r) })
		}
	}
	out = make([]byte, len(want))
	if err := call(g, op, cut(in, 1, rng), cut(out, 1, rng)); err != nil {
		return err
	}
	if !bytes.Equal(out, want) {
		return fmt.Errorf("%d bytes, root %d: wrong", length, root)
	}
	return nil
}
