package pgbackend

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/bootstrap"
	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
	"sagecomm/tests/quick"
)

func TestControlTimeoutNamesWhoHasNotArrived(t *testing.T) {
	w := newWorld(t, 4)
	w.each(func(g *Group) error { return asError(sum(g, 10)) })
	list := w.eachFailure(func(g *Group) *coll.Failure {
		switch g.rank {
		case 0: // gives up when ranks 1 and 2 wait
			begun(w.groups[1], topicEngine)
			begun(w.groups[2], topicEngine)
			began := time.Now()
			_, f := g.exchange(topicEngine, "engine of device 0", nil, short)
			if took := time.Since(began); took < short || took > short+5*time.Second {
				t.Errorf("rank 0 waited %v", took)
			}
			return f
		case 3:
			for g.run.FirstCause() == nil {
				time.Sleep(time.Millisecond)
			}
			return g.failed()
		}
		_, f := g.exchange(topicEngine, "engine of device 0", nil, opTimeout)
		return f
	})
	expectScenario(t, "control", "a rank that does not come to an exchange", list)
	expectScenario(t, "control", "a rank that does not come to an exchange", w.eachFailure(func(g *Group) *coll.Failure { return sum(g, 1) }))
	expectScenario(t, "control", "a rank that does not come to an exchange", w.eachFailure(func(g *Group) *coll.Failure {
		_, f := g.exchange(topicFusion, "another", nil, opTimeout)
		return f
	}))
	if f := list[0]; f.Rank != 3 || f.PID != os.Getpid() || f.Sequence != 1 {
		t.Errorf("culprit: %+v", f)
	}
}

// A rank that waits in an exchange has not come to a collective.
func TestTimeoutNamesTheExchangeOfAnAbsentRank(t *testing.T) {
	w := newWorld(t, 2)
	require.NoError(t, w.groups[0].SetTimeout(300*time.Millisecond))
	list := w.eachFailure(func(g *Group) *coll.Failure {
		if g.rank == 1 {
			_, f := g.exchange(topicEngine, "devices of rank 1", nil, opTimeout)
			return f
		}
		begun(w.groups[1], topicEngine)
		return sum(g, 10)
	})
	expectAll(t, list, coll.Timeout, "all_reduce #1", "not arrived: rank 1 (", `waits in control exchange "devices of rank 1", to which rank 0 has not come`)
}

// A rank that stops within its first collective on a device, behind an exchange of the join, is not said to have called none.
func TestControlTimeoutNamesWhoHasBegunOnADevice(t *testing.T) {
	for _, c := range []struct {
		sums int // on the CPU before
		text string
	}{
		{0, ") has begun its first collective on a device; every rank must come to it"},
		{1, ") last called all_reduce #1 (float32, SUM, 10 elements), and has begun its first collective on a device; every rank must come to it"},
	} {
		w := newWorld(t, 2)
		w.each(func(g *Group) error {
			for range c.sums {
				if f := sum(g, 10); f != nil {
					return f
				}
			}
			return exchanged(g, topicEngine, 0, func(int) int { return 9 })
		})
		_, f := w.groups[0].exchange(topicEngine, "memory of cuda", nil, short)
		require.NoError(t, expect(f, coll.Timeout, `in control exchange "memory of cuda" (topic engine); not arrived: rank 1 (`, c.text))
	}
}

// So it is where the others are through the join and wait in the collective itself.
func TestATimeoutOnADeviceNamesWhoHasBegun(t *testing.T) {
	withDevices(t)
	w := newWorld(t, 2)
	w.each(func(g *Group) error { return exchanged(g, topicEngine, 0, func(int) int { return 9 }) })
	require.NoError(t, w.groups[0].SetTimeout(short))
	require.NoError(t, expect(deviceSum(w.groups[0], 10), coll.Timeout, "not arrived: rank 1 (", ") has begun its first collective on a device"))

	other := newWorld(t, 2)
	other.each(func(g *Group) error { return exchanged(g, topicEngine, 0, func(int) int { return 9 }) })
	require.NoError(t, other.groups[0].SetTimeout(short))
	work, f := sumAsync(other.groups[1], 10) // rank 0 does not call it
	require.Nil(t, f)
	require.NoError(t, expect(deviceSum(other.groups[0], 10), coll.Timeout, ") has begun its first collective on a device, but it called all_reduce #1 (float32, SUM, 10 elements) on the CPU, which rank 0 has not called"))
	require.NotNil(t, finish(work))
}

// A rank stops between two rounds of one exchange.
func TestControlTimeoutNamesWhoDoesNotGoOn(t *testing.T) {
	w := newWorld(t, 2)
	w.groups[1].posts(topicUniqueID, 1, "id", controlPart+1)
	_, f := w.groups[0].exchange(topicUniqueID, "id", make([]byte, 2*controlPart), short)
	expectScenario(t, "control", "a rank that stops within an exchange", append(w.eachFailure(func(g *Group) *coll.Failure { return sum(g, 1) }), f))
}

// Between hosts, a rank that has not come to an exchange may wait for one that does not answer. Rank 1 waits in a
// collective for rank 2.
func TestControlTimeoutOverHosts(t *testing.T) {
	setCompareEvery(t, time.Hour)
	patient(t, time.Second)
	for name, c := range map[string]struct {
		waits   bool // rank 1 does
		silent  []int
		come    []int // to the exchange
		culprit int
		texts   []string
	}{
		"one that answers": {false, []int{1}, []int{1}, 2, []string{"not arrived: rank 2 (", ") has called no collective yet; every rank"}},
		"one that waits":   {true, []int{2}, []int{2}, 2, []string{"not arrived: rank 1 (", "last called broadcast #1", "; it waits for rank 2 (", ", which does not answer"}},
		"one of two":       {true, []int{2}, nil, 2, []string{"not arrived: rank 2 (", ") does not answer, ", "; rank 1 (", ") last called broadcast #1"}},
		"two are silent":   {false, []int{1, 2}, nil, -1, []string{"not arrived: rank 1 (", ") does not answer, ", "; rank 2 ("}},
	} {
		try := func(t *testing.T) (late bool) {
			between := map[int]*wire{1: newWire(t, 0, 1, false), 2: newWire(t, 0, 2, false)}
			w := newHostsWorld(t, "012", between[1], between[2])
			g := w.groups[0]
			var works []runner.Work
			if c.waits {
				work, f := w.groups[1].Issue(coll.Op{Kind: coll.Broadcast, Type: coll.Uint8, Root: 2, Async: true}, nil, one(make([]byte, 8)))
				require.Nil(t, f)
				works = append(works, work)
				awaited, _ := diagnosis{g, g.run}.awaitedBy(1, time.Now().Add(opTimeout))
				require.Equal(t, 2, awaited)
			}
			var ended sync.WaitGroup
			for _, rank := range c.come {
				ended.Go(func() { _, _ = w.groups[rank].exchange(topicEngine, "test", nil, opTimeout) })
				require.Eventually(t, func() bool { return topicEngine.entry(g, rank).posted.Load() == 1 }, opTimeout, time.Millisecond)
			}
			for _, rank := range c.silent {
				between[rank].stop(0)
			}
			_, f := g.exchange(topicEngine, "test", nil, short)
			for _, rank := range []int{1, 2} {
				late = late || !slices.Contains(c.silent, rank) && saysSilent(f, rank)
			}
			if !late {
				require.NoError(t, expect(f, coll.Timeout, c.texts...))
				require.Equal(t, c.culprit, f.Rank)
			}
			for _, rank := range c.silent {
				between[rank].goOn()
			}
			ended.Wait()
			for _, work := range works {
				require.NotNil(t, finish(work))
			}
			w.destroy()
			return late
		}
		t.Run(name, func(t *testing.T) {
			if name != "one that waits" {
				quick.Skip(t, "each case waits for a timeout")
			}
			notLate(t, try)
		})
	}
}

// So may one that has come and has not done its part of the present step.
func TestWhoHoldsUpAnExchange(t *testing.T) {
	for _, c := range []struct {
		silent  []int
		culprit int
	}{{nil, 1}, {[]int{0}, 1}, {[]int{2}, 2}, {[]int{1, 2}, -1}} {
		require.Equal(t, c.culprit, known{awaits: make([]int, 3), silent: c.silent}.evidence(0).holdsUp([]int{1, 2}))
	}
}

// posts writes a round of an exchange as this rank would.
func (g *Group) posts(t topic, round uint64, purpose string, bytes uint64) {
	e := g.entry(t)
	e.bytes.Store(bytes)
	e.purpose.Store(purposeHash(purpose))
	e.named.Store(uint64(copy(e.name[:], purpose)))
	e.posted.Store(round)
}

func TestControlExchangeOfDifferentPurposes(t *testing.T) {
	w := newWorld(t, 2)
	w.each(func(g *Group) error { return exchanged(g, topicFusion, 0, func(int) int { return 9 }) })
	expectScenario(t, "control", "exchanges of different purposes", w.eachFailure(func(g *Group) *coll.Failure {
		_, f := g.exchange(topicFusion, []string{"bytes of a batch", "operations of a batch"}[g.rank], []byte{1}, opTimeout)
		return f
	}))
}

// A rank that has done its part and leaves is missed in the next exchange only.
func TestControlExchangeWithARankThatLeaves(t *testing.T) {
	w := newWorld(t, 3)
	w.each(func(g *Group) error {
		if g.rank != 2 {
			begun(w.groups[2], topicIPC)
		}
		if err := exchanged(g, topicIPC, 0, func(int) int { return 9 }); err != nil || g.rank != 2 {
			return err
		}
		return g.Destroy()
	})
	two := &world{t, w.groups[:2]}
	began := time.Now()
	list := two.eachFailure(func(g *Group) *coll.Failure {
		_, f := g.exchange(topicIPC, "handles", nil, opTimeout)
		return f
	})
	measure(t, "knowing that a rank has left", time.Since(began), time.Second)
	for _, f := range list { // which rank looked first is chance
		if err := expect(f, coll.PeerFailure, "Connection closed by peer: rank 2 (host ", "has left the group before its first collective", `in control exchange "handles" (topic IPC); if its log`); err != nil {
			t.Error(err)
		} else if f.Rank != 2 || f.Message != list[0].Message {
			t.Errorf("%+v", f)
		}
	}
	_, f := w.groups[2].exchange(topicIPC, "handles", nil, opTimeout)
	if err := expect(f, coll.Invalid, "the group was destroyed"); err != nil {
		t.Error(err)
	}
}

// A rank may do its part and leave between the two looks of a rank that waits for it.
func TestControlLooksAgainAtWhoHasLeft(t *testing.T) {
	w := newWorld(t, 2)
	g := w.groups[0]
	w.groups[1].posts(topicIPC, 1, "test", 0)
	require.NoError(t, w.groups[1].Destroy())
	x := controlExchange{g: g, topic: topicIPC, deadline: time.Now().Add(opTimeout), entries: []*controlEntry{g.entry(topicIPC), w.groups[1].entry(topicIPC)}}
	if f := x.ended([]int{1}, postedWord, 1); f != nil {
		t.Error(f)
	}
	if err := expect(x.ended([]int{1}, postedWord, 2), coll.PeerFailure, "rank 1 (host ", "has left the group"); err != nil {
		t.Error(err)
	}
}

// An exchange whose turn comes before the failure of the one before it is declared fails with it, and posts nothing.
func TestNoExchangeAfterOneThatFailed(t *testing.T) {
	g := newWorld(t, 2).groups[0]
	for _, timeout := range []time.Duration{short, opTimeout} {
		x := controlExchange{g: g, topic: topicIPC, purpose: timeout.String(), timeout: timeout}
		_, f := x.inTurn(&g.control[topicIPC])
		if err := expect(f, coll.Timeout, `in control exchange "150ms" (topic IPC)`); err != nil {
			t.Error(err)
		}
	}
	if f := g.failed(); f != nil {
		t.Errorf("it was declared under the lock: %v", f)
	}
}

// A failure, an abort and the end of the group end an exchange that waits.
func TestControlExchangeEnds(t *testing.T) {
	for name, c := range map[string]struct {
		end    func(w *world) error
		status coll.Status
		text   string
	}{
		"death":        {func(w *world) error { w.groups[0].peerDied(1); return nil }, coll.PeerFailure, "rank 1 (host "},
		"abort here":   {func(w *world) error { w.groups[0].Abort("enough"); return nil }, coll.Aborted, "aborted by rank 0: enough"},
		"abort there":  {func(w *world) error { w.groups[1].Abort("enough"); return nil }, coll.Aborted, "aborted by rank 1: enough"},
		"destroy here": {func(w *world) error { return w.groups[0].Destroy() }, coll.Aborted, "was destroyed on rank 0"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 2)
			impatient(t, time.Second)
			work, f := sumAsync(w.groups[0], 10) // Destroy waits for it in vain
			if f != nil {
				t.Fatal(f)
			}
			defer work.Release()
			ended := make(chan *coll.Failure, 2)
			var at [2]time.Time
			for i := range 2 { // the second one waits for its turn
				go func() {
					_, f := w.groups[0].exchange(topicEngine, "test", nil, opTimeout)
					at[i] = time.Now()
					ended <- f
				}()
			}
			begun(w.groups[0], topicEngine)
			began := time.Now()
			destroyed := make(chan error, 1)
			go func() { destroyed <- c.end(w) }()
			for range 2 {
				if err := expect(<-ended, c.status, c.text); err != nil {
					t.Error(err)
				}
			}
			for _, at := range at {
				measure(t, "the end", at.Sub(began), 100*time.Millisecond)
			}
			if err := <-destroyed; err != nil {
				t.Error(err)
			}
		})
	}
}

// What a rank cannot have written is said at once. Rank 1 does its part by hand.
func TestGarbageInControlAreas(t *testing.T) {
	for _, c := range []struct {
		scenario string
		rounds   int
		write    func(g *Group, round int)
	}{
		{"a number of posted rounds that cannot be", 1, func(g *Group, _ int) { g.entry(topicEngine).posted.Store(77) }},
		{"a number of taken rounds that cannot be", 1, func(g *Group, _ int) { g.entry(topicEngine).taken.Store(1 << 63) }},
		{"a message longer than any", 1, func(g *Group, _ int) { g.posts(topicEngine, 1, "test", maxControlMessage+1) }},
		{"a length that changes", 2, func(g *Group, round int) { g.posts(topicEngine, uint64(round), "test", 5000+uint64(round)) }},
		{"a hash of no purpose", 1, func(g *Group, _ int) {
			g.entry(topicEngine).purpose.Store(77)
			g.entry(topicEngine).posted.Store(1)
		}},
		{"a purpose longer than any", 1, func(g *Group, _ int) {
			g.posts(topicEngine, 0, "tset", 5)
			g.entry(topicEngine).named.Store(1 << 40)
			g.entry(topicEngine).posted.Store(1)
		}},
		{"a purpose of another hash", 1, func(g *Group, _ int) {
			g.posts(topicEngine, 0, "tset", 5)
			g.entry(topicEngine).name[0] = 'x'
			g.entry(topicEngine).posted.Store(1)
		}},
		{"a purpose that changes", 2, func(g *Group, round int) {
			g.posts(topicEngine, uint64(round), []string{"test", "another"}[round-1], 5000)
		}},
	} {
		t.Run(c.scenario, func(t *testing.T) {
			w := newWorld(t, 2)
			c.write(w.groups[1], 1)
			list := w.eachFailure(func(g *Group) *coll.Failure {
				if g.rank == 0 {
					_, f := g.exchange(topicEngine, "test", make([]byte, 10), opTimeout)
					return f
				}
				for round := 1; round <= c.rounds; round++ {
					if round > 1 {
						c.write(g, round)
					}
					for w.groups[0].entry(topicEngine).taken.Load() < uint64(round) && g.failed() == nil {
						time.Sleep(100 * time.Microsecond)
					}
					if g.failed() == nil {
						g.entry(topicEngine).taken.Store(uint64(round))
					}
				}
				for g.run.FirstCause() == nil {
					time.Sleep(100 * time.Microsecond)
				}
				return g.failed()
			})
			expectScenario(t, "control", c.scenario, list)
		})
	}
}

// What is refused is refused on that rank alone, and nothing has happened.
func TestControlExchangesThatAreRefused(t *testing.T) {
	w := newWorld(t, 2)
	for _, c := range []struct {
		purpose string
		bytes   int
		text    string
	}{
		{"test", maxControlMessage + 1, "sagecomm: control exchange (topic tuning): rank 1: a message of 1048577 bytes, expected at most 1048576"},
		{strings.Repeat("x", maxPurpose+1), 1, "sagecomm: control exchange (topic tuning): rank 1: a purpose of 153 bytes, expected at most 152"},
	} {
		_, f := w.groups[1].exchange(topicTuning, c.purpose, make([]byte, c.bytes), opTimeout)
		if err := expect(f, coll.Invalid); err != nil || f.Message != c.text {
			t.Errorf("%v, %v", err, f)
		}
	}
	w.each(func(g *Group) error {
		_, f := g.exchange(topicTuning, strings.Repeat("x", maxPurpose), nil, opTimeout)
		return asError(f)
	})
	w.each(func(g *Group) error { return asError(sum(g, 10)) })
}

// A panic within an exchange fails the group, and its topic is not used again.
func TestPanicInControlExchange(t *testing.T) {
	w := newWorld(t, 2)
	g := w.groups[0]
	maps := g.maps
	g.maps = nil // as a fault of the library would leave it
	_, f := g.exchange(topicIPC, "test", nil, opTimeout)
	g.maps = maps
	if err := expect(f, coll.Internal, "internal error on rank 0"); err != nil {
		t.Error(err)
	}
	_, f = g.exchange(topicIPC, "test", nil, opTimeout)
	if err := expect(f, coll.Internal, "internal error on rank 0"); err != nil {
		t.Error(err)
	}
}

// The place of a control area is checked before anything is read there.
func TestPlaceOfControlAreaIsChecked(t *testing.T) {
	for _, place := range []string{"0", "-4096", "100", "4611686018427387904", "9223372036854771712"} {
		mem := bootstrap.NewMemStore()
		ranksOf(t, 2, func(rank int) error {
			var store bootstrap.Store = mem
			if rank == 1 {
				store = editedStore{mem, `"control":`, `"control":` + place + `,"was":`}
			}
			g, err := Get().Create(Config{Rank: rank, Size: 2, Name: t.Name(), Timeout: opTimeout, Store: store, Options: options{"shm_attach": "proc,scm"}})
			if err == nil {
				_ = g.Destroy()
			}
			if err == nil || !strings.Contains(err.Error(), "there is no control area of rank 1 at offset "+place+" of its shared memory") {
				return fmt.Errorf("at %s: %v", place, err)
			}
			return nil
		})
	}
}
