package vendor

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"sagecomm/internal/coll"
	"sagecomm/internal/device"
	"sagecomm/internal/runner"
)

// Times of waiting for a library.
const (
	watchEvery = 100 * time.Millisecond
	firstSleep = 20 * time.Microsecond
	looks      = 100 // before the first sleep
)

var errEnding = errors.New("the communicator is being ended")

// communicator is a Member with its stream on the device.
type communicator struct {
	engine  *Engine
	place   place
	stream  device.Stream
	current func(func() error) error // device.Launcher.Current
	scales  bool                     // the frameworks of all ranks multiply and divide elements: scaling.go; set before the communicator is known

	mu     sync.Mutex    // held during each call of joined, none of which waits, except for that which ends it
	joined Member        // nil: the ranks do without the library on this device
	ending atomic.Bool   // an abort or the end has begun, and no other call follows
	ended  chan struct{} // closed when that is over
	whole  bool          // nothing of it is left then; set before
	kept   atomic.Bool   // a command of a failed operation may come into the stream until the process ends
	stop   chan struct{} // closed by close, for the watch

	last    atomic.Pointer[use] // of the newest operation
	scratch scratch

	// captured is what is kept of captured operations: the newest memory for their buffers, and the number of the newest capture with the
	// mark behind its last operation. Graphs may use older memory, which had less room. Guarded by Engine.issuing.
	captured struct {
		memory device.Memory
		room   uint64
		older  []device.Memory
		number uint64
		mark   device.Mark // nil: there was no capture
	}
	graphs ownGraphs
}

// communicatorOf returns the communicator of a device for which Prepare was called.
func (e *Engine) communicatorOf(on coll.Device) *communicator {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.known[on]
}

// with calls f while the device is current, unless the communicator is being ended.
func (c *communicator) with(f func() error) error {
	if c.ending.Load() { // the call that ends it may wait
		return errEnding
	}
	return c.current(func() error {
		for !c.mu.TryLock() {
			if c.ending.Load() {
				return errEnding
			}
			time.Sleep(firstSleep)
		}
		defer c.mu.Unlock()
		if c.ending.Load() {
			return errEnding
		}
		return f()
	})
}

// state calls State.
func (c *communicator) state() (queued bool, err error) {
	err = c.with(func() error {
		var failed error
		if queued, failed = c.joined.State(); failed != nil {
			return reported{failed}
		}
		return nil
	})
	return queued, err
}

// poll returns when the library has done what was called. Between looks, from the first sleep on, it asks goOn, whose error ends
// the wait.
func (c *communicator) poll(goOn func() error) error {
	for n, sleep := 0, firstSleep; ; n++ {
		queued, err := c.state()
		if err != nil || queued {
			return err
		}
		if n < looks {
			runtime.Gosched()
			continue
		}
		if err := goOn(); err != nil {
			return err
		}
		time.Sleep(sleep)
		sleep = min(2*sleep, time.Millisecond)
	}
}

// do queues an operation. In the first calls of a kind, a library connects ranks, which waits for peers. The operation is
// announced then, so the runner finds out that one is missing, and the group goes down.
func (c *communicator) do(rt device.Launcher, call runner.Call, op coll.Op, b Buffers) error {
	stream, err := rt.Handle(c.stream)
	if err != nil {
		return err
	}
	err = c.with(func() error {
		if err := c.joined.Do(op, b, stream); err != nil {
			return reported{err}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return c.poll(waitFor(call, c.engine.group.Run.Begin))
}

// watch makes the group fail when the communicator does, and gives scratch memory back.
func (c *communicator) watch() {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-c.stop:
			return
		case <-tick.C:
		}
		if _, err := c.state(); err != nil {
			if !errors.Is(err, errEnding) {
				c.engine.report(fmt.Errorf("%s: %w", c.engine.method.Name(), err), c.goesOn)
			}
			return
		}
		c.scratch.sweep(c.engine.group.Go)
	}
}

// goesOn returns an error once the communicator is closed.
func (c *communicator) goesOn() error {
	select {
	case <-c.stop:
		return errEnding
	default:
		return nil
	}
}

// idle reports whether the kernels of all operations are done, so that the communicator may end in peace: operations run in one
// stream, in their order.
func (c *communicator) idle() bool {
	last := c.last.Load()
	return last == nil || last.done()
}

// end begins to end the communicator, unless something else has begun to. It waits for nothing, because a library may wait for
// the device and for peers.
func (c *communicator) end(how func() bool) {
	if !c.ending.Swap(true) {
		c.ends(how)
	}
}

// ends ends the communicator. Requires: ending was false.
func (c *communicator) ends(how func() bool) {
	c.engine.pool.ending.Add(1)
	c.engine.group.Go(func() {
		defer c.engine.pool.ending.Add(-1)
		defer close(c.ended)
		whole := true // without the device there is nothing to end
		_ = c.current(func() error {
			c.mu.Lock()
			defer c.mu.Unlock()
			whole = false // if it panics
			whole = how()
			return nil
		})
		c.whole = whole
	})
}

// awaitWhole waits for the end of the communicator, and reports whether nothing is left that uses its stream and its memory.
func (c *communicator) awaitWhole() bool {
	<-c.ended
	return c.whole
}

// abort begins to end the kernels, which may have peers that do not come.
func (c *communicator) abort() { c.abortBy(c.joined.Abort) }

// abortBy is abort with a call of its own. Release may panic, and the communicator is ended all the same: no other call would.
func (c *communicator) abortBy(how func() bool) {
	if !c.ending.Swap(true) {
		c.engine.group.Guard(func() { c.joined.Release(c.idle) })
		c.ends(how)
	}
}

// A caller whose operation has failed waits for the library: shorter than a failure may take to be raised, and than a signal may, once there is one.
const (
	settleBound      = time.Second
	interruptedBound = 100 * time.Millisecond // since the signal, of which the group may have taken a part to go down
)

// settles waits until no command of the library comes any more, as far as that is soon, and handles signals meanwhile.
// Requires: the end has begun; the thread of the call.
func (c *communicator) settles(caller *listener) bool {
	sleep := firstSleep
	for end := time.Now().Add(settleBound); !c.joined.Settled(); sleep = min(2*sleep, 10*time.Millisecond) {
		if caller.look() != nil {
			if soon := caller.interrupted.Add(interruptedBound); soon.Before(end) {
				end = soon
			}
		}
		if time.Now().After(end) {
			return false
		}
		time.Sleep(sleep)
	}
	return true
}

// quietBound bounds how long the end of a library's communicator waits for streams that wait for peers. It is shorter than libraries wait
// for peers that come later.
const quietBound = 2 * time.Second

// destroy ends a communicator whose kernels are done. A library may wait for all streams of the device then, and keep other threads from
// calling it, so it comes when no stream waits for a peer, as far as that comes soon.
func (c *communicator) destroy() bool {
	if c.engine.library() {
		c.awaitQuiet(quietBound)
	}
	c.joined.Destroy()
	return true
}

// awaitQuiet returns when no stream of an engine of the process waits for a peer, or when the bound is over.
func (c *communicator) awaitQuiet(bound time.Duration) {
	sleep := firstSleep
	for end := time.Now().Add(bound); c.engine.waits() && time.Now().Before(end); sleep = min(2*sleep, 10*time.Millisecond) {
		time.Sleep(sleep)
	}
}

// down ends the communicator of a group that is down: in peace, if it is idle and the group has not failed. Peers of a group that has
// failed may never end theirs. They are told before the abort, because with a library they know by the failure alone what is void.
func (c *communicator) down() {
	switch {
	case c.joined == nil:
	case !c.idle():
		if !c.ending.Load() {
			c.engine.group.Cut()
		}
		c.abort()
	case c.engine.group.Failed():
		c.abort()
	default:
		c.end(c.destroy)
	}
}

// close ends the communicator in the background, and gives back what it has. Where kernels cannot be ended, the stream and the memory stay
// with them. What graphs use comes back when they are gone, if the driver tells that.
// Requires: no operation is under way.
func (c *communicator) close() {
	close(c.stop)
	c.end(c.destroy)
	c.engine.group.Go(func() {
		if !c.awaitWhole() || c.kept.Load() { // nobody knows when the stream is through, whose gate nobody writes
			return
		}
		for sleep := firstSleep; !c.idle(); sleep = min(2*sleep, watchEvery) { // the stream may stand behind a late one of the caller
			time.Sleep(sleep)
		}
		c.behind(func() {
			c.scratch.release()
			c.engine.pool.giveStream(c.place, c.stream)
		})
		if !c.awaitGraphs() {
			return
		}
		if c.captured.memory != nil {
			c.behind(func() { releaseAll(append(c.captured.older, c.captured.memory)) })
		}
		c.joined.Free(c.behind)
	})
}

// behind calls f on a thread that has seen how far the stream is: an emulator of devices takes that for what comes
// before the calls of f. A goroutine that waits for long has no thread meanwhile.
func (c *communicator) behind(f func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c.idle()
	f()
}

// forsake makes this rank do without the library on the device.
// Requires: no operation was called.
func (c *communicator) forsake() {
	if m := c.joined; m != nil {
		c.abortBy(func() bool { // as in destroy: a library may free memory of the device, which waits for all streams
			if c.engine.library() {
				c.awaitQuiet(quietBound)
			}
			return m.Abort()
		})
		c.joined = nil
		c.engine.group.Go(func() {
			if c.awaitWhole() {
				m.Free(c.behind)
			}
		})
	}
	if c.current != nil { // it has a stream
		c.engine.pool.giveStream(c.place, c.stream)
	}
}
