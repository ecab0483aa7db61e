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
	joinBound  = 60 * time.Second // of the ranks' join
	endBound   = 10 * time.Second // of the end of a communicator
	watchEvery = 100 * time.Millisecond
	firstSleep = 20 * time.Microsecond
	looks      = 100 // before the first sleep
)

var errAborted = errors.New("the communicator was aborted")

// communicator is a Communicator with its stream on the device.
type communicator struct {
	engine  *Engine
	stream  device.Stream
	runtime string // that the stream is of

	mu     sync.Mutex    // held during each call of joined
	joined Communicator  // nil: the ranks do without the library on this device
	ending atomic.Bool   // an abort or the end has begun, and no other call follows
	ended  chan struct{} // closed when that is over
	stop   chan struct{} // closed by close, for the watch

	last atomic.Pointer[runner.GateWords] // of the newest operation

	memory []device.Memory // scratch; guarded by Engine.issuing
	room   uint64          // bytes of the last one
}

// communicatorOf returns the communicator of a device for which Prepare was called.
func (e *Engine) communicatorOf(on coll.Device) *communicator {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.known[on]
}

// state calls State.
func (c *communicator) state() (queued bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ending.Load() {
		return false, errAborted
	}
	return c.joined.State()
}

// await returns when the library has queued what was called.
func (c *communicator) await(what string, bound time.Duration) error {
	end, sleep := time.Now().Add(bound), firstSleep
	for n := 0; ; n++ {
		queued, err := c.state()
		if err != nil || queued {
			return err
		}
		if c.engine.down.Load() {
			return errAborted
		}
		if time.Now().After(end) {
			return fmt.Errorf("%s takes longer than %v", what, bound)
		}
		if n < looks {
			runtime.Gosched()
			continue
		}
		time.Sleep(sleep)
		sleep = min(2*sleep, time.Millisecond)
	}
}

// do queues calls as a group. The first calls of a kind wait for peers, with whom the library connects, as long as an operation may
// take.
func (c *communicator) do(rt device.Launcher, calls []Call) error {
	if len(calls) == 0 {
		return nil
	}
	err := rt.Current(func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.ending.Load() {
			return errAborted
		}
		return c.joined.Do(calls, c.stream.Handle)
	})
	if err != nil {
		return err
	}
	return c.await("queueing a kernel", c.engine.group.Timeout())
}

// watch makes the group fail when the communicator does.
func (c *communicator) watch() {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-c.stop:
			return
		case <-tick.C:
		}
		if c.engine.down.Load() {
			return
		}
		if _, err := c.state(); err != nil {
			if !errors.Is(err, errAborted) {
				c.engine.group.Fail(fmt.Errorf("%s: %w", c.engine.library.Name(), err))
			}
			return
		}
	}
}

// idle reports whether the kernels of all operations are done, so that the communicator may end in peace: operations run in one
// stream, in their order.
func (c *communicator) idle() bool {
	last := c.last.Load()
	return last == nil || last.Moved(1, 1)
}

// abort begins to end the kernels. It waits for nothing, because a library may wait for the device.
func (c *communicator) abort() {
	if c.joined != nil {
		c.end(c.joined.Abort)
	}
}

// end begins to end the communicator, unless something else has begun to.
func (c *communicator) end(how func()) {
	if c.ending.Swap(true) {
		return
	}
	go func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		how()
		close(c.ended)
	}()
}

// close ends the communicator, and reports whether its stream may be used again.
// Requires: no operation is under way.
func (c *communicator) close() bool {
	if c.joined == nil {
		return false
	}
	close(c.stop)
	c.end(c.joined.Destroy)
	select {
	case <-c.ended:
	case <-time.After(endBound): // a kernel may still run
		return false
	}
	for _, m := range c.memory {
		m.Release()
	}
	return true
}
