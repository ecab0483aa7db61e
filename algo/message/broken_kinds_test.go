// A broken plan of each collective, and of each thing that only some algorithms use: lags, channels, scratch memory.

package message

import (
	"testing"

	"sagecomm/internal/coll"
)

func TestABrokenPlanOfEachKindIsRejected(t *testing.T) {
	const size, root = 5, 1
	for _, c := range []struct {
		kind   coll.Kind
		name   string
		breaks func([]Plan)
		want   string
	}{
		{coll.Broadcast, Binomial, func(p []Plan) { p[3].Steps[0].To = pieces(Scratch, 0, 1); p[3].Cells = 1 },
			"broadcast binomial, 5 ranks, 100 bytes, root 1, chunk 128: rank 3, chunk 0, step 1 (send): reads unit 0 of its bytes, which was never written"},
		{coll.Broadcast, Chain, func(p []Plan) { p[0].Steps = nil },
			"broadcast chain, 5 ranks, 100 bytes, root 1, chunk 128: deadlock: rank 4, at the end waits until rank 0 has taken the message of chunk 0, step 1; nobody has taken the message of rank 4, chunk 0, step 1 to rank 0"},
		{coll.Broadcast, DoubleTree, func(p []Plan) { p[2].Steps[0].To[0].First = 1 },
			"rank 2"},
		{coll.AllGather, Ring, func(p []Plan) { p[2].Steps[2].From[0] = p[2].Steps[0].From[0] },
			"rank 0, at the end: unit 0 of block 1 of the output: it holds 2 of unit 0 of block 2, expected 1 of unit 0 of block 1"},
		{coll.AllGather, Direct, func(p []Plan) { p[2].Steps = p[2].Steps[:len(p[2].Steps)-1] },
			"all_gather direct, 5 ranks, 100 bytes, chunk 128: rank 2, at the end: unit 0 of block 2 of the output was never written"},
		{coll.ReduceScatter, Direct, func(p []Plan) { p[4].Steps[5].Op = Recv; p[4].Steps[5].From = nil },
			"rank 4, at the end: unit 0 of block 4 of the output: it holds"},
		{coll.ReduceScatter, Ring, func(p []Plan) { p[4].Steps[5].To[0].Cell = 1; p[4].Steps[6].From[0].Cell = 1 },
			"rank 4, chunk 0, step 5 (recv_reduce): overwrites what the message of chunk 0, step 4 to rank 0 may still be read from"},
		{coll.ReduceScatter, Ring, func(p []Plan) { p[4].Steps[7].To[0] = p[4].Steps[1].To[0]; p[4].Steps[7].After = []int{6} },
			"rank 4, at the end: unit 0 of block 4 of the output was never written"},
		{coll.Reduce, Binomial, func(p []Plan) {
			p[2].Steps = append(p[2].Steps, Step{Op: Copy, From: pieces(Input, 0, 1), To: pieces(Output, 0, 1)})
		},
			"reduce binomial, 5 ranks, 100 bytes, root 1, chunk 128: rank 2, at the end: a rank that is not the root wrote its output"},
		{coll.Reduce, Chain, func(p []Plan) { p[1].Steps[0].Op = Recv; p[1].Steps[0].From = nil },
			"rank 1, at the end: unit 0 of block 0 of the output: it holds 2 + (3 + (0 + 4)) of unit 0 of block 0, which lacks rank 1"},
		{coll.Gather, Binomial, func(p []Plan) { r := p[1].Steps[1].To; r[0], r[1] = r[1], r[0] },
			"rank 1, at the end: unit 0 of block 3 of the output: it holds 4 of unit 0 of block 4, expected 3 of unit 0 of block 3"},
		{coll.Scatter, Direct, func(p []Plan) { p[1].Steps[0].From[0].Block = 4 },
			"rank 2, at the end: unit 0 of block 2 of the output: it holds 1 of unit 0 of block 4, expected 1 of unit 0 of block 2"},
		{coll.AllToAll, Pairwise, func(p []Plan) { p[3].Steps[0].From[0].Block = 2 },
			"rank 4, at the end: unit 0 of block 3 of the output: it holds 3 of unit 0 of block 2, expected 3 of unit 0 of block 4"},
		{coll.AllToAll, Bruck, func(p []Plan) { p[3].Steps[2].From[1].Cell ^= 1 },
			"rank 3, chunk 0, step 2 (send): reads unit"},
		{coll.Barrier, Dissemination, func(p []Plan) { p[2].Steps[3].Peer = 1; p[1].Steps = append(p[1].Steps, Step{Op: Send, Peer: 2}) },
			"deadlock: rank 2, chunk 0, step 3 (recv) waits for a message in channel 0 from rank 1; rank 1, chunk 0, step 5 (recv) waits for a message in channel 0 from rank 2"},
		{coll.Barrier, Binomial, func(p []Plan) {
			p[0].Steps = p[0].Steps[:2]
			p[4].Steps = p[4].Steps[:0]
			for _, r := range []int{1, 2, 3} {
				p[r].Steps = nil
			}
			p[1].Steps, p[2].Steps = []Step{{Op: Send, Peer: 0}}, []Step{{Op: Send, Peer: 0}}
		}, "barrier binomial, 5 ranks, 100 bytes, chunk 128: rank 0, at the end: it may leave before rank 3 has entered"},
	} {
		t.Run(c.kind.String()+" "+c.name, func(t *testing.T) {
			for _, f := range families {
				if f.kind == c.kind && f.name == c.name {
					plans := buildAll(t, f, Place{Size: size, Root: root, Chunk: 2 * Unit})
					if err := Check(plans, Lengths{Bytes: 100}); err != nil {
						t.Fatal(err)
					}
					c.breaks(plans)
					rejected(t, Check(plans, Lengths{Bytes: 100}), c.want)
				}
			}
		})
	}
}

// With lags of 2d, which a chunk's way up and down a tree suggests, two ranks that stand above each other in the two
// trees come to a deadlock over channels that hold one message, and over no larger ones.
func TestADoubleTreeNeedsItsLags(t *testing.T) {
	const size = 48
	plans := make([]Plan, size)
	for rank := range plans {
		plans[rank] = DoubleTreeAllReduce(Place{Rank: rank, Size: size, Chunk: 2 * Unit})
		for i := range plans[rank].Steps {
			s := &plans[rank].Steps[i]
			if s.Lag > 0 {
				s.Lag = 2 * double(rank, size)[s.Channel].depth
			}
			s.After = nil
		}
		settle(&plans[rank])
	}
	l := Lengths{Bytes: 40 * 2 * Unit}
	rejected(t, Check(plans, l), "deadlock: ")
	rejected(t, Check(plans, Lengths{Bytes: 2 * 2 * Unit}), "deadlock: rank 18, chunk 1, step 6 (send) waits for room in channel 0 to rank 17; ")
	if _, err := CheckCall(Call{Plans: plans, Lengths: l}, 2); err != nil {
		t.Error(err)
	}
}

// Scratch cells are used again by later chunks; a rank waits for what was sent out of them, and without that, or with
// fewer sets of cells than chunks in flight, bytes would be overwritten. A plan's lags set the number of sets.
func TestScratchCellsAreUsedAgain(t *testing.T) {
	plans := buildAll(t, family{coll.Reduce, Chain, ChainReduce}, Place{Size: 4, Chunk: Unit})
	if got := plans[2].Sets(); got != 2 {
		t.Errorf("%d sets", got)
	}
	r := newRun(Call{Plans: plans, Lengths: Lengths{Bytes: 9 * Unit}}, 3, newTrees(len(plans)))
	for _, a := range r.ranks {
		a.fromScratch = nil
	}
	rejected(t, r.finish(), "overwrites what the message of chunk 0, step 1 to rank")
}

func TestUnevenBlocksNeedAnAlgorithmForThem(t *testing.T) {
	plans := buildAll(t, family{coll.AllToAll, Bruck, BruckAllToAll}, Place{Size: 2, Chunk: Unit})
	rejected(t, Check(plans, Lengths{Blocks: []uint64{1, 2, 3, 4}}), "all_to_all bruck, 2 ranks, blocks [1 2 3 4], chunk 64: the algorithm needs blocks of equal length")
}

func TestPlacesOnHosts(t *testing.T) {
	for _, c := range []struct {
		hosts [][]int
		want  string
	}{
		{[][]int{{0, 1}, {2}}, "1 ranks on host 1 and 2 on host 0: rails need as many on each"},
		{[][]int{{0}, {0}, {2}}, "rank 0 on host 1 is on another one, too"},
		{[][]int{{0}, {3}, {2}}, "rank 3 on host 1 is on another one, too, or outside the group of 3"},
		{[][]int{{0}, {2}}, "rank 1 is on no host"},
		{[][]int{{}}, "0 ranks on host 0"},
	} {
		_, err := Build(coll.AllReduce, Hierarchical, Place{Size: 3, Chunk: Unit, Hosts: c.hosts})
		rejected(t, err, "all_reduce hierarchical: ", c.want)
	}
}

// What a channel's place must hold: the most that any message of any chunk has.
func TestLargestBoundsEveryMessage(t *testing.T) {
	for _, f := range families {
		for _, size := range []int{1, 2, 3, 6, 8, 13} {
			for _, chunk := range []int{Unit, 5 * Unit, 32 * Unit} {
				for _, p := range buildAll(t, f, Place{Size: size, Root: size - 1, Chunk: chunk}) {
					most := uint64(0)
					for _, bytes := range []uint64{1, uint64(chunk) - 1, uint64(chunk), uint64(5*chunk)/2 + 1} {
						for k := range p.Chunks(Lengths{Bytes: bytes}) {
							for _, s := range p.Steps {
								if s.Op == Send {
									most = max(most, p.bytes(s.From, k, Lengths{Bytes: bytes}))
								}
							}
						}
					}
					if most != uint64(p.Largest()) {
						t.Errorf("%v %s, rank %d of %d, chunk %d: messages of up to %d bytes, said to be %d", f.kind, f.name, p.Rank, size, chunk, most, p.Largest())
					}
				}
			}
		}
	}
}

// Checked by units, which blocks of different lengths do not share; and read before anything is written, which programs
// do not.
func TestWhatProgramsCannotDoIsRejected(t *testing.T) {
	gather := func(name string, size int) []Plan {
		for _, f := range families {
			if f.kind == coll.AllGather && f.name == name {
				return buildAll(t, f, Place{Size: size, Chunk: 4 * Unit})
			}
		}
		t.Fatal(name)
		return nil
	}
	cell := gather(Ring, 3)
	cell[1].Cells = 1
	cell[1].Steps = append(cell[1].Steps, Step{Op: Copy, From: []Region{{Space: Input, Block: 1, Count: cell[1].Pieces}},
		To: []Region{{Space: Scratch, Block: 2, Count: cell[1].Pieces}}})
	rejected(t, Check(cell, Lengths{Blocks: []uint64{65, 70, 100}}),
		"all_gather ring, 3 ranks, blocks [65 70 100], chunk 256: rank 1, chunk 0, step 5 (copy): reads 70 bytes and writes 100")

	swapped := gather(Bruck, 4)
	for i, s := range swapped[2].Steps {
		if n := len(s.To); s.Op == Recv && n == 2 {
			swapped[2].Steps[i].To[0], swapped[2].Steps[i].To[1] = s.To[1], s.To[0]
		}
	}
	rejected(t, Check(swapped, Lengths{Blocks: []uint64{65, 100, 100, 66}}),
		"rank 2, chunk 0, step", "takes the blocks of the message of rank")

	for name, to := range map[string][]Region{
		"there and back": {{Space: Output, First: 1, Count: 1}, {Space: Output, First: 0, Count: 1}},
		"one further":    {{Space: Output, First: 1, Count: 2}},
	} {
		turned := ringOf(t, 4)
		from := []Region{{Space: Output, First: 0, Count: 2}}
		turned[0].Steps = append(turned[0].Steps, Step{Op: Copy, From: from, To: to})
		resettle(turned)
		t.Run(name, func(t *testing.T) {
			rejected(t, Check(turned, Lengths{Bytes: 4 * Unit}), "rank 0, chunk 0, step 12 (copy): reads what it writes elsewhere")
		})
	}
}
