package algo

import (
	"strings"
	"testing"
	"time"

	"sagecomm/algo/plan"
	"sagecomm/algo/sendrecv"
	"sagecomm/algo/shmplan"
	"sagecomm/internal/coll"
)

// explained returns the candidate with an algorithm.
func explained(t *testing.T, s *Selector, kind coll.Kind, bytes uint64, algorithm string) Candidate {
	t.Helper()
	for _, c := range s.Explain(kind, bytes) {
		if c.Algorithm == algorithm {
			return c
		}
	}
	t.Fatalf("%v of %d bytes: %s is no candidate", kind, bytes, algorithm)
	return Candidate{}
}

// Steps and bytes are those of the closed formulas (docs/algorithms.md).
func TestExplainCountsStepsAndBytes(t *testing.T) {
	const size, n = 4, 4 << 20
	s := selectorOf(t, Shape{Size: size}, DefaultParams(), "")
	for _, c := range []struct {
		algorithm string
		steps     int
		bytes     uint64
	}{
		{sendrecv.Ring, n / (size * plan.MessageBytes) * 2 * (size - 1), 2 * (size - 1) * n / size},
		{sendrecv.RecursiveDoubling, n / plan.MessageBytes * 2, 2 * n},
		{sendrecv.Rabenseifner, n / (2 * plan.MessageBytes) * 4, 2 * (size - 1) * n / size},
		{shmplan.TwoShot, n / (128 << 10) * 3, 2 * (size - 1) * n / size},
		{shmplan.OneShot, n / (128 << 10) * 2, (size - 1) * n},
	} {
		got := explained(t, s, coll.AllReduce, n, c.algorithm)
		if got.Steps != c.steps || got.Bytes != c.bytes || got.Predicted <= 0 || got.AtLeast || got.Why == "" {
			t.Errorf("%+v, want %d steps and %d bytes", got, c.steps, c.bytes)
		}
	}
}

func TestExplainSaysWhy(t *testing.T) {
	shape := Shape{Size: 4}
	predicted := selectorOf(t, shape, DefaultParams(), "")
	forced := selectorOf(t, shape, DefaultParams(), "all_to_all:bruck;all_reduce:4K-inf:ring@chunk=128K")
	for _, c := range []struct {
		s         *Selector
		kind      coll.Kind
		bytes     uint64
		algorithm string
		why       string
	}{
		{predicted, coll.AllReduce, 100, shmplan.OneShot, "predicted"},
		{predicted, coll.AllReduce, 1 << 20, shmplan.OneShot, " times as long as two_shot"},
		{predicted, coll.AllReduce, 1 << 20, sendrecv.Ring, " times as long as two_shot"},
		{predicted, coll.AllToAll, 1 << 20, sendrecv.Bruck, "needs blocks of equal length, so only a rule can set it"},
		{forced, coll.AllToAll, 1 << 20, sendrecv.Bruck, "set by SAGECOMM_TUNE: all_to_all:bruck"},
		{forced, coll.AllToAll, 1 << 20, shmplan.OneShot, "not what is set"},
		{forced, coll.AllReduce, 1 << 20, sendrecv.Ring, ""},
		{selectorOf(t, Shape{Size: 1}, DefaultParams(), "all_reduce:ring"), coll.AllReduce, 9, shmplan.Local, "the only one"},
		{predicted, coll.Broadcast, 9, shmplan.OneShot, "predicted"},
		{selectorOf(t, shape, DefaultParams(), "policy=thresholds"), coll.AllReduce, 9, sendrecv.RecursiveDoubling, "set by policy thresholds: all_reduce:0-999999:recursive_doubling"},
	} {
		got := explained(t, c.s, c.kind, c.bytes, c.algorithm)
		if !strings.Contains(got.Why, c.why) {
			t.Errorf("%v %s of %d bytes: %q, want %q", c.kind, c.algorithm, c.bytes, got.Why, c.why)
		}
	}
	// A rule's chunk and the predicted chunk are two candidates.
	chunks := map[int]bool{}
	for _, c := range forced.Explain(coll.AllReduce, 1<<20) {
		if c.Algorithm == sendrecv.Ring {
			chunks[c.Chunk] = c.Chosen && c.Forced
		}
	}
	if len(chunks) != 2 || !chunks[128<<10] || chunks[4*plan.MessageBytes] {
		t.Errorf("chunks of ring: %v, expected 131072 (chosen by the rule) and the predicted one", chunks)
	}
}

// A candidate that is cheaper and is not chosen has a reason.
func TestExplainSaysWhyTheCheaperIsNotChosen(t *testing.T) {
	chosen := Candidate{Algorithm: shmplan.OneShot, Transport: Slots, Predicted: 10 * time.Microsecond}
	for want, c := range map[string]Candidate{
		"channels must take 15 % less than slots": {Transport: Channels, Predicted: 9 * time.Microsecond},
		"not at the lengths at which classes":     {Transport: Slots, Predicted: 9 * time.Microsecond},
		"1.20 times as long as one_shot":          {Transport: Slots, Predicted: 12 * time.Microsecond},
	} {
		if got := rejected(coll.Broadcast, c, chosen); !strings.Contains(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if got := rejected(coll.Reduce, Candidate{Transport: Channels}, chosen); !strings.Contains(got, "adds in another order") {
		t.Error(got)
	}
	if Slots.String() != "slots" || Channels.String() != "channels" {
		t.Error("transports have other names")
	}
}

// In a large group over hosts a plan in which a rank has many peers is left out, and the reason says so.
func TestExplainOfManyPeers(t *testing.T) {
	const ranks = 160
	s, err := NewSelector(Shape{Size: ranks, Apart: true, Hosts: hosts(ranks/8, 8)}, DefaultParams(), Tune{})
	if err != nil {
		t.Fatal(err)
	}
	const want = "more than 64 others, so only a rule can set it"
	if got := explained(t, s, coll.AllGather, 64<<10, "direct").Why; !strings.Contains(got, want) {
		t.Errorf("direct: %q, expected %q", got, want)
	}
}
