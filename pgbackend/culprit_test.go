package pgbackend

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
)

// known is what a rank knows in a case: numbers by rank, for whom each rank waits, or -1, and who does not answer.
type known struct {
	last     []uint64
	consumed []uint64
	awaits   []int
	silent   []int
}

func (k known) evidence(rank int) evidence {
	of := func(list []uint64) func(int) uint64 {
		return func(rank int) uint64 {
			if list == nil {
				return 0
			}
			return list[rank]
		}
	}
	return evidence{rank, len(k.awaits), of(k.last), of(k.consumed), func(rank int) bool { return slices.Contains(k.silent, rank) },
		func(rank int, _ time.Time) int { return k.awaits[rank] }}
}

// Rank 3 waits for rank 0 in collective #5. What a rank that does not answer has told is a lower bound.
func TestCulpritOfRanksThatHaveNotArrived(t *testing.T) {
	for name, c := range map[string]struct {
		known
		list    []int
		culprit int
	}{
		"one": {known{last: []uint64{5, 5, 4, 5}, awaits: []int{2, 2, -1, 0}}, []int{2}, 2},
		"the furthest behind, of those that answer": {
			known{last: []uint64{5, 4, 3, 5}, awaits: []int{2, 2, -1, 0}}, []int{2, 1}, 2},
		"as far, and awaited": {
			known{last: []uint64{5, 4, 4, 5}, awaits: []int{2, 2, -1, 0}}, []int{2, 1}, 2},
		"a late answer is not the furthest behind": {
			known{last: []uint64{5, 0, 4, 5}, awaits: []int{2, 2, -1, 0}, silent: []int{1}}, []int{2, 1}, 2},
		"the others wait for the one that is silent": {
			known{last: []uint64{4, 3, 4, 5}, awaits: []int{2, 2, -1, 0}, silent: []int{2}}, []int{2, 0, 1}, 2},
		"the others wait for each other, and one is silent": {
			known{last: []uint64{4, 3, 4, 5}, awaits: []int{1, 0, -1, 0}, silent: []int{2}}, []int{2, 0, 1}, 2},
		"the only one waits for one that has arrived and is silent": {
			known{last: []uint64{5, 4, 5, 5}, awaits: []int{1, 2, -1, 0}, silent: []int{2}}, []int{1}, 2},
		"the only one is silent": {
			known{last: []uint64{5, 5, 0, 5}, awaits: []int{2, 2, -1, 0}, silent: []int{2}}, []int{2}, 2},
		"two are silent, and this rank waits for one of them": {
			known{last: []uint64{5, 0, 0, 5}, awaits: []int{2, 0, -1, 0}, silent: []int{1, 2}}, []int{2, 1}, 2},
		"two are silent, and nobody knows more": {
			known{last: []uint64{5, 0, 0, 5}, awaits: []int{3, 0, -1, 0}, silent: []int{1, 2}}, []int{1, 2}, -1},
		"all": {known{last: []uint64{5, 5, 5, 5}, awaits: []int{3, 0, -1, 0}, silent: []int{1, 2}}, nil, -1},
	} {
		list, culprit := c.evidence(3).absent(5, 0)
		require.Equal(t, c.list, list, name)
		require.Equal(t, c.culprit, culprit, name)
	}
}

// Rank 3 waits for rank 1 in a collective that all have begun.
func TestCulpritOfRanksThatHaveArrived(t *testing.T) {
	for name, c := range map[string]struct {
		known
		culprit int
	}{
		"the awaited one":           {known{awaits: []int{1, -1, 1, 1}}, 1},
		"the one that it waits for": {known{awaits: []int{-1, 2, 0, 1}}, 0},
		"one that is further back": {
			known{consumed: []uint64{9, 9, 8, 9}, awaits: []int{-1, 0, -1, 1}}, 2},
		"one that is silent ends the search": {
			known{consumed: []uint64{7, 8, 9, 9}, awaits: []int{-1, 2, 0, 1}, silent: []int{2}}, 2},
		"a late answer is not further back": {
			known{consumed: []uint64{9, 9, 0, 9}, awaits: []int{1, -1, 1, 1}, silent: []int{2}}, 1},
		"those that answer wait for each other": {known{awaits: []int{1, 3, -1, 1}, silent: []int{2}}, 2},
		"the one that is further back waits": {
			known{consumed: []uint64{8, 9, 0, 9}, awaits: []int{1, -1, -1, 1}, silent: []int{2}}, 2},
		"one of two that are silent": {known{awaits: []int{-1, 3, -1, 1}, silent: []int{0, 2}}, -1},
	} {
		require.Equal(t, c.culprit, c.evidence(3).behind(1), name)
	}
	require.Equal(t, 2, known{awaits: []int{-1, 3, -1, 1}, silent: []int{2}}.evidence(3).behind(3), "a rank at its own gate")
}

// For whom a rank of another host waits is asked again until it sleeps: it is awake at times, and what it has told is how it was at one moment.
func TestRankOfAnotherHostIsAskedAgain(t *testing.T) {
	w := newHostsWorld(t, "01")
	work, f := sumAsync(w.groups[1], 1000)
	require.Nil(t, f)
	require.Equal(t, 0, diagnosis{w.groups[0], w.groups[0].run}.awaitedBy(1, time.Now().Add(opTimeout)))
	require.Nil(t, sum(w.groups[0], 1000))
	require.Nil(t, finish(work))
}

// A rank that does not answer is the end of the search, whomever it waited for when it last answered, and only until it answers again.
func TestRankThatWaitedAndDoesNotAnswer(t *testing.T) {
	w := newHostsWorld(t, "012")
	g := w.groups[0]
	d := diagnosis{g, g.run}
	work, f := sumAsync(w.groups[1], 1000)
	require.Nil(t, f)
	require.GreaterOrEqual(t, d.awaitedBy(1, time.Now().Add(opTimeout)), 0)
	require.False(t, g.isSilent(1))

	l := w.groups[1].links.pairs[0].Link
	l.Attend() // what comes stays in the kernel, as where the process is stopped
	// An answer that was on the way may count for the first question.
	require.Eventually(t, func() bool { g.askRemotes(); return g.isSilent(1) }, opTimeout, time.Millisecond)
	require.Equal(t, -1, g.run.Awaits(1))
	require.Equal(t, 1, d.evidence().behind(1))
	require.Contains(t, d.standsStill(1), "does not go on, nor answer: it may be stopped, or its host busy")
	require.False(t, g.isSilent(2))
	timeout := func(sequence uint64) *coll.Failure {
		return d.timeout(runner.Incident{Code: runner.Timeout, Peer: 2, Sequence: sequence, Op: coll.Op{Kind: coll.AllReduce}, Timeout: time.Second})
	}
	require.NoError(t, expect(timeout(1), coll.Timeout, "not arrived: rank 2", "has called no collective yet"))
	require.Equal(t, 2, timeout(1).Rank)
	require.NoError(t, expect(timeout(0), coll.Timeout, "all ranks have arrived, but rank 2", "does not go on"))

	l.Leave()
	require.Eventually(t, func() bool { return !g.isSilent(1) }, opTimeout, time.Millisecond)
	works := []runner.Work{work}
	for _, rank := range []int{0, 2} {
		work, f := sumAsync(w.groups[rank], 1000)
		require.Nil(t, f)
		works = append(works, work)
	}
	require.Nil(t, finishAll(works))
}
