package pgbackend

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
	"sagecomm/tests/quick"
)

// In these tests links at first need come late, or not at all.

// holdDials lets no process dial for a link at first need, until the test ends or the function that it returns is
// called.
func holdDials(t *testing.T, w *world) (release func()) {
	t.Helper()
	held := map[*network]int{}
	for _, g := range w.groups {
		n := g.links.network
		for range cap(n.dials) - held[n] {
			n.dials <- struct{}{}
			held[n]++
		}
	}
	release = sync.OnceFunc(func() {
		for n, slots := range held {
			for range slots {
				<-n.dials
			}
		}
	})
	t.Cleanup(release)
	return release
}

// sumWithoutOne begins a sum on all ranks of a large group but one, to which most have no link, while no links are
// made.
func sumWithoutOne(t *testing.T, timeout time.Duration) (w *world, absent int, works []runner.Work, end func()) {
	t.Helper()
	w = newLargeWorld(t, twelve)
	absent = farthest(t, w)
	release := holdDials(t, w)
	for rank, g := range w.groups {
		if rank != absent {
			require.NoError(t, g.SetTimeout(timeout))
			work, f := sumAsync(g, 1000)
			require.Nil(t, f)
			works = append(works, work)
		}
	}
	return w, absent, works, func() {
		release()
		w.destroy()
	}
}

// A rank to which there is no link in time may have done all that it is to do, so it is not the culprit of a timeout.
func TestTimeoutWithoutLinks(t *testing.T) {
	patient(t, time.Second)
	notLate(t, func(t *testing.T) (late bool) {
		w, absent, works, end := sumWithoutOne(t, opTimeout)
		defer end()
		unmet := 0
		for _, f := range w.eachFailure(func(g *Group) *coll.Failure {
			t, found := oldest(g.run)
			if !found {
				return nil
			}
			t.Code = runner.Timeout
			d := diagnosis{g, g.run}
			return d.timeout(d.evidence(d.askFor(t)), t)
		}) {
			if f == nil {
				continue
			}
			if f.Rank != absent && f.Rank != -1 { // a rank that has called and is linked did not answer in time
				late = true
			}
			if strings.Contains(f.Message, "to which no link") {
				unmet++
			}
		}
		for _, g := range w.groups {
			g.Abort("the end of the test")
		}
		for _, work := range works {
			require.NotNil(t, finish(work))
			work.Release()
		}
		require.True(t, late || unmet > 0)
		return late
	})
}

// Who finds no culprit since links are missing lets those tell it that have them, so it is the cause of all.
func TestOthersTellTheCulprit(t *testing.T) {
	patient(t, time.Second)
	notLate(t, func(t *testing.T) (late bool) {
		_, absent, works, end := sumWithoutOne(t, 100*time.Millisecond)
		defer end()
		for _, work := range works {
			f := finish(work)
			require.NotNil(t, f)
			late = late || f.Rank != absent
			work.Release()
		}
		return late
	})
}

// A timeout where links are made at first need has more time, for who is asked first. Nothing else has.
func TestTimeOfADiagnosis(t *testing.T) {
	patient(t, opTimeout)
	few, all := newLargeWorld(t, "012345").groups[0], newHostsWorld(t, "01").groups[0]
	for _, c := range []struct {
		g     *Group
		code  runner.Code
		first time.Duration
	}{{few, runner.Timeout, stateLimit / 2}, {few, runner.Mismatch, 0}, {all, runner.Timeout, 0}} {
		began := time.Now()
		took := diagnosis{c.g, c.g.run}.askFor(runner.Incident{Code: c.code, Peer: 1}).Sub(began)
		require.GreaterOrEqual(t, took, diagnosisLimit+c.first)
		require.Less(t, took, diagnosisLimit+c.first+stateLimit/2)
	}
}

// Rank 3 waits in collective #5 for rank 0, and there was no link in time to some ranks.
func TestCulpritAmongRanksWithoutLinks(t *testing.T) {
	for name, c := range map[string]struct {
		known
		list    []int
		culprit int
	}{
		"the one that has not arrived": {
			known{last: []uint64{5, 0, 4, 5}, awaits: []int{2, -1, -1, 0}, unmet: []int{1}}, []int{2}, 2},
		"the one that has not arrived waits, perhaps for the other one": {
			known{last: []uint64{5, 0, 4, 5}, awaits: []int{2, -1, 0, 0}, unmet: []int{1}}, []int{2}, -1},
		"the one that has not arrived may wait": {
			known{last: []uint64{5, 0, 4, 5}, awaits: []int{2, -1, unknown, 0}, unmet: []int{1}}, []int{2}, -1},
		"the one that has not arrived waits for the other one": {
			known{last: []uint64{5, 0, 4, 5}, awaits: []int{2, -1, 1, 0}, unmet: []int{1}}, []int{2}, -1},
		"it is silent, and awaited": {
			known{last: []uint64{5, 0, 4, 5}, awaits: []int{2, -1, -1, 0}, silent: []int{2}, unmet: []int{1}}, []int{2}, 2},
		"it is silent, and not awaited": {
			known{last: []uint64{5, 0, 4, 5}, awaits: []int{1, -1, -1, 0}, silent: []int{2}, unmet: []int{1}}, []int{2}, -1},
		"nobody is known to be late": {
			known{last: []uint64{5, 0, 5, 5}, awaits: []int{1, -1, 3, 0}, unmet: []int{1}}, nil, -1},
		"the awaited one": {
			known{last: []uint64{0, 5, 5, 5}, awaits: []int{-1, 3, 3, 0}, unmet: []int{0}}, nil, -1},
	} {
		list, culprit := c.evidence(3).absent(5, 0)
		require.Equal(t, c.list, list, name)
		require.Equal(t, c.culprit, culprit, name)
	}
	for name, c := range map[string]struct {
		known
		culprit int
	}{
		"who waits for nobody":         {known{awaits: []int{2, -1, -1, 0}, unmet: []int{1}}, 2},
		"all wait":                     {known{awaits: []int{2, -1, 3, 0}, unmet: []int{1}}, -1},
		"all wait, and one is silent":  {known{awaits: []int{3, -1, -1, 0}, silent: []int{2}, unmet: []int{1}}, -1},
		"the way ends at a silent one": {known{awaits: []int{2, -1, -1, 0}, silent: []int{2}, unmet: []int{1}}, 2},
		"the way ends without a link":  {known{awaits: []int{1, -1, -1, 0}, silent: []int{2}, unmet: []int{1}}, -1},
	} {
		e := c.evidence(3)
		require.Equal(t, c.culprit, e.behind(0, nil), name)
		require.Equal(t, 2, e.holdsUp([]int{2}), name)
		require.Equal(t, -1, e.holdsUp([]int{1, 2}), name)
	}
}

// A diagnosis asks first the rank that it waits for, then the one that that waits for, and nobody else.
func TestAwaitedRanksAreAskedFirst(t *testing.T) {
	patient(t, opTimeout)
	w := newLargeWorld(t, "012345")
	work, f := sumAsync(w.groups[1], 1000)
	require.Nil(t, f)
	next, _ := diagnosis{w.groups[0], w.groups[0].run}.awaitedBy(1, time.Now().Add(opTimeout))
	require.GreaterOrEqual(t, next, 0)
	asker := slices.IndexFunc(w.groups, func(g *Group) bool { return g.rank > 1 && g.rank != next })
	g := w.groups[asker]
	require.Eventually(t, func() bool {
		diagnosis{g, g.run}.askAwaited(1)
		return g.remotes[next].states.Load() > 0
	}, hangAfter, time.Millisecond)
	for rank, r := range g.remotes {
		if r != nil && rank != 1 && rank != next {
			require.Zero(t, r.question.at, rank)
		}
	}
	g.Abort("the end of the test")
	require.NotNil(t, finish(work))
	work.Release()
}

// The words for ranks to which there was no link in time say nothing else of them.
func TestWordsForRanksWithoutLinks(t *testing.T) {
	g := newWorld(t, 4).groups[3]
	d := diagnosis{g, g.run}
	e := known{last: []uint64{1, 0, 0, 1}, awaits: make([]int, 4), unmet: []int{1}}.evidence(3)
	require.Regexp(t, `^not arrived: rank 2 \([^;]*; of rank 1 \([^()]*\), to which no link was made in time, that is not known$`, d.notArrived(e, []int{2}, 2))
	require.Regexp(t, `^of rank 1 \([^()]*\), to which no link was made in time, that is not known; rank 2 \([^()]*\) does not go on$`, d.standsStill(e, 2, nil))
	require.Regexp(t, `^of rank 1 \([^()]*\), to which no link was made in time, that is not known$`, d.standsStill(e, -1, []int{1}))
	for peer, text := range map[int]string{
		1: `^sagecomm: group "[^"]*": rank 3 times out in recv \(.*\): no link to rank 1 \([^()]*\) was made in time, so it is not known whether it has called the matching send; make both`,
		0: `^sagecomm: group "[^"]*": rank 3 times out in recv \(.*\): rank 0 \([^()]*\) has not completed the matching send, and it `,
	} {
		f := d.incomplete(e, runner.Incident{Code: runner.Timeout, Peer: peer, Op: coll.Op{Kind: coll.Recv, Type: coll.Uint8, Root: peer}}, "times out")
		require.Regexp(t, text, f.Message)
		require.Equal(t, peer == 1, f.Rank == -1)
	}
	sum := runner.Incident{Code: runner.Timeout, Peer: 1, Sequence: 1, Op: coll.Op{Kind: coll.AllReduce, Type: coll.Float32}}
	e = known{last: []uint64{1, 0, 1, 1}, awaits: make([]int, 4), unmet: []int{1}}.evidence(3)
	require.Regexp(t, `; all other ranks have arrived, but of rank 1 \([^()]*\), to which no link was made in time, that is not known$`, d.incomplete(e, sum, "times out").Message)
	sum.Peer = 3 // it waits for its own device
	require.Regexp(t, `; all other ranks have called it, but the stream of rank 3 \(.*; of rank 1 \([^()]*\), to which no link was made in time, that is not known$`,
		d.incomplete(e, sum, "times out").Message)
	e = known{last: []uint64{1, 0, 0, 1}, awaits: make([]int, 4), silent: []int{0}, unmet: []int{1, 2}}.evidence(3)
	require.Regexp(t, `^of rank 1 \(.*\), rank 2 \(.*\), to which no links were made in time, that is not known; rank 0 \(.*\) does not answer: it may be stopped, or its host busy$`,
		d.standsStill(e, -1, e.silentRanks()))
}

// The time of a question begins with the link. A rank whose link has been wanted for long is silent.
func TestQuestionWithoutALink(t *testing.T) {
	real := neededWait.Swap(int64(hangAfter))
	t.Cleanup(func() { neededWait.Store(real) })
	w := newLargeWorld(t, "012345")
	g, far := w.groups[0], farthest(t, w)
	release := holdDials(t, w)
	require.Equal(t, []int{far}, g.ask(stateLimit+10*time.Millisecond, far))
	require.True(t, g.isUnmet(far))
	require.False(t, g.isSilent(far))
	neededWait.Store(1)
	require.True(t, g.isSilent(far))
	require.False(t, g.isUnmet(far))
	neededWait.Store(int64(hangAfter))
	release()
	require.Empty(t, g.ask(opTimeout, far))
	require.False(t, g.isUnmet(far))
	require.False(t, g.isSilent(far))
}

// What a rank has sent before it left goes out also where its process ends at once, has no link yet, and cannot dial:
// its port stays open for the other process as long as the link is awaited.
func TestExitWithoutALink(t *testing.T) {
	real := partLimit.Swap(int64(time.Millisecond))
	t.Cleanup(func() { partLimit.Store(real) })
	w := newLargeWorld(t, "012345")
	far := farthest(t, w)
	release := holdDials(t, w)
	n, p := w.groups[0].links.network, Get()
	nowhere(t, w.groups[0], far)
	require.NoError(t, asError(message(w.groups[0], coll.Send, far, 100)))
	require.NoError(t, w.groups[0].Destroy())
	p.networks.mu.Lock()
	p.endNetwork(n)
	ended := p.networks.ending[n]
	p.networks.mu.Unlock()
	select {
	case <-ended:
		require.Fail(t, "the process has ended, and its message was not sent")
	case <-time.After(100 * time.Millisecond):
	}
	release()
	require.NoError(t, asError(message(w.groups[far], coll.Recv, 0, 100)))
	select {
	case <-ended:
	case <-time.After(hangAfter):
		require.Fail(t, "the network does not end")
	}
	w.destroy()
}

// A process that owes something to one that is dead, and at whose port nobody listens, does not go on as for one that
// is late.
func TestExitBehindADeadRank(t *testing.T) {
	quick.Skip(t, "it waits between attempts")
	real := neededWait.Swap(int64(10 * hangAfter))
	t.Cleanup(func() { neededWait.Store(real) })
	w := newLargeWorld(t, "012345")
	far := farthest(t, w)
	nowhere(t, w.groups[0], far)
	nowhere(t, w.groups[far], 0)
	n, p := w.groups[0].links.network, Get()
	require.NoError(t, asError(message(w.groups[0], coll.Send, far, 100)))
	require.NoError(t, w.groups[0].Destroy())
	require.True(t, n.set.AwaitsLinks())
	p.networks.mu.Lock()
	p.endNetwork(n)
	ended := p.networks.ending[n]
	p.networks.mu.Unlock()
	select {
	case <-ended:
	case <-time.After(hangAfter):
		require.Fail(t, "the network does not end")
	}
	neededWait.Store(real)
	w.destroy()
}

// The words of a monitored barrier that has failed need no link either.
func TestNoLinksForTheWordsOfAFailure(t *testing.T) {
	w := newLargeWorld(t, "012345")
	g, far := w.groups[0], farthest(t, w)
	g.Abort("the end of the test")
	require.NotContains(t, g.missingFrom(1), far)
	require.Nil(t, g.links.needed.making)
}

// A group that has failed needs no links any more: none is made that a diagnosis has wanted, and memory is given back
// although there is no link.
func TestNoLinksBehindAFailure(t *testing.T) {
	w := newLargeWorld(t, twelve)
	absent := farthest(t, w)
	holdDials(t, w)
	var works []runner.Work
	for rank, g := range w.groups {
		if rank != absent {
			require.NoError(t, g.SetTimeout(100*time.Millisecond))
			work, f := sumAsync(g, 1000)
			require.Nil(t, f)
			works = append(works, work)
		}
	}
	var failed []*groupLinks
	for _, work := range works {
		require.NotNil(t, finish(work))
		work.Release()
	}
	for rank, g := range w.groups {
		if rank != absent {
			failed = append(failed, g.links)
		}
	}
	requireNoneMade(t, failed)
	requireForgone(t, w)
}

// Nor does a rank that leaves and has only asked.
func TestNoLinksBehindAQuestion(t *testing.T) {
	w := newLargeWorld(t, twelve)
	holdDials(t, w)
	for _, g := range w.groups {
		g.question(g.remoteRanks()...)
	}
	requireForgone(t, w)
}

// requireForgone destroys groups, and requires that their memory is given back and no link is being made, before a
// round of dials is over.
func requireForgone(t *testing.T, w *world) {
	t.Helper()
	var links []*groupLinks
	for _, g := range w.groups {
		links = append(links, g.links)
	}
	w.destroy()
	for rank, g := range w.groups {
		require.Eventually(t, func() bool {
			Get().sweep()
			return g.life.now() == freed
		}, linkLimit/2, time.Millisecond, rank)
	}
	requireNoneMade(t, links)
}

// requireNoneMade requires that no link is being made at need.
func requireNoneMade(t *testing.T, links []*groupLinks) {
	t.Helper()
	for rank, l := range links {
		require.Eventually(t, func() bool {
			l.needed.mu.Lock()
			defer l.needed.mu.Unlock()
			return len(l.needed.making) == 0
		}, linkLimit/2, time.Millisecond, rank)
	}
}
