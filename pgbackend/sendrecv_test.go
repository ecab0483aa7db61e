package pgbackend

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"sagecomm/algo"
	"sagecomm/algo/plan"
	"sagecomm/algo/sendrecv"
	"sagecomm/internal/coll"
	"sagecomm/tests/quick"
)

// worldBy returns a group that carries out a kind by a sendrecv algorithm, in chunks of the given length, or of the
// greatest length for 0. hosts are the hosts that the ranks report; nil: all are on this one.
func worldBy(t *testing.T, size int, kind coll.Kind, algorithm string, chunk int, hosts func(rank int) string) *world {
	t.Helper()
	tune := fmt.Sprintf("%v:%s", kind, algorithm)
	if chunk > 0 {
		tune += fmt.Sprintf("@chunk=%d", chunk)
	}
	w, errs := tryWorld(t, size, opTimeout, func(rank int) options {
		o := options{"tune": tune}
		if hosts != nil {
			o["hostid"] = hosts(rank)
		}
		return o
	})
	for rank, err := range errs {
		if err != nil {
			t.Fatalf("rank %d: %v", rank, err)
		}
	}
	if c := w.groups[0].selector.Choose(kind, 1); c.Transport != algo.Channels || c.Algorithm != algorithm {
		t.Fatalf("%v goes by %+v", kind, c)
	}
	return w
}

// eachSendRecvAlgorithm runs f for all sendrecv algorithms of all kinds for which `of` is true.
func eachSendRecvAlgorithm(t *testing.T, of func(coll.Kind) bool, f func(t *testing.T, kind coll.Kind, algorithm string)) {
	for kind := range coll.KindCount {
		if !kind.Collective() || !of(kind) {
			continue
		}
		for _, name := range sendrecv.Algorithms(kind) {
			t.Run(fmt.Sprintf("%v %s", kind, name), func(t *testing.T) { f(t, kind, name) })
		}
	}
}

func anyKind(coll.Kind) bool { return true }

// transfer is one collective on bytes: the block of each rank for each other one, and the expected result.
type transfer struct {
	kind   coll.Kind
	root   int
	salt   int
	length func(from, to int) int
}

func (x transfer) between(from, to int) []byte {
	return pattern(from*64+to, x.salt, x.length(from, to))
}

func everyRank(size int, f func(rank int) []byte) (b []byte) {
	for rank := range size {
		b = append(b, f(rank)...)
	}
	return b
}

// sum returns the sum of the blocks of all ranks for one.
func (x transfer) sum(size, to int) []byte {
	b := make([]byte, x.length(0, to))
	for from := range size {
		for i, v := range x.between(from, to) {
			b[i] += v
		}
	}
	return b
}

func (x transfer) buffers(rank, size int) (in, want []byte) {
	mine := func(to int) []byte { return x.between(rank, to) }
	theirs := func(from int) []byte { return x.between(from, rank) }
	switch x.kind {
	case coll.AllReduce:
		return mine(0), x.sum(size, 0)
	case coll.Reduce:
		if rank == x.root {
			want = x.sum(size, 0)
		}
		return mine(0), want
	case coll.Broadcast:
		want = x.between(x.root, 0)
		if rank == x.root {
			in = bytes.Clone(want)
		}
		return in, want
	case coll.AllGather:
		return mine(0), everyRank(size, func(r int) []byte { return x.between(r, 0) })
	case coll.ReduceScatter:
		return everyRank(size, mine), x.sum(size, rank)
	case coll.AllToAll:
		return everyRank(size, mine), everyRank(size, theirs)
	case coll.Gather:
		if rank == x.root {
			want = everyRank(size, func(r int) []byte { return x.between(r, 0) })
		}
		return mine(0), want
	case coll.Scatter:
		if rank == x.root {
			in = everyRank(size, mine)
		}
		return in, x.between(x.root, rank)
	}
	return nil, nil
}

// try carries out a transfer on buffers of one segment or of many.
func (g *Group) try(x transfer, op coll.Op) error {
	rng := rand.New(rand.NewPCG(uint64(x.salt), uint64(g.rank)))
	op.Kind, op.Root = x.kind, x.root
	op.Type = coll.Uint8
	in, want := x.buffers(g.rank, g.size)
	out := make([]byte, len(want))
	from, to := one(in), one(out)
	if x.salt%2 == 1 {
		from, to = cut(in, 1, rng), cut(out, 1, rng)
	}
	if err := call(g, op, from, to); err != nil {
		return err
	}
	if !bytes.Equal(out, want) {
		return fmt.Errorf("%d bytes, root %d: wrong", x.length(0, 0), x.root)
	}
	return nil
}

func equalLength(n int) func(int, int) int { return func(int, int) int { return n } }

func TestMessagesCarryOutEveryCollective(t *testing.T) {
	sizes := []int{2, 3, 4, 5, 6, 7, 8, 9, 16}
	if testing.Short() {
		sizes = []int{2, 3, 5}
	}
	if quick.Only() {
		sizes = []int{3}
	}
	for _, size := range sizes {
		t.Run(fmt.Sprintf("%d ranks", size), func(t *testing.T) {
			eachSendRecvAlgorithm(t, anyKind, func(t *testing.T, kind coll.Kind, algorithm string) {
				const chunk = 4096
				w := worldBy(t, size, kind, algorithm, chunk, nil)
				roots := []int{0}
				if kind.Rooted() {
					roots = []int{0, size / 2, size - 1}
				}
				for salt, length := range []int{0, 1, 1000, chunk, 5*chunk + 12} {
					for _, root := range roots {
						x := transfer{kind, root, salt, equalLength(length)}
						w.each(func(g *Group) error { return g.try(x, coll.Op{Async: (salt+root)%2 == 0}) })
					}
				}
			})
		})
	}
}

// Messages have the greatest length that a channel allows and use its places several times.
func TestMessagesOfFullLength(t *testing.T) {
	kinds := func(k coll.Kind) bool { return k != coll.Barrier }
	if quick.Only() {
		kinds = func(k coll.Kind) bool { return k == coll.AllReduce }
	}
	eachSendRecvAlgorithm(t, kinds, func(t *testing.T, kind coll.Kind, algorithm string) {
		w := worldBy(t, 4, kind, algorithm, 0, nil)
		x := transfer{kind, 1, 1, equalLength(1<<20 + 12)}
		w.each(func(g *Group) error { return g.try(x, coll.Op{}) })
	})
}

// Algorithms for several hosts, on ranks that only report different hosts.
func TestMessagesBetweenHosts(t *testing.T) {
	shapes := [][2]int{{2, 2}, {2, 4}, {3, 2}, {4, 1}}
	if quick.Only() {
		shapes = shapes[:1]
	}
	for _, shape := range shapes {
		hosts, each := shape[0], shape[1]
		t.Run(fmt.Sprintf("%d hosts of %d", hosts, each), func(t *testing.T) {
			hierarchical := func(k coll.Kind) bool {
				return slices.Contains(sendrecv.Algorithms(k), sendrecv.Hierarchical)
			}
			eachSendRecvAlgorithm(t, hierarchical, func(t *testing.T, kind coll.Kind, algorithm string) {
				w := worldBy(t, hosts*each, kind, algorithm, 2048, func(rank int) string { return fmt.Sprint("host ", rank%hosts) })
				if got := w.groups[0].shape().Hosts; len(got) != hosts || len(got[0]) != each {
					t.Fatalf("hosts %v", got)
				}
				for salt, length := range []int{0, 1, 1000, 7000} {
					x := transfer{kind, (hosts*each - 1) % (salt + 1), salt, equalLength(length)}
					w.each(func(g *Group) error { return g.try(x, coll.Op{}) })
				}
			})
		})
	}
}

func reducing(k coll.Kind) bool { return k.Reduces() }

// PREMUL_SUM and AVG of every type, in place and out of place.
func TestMessagesOfEveryTypeAndReduction(t *testing.T) {
	const size, count = 4, 700 // several chunks
	kinds := reducing
	if quick.Only() {
		kinds = func(k coll.Kind) bool { return k == coll.AllReduce }
	}
	eachSendRecvAlgorithm(t, kinds, func(t *testing.T, kind coll.Kind, algorithm string) {
		w := worldBy(t, size, kind, algorithm, 1024, nil)
		for dtype := range coll.DataTypeCount {
			for op := range coll.ReduceOpCount {
				if coll.Defined(op, dtype) != nil || testing.Short() && dtype > coll.Int16 {
					continue
				}
				n := count
				if kind == coll.ReduceScatter {
					n = size * count
				}
				all := reducedBytes(dtype, op, size, n)
				for _, inPlace := range []bool{false, true} {
					w.each(func(g *Group) error {
						in, want := contributionBytes(dtype, op, g.rank, size, n), all
						block := count * dtype.Size()
						if kind == coll.ReduceScatter {
							want = all[g.rank*block : (g.rank+1)*block]
						}
						out := make([]byte, len(want))
						if inPlace && kind == coll.ReduceScatter {
							out = in[g.rank*block : (g.rank+1)*block]
						} else if inPlace {
							out = in
						}
						root := int(dtype) % size
						call := coll.Op{Kind: kind, Type: dtype, Reduce: op, Factor: premulFactor}
						if kind.Rooted() {
							call.Root = root
						}
						_, f := g.Issue(call, one(in), one(out))
						if f == nil && (!kind.Rooted() || g.rank == root) && !bytes.Equal(out, want) {
							return fmt.Errorf("%v of %v, in place %t: wrong", op, dtype, inPlace)
						}
						return asError(f)
					})
				}
			}
		}
	})
}

// Sums of floats are the sums in some order of the ranks, the same order on all of them.
func TestSumsOverMessagesAreEqualOnAllRanks(t *testing.T) {
	const count = 5000
	for _, size := range []int{3, 5, 8} {
		values := func(rank int) []float32 {
			random := rand.New(rand.NewPCG(7, uint64(rank)))
			list := make([]float32, count)
			for i := range list {
				list[i] = float32(random.NormFloat64() * math.Exp2(float64(random.IntN(20))))
			}
			return list
		}
		exact, magnitude := make([]float64, count), make([]float64, count)
		for rank := range size {
			for i, v := range values(rank) {
				exact[i] += float64(v)
				magnitude[i] += math.Abs(float64(v))
			}
		}
		eachSendRecvAlgorithm(t, func(k coll.Kind) bool { return k == coll.AllReduce }, func(t *testing.T, kind coll.Kind, algorithm string) {
			w := worldBy(t, size, kind, algorithm, 4096, nil)
			results := make([][]byte, size)
			w.each(func(g *Group) error {
				b := make([]byte, 4*count)
				for i, v := range values(g.rank) {
					binary.LittleEndian.PutUint32(b[4*i:], math.Float32bits(v))
				}
				results[g.rank] = b
				_, f := g.Issue(coll.Op{Kind: kind, Type: coll.Float32}, one(b), one(b))
				return asError(f)
			})
			for rank, b := range results {
				if !bytes.Equal(b, results[0]) {
					t.Errorf("%d ranks: rank %d has other bits than rank 0", size, rank)
				}
			}
			for i := range count {
				got := float64(math.Float32frombits(binary.LittleEndian.Uint32(results[0][4*i:])))
				// size-1 roundings of partial sums, each of half a unit of at most the magnitude.
				if bound := float64(size-1) * magnitude[i] * 0x1p-24; math.Abs(got-exact[i]) > bound {
					t.Fatalf("%d ranks: element %d is %v, expected %v within %v", size, i, got, exact[i], bound)
				}
			}
		})
	}
}

// Blocks have any length, also none. All ranks know all lengths, except in all_to_all, where a rank knows only its own.
func TestMessagesOfUnevenBlocks(t *testing.T) {
	blocks := func(k coll.Kind) bool {
		return k == coll.AllGather || k == coll.ReduceScatter || k == coll.AllToAll
	}
	const size = 5
	for _, longest := range []int{0, 3, 3000, 20000} {
		eachSendRecvAlgorithm(t, blocks, func(t *testing.T, kind coll.Kind, algorithm string) {
			w := worldBy(t, size, kind, algorithm, 2048, nil)
			x := transfer{kind, 0, longest, func(from, to int) int {
				switch kind {
				case coll.AllGather:
					to = 7
				case coll.ReduceScatter:
					from = 7
				}
				return int(rand.NewPCG(uint64(from*size+to), uint64(longest)).Uint64() % uint64(longest+1) & ^uint64(from&1*longest))
			}}
			list := w.eachFailure(func(g *Group) *coll.Failure {
				op := coll.Op{InBlocks: nil}
				lengthsOf := func(f func(r int) int) (list []uint64) {
					for r := range size {
						list = append(list, uint64(f(r)))
					}
					return list
				}
				mine := lengthsOf(func(r int) int { return x.length(g.rank, r) })
				theirs := lengthsOf(func(r int) int { return x.length(r, g.rank) })
				switch kind {
				case coll.AllGather:
					op.OutBlocks = theirs
				case coll.ReduceScatter:
					op.InBlocks = mine
				default:
					op.InBlocks, op.OutBlocks = mine, theirs
				}
				err := g.try(x, op)
				f, _ := err.(*coll.Failure)
				if err != nil && f == nil {
					t.Errorf("rank %d: up to %d bytes: %v", g.rank, longest, err)
				}
				return f
			})
			for rank, f := range list {
				switch {
				case kind == coll.AllToAll && w.groups[0].isEven(algorithm) && longest > 0:
					if err := expect(f, coll.System, "called all_to_all #1 with blocks of different lengths, and SAGECOMM_TUNE names an algorithm that takes equal ones only"); err != nil {
						t.Errorf("rank %d: %v", rank, err)
					}
				case f != nil:
					t.Errorf("rank %d: %v", rank, f)
				}
			}
		})
	}
}

func (g *Group) isEven(algorithm string) bool {
	p, err := sendrecv.Build(coll.AllToAll, algorithm, sendrecv.Place{Size: g.size, Chunk: plan.Unit})
	return err == nil && p.Even
}

// Splits that disagree are found when the first message between the two ranks arrives.
func TestSplitsThatDifferOverMessages(t *testing.T) {
	w := worldBy(t, 3, coll.AllToAll, sendrecv.Pairwise, 1024, nil)
	for rank, f := range w.eachFailure(func(g *Group) *coll.Failure {
		lengths := []uint64{8, 8, 8}
		if g.rank == 2 {
			lengths = []uint64{8, 3000, 8}
		}
		in := one(make([]byte, lengths[0]+lengths[1]+lengths[2]))
		work, f := g.Issue(coll.Op{Kind: coll.AllToAll, Type: coll.Uint8, InBlocks: lengths, OutBlocks: []uint64{8, 8, 8}}, in, one(make([]byte, 24)))
		if f == nil {
			f = finish(work)
		}
		if f == nil { // all of its own was right
			f = sum(g, 2)
		}
		return f
	}) {
		if err := expect(f, coll.Mismatch, "rank 2"); err != nil {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}
