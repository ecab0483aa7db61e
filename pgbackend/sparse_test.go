package pgbackend

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
)

// sparseRank is the caller of a sparse sum on one rank. Its tensor has one sparse dimension and values of one byte.
type sparseRank struct {
	SparseSum
	rank            int
	indices, values [][]byte // by rank, as received
	added           bool
}

func newSparseRank(rank, size, elements int) *sparseRank {
	s := &sparseRank{rank: rank, indices: make([][]byte, size), values: make([][]byte, size)}
	s.Header = SparseHeader{Elements: int64(elements), SparseDims: 1, Dims: 2, Sizes: [8]int64{50, 7}, Hash: 99}
	copy(s.Header.Type[:], "Byte")
	s.Indices = bytes.Repeat([]byte{byte(rank), 1, 2, 3, 4, 5, 6, 7}, elements)
	s.Values = bytes.Repeat([]byte{byte(100 + rank)}, elements)
	s.indices[rank], s.values[rank] = s.Indices, s.Values
	s.Allocate = func(peer int, elements int64) (indices, values []byte, err error) {
		s.indices[peer], s.values[peer] = make([]byte, 8*elements), make([]byte, elements)
		return s.indices[peer], s.values[peer], nil
	}
	s.Add = func() (int, error) {
		s.added = true
		return -1, nil
	}
	return s
}

func (s *sparseRank) run(g *Group) *coll.Failure {
	promise, _, f := g.AllReduceSparse(s.SparseSum)
	if f != nil {
		return f
	}
	return finish(promise.Work())
}

func TestSparseSumsMoveAllElementsToAllRanks(t *testing.T) {
	elements := []int{3, 0, 40_000, 1}
	w := newWorld(t, len(elements))
	w.each(func(g *Group) error {
		var ranks [3]*sparseRank
		var works [3]*runner.Promise
		for i := range ranks { // several at a time, with a collective between
			ranks[i] = newSparseRank(g.rank, g.size, elements[(g.rank+i)%g.size])
			before := g.Sequence()
			var sequence uint64
			var f *coll.Failure
			if works[i], sequence, f = g.AllReduceSparse(ranks[i].SparseSum); f != nil {
				return f
			}
			if sequence != before+1 {
				return fmt.Errorf("it has number %d after %d", sequence, before)
			}
			if f := sum(g, 5); f != nil {
				return f
			}
		}
		for i := len(ranks) - 1; i >= 0; i-- {
			if f := finish(works[i].Work()); f != nil {
				return f
			}
			works[i].Work().Release()
			for peer := range g.size {
				n := elements[(peer+i)%g.size]
				if !bytes.Equal(ranks[i].indices[peer], bytes.Repeat([]byte{byte(peer), 1, 2, 3, 4, 5, 6, 7}, n)) ||
					!bytes.Equal(ranks[i].values[peer], bytes.Repeat([]byte{byte(100 + peer)}, n)) || !ranks[i].added {
					return fmt.Errorf("sum %d: the elements of rank %d differ", i, peer)
				}
			}
		}
		return nil
	})
}

// All ranks have the same failure, and no rank adds.
func TestSparseSumsThatFail(t *testing.T) {
	for _, c := range []struct {
		name    string
		change  func(s *sparseRank) // on rank 1
		status  coll.Status
		culprit int
		words   []string
		added   []int // ranks that may have added
	}{
		{"another shape", func(s *sparseRank) { s.Header.Sizes[1] = 8 }, coll.Mismatch, 1,
			[]string{"ranks disagree in #1 of group", "rank 0 gave a sparse tensor of Byte (50, 7), 1 dimension sparse, rank 1 one of Byte (50, 8), 1 dimension sparse"}, nil},
		{"elements below zero", func(s *sparseRank) { s.Header.Elements = -1 }, coll.Mismatch, 1, []string{"ranks disagree in #1"}, nil},
		{"garbage", func(s *sparseRank) {
			s.Header.Dims, s.Header.Hash, s.Header.SparseDims = 1<<40, 0x12345678, -5
			copy(s.Header.Type[:], "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff")
		}, coll.Mismatch, 1, []string{"rank 1 one of ? (50, 7, 0, 0, 0, 0, 0, 0, ... of 1099511627776 with hash 12345678), -5 dimensions sparse"}, nil},
		{"no memory", func(s *sparseRank) {
			s.Allocate = func(int, int64) ([]byte, []byte, error) { return nil, nil, errors.New("none left") }
		}, coll.System, 1, []string{"rank 1 has no memory for the elements of rank ", ": none left"}, nil},
		{"a panic", func(s *sparseRank) { s.Allocate = func(int, int64) ([]byte, []byte, error) { panic("for the test") } },
			coll.Internal, 1, []string{"for the test"}, nil},
		{"elements that are not valid", func(s *sparseRank) { s.Add = func() (int, error) { return 2, errors.New("index 10 is out of range") } },
			coll.Internal, 2, []string{"rank 2 sent elements that are not valid: index 10 is out of range"}, []int{0, 2}},
		{"cannot add", func(s *sparseRank) { s.Add = func() (int, error) { return -1, errors.New("why not") } },
			coll.System, 1, []string{"rank 1 cannot add the elements of all ranks: why not"}, []int{0, 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, 3)
			var ranks [3]*sparseRank
			failures := w.eachFailure(func(g *Group) *coll.Failure {
				ranks[g.rank] = newSparseRank(g.rank, g.size, 5)
				if g.rank == 1 {
					c.change(ranks[1])
				}
				return ranks[g.rank].run(g)
			})
			for rank, f := range failures {
				if f == nil && ranks[rank].added && slices.Contains(c.added, rank) {
					f = w.groups[rank].run.Error() // this rank had all it needed before the failure
					for deadline := time.Now().Add(hangAfter); f == nil && time.Now().Before(deadline); f = w.groups[rank].run.Error() {
						time.Sleep(time.Millisecond)
					}
				}
				if f == nil || f.Status != c.status || f.Rank != c.culprit {
					t.Fatalf("rank %d: %+v", rank, f)
				}
				for _, word := range c.words {
					if !strings.Contains(f.Message, word) {
						t.Errorf("rank %d: %q is not in %q", rank, word, f.Message)
					}
				}
			}
		})
	}
}

// The rank dies after the headers were gathered, before it has sent any elements.
func TestSparseSumsFailWhenARankDiesMidway(t *testing.T) {
	w := newWorld(t, 3)
	var added [3]bool
	failures := w.eachFailure(func(g *Group) *coll.Failure {
		s := newSparseRank(g.rank, g.size, 5)
		if g.rank == 1 {
			allocate := s.Allocate
			s.Allocate = func(peer int, elements int64) (indices, values []byte, err error) {
				w.groups[0].peerDied(1)
				return allocate(peer, elements)
			}
		}
		f := s.run(g)
		added[g.rank] = s.added
		return f
	})
	for rank, f := range failures {
		if f == nil || f.Status != coll.PeerFailure || f.Rank != 1 || added[rank] {
			t.Errorf("rank %d: %+v, added: %v", rank, f, added[rank])
		}
		if n := w.groups[rank].composites.Load(); n != 0 {
			t.Errorf("rank %d: %d composite operations are left", rank, n)
		}
	}
}

func TestDestroyEndsASparseSumThatAPeerDoesNotJoin(t *testing.T) {
	impatient(t, 50*time.Millisecond)
	w := newWorld(t, 2)
	waits, _, f := w.groups[0].AllReduceSparse(newSparseRank(0, 2, 5).SparseSum)
	if f != nil {
		t.Fatal(f)
	}
	if done, _ := waits.Work().Wait(0); done {
		t.Fatal("complete without its peer")
	}
	require.NoError(t, w.groups[0].Destroy())
	if f := finish(waits.Work()); f == nil || f.Status != coll.Aborted {
		t.Errorf("%+v", f)
	}
	if n := w.groups[0].composites.Load(); n != 0 {
		t.Errorf("%d composite operations are left", n)
	}
	if _, _, f := w.groups[0].AllReduceSparse(newSparseRank(0, 2, 5).SparseSum); f == nil {
		t.Error("a destroyed group took a sparse sum")
	}
}

func TestASparseSumWhoseDeadlinePassesFails(t *testing.T) {
	w := newWorld(t, 2)
	s := newSparseRank(0, 2, 5)
	s.Timeout = 50 * time.Millisecond
	f := s.run(w.groups[0])
	if f == nil || f.Status != coll.Timeout || !strings.Contains(f.Message, "of a sparse tensor") {
		t.Errorf("%+v", f)
	}
}
