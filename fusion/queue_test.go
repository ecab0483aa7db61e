package fusion

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/coll"
)

// testdata/queue/*.txt holds scenarios of several ranks, each with one Queue. A line that begins with "== " begins a scenario and
// names it; lines that begin with # explain it. The other lines are events:
//
//	ranks N                            how many there are; 2 without it
//	limits LONGEST BYTES COUNT         1000, 4000 and 5 without it
//	R: all_reduce TYPE BYTES [REDUCE] [apart]
//	R: KIND                            an operation that joins no other one
//	R: wants                           somebody waits on rank R
//
// Behind each event stand, indented, the steps that follow from it on all ranks. An agreement is complete when every rank has made
// its proposal.
//
//	go test ./fusion -run TestQueue -update     # writes the steps anew

var update = flag.Bool("update", false, "write the scenarios with the steps that came")

func TestQueue(t *testing.T) {
	files, err := filepath.Glob("testdata/queue/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files: %v", len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		got := play(t, string(text))
		if *update {
			require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
		} else if got != string(text) {
			t.Errorf("%s: got\n%s", file, got)
		}
	}
}

// play returns a file of scenarios with the steps that come.
func play(t *testing.T, text string) string {
	var out strings.Builder
	var s *stage
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, "  ") {
			continue
		}
		fmt.Fprintln(&out, line)
		if strings.HasPrefix(line, "== ") {
			s = newStage(2, Limits{1000, 4000, 5})
			continue
		}
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if err := s.event(strings.Fields(line)); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		for _, step := range s.steps {
			fmt.Fprintln(&out, "  "+step)
		}
		s.steps = nil
	}
	return out.String()
}

// stage is the ranks of a group that fuses.
type stage struct {
	limits   Limits
	ranks    []*Queue
	proposal []int // by rank; 0: none is under way
	steps    []string
}

func newStage(ranks int, l Limits) *stage {
	s := &stage{limits: l, ranks: make([]*Queue, ranks), proposal: make([]int, ranks)}
	for i := range s.ranks {
		s.ranks[i] = NewQueue(l)
	}
	return s
}

func (s *stage) event(words []string) error {
	switch words[0] {
	case "ranks":
		n, err := strconv.Atoi(words[1])
		*s = *newStage(n, s.limits)
		return err
	case "limits":
		_, err := fmt.Sscan(strings.Join(words[1:], " "), &s.limits.Longest, &s.limits.Bytes, &s.limits.Count)
		*s = *newStage(len(s.ranks), s.limits)
		return err
	}
	rank, err := strconv.Atoi(strings.TrimSuffix(words[0], ":"))
	if err != nil {
		return err
	}
	if words[1] == "wants" {
		s.ranks[rank].Want()
	} else {
		op, apart, err := parseOp(words[1:])
		if err != nil {
			return err
		}
		s.ranks[rank].Add(op, apart)
	}
	s.settle(rank)
	return nil
}

func parseOp(words []string) (op coll.Op, apart bool, err error) {
	var known bool
	if op.Kind, known = coll.ParseKind(words[0]); !known {
		return op, false, fmt.Errorf("no kind %q", words[0])
	}
	if op.Kind != coll.AllReduce {
		return op, false, nil
	}
	types := map[string]coll.DataType{"float32": coll.Float32, "float16": coll.Float16}
	reductions := map[string]coll.ReduceOp{"MAX": coll.Max, "PREMUL_SUM": coll.PremulSum}
	if op.Type, known = types[words[1]]; !known {
		return op, false, fmt.Errorf("no type %q", words[1])
	}
	op.In, err = strconv.ParseUint(words[2], 10, 64)
	op.Out = op.In
	for _, word := range words[3:] {
		if word == "apart" {
			apart = true
		} else if op.Reduce, known = reductions[word]; !known {
			return op, false, fmt.Errorf("no reduction %q", word)
		}
	}
	return op, apart, err
}

// settle carries out the steps of a rank, and those of all ranks that follow.
func (s *stage) settle(rank int) {
	q := s.ranks[rank]
	for {
		switch step := q.Next(); {
		case step.Propose > 0:
			s.proposal[rank] = step.Propose
			s.steps = append(s.steps, fmt.Sprintf("rank %d proposes %d", rank, step.Propose))
		case step.Carry > 0:
			s.steps = append(s.steps, fmt.Sprintf("rank %d carries %d", rank, step.Carry))
		default:
			if lowest := s.lowest(); lowest > 0 {
				s.agree(lowest)
			}
			return
		}
	}
}

// lowest returns the lowest proposal, or 0 if a rank has made none.
func (s *stage) lowest() int {
	lowest := s.proposal[0]
	for _, n := range s.proposal {
		lowest = min(lowest, n)
	}
	return lowest
}

func (s *stage) agree(lowest int) {
	s.steps = append(s.steps, fmt.Sprintf("they agree on %d", lowest))
	clear(s.proposal)
	for rank, q := range s.ranks {
		if !q.Agreed(uint64(lowest)) {
			panic("refused")
		}
		s.settle(rank)
	}
}

func TestAgreedRefusesWhatNoRankProposes(t *testing.T) {
	op := coll.Op{Kind: coll.AllReduce, Type: coll.Float32, In: 8, Out: 8}
	q := NewQueue(Limits{100, 100, 10})
	if q.Agreed(1) {
		t.Error("an agreement that this rank has not begun")
	}
	q.Add(op, false)
	q.Add(op, false)
	q.Want()
	if step := q.Next(); step.Propose != 2 {
		t.Fatalf("%+v", step)
	}
	for _, n := range []uint64{0, 3, 1 << 60} {
		if q.Agreed(n) {
			t.Errorf("%d operations of 2", n)
		}
	}
	if !q.Agreed(2) {
		t.Error("2 operations of 2")
	}
}

func TestLimitsFor(t *testing.T) {
	linear := func(start time.Duration, perKiB time.Duration) func(uint64) time.Duration {
		return func(bytes uint64) time.Duration { return start + time.Duration(bytes)*perKiB/1024 }
	}
	for _, c := range []struct {
		name    string
		predict func(uint64) time.Duration
		longest uint64
	}{
		{"bytes cost nothing", linear(time.Microsecond, 0), mostBytes / ofThem},
		{"nothing but bytes", linear(0, time.Microsecond), 0},
		{"both", linear(time.Microsecond, time.Microsecond), 1024},
		{"a group whose collectives start slowly", linear(30*time.Microsecond, time.Microsecond), 32 << 10},
	} {
		if got, want := LimitsFor(c.predict), (Limits{c.longest, ofThem * c.longest, mostCount}); got != want {
			t.Errorf("%s: %+v, expected %+v", c.name, got, want)
		}
	}
}
