package vendor

import (
	"errors"
	"sync/atomic"
	"time"

	"sagecomm/internal/coll"
	"sagecomm/internal/device"
)

// This file captures the calls of a library into graphs, as NCCL allows it: a call in a stream that is being captured adds the kernels of
// the library to the graph. The library puts the launches of one communicator in one order with its other kernels, and its state is asked
// for without a call of the device. Two things differ from calls outside of captures:
//
//   - The first call of a kind connects ranks, with device calls that a capture may forbid. It is refused.
//   - The end of a communicator waits for the end of all graphs that have its kernels, which may be long after that of the group. So it is
//     not ended while it is not known that there are none.

const (
	graphsBound  = time.Second            // of the end of graphs in an abort
	graphsLinger = 5 * time.Second        // of what a communicator in peace still does for graphs that are running
	kernelsBound = 100 * time.Millisecond // of the beginning of its abort then, which ends the kernels
)

var errNotConnected = errors.New("the stream is being captured, and the ranks are not connected for this operation yet; call the same operation of the group once before the capture")

// graphCaller is a caller whose calls graphs can hold.
type graphCaller struct {
	caller
	group     Group
	device    device.Capturer
	connected map[connection]bool // for these the ranks have been connected by calls outside of captures
	any       atomic.Bool         // a graph may have kernels
}

// connection is what a library connects ranks for: a function that all ranks call, or sends to or recvs from a peer.
type connection struct {
	kind CallKind
	peer int
}

func connectionOf(call Call) connection {
	if call.Kind == Send || call.Kind == Recv {
		return connection{call.Kind, call.Peer}
	}
	return connection{call.Kind, -1}
}

var _ Capturer = (*graphCaller)(nil)

// newGraphCaller returns the Member of a library. Where the device has no captures, it is one without.
func newGraphCaller(c caller, device int, l GraphLibrary, g Group) Member {
	d, err := l.Capturer(device)
	if err != nil {
		return &c
	}
	return &graphCaller{caller: c, group: g, device: d, connected: map[connection]bool{}}
}

// Do implements Member.
func (c *graphCaller) Do(op coll.Op, b Buffers, stream uintptr) error {
	list := callsFor(c.library, op, c.rank, c.size, b)
	if len(list) == 0 {
		return nil
	}
	for _, call := range list {
		c.connected[connectionOf(call)] = true
	}
	return c.Communicator.Do(list, stream)
}

// graphs reports whether graphs may have kernels.
func (c *graphCaller) graphs() bool { return c.any.Load() && c.group.HasGraphs() }

// Device implements Capturer.
func (c *graphCaller) Device() device.Capturer { return c.device }

// Capture implements Capturer.
func (c *graphCaller) Capture(op coll.Op, b Buffers, stream device.Stream, _ uint64) (begun bool, err error) {
	list := callsFor(c.library, op, c.rank, c.size, b)
	for _, call := range list {
		if !c.connected[connectionOf(call)] {
			return false, errNotConnected
		}
	}
	if len(list) == 0 {
		return true, nil
	}
	c.any.Store(true)
	return true, c.Communicator.Do(list, stream.Handle)
}

// Abort implements Member. The call ends the kernels of graphs that are running, or are launched later, at once, and waits for the end of
// the graphs then.
func (c *graphCaller) Abort() bool {
	if !c.graphs() {
		return c.abort()
	}
	return c.abortWithin(graphsBound)
}

// abortWithin begins an abort, and reports whether all is ended before the bound is over.
func (c *graphCaller) abortWithin(bound time.Duration) bool {
	ended := make(chan bool, 1)
	c.group.Go(func() {
		_ = c.device.Current(func() error {
			ended <- c.abort()
			return nil
		})
	})
	select {
	case all := <-ended:
		return all
	case <-time.After(bound):
		return false
	}
}

func (c *graphCaller) abort() (ended bool) {
	if s, is := c.Communicator.(Settler); is && c.graphs() {
		s.Settle()
	}
	c.relaxed(func() { ended = c.Communicator.Abort() })
	return ended
}

// relaxed calls f, in which the library gives memory back. It comes at any time, also while another thread of the process captures, whose
// capture that would break.
func (c *graphCaller) relaxed(f func()) {
	called := false
	_ = c.device.Relaxed(func() error {
		called = true
		f()
		return nil
	})
	if !called { // the driver refuses, and so does the library, whose part is to be given back all the same
		f()
	}
}

// Destroy implements Member. A communicator that graphs use is not destroyed, unless the driver tells soon that they are gone. It is aborted
// later, so that a graph that is launched then does not wait for its peers for ever: not at once, since nobody tells whether graphs of this
// rank and of its peers are running.
// In a process that ends, those of this rank are of no use any more. It waits for the peers only: threads of this process still send what its
// kernels have left to them. The abort ends kernels at once, and the end of the graphs, which comes with their objects, is waited for by nobody.
func (c *graphCaller) Destroy() {
	sleep := time.Millisecond
	for end := time.Now().Add(graphsLinger); time.Now().Before(end); sleep = min(2*sleep, 20*time.Millisecond) {
		if !c.graphs() {
			c.relaxed(c.Communicator.Destroy)
			return
		}
		if c.group.exits() && c.group.Left() {
			break
		}
		time.Sleep(sleep)
	}
	c.abortWithin(kernelsBound)
}
