package pgbackend

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"sagecomm/internal/coll"
	"sagecomm/internal/engine"
	"sagecomm/internal/engine/host"
	"sagecomm/internal/runner"
)

// The device lane, with engines that take host memory for that of a device. Protocol: docs/protocol.md, section 10.

// deviceEngine is the engine for host memory on the device lane. It counts what the group asks of it.
type deviceEngine struct {
	*host.Engine
	of      *devices
	group   *Group
	refused atomic.Int32 // calls that the runner did not number because the lane was down
	aborts  atomic.Int32
}

func (e *deviceEngine) Name() string { return "test" }

func (e *deviceEngine) Prepare(call runner.Call, op coll.Op) (engine.Prepared, error) {
	if e.of.preparing != nil {
		e.of.preparing(e.group)
	}
	return e.Engine.Prepare(call, op)
}

func (e *deviceEngine) Issue(call runner.Call, op coll.Op, p engine.Prepared) error {
	err := e.Engine.Issue(call, op, p)
	if errors.Is(err, runner.ErrDown) {
		e.refused.Add(1)
	}
	return err
}

func (e *deviceEngine) Abort() { e.aborts.Add(1) }

// devices makes the engines of device lanes during a test.
type devices struct {
	opening   func(g *Group) error // called when the lane of a rank is being opened; nil: nothing
	preparing func(g *Group)       // called before each operation of a lane is prepared; nil: nothing

	mu   sync.Mutex
	made []*deviceEngine
}

// withDevices lets all groups have devices until the test ends.
func withDevices(t *testing.T) *devices {
	d := new(devices)
	staged := deviceEngines["staged"]
	t.Cleanup(func() { deviceEngines["staged"] = staged })
	open := func(g *Group, run *runner.Group) (engine.Engine, error) {
		if d.opening != nil {
			if err := d.opening(g); err != nil {
				return nil, err
			}
		}
		e := &deviceEngine{Engine: g.hostEngine(run), of: d, group: g}
		d.mu.Lock()
		d.made = append(d.made, e)
		d.mu.Unlock()
		return e, nil
	}
	deviceEngines["staged"] = registeredEngine{absent: staged.absent, open: open}
	return d
}

// enginesOf returns the engines that were made for a rank.
func (d *devices) enginesOf(g *Group) (list []*deviceEngine) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, e := range d.made {
		if e.group == g {
			list = append(list, e)
		}
	}
	return list
}

var aDevice = coll.Device{Type: coll.CUDA, Index: 0}

// deviceSumAsync issues an asynchronous all_reduce of n float32 on a device.
func deviceSumAsync(g *Group, n int) (runner.Work, *coll.Failure) {
	b := one(make([]byte, 4*n))
	return g.Issue(coll.Op{Kind: coll.AllReduce, Type: coll.Float32, Async: true, Device: aDevice}, b, b)
}

// deviceSum is a synchronous all_reduce of n float32 on a device.
func deviceSum(g *Group, n int) *coll.Failure {
	b := one(make([]byte, 4*n))
	_, f := g.Issue(coll.Op{Kind: coll.AllReduce, Type: coll.Float32, Device: aDevice}, b, b)
	return f
}

// end waits for a work and releases it.
func end(w runner.Work) *coll.Failure {
	f := finish(w)
	w.Release()
	return f
}

// stacksOf returns the stacks of the goroutines that are inside a function or method.
func stacksOf(function string) (found []string) {
	stacks := make([]byte, 4<<20)
	for _, s := range strings.Split(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
		if strings.Contains(s, function+"(") {
			found = append(found, s)
		}
	}
	return found
}

// Without Group.opening each of the callers would open a lane of its own.
func TestFirstDeviceOperationsOpenTheLaneOnce(t *testing.T) {
	const callers = 8
	d := withDevices(t)
	var all atomic.Bool // all callers of all ranks have met
	d.opening = func(*Group) error {
		for !all.Load() {
			if len(stacksOf("deviceLane")) == 2*callers {
				all.Store(true)
			}
			runtime.Gosched()
		}
		return nil
	}
	w := newWorld(t, 2)
	w.each(func(g *Group) error {
		numbers := make([]uint64, callers)
		failures := make([]*coll.Failure, callers)
		var calls sync.WaitGroup
		for i := range callers {
			calls.Go(func() {
				work, f := deviceSumAsync(g, 100)
				if f == nil {
					numbers[i] = work.Sequence()
					f = end(work)
				}
				failures[i] = f
			})
		}
		calls.Wait()
		slices.Sort(numbers)
		for i, f := range failures {
			if f != nil || numbers[i] != uint64(i+1) {
				return fmt.Errorf("numbers %v, failure %v", numbers, f)
			}
		}
		if n := len(d.enginesOf(g)); n != 1 || len(g.lanes()) != 2 {
			return fmt.Errorf("%d engines of %d lanes", n, len(g.lanes()))
		}
		return nil
	})
}

// Operations on devices have the results of those on host memory. Each lane counts its own collectives.
func TestNumbersAreOfTheLane(t *testing.T) {
	withDevices(t)
	const n = 3
	w := newWorld(t, n)
	w.each(func(g *Group) error {
		want := map[bool]uint64{}
		for i, onDevice := range []bool{false, true, false, false, true, true, false} {
			count := []int{10, 100_000}[i%2]
			in := contributionBytes(coll.Float32, coll.Sum, g.rank, n, count)
			op := coll.Op{Kind: coll.AllReduce, Type: coll.Float32}
			if onDevice {
				op.Device = aDevice
			}
			work, f := g.Issue(op, one(in), one(in))
			if f != nil {
				return f
			}
			want[onDevice]++
			if work.Sequence() != want[onDevice] {
				return fmt.Errorf("operation %d has number %d, expected %d of its lane", i, work.Sequence(), want[onDevice])
			}
			if !slices.Equal(in, reducedBytes(coll.Float32, coll.Sum, n, count)) {
				return fmt.Errorf("the result of operation %d is wrong", i)
			}
		}
		if host, device := g.Sequence(), g.device.Load().run.Sequence(); host != 4 || device != 3 {
			return fmt.Errorf("%d collectives in the host lane and %d in the device lane", host, device)
		}
		return nil
	})
}

// The look at Group.cause behind the storing of the lane takes it down; without it, the operation would be numbered.
func TestLaneOpenedWhileTheGroupFailsHasItsCause(t *testing.T) {
	d := withDevices(t)
	d.opening = func(g *Group) error {
		if g.rank == 0 {
			g.Abort("the user gave up")
		}
		return nil
	}
	w := newWorld(t, 2)
	expectAll(t, w.eachFailure(func(g *Group) *coll.Failure { return deviceSum(g, 10) }), coll.Aborted, "the user gave up")
	first := d.enginesOf(w.groups[0])
	if len(first) != 1 || first[0].refused.Load() != 1 || first[0].aborts.Load() == 0 {
		t.Fatalf("%d engines; the operation of rank 0 was numbered, or its engine was not aborted", len(first))
	}
	if n := w.groups[0].device.Load().run.Sequence(); n != 0 {
		t.Errorf("the device lane has numbered %d operations", n)
	}
}

// The lane must not be left in the process's list, nor open.
func TestLaneOpenedWhileTheGroupIsDestroyed(t *testing.T) {
	impatient(t, short)
	d := withDevices(t)
	w := newWorld(t, 2)
	g := w.groups[0]
	destroyed := make(chan error, 1)
	d.opening = func(g *Group) error {
		go func() { destroyed <- g.Destroy() }()
		for Get().Group(g.Handle()) != nil {
			runtime.Gosched()
		}
		return nil
	}
	if err := expect(deviceSum(g, 10), coll.Invalid, "the group was destroyed"); err != nil {
		t.Error(err)
	}
	if err := <-destroyed; err != nil {
		t.Error(err)
	}
	p := Get()
	p.mu.Lock()
	defer p.mu.Unlock()
	for handle, of := range p.lanes {
		if of == g {
			t.Errorf("lane %d of the destroyed group is in the list", handle)
		}
	}
	if g.device.Load() != nil {
		t.Error("the destroyed group has a device lane")
	}
}

// An engine that cannot be made takes the group down on all ranks, because they make a call that this rank cannot join.
func TestEngineThatCannotBeMade(t *testing.T) {
	d := withDevices(t)
	d.opening = func(g *Group) error {
		if g.rank == 1 {
			return errors.New("no device, for the test")
		}
		return nil
	}
	w := newWorld(t, 2)
	for range 2 {
		expectAll(t, w.eachFailure(func(g *Group) *coll.Failure { return deviceSum(g, 10) }), coll.System, "rank 1", "no device, for the test")
	}
	if w.groups[1].device.Load() != nil {
		t.Error("rank 1 has a device lane")
	}
}

// The group goes down between the preparation of an operation of the device lane and its number.
func TestDownTakesBothLanesDown(t *testing.T) {
	d := withDevices(t)
	w := newWorld(t, 2)
	w.each(func(g *Group) error {
		if f := deviceSum(g, 10); f != nil {
			return f
		}
		return asError(sum(g, 10))
	})
	g := w.groups[0]
	var works []runner.Work
	for _, issue := range []func(*Group, int) (runner.Work, *coll.Failure){sumAsync, deviceSumAsync} {
		work, f := issue(g, 10) // rank 1 does not join it
		if f != nil {
			t.Fatal(f)
		}
		works = append(works, work)
	}
	d.preparing = func(g *Group) { g.Abort("the user gave up") }
	if err := expect(deviceSum(g, 10), coll.Aborted, "the user gave up"); err != nil {
		t.Error(err)
	}
	if e := d.enginesOf(g)[0]; e.refused.Load() != 1 || e.aborts.Load() == 0 {
		t.Errorf("the device lane refused %d operations, and its engine was aborted %d times", e.refused.Load(), e.aborts.Load())
	}
	for lane, work := range works {
		if err := expect(end(work), coll.Aborted, "the user gave up"); err != nil {
			t.Errorf("%v: %v", runner.Lane(lane), err)
		}
	}
}

// Ranks disagree in one lane while an operation of the other one waits for a rank that does not join it.
func TestFailureOfOneLaneFailsTheOther(t *testing.T) {
	for _, failing := range []runner.Lane{runner.HostLane, runner.DeviceLane} {
		t.Run("of the "+failing.String(), func(t *testing.T) {
			withDevices(t)
			w := newWorld(t, 2)
			waits, device := deviceSumAsync, coll.Device{}
			if failing == runner.DeviceLane {
				waits, device = sumAsync, aDevice
			}
			list := w.eachFailure(func(g *Group) *coll.Failure {
				var waiting runner.Work
				if g.rank == 0 {
					var f *coll.Failure
					if waiting, f = waits(g, 10); f != nil {
						return f
					}
				}
				b := one(make([]byte, 40+8*g.rank))
				_, f := g.Issue(coll.Op{Kind: coll.AllReduce, Type: coll.Float32, Device: device}, b, b)
				if g.rank != 0 {
					return f
				}
				if other := end(waiting); f == nil || other == nil || other.Message != f.Message {
					return &coll.Failure{Message: fmt.Sprintf("one lane failed with %v, the other with %v", f, other)}
				}
				return f
			})
			expectAll(t, list, coll.Mismatch, "ranks disagree in collective #1", "10 elements", "12 elements")
		})
	}
}

// While an operation of the device lane waits for a peer, operations on host memory complete, and stay in C.
func TestOperationHeldInTheDeviceLane(t *testing.T) {
	withDevices(t)
	w := newWorld(t, 2)
	var held runner.Work
	w.each(func(g *Group) error {
		if f := deviceSum(g, 1000); f != nil {
			return f
		}
		if f := sum(g, 10); f != nil || g.rank != 0 {
			return asError(f)
		}
		var f *coll.Failure
		held, f = deviceSumAsync(g, 1000) // rank 1 does not join it yet
		return asError(f)
	})
	// See TestCacheHitsDoNotEnterGo: the best of a few loops counts.
	var entered []uint64
	for len(entered) < 5 {
		before := runner.GoEntries()
		w.each(func(g *Group) error {
			for range 500 {
				if f := sum(g, 10); f != nil {
					return f
				}
			}
			return nil
		})
		entered = append(entered, runner.GoEntries()-before)
		if entered[len(entered)-1] == 0 {
			break
		}
	}
	if slices.Min(entered) != 0 {
		t.Errorf("Go was entered %v times in loops of 500 operations", entered)
	}
	if done, f := held.Wait(0); done {
		t.Errorf("the operation is complete although rank 1 has not joined it: %v", f)
	}
	w.each(func(g *Group) error {
		if g.rank == 0 {
			return asError(end(held))
		}
		return asError(deviceSum(g, 1000))
	})
}
