package pgbackend

import (
	"fmt"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
)

// known is what a rank knows in a case: numbers by rank, for whom each rank waits, or -1, who does not answer, and who
// stops to answer when it is asked again.
type known struct {
	last     []uint64
	consumed []uint64
	awaits   []int
	silent   []int
	unmet    []int // of which nothing is known, since there was no link in time
	gone     []int
	falls    []int
	library  bool
	asked    *[]time.Time // until when it was searched
}

func (k known) evidence(rank int) evidence {
	e := evidence{rank: rank, size: len(k.awaits), library: k.library, until: time.Now().Add(opTimeout), last: k.last,
		silent: make([]bool, len(k.awaits)), gone: make([]bool, len(k.awaits))}
	for _, rank := range k.silent {
		e.silent[rank] = true
	}
	if len(k.unmet) > 0 {
		e.unmet = make([]bool, e.size)
	}
	for _, rank := range k.unmet {
		e.silent[rank], e.unmet[rank] = true, true
	}
	for _, rank := range k.gone {
		e.gone[rank] = true
	}
	e.consumed = func(rank int) uint64 {
		if k.consumed == nil {
			return 0
		}
		return k.consumed[rank]
	}
	e.awaitedBy = func(rank int, until time.Time) (int, bool) {
		if k.asked != nil {
			*k.asked = append(*k.asked, until)
		}
		if slices.Contains(k.falls, rank) {
			return -1, true
		}
		return k.awaits[rank], false
	}
	return e
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
		"a chain that ends at none that is silent": {
			known{last: []uint64{6, 4, 5, 5}, awaits: []int{3, 0, -1, 0}, silent: []int{2}}, []int{1}, 1},
		"nor at one of several": {
			known{last: []uint64{6, 4, 5, 5, 5}, awaits: []int{3, 0, -1, 0, -1}, silent: []int{2, 4}}, []int{1}, 1},
		"one that does not answer any more": {
			known{last: []uint64{5, 4, 4, 5}, awaits: []int{2, 2, -1, 0}, silent: []int{0}, falls: []int{2}}, []int{2, 1}, 2},
		"one that waits for its own device": {
			known{last: []uint64{5, 4, 5, 5}, awaits: []int{1, 1, -1, 0}, silent: []int{2}}, []int{1}, 1},
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
		"one that has left is not further back": {
			known{consumed: []uint64{9, 9, 0, 9}, awaits: []int{1, -1, -1, 1}, gone: []int{2}}, 1},
		"one that is silent ends the search": {
			known{consumed: []uint64{7, 8, 9, 9}, awaits: []int{-1, 2, 0, 1}, silent: []int{2}}, 2},
		"a late answer is not further back": {
			known{consumed: []uint64{9, 9, 0, 9}, awaits: []int{1, -1, 1, 1}, silent: []int{2}}, 1},
		"those that answer wait for each other": {known{awaits: []int{1, 3, -1, 1}, silent: []int{2}}, 2},
		"the one that is further back waits": {
			known{consumed: []uint64{8, 9, 0, 9}, awaits: []int{1, -1, -1, 1}, silent: []int{2}}, 2},
		"one of two that are silent": {known{awaits: []int{-1, 3, -1, 1}, silent: []int{0, 2}}, -1},
		"one that may wait":          {known{awaits: []int{-1, unknown, -1, 1}, silent: []int{2}}, 2},
		"the one that is further back may wait": {
			known{consumed: []uint64{8, 9, 0, 9}, awaits: []int{unknown, -1, -1, 1}, silent: []int{2}}, 2},
		"one that may wait, where nobody is silent": {known{awaits: []int{-1, unknown, -1, 1}}, 1},
	} {
		require.Equal(t, c.culprit, c.evidence(3).behind(1, nil), name)
	}
}

// Rank 3 has called a collective that has not started there.
func TestCulpritOfAnOperationThatHasNotStarted(t *testing.T) {
	for name, c := range map[string]struct {
		known
		culprit int
	}{
		"itself":                   {known{awaits: []int{3, 3, 3, -1}}, 3},
		"one that is further back": {known{consumed: []uint64{9, 8, 9, 9}, awaits: []int{1, -1, 1, -1}}, 1},
		"itself, where one is silent": {
			known{consumed: []uint64{9, 9, 0, 9}, awaits: []int{3, 3, -1, -1}, silent: []int{2}}, 3},
	} {
		require.Equal(t, c.culprit, c.evidence(3).behind(-1, nil), name)
	}
	silent := known{last: []uint64{0, 0, 5, 5}, awaits: []int{-1, -1, -1, -1}, silent: []int{0, 1}}
	list, culprit := silent.evidence(3).absent(5, -1)
	require.Equal(t, []int{0, 1}, list)
	require.Equal(t, -1, culprit)
}

// A rank that waits for its own device is the one that does not go on, unless a library moves the data: then the device
// may wait for any rank.
func TestCulpritOfRanksAtTheirOwnGates(t *testing.T) {
	for name, c := range map[string]struct {
		known
		awaited        int
		culprit        int
		throughLibrary int
	}{
		"this rank": {known{awaits: []int{-1, 3, -1, 1}, silent: []int{2}}, 3, 3, 2},
		"another":   {known{awaits: []int{-1, 1, -1, 1}, silent: []int{2}}, 1, 1, 2},
		"one that is further back": {
			known{consumed: []uint64{8, 9, 9, 9}, awaits: []int{0, 3, -1, 1}, silent: []int{2}}, 1, 0, 2},
		"nobody is silent": {known{awaits: []int{-1, 1, -1, 1}}, 1, 1, 1},
	} {
		require.Equal(t, c.culprit, c.evidence(3).behind(c.awaited, nil), name)
		c.library = true
		require.Equal(t, c.throughLibrary, c.evidence(3).behind(c.awaited, nil), name)
	}
}

// What a search finds silent stays so: list, culprit and text are made from the same, also when the rank answers
// meanwhile.
func TestSilenceIsTakenOnce(t *testing.T) {
	e := known{awaits: []int{-1, 3, -1, 1}, silent: []int{0, 2}}.evidence(3)
	require.Equal(t, -1, e.behind(1, nil))
	g := newWorld(t, 4).groups[3] // all of its ranks answer
	d := diagnosis{g, g.run}
	require.Regexp(t, `^rank 0 \(.*\) and rank 2 \(.*\) do not answer: they may be stopped, or their hosts busy$`, d.standsStill(e, -1, e.silentRanks()))
	require.Contains(t, d.standsStill(e, 2, nil), "rank 2 (")
	require.Contains(t, d.standsStill(e, 2, nil), "does not go on, nor answer")
	e = known{awaits: []int{1, -1, 0, 2}, falls: []int{1}}.evidence(3)
	require.Equal(t, 1, e.behind(0, nil))
	require.Contains(t, d.standsStill(e, 1, nil), "nor answer")
}

// The searches of a diagnosis end when it is to end.
func TestSearchesEndWithTheDiagnosis(t *testing.T) {
	var asked []time.Time
	e := known{consumed: []uint64{8, 9, 9, 9}, awaits: []int{-1, 3, -1, 1}, silent: []int{2}, asked: &asked}.evidence(3)
	e.until = time.Now().Add(time.Millisecond)
	require.Equal(t, 0, e.behind(1, nil))
	require.Len(t, asked, 2)
	for _, until := range asked {
		require.Equal(t, e.until, until)
	}
}

// The text about ranks that wait for one that does not answer fits their number.
func TestWordsForThoseWhoWaitForASilentRank(t *testing.T) {
	g := newWorld(t, 4).groups[3]
	d := diagnosis{g, g.run}
	e := known{last: []uint64{0, 0, 1, 1}, awaits: make([]int, 4), silent: []int{2}}.evidence(3)
	require.Regexp(t, `; they wait for rank 2 \(.*\), which does not answer: it may be stopped, or its host busy$`, d.notArrived(e, []int{0, 1}, 2))
	require.Regexp(t, `; it waits for rank 2 \(.*\), which does not answer: it may be stopped, or its host busy$`, d.notArrived(e, []int{1}, 2))
	require.NotContains(t, d.notArrived(e, []int{0, 1}, 0), "wait")
	require.NotContains(t, d.notArrived(e, []int{0, 1}, -1), "wait")
}

// For whom a rank of another host waits is asked again until it sleeps: it is awake at times, and what it has told is
// how it was at one moment.
func TestRankOfAnotherHostIsAskedAgain(t *testing.T) {
	w := newHostsWorld(t, "01")
	work, f := sumAsync(w.groups[1], 1000)
	require.Nil(t, f)
	awaited, _ := diagnosis{w.groups[0], w.groups[0].run}.awaitedBy(1, time.Now().Add(opTimeout))
	require.Equal(t, 0, awaited)
	require.Nil(t, sum(w.groups[0], 1000))
	require.Nil(t, finish(work))
}

// A rank that does not sleep for another one is asked a few times: all ranks of the group may ask it at once.
func TestRankThatIsAwakeIsAskedSeldom(t *testing.T) {
	setCompareEvery(t, time.Hour)
	w := newHostsWorld(t, "01")
	g := w.groups[0]
	before := g.remotes[1].states.Load()
	awaited, _ := diagnosis{g, g.run}.awaitedBy(1, time.Now().Add(awakeFor))
	require.Equal(t, -1, awaited)
	require.Less(t, g.remotes[1].states.Load()-before, int64(15))
}

// patient lets a diagnosis between hosts wait for answers for longer than a busy machine takes.
func patient(t *testing.T, d time.Duration) {
	limit, awake, diagnosis := stateLimit, awakeFor, diagnosisLimit
	t.Cleanup(func() { stateLimit, awakeFor, diagnosisLimit = limit, awake, diagnosis }) // behind the end of groups that are made later
	stateLimit, awakeFor, diagnosisLimit = d, d, 4*d
}

// notLate repeats a case in which a rank of a busy machine answers late although it is to answer.
func notLate(t *testing.T, try func(t *testing.T) (late bool)) {
	t.Helper()
	for range 5 {
		if !try(t) {
			return
		}
	}
	t.Fatal("the machine was too slow in each of 5 tries")
}

// saysSilent reports whether a failure says of a rank that it does not answer.
func saysSilent(f *coll.Failure, rank int) bool {
	return f != nil && regexp.MustCompile(fmt.Sprintf(`rank %d \([^()]*\)[^;]* not answer`, rank)).MatchString(f.Message)
}

// setCompareEvery sets when ranks begin to compare calls of groups that are made behind it.
func setCompareEvery(t *testing.T, d time.Duration) {
	real := compareEvery
	compareEvery = d
	t.Cleanup(func() { compareEvery = real })
}

// A rank that does not answer is the end of the search, whomever it waited for when it last answered, and only until it
// answers again.
func TestRankThatWaitedAndDoesNotAnswer(t *testing.T) {
	between := newWire(t, 0, 1, false)
	w := newHostsWorld(t, "012", between)
	g := w.groups[0]
	d := diagnosis{g, g.run}
	work, f := sumAsync(w.groups[1], 1000)
	require.Nil(t, f)
	awaited, _ := d.awaitedBy(1, time.Now().Add(opTimeout))
	require.GreaterOrEqual(t, awaited, 0)

	between.stop(0)
	var e evidence
	require.Eventually(t, func() bool { // an answer that was on the way may count for the first question, and a busy machine answers late
		until := time.Now().Add(opTimeout)
		g.askRemotes(until)
		e = d.evidence(until)
		return e.silent[1] && !e.silent[2]
	}, opTimeout, time.Millisecond)
	require.Equal(t, -1, g.run.Awaits(1))
	require.Equal(t, 1, e.behind(1, nil))
	require.Contains(t, d.standsStill(e, 1, nil), "does not go on, nor answer: it may be stopped, or its host busy")
	timeout := func(sequence uint64) *coll.Failure {
		return d.timeout(e, runner.Incident{Code: runner.Timeout, Peer: 2, Sequence: sequence, Op: coll.Op{Kind: coll.AllReduce}, Timeout: time.Second})
	}
	require.NoError(t, expect(timeout(1), coll.Timeout, "not arrived: rank 2", "has called no collective yet"))
	require.Equal(t, 2, timeout(1).Rank)
	require.NoError(t, expect(timeout(0), coll.Timeout, "all ranks have arrived, but rank 2", "does not go on"))

	between.goOn()
	require.Eventually(t, func() bool { return !g.isSilent(1) }, opTimeout, time.Millisecond)
	works := []runner.Work{work}
	for _, rank := range []int{0, 2} {
		work, f := sumAsync(w.groups[rank], 1000)
		require.Nil(t, f)
		works = append(works, work)
	}
	require.Nil(t, finishAll(works))
}

// However long ranks do not answer, questions end when the diagnosis is to end.
func TestQuestionsEndWithTheDiagnosis(t *testing.T) {
	patient(t, 2*hangAfter)
	between := []*wire{newWire(t, 0, 1, false), newWire(t, 0, 2, false)}
	w := newHostsWorld(t, "012", between...)
	for _, x := range between {
		x.stop(0)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.groups[0].askRemotes(time.Now().Add(10 * time.Millisecond))
	}()
	select {
	case <-done:
	case <-time.After(hangAfter):
		t.Fatal("it waits for answers")
	}
	for _, x := range between {
		x.goOn()
	}
}

// A rank that has done its part of a collective and left answers nothing, and is not missed in it: only its goodbye
// says how far it was.
func TestRankThatLeftIsNotTheCulprit(t *testing.T) {
	setCompareEvery(t, time.Hour)
	for name, silent := range map[string]bool{"the other one answers": false, "the other one is silent": true} {
		t.Run(name, func(t *testing.T) {
			if !silent {
				patient(t, hangAfter)
			}
			between := newWire(t, 0, 2, false)
			w := newHostsWorld(t, "012", between)
			g := w.groups[0]
			op := coll.Op{Kind: coll.Reduce, Type: coll.Int32, Timeout: short}
			b := one(make([]byte, 4))
			work, f := w.groups[1].Issue(coll.Op{Kind: coll.Reduce, Type: coll.Int32, Async: true}, b, b)
			require.Nil(t, f)
			require.Nil(t, finish(work))
			require.NoError(t, w.groups[1].Destroy())
			require.Eventually(t, func() bool { _, left := g.run.LastCall(1); return left }, opTimeout, time.Millisecond)
			d := diagnosis{g, g.run}
			require.Contains(t, d.lastCall(1, d.begun(1), false), "last called collective #1")
			if silent {
				between.stop(0)
				defer between.goOn()
			}
			_, f = g.Issue(op, b, b)
			require.NoError(t, expect(f, coll.Timeout, "not arrived: rank 2 ("))
			require.NotContains(t, f.Message, "rank 1 (")
			require.Equal(t, 2, f.Rank)
			require.Equal(t, []int{2}, g.missingFrom(1))
			g.incidents.missing.Store(nil)
			require.NotContains(t, g.missingFrom(1), 1)
		})
	}
}

// Where the time of a search ends before a rank of another host has answered, it is unknown for whom that rank waits.
// Of one that has left nobody waits for an answer.
func TestSearchThatEndsBeforeAnAnswer(t *testing.T) {
	setCompareEvery(t, time.Hour)
	patient(t, hangAfter) // nobody is silent
	between := newWire(t, 0, 1, false)
	w := newHostsWorld(t, "01", between)
	g := w.groups[0]
	d := diagnosis{g, g.run}
	between.stop(0)
	awaited, silent := d.awaitedBy(1, time.Now().Add(10*time.Millisecond))
	require.Equal(t, unknown, awaited)
	require.False(t, silent)
	between.goOn()
	require.Eventually(t, func() bool { return g.remotes[1].states.Load() == 1 }, opTimeout, time.Millisecond)
	awaited, _ = d.awaitedBy(1, time.Now())
	require.Equal(t, unknown, awaited, "it has answered before, and was not asked")

	require.NoError(t, w.groups[1].Destroy())
	require.Eventually(t, func() bool { return !g.answers(1) }, opTimeout, time.Millisecond)
	ended := make(chan int)
	go func() {
		awaited, _ := d.awaitedBy(1, time.Now().Add(2*hangAfter))
		ended <- awaited
	}()
	select {
	case awaited := <-ended:
		require.Equal(t, -1, awaited)
	case <-time.After(hangAfter):
		t.Fatal("it waits for an answer of a rank that has left")
	}
}
