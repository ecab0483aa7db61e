package pgbackend

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/coll"
	"sagecomm/internal/device"
	"sagecomm/internal/engine"
	"sagecomm/internal/engine/vendor"
	"sagecomm/internal/runner"
	"sagecomm/internal/transport/tcp"
)

// namedLibrary is a vendor's library that no rank comes to use.
type namedLibrary struct{ vendor.Library }

func (namedLibrary) Name() string { return "nccl" }

// A device that cannot be opened for a call concerns that call alone, also where the call would make the communicator.
func TestVendorEngineRefusesACall(t *testing.T) {
	testEngines(t, nil)
	deviceEngines["nccl"] = registeredEngine{
		absent: func(*Group) error { return nil },
		open: func(g *Group, run *runner.Group) (engine.Engine, error) {
			others := g.stagedEngine(run)
			return g.vendorEngine(vendor.Calls(namedLibrary{}), run, others, others), nil
		},
	}
	real := openAccess
	t.Cleanup(func() { openAccess = real })
	openAccess = func(runner.Call, coll.Op) (device.Access, error) { return nil, device.ErrCaptured }
	w := newWorld(t, 2)
	list := w.eachFailure(func(g *Group) *coll.Failure {
		refused := deviceSum(g, 10)
		if f := sum(g, 10); f != nil {
			return f
		}
		return refused
	})
	for rank, f := range list {
		if err := expect(f, coll.Invalid, "all_reduce", "nccl: the stream is being captured into a graph"); err != nil {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

// launching is a device whose streams take kernels.
type launching struct {
	device.Launcher
	rank int
}

func (launching) Name() string                                 { return "driver" }
func (launching) Vendor() string                               { return "cuda" }
func (l launching) Identity() (string, error)                  { return fmt.Sprint("device ", l.rank), nil }
func (launching) NewStream(device.Role) (device.Stream, error) { return device.Stream{Handle: 1}, nil }
func (launching) Current(f func() error) error                 { return f() }
func (launching) Fork(device.Stream) error                     { return nil }
func (launching) Join(device.Stream) error                     { return nil }

// brokenLibrary is a vendor's library that cannot even make a unique id.
type brokenLibrary struct{ namedLibrary }

func (brokenLibrary) Vendor() string         { return "cuda" }
func (brokenLibrary) NewID() ([]byte, error) { panic("a fault for the test") }

// A panic on a goroutine of an engine makes the group fail on all ranks, with its reason, and the process goes on.
func TestPanicOfAnEngine(t *testing.T) {
	testEngines(t, nil)
	deviceEngines["nccl"] = registeredEngine{
		absent: func(*Group) error { return nil },
		open: func(g *Group, run *runner.Group) (engine.Engine, error) {
			others := g.stagedEngine(run)
			return g.vendorEngine(vendor.Calls(brokenLibrary{}), run, others, others), nil
		},
	}
	real := openAccess
	t.Cleanup(func() { openAccess = real })
	var next atomic.Int64
	openAccess = func(runner.Call, coll.Op) (device.Access, error) { return launching{rank: int(next.Add(1))}, nil }
	w := newWorld(t, 2)
	expectAll(t, w.eachFailure(func(g *Group) *coll.Failure {
		f := deviceSum(g, 10)
		for end := time.Now().Add(opTimeout); (f == nil || f.Status == coll.Invalid) && time.Now().Before(end); {
			f = sum(g, 10)
		}
		return f
	}), coll.Internal, "internal error on rank 0", "a fault for the test")
}

// relapsing is an engine that panics again while the group that it has made fail is taken down.
type relapsing struct {
	engine.Engine
	panics *atomic.Bool
}

func (r relapsing) Abort() {
	if r.panics.Load() {
		panic("a second fault for the test")
	}
	r.Engine.Abort()
}

// The recovery from a panic takes the group down, which calls what has panicked. The group has failed with the first
// reason on all ranks, and the process goes on, whether the panic was on a goroutine or in a call.
func TestPanicOfARecovery(t *testing.T) {
	var panics atomic.Bool
	testEngines(t, nil)
	deviceEngines["nccl"] = registeredEngine{
		absent: func(*Group) error { return nil },
		open: func(g *Group, run *runner.Group) (engine.Engine, error) {
			others := g.stagedEngine(run)
			return relapsing{g.vendorEngine(vendor.Calls(namedLibrary{}), run, others, others), &panics}, nil
		},
	}
	real := openAccess
	t.Cleanup(func() { openAccess = real })
	openAccess = func(runner.Call, coll.Op) (device.Access, error) { return nil, device.ErrCaptured }
	for name, begin := range map[string]func(g *Group){
		"on a goroutine": func(g *Group) { g.guard(func() { panic("a fault for the test") }) },
		"in a call": func(g *Group) {
			var f *coll.Failure
			defer g.recoverInto(&f)
			panic("a fault for the test")
		},
		"that serves all groups": func(g *Group) {
			defer g.process.recoverAll()
			panic("a fault for the test")
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 2)
			w.eachFailure(func(g *Group) *coll.Failure { return deviceSum(g, 10) }) // opens the lane
			panics.Store(true)
			begin(w.groups[0])
			panics.Store(false)
			expectAll(t, w.eachFailure(func(g *Group) *coll.Failure { return sum(g, 10) }), coll.Internal, "internal error on rank", ": a fault for the test")
		})
	}
}

// reporting is an engine with an error that is about to make the group fail.
type reporting struct {
	engine.Engine
	reports *atomic.Bool
}

func (r reporting) Reports() bool { return r.reports.Load() }

// Who destroys a group waits for an error of the library that waits for a failure which explains it: operations end
// with that and not with the end of the group.
func TestDestroyWaitsForReports(t *testing.T) {
	impatient(t, 50*time.Millisecond)
	var reports atomic.Bool
	testEngines(t, nil)
	deviceEngines["nccl"] = registeredEngine{
		absent: func(*Group) error { return nil },
		open: func(g *Group, run *runner.Group) (engine.Engine, error) {
			others := g.stagedEngine(run)
			return reporting{g.vendorEngine(vendor.Calls(namedLibrary{}), run, others, others), &reports}, nil
		},
	}
	real := openAccess
	t.Cleanup(func() { openAccess = real })
	openAccess = func(runner.Call, coll.Op) (device.Access, error) { return nil, device.ErrCaptured }
	w := newWorld(t, 2)
	w.eachFailure(func(g *Group) *coll.Failure { return deviceSum(g, 10) }) // opens the lane
	g := w.groups[0]
	b := one(make([]byte, 40))
	work, f := g.Issue(coll.Op{Kind: coll.AllReduce, Type: coll.Float32, Async: true}, b, b) // rank 1 does not call it
	if f != nil {
		t.Fatal(f)
	}
	reports.Store(true)
	time.AfterFunc(8*destroyTimeout, func() {
		defer reports.Store(false)
		if err := g.Fail(&coll.Failure{Status: coll.System, Message: "remote process exited"}); err != nil {
			t.Error(err)
		}
	})
	for _, f := range []*coll.Failure{g.Finish(), end(work)} {
		if err := expect(f, coll.System, "remote process exited"); err != nil {
			t.Error(err)
		}
	}
}

// An error of the library waits until a death would be the cause. Between hosts, others have the times of that.
func TestReportsWaitForDeaths(t *testing.T) {
	if d := noticedAfter(tcp.DefaultTiming); d != 2*time.Second {
		t.Errorf("a death is noticed after %v; deathWait and docs/protocol.md count on 2 s", d)
	}
	waits := func(w *world, want time.Duration) {
		w.each(func(g *Group) error {
			if got := g.reportWait(); got != want {
				return fmt.Errorf("an error waits for %v, expected %v", got, want)
			}
			return nil
		})
	}
	waits(newHostsWorld(t, "01"), 2*time.Second+deathWait+reportSpare)
	slow, errs := tryWorld(t, 2, opTimeout, func(rank int) options {
		o := onHosts("01")(rank)
		o["link_timeout"] = "10"
		return o
	})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	waits(slow, 10500*time.Millisecond+deathWait+reportSpare)
	waits(newWorld(t, 2), time.Second) // the kernel tells at once, and a busy machine runs who hears it up to 0.7 s later
}

// A rank that dies in a join of a library may have told by then that it has joined, and the library of a survivor may notice its death first. The
// survivor raises the death, also where the engine was set.
func TestADeathInTheJoinOfALibrary(t *testing.T) {
	useNewPool(t)
	devices := fakeDevices(t, 2, 1, true)
	eachAProcess(t)
	library := useLibrary(t, devices)
	w, errs := tryWorld(t, 2, opTimeout, func(rank int) options { // between hosts, an error waits for seconds
		o := onHosts("01")(rank)
		o["engine"] = "nccl"
		return o
	})
	require.NoError(t, errors.Join(errs...))
	var once sync.Once
	var ends sync.WaitGroup
	library.state = func(rank int) error {
		if rank == 1 {
			return nil
		}
		for w.groups[1].control[topicEngine].posted.Load() < 2 { // the seats, and that rank 1 has joined
			runtime.Gosched()
		}
		once.Do(func() {
			ends.Go(func() {
				for len(stacksOf("vendor.(*Engine).explained")) == 0 {
					if w.groups[0].control[topicEngine].posted.Load() > 1 {
						t.Error("rank 0 has told the error of its library")
						break
					}
					runtime.Gosched()
				}
				cutOff(w, 1)
			})
		})
		return errors.New("remote process exited")
	}
	ends.Go(func() { sumOn(w.groups[1], devices[1]) })
	f := sumOn(w.groups[0], devices[0])
	require.NoError(t, w.groups[1].Destroy())
	ends.Wait()
	require.NoError(t, expect(f, coll.PeerFailure, "rank 1 (host "))
	require.Equal(t, 1, f.Rank)
}

// An error of a library in a join that no death explains is told with its rank, its text and the remedy.
func TestAnErrorInTheJoinOfALibrary(t *testing.T) {
	useNewPool(t)
	devices := fakeDevices(t, 2, 1, true)
	library := useLibrary(t, devices)
	library.state = func(rank int) error {
		if rank == 1 {
			return nil
		}
		return errors.New("remote process exited")
	}
	w := newWorldWith(t, 2, opTimeout, options{"engine": "nccl"})
	for _, f := range w.eachFailure(func(g *Group) *coll.Failure { return sumOn(g, devices[g.rank]) }) {
		require.NoError(t, expect(f, coll.System, "SAGECOMM_ENGINE=nccl, but rank 0 does not offer it", "rank 0 (host ", "remote process exited", "set an engine that all ranks offer"))
	}
}
