package pgbackend

import (
	"bytes"
	"fmt"
	"testing"

	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
	"sagecomm/tests/quick"
)

// A synchronous operation whose program is cached, on an idle group, stays in C.
func TestCacheHitsDoNotEnterGo(t *testing.T) {
	for _, length := range []int{8, 100_000} {
		t.Run(fmt.Sprintf("%d bytes", length), func(t *testing.T) {
			w := newWorld(t, 2)
			loop := func(rounds int) {
				w.each(func(g *Group) error {
					in, out := make([]byte, length), make([]byte, 2*length)
					for range rounds {
						for _, c := range []struct {
							op      coll.Op
							in, out [][]byte
						}{
							{coll.Op{Kind: coll.AllReduce, Type: coll.Float32}, one(in), one(in)},
							{coll.Op{Kind: coll.AllGather, Type: coll.Float32}, one(in), one(out)},
							{coll.Op{Kind: coll.Broadcast, Type: coll.Float32, Root: 1}, one(in), one(in)},
							{coll.Op{Kind: coll.Barrier}, nil, nil},
						} {
							if _, f := g.Issue(c.op, c.in, c.out); f != nil {
								return f
							}
						}
					}
					return nil
				})
			}
			loop(1)
			// If the system keeps a rank from running for 50 ms, the calls of its peers return to look for signals. The engine
			// completes their operations, and the next operation may find the lock taken. So the best of a few loops counts.
			var entered []uint64
			for range 5 {
				before := runner.GoEntries()
				loop(250)
				n := runner.GoEntries() - before
				if n == 0 {
					return
				}
				entered = append(entered, n)
			}
			t.Errorf("Go was entered %v times in loops of 1000 operations", entered)
		})
	}
}

// When the cache is full, every further call gets a program of its own.
func TestCacheFull(t *testing.T) {
	quick.Skip(t, "thousands of operations")
	w := newWorld(t, 4)
	const room = 768 // three quarters of SCR_CACHE_ENTRIES
	w.each(func(g *Group) error {
		ops := 0
		for round := range 2 {
			for dtype := range coll.DataTypeCount {
				for op := range coll.ReduceOpCount {
					if coll.Defined(op, dtype) != nil {
						continue
					}
					for _, count := range []int{3, 9000 / dtype.Size()} { // two size classes
						for root := range 4 {
							in := contributionBytes(dtype, op, g.rank, 4, count)
							out := make([]byte, len(in))
							_, f := g.Issue(coll.Op{Kind: coll.Reduce, Type: dtype, Reduce: op, Root: root, Factor: premulFactor}, one(in), one(out))
							if f != nil {
								return f
							}
							if g.rank == root && !bytes.Equal(out, reducedBytes(dtype, op, 4, count)) {
								return fmt.Errorf("round %d: %v of %d %v to %d is wrong", round, op, count, dtype, root)
							}
							ops++
						}
					}
				}
			}
		}
		stats, err := g.Stats()
		if err != nil || stats.Programs != room || ops <= 2*room {
			return fmt.Errorf("%d programs after %d operations, expected %d; %v", stats.Programs, ops, room, err)
		}
		return nil
	})
}

func TestStats(t *testing.T) {
	w := newWorld(t, 2)
	w.each(func(g *Group) error {
		for range 5 {
			if f := sum(g, 100); f != nil {
				return f
			}
		}
		stats, err := g.Stats()
		if err != nil {
			return err
		}
		row := stats.Ops["all_reduce"]
		if stats.Group != g.name || stats.Rank != g.rank || stats.Size != 2 || stats.Sequence != 5 || row.Count != 5 ||
			row.Bytes != 2000 || stats.Fast > 4 || len(stats.Classes["all_reduce"]) == 0 {
			return fmt.Errorf("not what happened: %+v", stats)
		}
		return nil
	})
}
