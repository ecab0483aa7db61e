package pgbackend

import (
	"fmt"
	"sync/atomic"
	"testing"

	"sagecomm/internal/coll"
	"sagecomm/internal/device"
	"sagecomm/internal/engine"
	"sagecomm/internal/engine/vendor"
	"sagecomm/internal/runner"
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
		for f := deviceSum(g, 10); ; f = sum(g, 10) {
			if f != nil && f.Status != coll.Invalid {
				return f
			}
		}
	}), coll.Internal, "internal error on rank 0", "a fault for the test")
}
