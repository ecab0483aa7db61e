package pgbackend

import (
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
