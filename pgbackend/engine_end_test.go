package pgbackend

import (
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/coll"
	"sagecomm/internal/engine"
	"sagecomm/internal/engine/vendor"
	"sagecomm/internal/runner"
)

// The lane of an engine is down when the engine ends what its streams wait for: an operation whose stream goes on by
// that is no success.
func TestEnginesEndWaitsOfALaneThatIsDown(t *testing.T) {
	w, of := externalWorld(t, 2, opTimeout)
	g := w.groups[0]
	work, f := deviceSumAsync(g, 16)
	require.Nil(t, f)
	defer work.Release()
	e := of(g)
	var look sync.Once
	var succeeded atomic.Bool
	e.aborting = func() {
		look.Do(func() {
			e.carryOut(0)
			done, f := work.Wait(hangAfter)
			succeeded.Store(done && f == nil)
		})
	}
	g.Abort("the user gave up")
	require.NoError(t, expect(finish(work), coll.Aborted, "the user gave up"))
	require.False(t, succeeded.Load())
	look.Do(func() { t.Error("the engine was not told") })
}

// closing is an engine that tells when it is closed.
type closing struct {
	engine.Engine
	close func()
}

func (c closing) Close() {
	c.close()
	c.Engine.Close()
}

// An engine is closed once, when no peer uses this rank's memory any more.
func TestEnginesAreClosedBehindTheirPeers(t *testing.T) {
	withDevices(t)
	open := deviceEngines["staged"].open
	var closed [2]atomic.Int32
	deviceEngines["staged"] = registeredEngine{absent: deviceEngines["staged"].absent, open: func(g *Group, run *runner.Group) (engine.Engine, error) {
		e, err := open(g, run)
		return closing{e, func() {
			closed[g.rank].Add(1)
			if g.life.now() != freed {
				t.Errorf("the engine of rank %d is closed while its group is %v", g.rank, g.life.now())
			}
		}}, err
	}}
	w := newWorld(t, 2)
	w.each(func(g *Group) error { return asError(deviceSum(g, 10)) })
	require.NoError(t, w.groups[0].Destroy())
	Get().sweep()
	require.Zero(t, closed[0].Load())
	require.NoError(t, w.groups[1].Destroy())
	Get().sweep()
	for rank := range closed {
		require.EqualValues(t, 1, closed[rank].Load())
	}
}

// The progress engine carries out operations of a lane that it did not know when the group was made, also if nobody
// waits for them.
func TestNobodyWaitsForTheFirstOperationOnADevice(t *testing.T) {
	withDevices(t)
	w := newWorld(t, 3)
	ends := make(chan *coll.Failure, 3)
	for _, g := range w.groups { // the others have issued when the last one does
		work, f := deviceSumAsync(g, 100_000)
		require.Nil(t, f)
		defer work.Release()
		work.OnDone(func(f *coll.Failure) { ends <- f })
	}
	for range w.groups {
		select {
		case f := <-ends:
			require.Nil(t, f)
		case <-time.After(hangAfter):
			t.Fatal("nobody carries it out")
		}
	}
}

// onlookers is a method whose member tells what it is asked for.
type onlookers struct {
	vendor.Method
	doing    func(rank int) error // called while an operation is being queued
	released func(rank int, idle bool)
}

func (*onlookers) Name() string                         { return "nccl" }
func (*onlookers) Vendor() string                       { return "cuda" }
func (*onlookers) Supports(coll.Op) bool                { return true }
func (*onlookers) Seat(*vendor.Seat, coll.Device) error { return nil }
func (*onlookers) Compare(s []vendor.Seat) []string     { return make([]string, len(s)) }
func (o *onlookers) Join(j vendor.Joining) (vendor.Member, error, error) {
	return &onlooker{of: o, rank: j.Rank}, nil, nil
}

type onlooker struct {
	of   *onlookers
	rank int
}

func (*onlooker) State() (bool, error) { return true, nil }
func (m *onlooker) Do(coll.Op, vendor.Buffers, uintptr) error {
	return m.of.doing(m.rank)
}
func (*onlooker) Void() *uint32 { return nil }
func (m *onlooker) Release(idle func() bool) {
	if m.of.released != nil {
		m.of.released(m.rank, idle())
	}
}
func (*onlooker) Abort() bool       { return true }
func (*onlooker) Settled() bool     { return true }
func (*onlooker) Destroy()          {}
func (*onlooker) Free(func(func())) {}

// useOnlookers makes the groups of a test carry out collectives by a method.
func useOnlookers(t *testing.T, devices []*fakeDevice, method *onlookers) *world {
	useLibrary(t, devices)
	deviceEngines["nccl"] = registeredEngine{
		absent: func(*Group) error { return nil },
		open: func(g *Group, run *runner.Group) (engine.Engine, error) {
			others := g.stagedEngine(run)
			return g.vendorEngine(method, run, others, others), nil
		},
	}
	return newWorld(t, len(devices))
}

// sumOn issues a sum on the device of a rank, and returns how it ends.
func sumOn(g *Group, d *fakeDevice) *coll.Failure {
	b := d.buffer(400)
	work, f := issueOn(g, d, coll.Op{Kind: coll.AllReduce, Type: coll.Int32}, one(b), one(b))
	if f == nil {
		f = work.finish()
	}
	return f
}

// An operation is under way from its number on: it is recorded before its kernels are queued, which may meet those of
// peers, and a group that goes down while they are queued, or because they cannot be, ends their waits. It is down by
// then.
func TestAGroupGoesDownWhileAnOperationIsQueued(t *testing.T) {
	for _, fails := range []bool{false, true} {
		useNewPool(t)
		devices := fakeDevices(t, 2, 1, true)
		var begins atomic.Bool
		var mu sync.Mutex
		var recorded [2][]uint64
		type release struct{ idle, down bool }
		releases := map[int][]release{}
		method := &onlookers{}
		w := useOnlookers(t, devices, method)
		method.doing = func(rank int) error {
			g := w.groups[rank]
			recorded[rank] = append(recorded[rank], g.device.Load().run.Recorded(rank))
			switch {
			case !begins.Load():
			case fails:
				return errors.New("the test")
			default:
				g.Abort("the test")
			}
			return nil
		}
		method.released = func(rank int, idle bool) {
			mu.Lock()
			defer mu.Unlock()
			releases[rank] = append(releases[rank], release{idle, w.groups[rank].cause.Load() != nil})
		}
		w.each(func(g *Group) error {
			for range 2 {
				if f := sumOn(g, devices[g.rank]); f != nil {
					return f
				}
			}
			return nil
		})
		begins.Store(true)
		status := coll.Aborted
		if fails {
			status = coll.System
		}
		require.NoError(t, expect(sumOn(w.groups[0], devices[0]), status, "the test"))
		require.Equal(t, []uint64{1, 2, 3}, recorded[0])
		mu.Lock()
		own := slices.Clone(releases[0])
		mu.Unlock() // the end of the groups takes it, also behind a failure of the test
		require.Equal(t, []release{{idle: false, down: true}}, own)
		for _, d := range devices {
			d.drain()
		}
	}
}

// A thread has its turn until it has queued the last command of its operation: another one's operation has no number
// before.
func TestTurnsLastUntilAllIsQueued(t *testing.T) {
	useNewPool(t)
	devices := fakeDevices(t, 2, 1, true)
	method := &onlookers{}
	w := useOnlookers(t, devices, method)
	var begins atomic.Bool
	others := make(chan *coll.Failure, 1)
	method.doing = func(rank int) error {
		if !begins.CompareAndSwap(true, false) {
			return nil
		}
		g := w.groups[rank]
		run := g.device.Load().run
		mine := run.Sequence()
		go func() { others <- sumOn(g, devices[rank]) }()
		waits := func(stack string) bool { return strings.Contains(stack, " [select") }
		for end := time.Now().Add(hangAfter); !slices.ContainsFunc(stacksOf("vendor.turn.take"), waits); runtime.Gosched() {
			switch {
			case run.Sequence() != mine:
				return errors.New("another operation has a number")
			case time.Now().After(end):
				return errors.New("the other operation does not wait for its turn")
			}
		}
		return nil
	}
	w.each(func(g *Group) error { return asError(sumOn(g, devices[g.rank])) })
	begins.Store(true)
	require.Nil(t, sumOn(w.groups[0], devices[0]))
	require.Nil(t, <-others)
}

// A rank that is destroyed with operations of a library under way ends its kernels, and with them those of its peers,
// which then have no data. So the peers have the failure before: their operations raise it, whatever their streams have
// done since. For the rank itself the group has not failed.
func TestDestroyDeclaresThatItCutsOperationsOfALibrary(t *testing.T) {
	for name, end := range map[string]func(g *Group) error{
		"stopped":            endInSlices(WaitNone),
		"end of the process": func(g *Group) error { return g.destroy(false) },
	} {
		for _, hosts := range []string{"one host", "two hosts"} {
			t.Run(name+"/"+hosts, func(t *testing.T) {
				impatient(t, 50*time.Millisecond)
				useNewPool(t)
				devices := fakeDevices(t, 2, 1, true)
				useLibrary(t, devices)
				var w *world
				if hosts == "one host" {
					w = newWorld(t, 2)
				} else {
					w = newHostsWorld(t, "01")
				}
				w.each(func(g *Group) error { return asError(sumOn(g, devices[g.rank])) })
				devices[0].hold(true) // the kernel of rank 0 has no input, so that of rank 1 waits
				var works [2]deviceWork
				for rank, g := range w.groups {
					var f *coll.Failure
					b := devices[rank].buffer(400)
					works[rank], f = issueOn(g, devices[rank], coll.Op{Kind: coll.AllReduce, Type: coll.Int32}, one(b), one(b))
					require.Nil(t, f)
				}
				require.NoError(t, end(w.groups[0]))
				require.Nil(t, w.groups[0].FirstCause())
				devices[1].drain() // its kernel has gone on
				f := works[1].finish()
				if hosts == "one host" || f != nil { // of another host the failure may come later
					require.NoError(t, expect(f, coll.PeerFailure, "Connection closed by peer: rank 0 (host ", "ended operations of nccl that were under way"))
					require.Zero(t, f.Rank)
				}
				require.NoError(t, expect(sum(w.groups[1], 1), coll.PeerFailure, "ended operations of nccl that were under way, in or after all_reduce #2"))
				devices[0].hold(false)
				require.NoError(t, expect(works[0].finish(), coll.Aborted, "was destroyed on rank 0"))
				devices[0].drain()
			})
		}
	}
}
