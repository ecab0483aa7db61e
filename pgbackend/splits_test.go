package pgbackend

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
)

// The blocks of external all_to_alls, whose lengths only the ranks of a pair know: docs/protocol.md, section 12.

// swap issues an all_to_all on a device. Step n has between ranks r and p n + r + 2p int32 that fit, but that `from` sends `to` one more.
func swap(g *Group, step, from, to int) (runner.Work, *coll.Failure) {
	op := coll.Op{Kind: coll.AllToAll, Type: coll.Int32, Async: true, Device: aDevice, InBlocks: make([]uint64, g.size), OutBlocks: make([]uint64, g.size)}
	var in, out uint64
	for p := range g.size {
		op.InBlocks[p], op.OutBlocks[p] = uint64(4*(step+g.rank+2*p)), uint64(4*(step+p+2*g.rank))
		if g.rank == from && p == to {
			op.InBlocks[p] += 4
		}
		in, out = in+op.InBlocks[p], out+op.OutBlocks[p]
	}
	return g.Issue(op, one(make([]byte, in)), one(make([]byte, out)))
}

const nobody = -1

// Every rank learns both lengths, although no data moves and no stream ends. What fitted before has ended well.
func TestBlocksOfExternalRunsThatDoNotFit(t *testing.T) {
	for _, pair := range [][2]int{{0, 2}, {2, 0}} {
		w, of := externalWorld(t, 3, opTimeout)
		list := w.eachFailure(func(g *Group) *coll.Failure {
			for i := range 5 {
				work, f := swap(g, i, nobody, nobody)
				if f != nil {
					return f
				}
				of(g).carryOut(i)
				if f := end(work); f != nil {
					return &coll.Failure{Message: "one that fits: " + f.Message}
				}
			}
			work, f := swap(g, 5, pair[0], pair[1])
			if f != nil { // the group has failed already
				return f
			}
			return end(work)
		})
		bytes := 4 * (5 + pair[0] + 2*pair[1])
		expectAll(t, list, coll.Mismatch, fmt.Sprintf("rank %d ", pair[1]), fmt.Sprintf("expects %d bytes from rank %d ", bytes, pair[0]),
			fmt.Sprintf("in all_to_all #6, which sends it %d; the input splits of one rank must be the output splits of the others", bytes+4))
		w.destroy()
	}
}

// Blocks without lists of lengths are compared as well.
func TestEqualBlocksOfExternalRunsThatDoNotFit(t *testing.T) {
	w, _ := externalWorld(t, 2, opTimeout)
	list := w.eachFailure(func(g *Group) *coll.Failure {
		b := make([]byte, 16+8*g.rank)
		work, f := g.Issue(coll.Op{Kind: coll.AllToAll, Type: coll.Int32, Async: true, Device: aDevice}, one(b), one(b))
		if f != nil {
			return f
		}
		return end(work)
	})
	expectAll(t, list, coll.Mismatch, " expects ", " bytes from rank ", " in all_to_all #1, which sends it ")
}

// A rank whose stream is done does not complete an all_to_all that does not fit, although it gets nothing from the peer and has not waited
// for it.
func TestBlocksOfAnExternalRunThatIsDone(t *testing.T) {
	w, of := externalWorld(t, 2, opTimeout)
	issue := func(rank int, sent, expected uint64) (runner.Work, *coll.Failure) {
		in, out := []uint64{4, 4}, []uint64{4, 4}
		in[1-rank], out[1-rank] = sent, expected
		op := coll.Op{Kind: coll.AllToAll, Type: coll.Int32, Async: true, Device: aDevice, InBlocks: in, OutBlocks: out}
		return w.groups[rank].Issue(op, one(make([]byte, 4+sent)), one(make([]byte, 4+expected)))
	}
	first, f := issue(0, 0, 0)
	require.NoError(t, asError(f))
	of(w.groups[0]).carryOut(0)
	require.NoError(t, asError(end(first)), "nothing is known of rank 1 by then")
	second, f := issue(1, 20, 0)
	if f == nil {
		of(w.groups[1]).carryOut(0)
		f = end(second)
	}
	require.NoError(t, expect(f, coll.Mismatch, "rank 0 (", "expects 0 bytes from rank 1 in all_to_all #1, which sends it 20"))
}

// Between hosts a rank asks those with which it has exchanged blocks, also ranks that are no neighbors: all of them where nothing goes on, and
// one in turn where a library carries the calls out all the same.
func TestBlocksBetweenHosts(t *testing.T) {
	for _, stalled := range []bool{false, true} {
		patient(t, 2*hangAfter) // an answer may be late
		w, of := libraryWorld(t, "0123")
		works := make([]runner.Work, 4)
		w.each(func(g *Group) error {
			work, f := swap(g, 1, 2, 0)
			works[g.rank] = work
			if f == nil && !stalled {
				of(g).carryOut(0)
			}
			return asError(f)
		})
		g := w.groups[0]
		require.NotContains(t, g.neighbors(), 2)
		if stalled {
			g.compareStalled()
		} else {
			for turn := 0; turn < 3; turn++ {
				g.compareStreams(turn)
			}
		}
		require.NoError(t, expect(g.Cause(), coll.Mismatch, "rank 0 expects 12 bytes from rank 2 (", "in all_to_all #1, which sends it 16"), "%v", stalled)
		for rank, work := range works {
			if f := end(work); f != nil {
				require.Equal(t, coll.Mismatch, f.Status, "rank %d: %v", rank, f)
			}
		}
		require.Eventually(t, func() bool { return w.groups[2].Cause() != nil }, opTimeout, time.Millisecond)
		w.destroy()
	}
}
