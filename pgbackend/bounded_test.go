package pgbackend

import (
	"errors"
	"fmt"
	"testing"

	"sagecomm/internal/coll"
	"sagecomm/internal/engine"
	"sagecomm/internal/engine/vendor"
	"sagecomm/internal/runner"
)

// boundedMethod is a method whose operations have 64 bytes at most.
type boundedMethod struct{ vendor.Method }

type boundedMember struct{ vendor.Member }

func (m boundedMethod) Join(j vendor.Joining) (vendor.Member, error, error) {
	member, why, err := m.Method.Join(j)
	if member != nil {
		member = boundedMember{member}
	}
	return member, why, err
}

func (boundedMember) Bound(op coll.Op) error {
	if op.In > 64 {
		return errors.New("it is too long")
	}
	return nil
}

// An operation that is too long for a method is refused before it has a number, and the group goes on.
func TestOperationThatIsTooLongForAMethod(t *testing.T) {
	const n = 2
	useNewPool(t)
	devices := fakeDevices(t, n, 1, true)
	l := useLibrary(t, devices)
	deviceEngines["nccl"] = registeredEngine{
		absent: func(*Group) error { return nil },
		open: func(g *Group, run *runner.Group) (engine.Engine, error) {
			others := g.stagedEngine(run)
			return g.vendorEngine(boundedMethod{vendor.Calls(l)}, run, others, others), nil
		},
	}
	newWorld(t, n).each(func(g *Group) error {
		d := devices[g.rank]
		add := func(bytes int) (deviceWork, *coll.Failure) {
			return issueOn(g, d, coll.Op{Kind: coll.AllReduce, Type: coll.Int32}, one(d.buffer(bytes)), one(d.buffer(bytes)))
		}
		for number := uint64(1); number <= 3; number++ {
			w, f := add(64)
			if f != nil {
				return f
			}
			if w.Sequence() != number {
				return fmt.Errorf("number %d, expected %d", w.Sequence(), number)
			}
			if f := w.finish(); f != nil {
				return f
			}
			_, f = add(68)
			if err := expect(f, coll.Invalid, fmt.Sprintf("sagecomm: all_reduce: rank %d: buffers on ", g.rank), ": nccl: it is too long"); err != nil {
				return err
			}
		}
		return asError(g.Cause())
	})
}
