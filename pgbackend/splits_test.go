package pgbackend

import (
	"fmt"
	"slices"
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
		w.each(func(g *Group) error { // all have left these steps when the next one makes the group fail
			for i := range 5 {
				work, f := swap(g, i, nobody, nobody)
				if f != nil {
					return f
				}
				of(g).carryOut(i)
				if f := end(work); f != nil {
					return fmt.Errorf("one that fits: %w", f)
				}
			}
			return nil
		})
		list := w.eachFailure(func(g *Group) *coll.Failure {
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

// setStreamsEvery sets how often ranks of groups that are made behind it compare the calls of a library.
func setStreamsEvery(t *testing.T, d time.Duration) {
	real := streamsEvery
	streamsEvery = d
	t.Cleanup(func() { streamsEvery = real })
}

// allTold returns when ranks have told the blocks of an all_to_all: the engine may begin it behind the call.
func allTold(t *testing.T, groups ...*Group) {
	t.Helper()
	for _, g := range groups {
		run := g.device.Load().run
		require.Eventually(t, func() bool { return run.BlocksTold(g.rank) > 0 }, opTimeout, time.Millisecond)
	}
}

// Between hosts a rank asks those with which it has exchanged blocks, also ranks that are no neighbors, where nothing goes on and where a
// library carries the calls out all the same.
func TestBlocksBetweenHosts(t *testing.T) {
	setStreamsEvery(t, time.Hour) // no rank compares by itself
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
		allTold(t, w.groups...)
		g := w.groups[0]
		require.NotContains(t, g.neighbors(), 2)
		if r := (blockLooks{}); stalled {
			g.compareStalled(&r)
		} else {
			g.compareStreams(&r)
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

// A look asks a few ranks. Later ones ask the others, until all are asked, though no further collective comes.
func TestBlocksBetweenManyHosts(t *testing.T) {
	const hosts, here, there = "0123456789abcdefghij", 0, 10
	for _, stalled := range []bool{false, true} {
		patient(t, 2*hangAfter)
		setStreamsEvery(t, time.Hour)
		w, of := libraryWorld(t, hosts)
		works := make([]runner.Work, len(hosts))
		w.each(func(g *Group) error {
			work, f := swap(g, 1, here, there)
			works[g.rank] = work
			if f == nil && !stalled {
				of(g).carryOut(0)
			}
			return asError(f)
		})
		allTold(t, w.groups...)
		for _, rank := range []int{here, there} {
			require.Nil(t, w.groups[rank].Cause())
			var asked []int
			r := blockLooks{}
			d := diagnosis{w.groups[rank], w.groups[rank].device.Load().run}
			for {
				next := r.next(d)
				require.LessOrEqual(t, len(next), askedInALook)
				if len(next) == 0 {
					break
				}
				asked = append(asked, next...)
			}
			slices.Sort(asked)
			others := slices.DeleteFunc(d.remoteRanks(), func(rank int) bool { return slices.Contains(d.neighbors(), rank) })
			require.Equal(t, others, asked, "each once")
		}
		g := w.groups[here]
		if stalled {
			go g.followRemotes(time.Millisecond, time.Hour)
		} else {
			go g.followRemotes(time.Hour, time.Millisecond)
		}
		require.Eventually(t, func() bool { return g.Cause() != nil }, opTimeout, time.Millisecond)
		require.NoError(t, expect(g.Cause(), coll.Mismatch, "rank 10 (", "expects ", " bytes from rank 0 in all_to_all #1, which sends it "))
		for _, work := range works {
			if f := end(work); f != nil { // not for streams that ended before the failure came
				require.Equal(t, coll.Mismatch, f.Status)
			}
		}
		w.destroy()
	}
}

// A rank that has answered, and has made fewer all_to_alls, is not asked again: it asks when it makes them. One that has left is not asked.
func TestRanksThatNeedNoQuestion(t *testing.T) {
	patient(t, 2*hangAfter)
	setStreamsEvery(t, time.Hour)
	w, _ := libraryWorld(t, "0123")
	first, f := swap(w.groups[0], 1, nobody, nobody)
	require.NoError(t, asError(f))
	allTold(t, w.groups[0])
	r := blockLooks{}
	require.True(t, w.groups[0].compareStreams(&r), "all have answered")
	require.Empty(t, r.open)
	second, f := swap(w.groups[2], 1, 2, 0)
	require.NoError(t, asError(f))
	allTold(t, w.groups[2])
	require.True(t, w.groups[0].compareStreams(&r))
	require.Nil(t, w.groups[0].Cause())
	require.True(t, w.groups[2].compareStreams(&blockLooks{}))
	require.NoError(t, expect(w.groups[2].Cause(), coll.Mismatch, "rank 0 (", "expects 12 bytes from rank 2 in all_to_all #1, which sends it 16"))
	require.Equal(t, coll.Mismatch, end(first).Status)
	require.Equal(t, coll.Mismatch, end(second).Status)
	w.destroy()
}
