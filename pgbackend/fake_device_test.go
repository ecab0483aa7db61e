package pgbackend

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"sagecomm/internal/coll"
	"sagecomm/internal/device"
	"sagecomm/internal/runner"
	"sagecomm/tests/quick"
)

// fakeDevice is a device whose memory is slices and whose streams a goroutine carries out, one command after the other,
// of a stream that it draws from a seed. Stream 0 is the caller's.
type fakeDevice struct {
	t       *testing.T
	mu      sync.Mutex
	changed sync.Cond
	random  *rand.Rand
	streams [][]command // by handle
	held    bool        // nothing of the caller's stream runs
	memory  [][]byte
	calls   map[uintptr][]*deviceCall // by sagecomm_op.stream
	waits   bool                      // its streams can wait for words
	pins    int
	pinned  int // bytes
	closed  bool
	failing string // the method that fails next
	stop    int    // no word is written more often; 0: no bound
	order   order
	writes  map[*uint32]int
}

var callersStream device.Stream

type command struct {
	ready func() bool // nil: at once
	polls bool        // ready looks at a word that the CPU writes
	run   func()
	host  unsafe.Pointer // the pinned memory that it uses
}

func newFakeDevice(t *testing.T, seed uint64) *fakeDevice {
	d := &fakeDevice{t: t, random: rand.New(rand.NewPCG(seed, 1)), streams: make([][]command, 1), calls: map[uintptr][]*deviceCall{},
		writes: map[*uint32]int{}}
	d.changed.L = &d.mu
	go d.work()
	t.Cleanup(func() {
		d.mu.Lock()
		d.closed = true
		d.mu.Unlock()
		d.changed.Broadcast()
	})
	return d
}

func (d *fakeDevice) work() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for !d.closed {
		var can []int
		polls := false
		for i, s := range d.streams {
			polls = polls || len(s) > 0 && s[0].polls
			if len(s) > 0 && (i != 0 || !d.held) && (s[0].ready == nil || s[0].ready()) {
				can = append(can, i)
			}
		}
		if len(can) == 0 && polls {
			d.mu.Unlock()
			time.Sleep(10 * time.Microsecond) // nobody tells a device that a word has changed
			d.mu.Lock()
			continue
		}
		if len(can) == 0 {
			d.changed.Wait()
			continue
		}
		i := can[d.random.IntN(len(can))]
		switch d.order {
		case newestFirst:
			i = can[len(can)-1]
		case oldestFirst:
			i = can[0]
		}
		d.streams[i][0].run()
		d.streams[i] = d.streams[i][1:]
		d.changed.Broadcast()
		if d.random.IntN(8) == 0 {
			d.mu.Unlock()
			runtime.Gosched()
			d.mu.Lock()
		}
	}
}

// queue adds a command to a stream. Requires: mu.
func (d *fakeDevice) queue(stream device.Stream, c command) {
	d.streams[stream.Handle] = append(d.streams[stream.Handle], c)
	d.changed.Broadcast()
}

// event returns whether the stream has done what it holds now. Requires: mu.
func (d *fakeDevice) event(stream device.Stream) func() bool {
	var done bool
	d.queue(stream, command{run: func() { done = true }})
	return func() bool { return done }
}

func (d *fakeDevice) hold(held bool) {
	d.mu.Lock()
	d.held = held
	d.mu.Unlock()
	d.changed.Broadcast()
}

// drain waits until the streams have done all that they hold. After a failure none of them may wait for the library any
// more.
func (d *fakeDevice) drain() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for slices.ContainsFunc(d.streams, func(s []command) bool { return len(s) > 0 }) {
		d.changed.Wait()
	}
}

// fill makes a command of the caller write into memory of the device.
func (d *fakeDevice) fill(to, from []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.queue(callersStream, command{run: func() { copy(to, from) }})
}

// buffer allocates memory of the device.
func (d *fakeDevice) buffer(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = 0xa5
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.memory = append(d.memory, b)
	return b
}

// at returns the memory of the device at an address. Requires: mu.
func (d *fakeDevice) at(address uintptr, n uint64) []byte {
	for _, m := range d.memory {
		base := uintptr(unsafe.Pointer(unsafe.SliceData(m)))
		if address >= base && uint64(address-base)+n <= uint64(len(m)) {
			return m[address-base:][:n]
		}
	}
	d.t.Errorf("no memory of the device holds %d bytes at %#x", n, address)
	return make([]byte, n)
}

// pinnedSlice implements device.Pinned.
type pinnedSlice struct {
	d     *fakeDevice
	bytes []byte // not of Go, because C keeps its address
}

func (p *pinnedSlice) Address() unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(p.bytes)) }

// deviceCall implements device.Access for one operation.
type deviceCall struct {
	d      *fakeDevice
	stream device.Stream
	ended  func() bool // what Join was called with has ended
	copies []device.Copy
	word   *uint32
	value  uint32
}

func (c *deviceCall) fails(method string) error {
	if c.d.failing != method {
		return nil
	}
	c.d.failing = ""
	return fmt.Errorf("%s failed", method)
}

func (c *deviceCall) Name() string { return "fake" }

func (c *deviceCall) NewStream(device.Role) (device.Stream, error) {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	c.d.streams = append(c.d.streams, nil)
	return device.Stream{Handle: uintptr(len(c.d.streams) - 1)}, c.fails("NewStream")
}

func (c *deviceCall) Pin(bytes uint64) (device.Pinned, error) {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	memory, err := syscall.Mmap(-1, 0, int(bytes), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		return nil, err
	}
	c.d.pins++
	c.d.pinned += int(bytes)
	return &pinnedSlice{c.d, memory}, c.fails("Pin")
}

func (c *deviceCall) Fork(s device.Stream) error {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	c.d.queue(s, command{ready: c.d.event(callersStream), run: func() {}})
	return c.fails("Fork")
}

func (c *deviceCall) CopyIn(s device.Stream, n device.Copy) error {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	c.d.queue(s, command{run: func() { copy(unsafe.Slice((*byte)(n.Host), n.Bytes), c.d.at(n.Device, n.Bytes)) }, host: n.Host})
	return c.fails("CopyIn")
}

func (c *deviceCall) WriteValue(s device.Stream, word *uint32, value uint32) error {
	if value > device.MaxValue {
		c.d.t.Errorf("a write of %d, more than MaxValue", value)
	}
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	c.d.queue(s, command{ready: func() bool { return c.d.stop == 0 || c.d.writes[word] < c.d.stop }, run: func() {
		c.d.writes[word]++
		atomic.StoreUint32(word, value)
	}, host: unsafe.Pointer(word)})
	return c.fails("WriteValue")
}

// Join implements device.Ordering.
func (c *deviceCall) Join(s device.Stream) error {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	c.ended = c.d.event(s)
	return c.fails("Join")
}

// JoinLater implements device.Deferrer.
func (c *deviceCall) JoinLater(s device.Stream, e device.End) error {
	c.stream, c.copies, c.word, c.value = s, e.Copies, e.Taken, e.Value
	return c.fails("JoinLater")
}

// waitingCall is a deviceCall on a device whose streams can wait for words.
type waitingCall struct{ *deviceCall }

var (
	_ device.Deferrer = (*deviceCall)(nil)
	_ device.Waiter   = waitingCall{}
)

// WaitValue implements device.Waiter.
func (c waitingCall) WaitValue(s device.Stream, word *uint32, value uint32) error {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	ready := func() bool { return int32(atomic.LoadUint32(word)-value) >= 0 }
	c.d.queue(s, command{ready: ready, polls: true, run: func() {}, host: unsafe.Pointer(word)})
	return c.fails("WaitValue")
}

// Order implements device.Waiter.
func (c waitingCall) Order(first, then device.Stream) error {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	c.d.queue(then, command{ready: c.d.event(first), run: func() {}})
	return c.fails("Order")
}

// CopyOut implements device.Waiter.
func (c waitingCall) CopyOut(s device.Stream, n device.Copy) error {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	c.d.queue(s, command{run: func() { copy(c.d.at(n.Device, n.Bytes), unsafe.Slice((*byte)(n.Host), n.Bytes)) }, host: n.Host})
	return c.fails("CopyOut")
}

// end does what the caller of the library does at the end of an operation, and waits for the device.
func (c *deviceCall) end(failed bool) {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	for c.ended != nil && !failed && !c.ended() {
		c.d.changed.Wait()
	}
	if c.word == nil {
		return
	}
	if failed {
		atomic.StoreUint32(c.word, c.value)
		return
	}
	for _, n := range c.copies {
		c.d.queue(c.stream, command{run: func() { copy(c.d.at(n.Device, n.Bytes), unsafe.Slice((*byte)(n.Host), n.Bytes)) }, host: n.Host})
	}
	c.d.queue(c.stream, command{run: func() { atomic.StoreUint32(c.word, c.value) }, host: unsafe.Pointer(c.word)})
	for done := c.d.event(c.stream); !done(); {
		c.d.changed.Wait()
	}
}

// onBothKinds runs a test on devices whose streams can wait for words, and on others.
func onBothKinds(t *testing.T, test func(t *testing.T, waits bool)) {
	t.Run("waits", func(t *testing.T) { test(t, true) })
	t.Run("no waits", func(t *testing.T) { test(t, false) })
}

// waitingOnBothKinds is onBothKinds for a test that waits for a second. The quick tests run it on one kind.
func waitingOnBothKinds(t *testing.T, test func(t *testing.T, waits bool)) {
	if quick.Only() {
		t.Run("waits", func(t *testing.T) { test(t, true) })
		return
	}
	onBothKinds(t, test)
}

// fakeDevices gives each rank of the tests' groups a device, whose index is the rank.
func fakeDevices(t *testing.T, n int, seed uint64, waits bool) []*fakeDevice {
	list := make([]*fakeDevice, n)
	for i := range list {
		list[i] = newFakeDevice(t, seed*100+uint64(i))
		list[i].waits = waits
	}
	real := openAccess
	t.Cleanup(func() { openAccess = real })
	openAccess = func(_ runner.Call, op coll.Op) (device.Access, error) {
		d := list[op.Device.Index]
		c := &deviceCall{d: d}
		d.mu.Lock()
		d.calls[op.Stream] = append(d.calls[op.Stream], c)
		d.mu.Unlock()
		if d.waits {
			return waitingCall{c}, nil
		}
		return c, nil
	}
	return list
}

var deviceCalls atomic.Uint64

// deviceWork is an operation on a device that was issued, or several coalesced ones.
type deviceWork struct {
	runner.Work
	calls []*deviceCall // what the engine made of it
}

// issueOn issues an asynchronous operation on a device.
func issueOn(g *Group, d *fakeDevice, op coll.Op, in, out [][]byte) (deviceWork, *coll.Failure) {
	op.Device, op.Async, op.Stream = coll.Device{Type: coll.PrivateUse1, Index: g.rank}, true, uintptr(deviceCalls.Add(1))
	w, f := g.Issue(op, in, out)
	return deviceWork{w, d.take(op.Stream)}, f
}

// issueAllOn issues several operations on a device in one call.
func issueAllOn(g *Group, d *fakeDevice, list []runner.Coalesced) (deviceWork, *coll.Failure) {
	stream := uintptr(deviceCalls.Add(1))
	for i := range list {
		op := &list[i].Op
		op.Device, op.Async, op.Stream = coll.Device{Type: coll.PrivateUse1, Index: g.rank}, true, stream
	}
	w, f := g.IssueCoalesced(list)
	return deviceWork{w, d.take(stream)}, f
}

func (d *fakeDevice) take(stream uintptr) []*deviceCall {
	d.mu.Lock()
	defer d.mu.Unlock()
	calls := d.calls[stream]
	delete(d.calls, stream)
	return calls
}

// end does what the caller of the library does when the operation is complete, or was not issued.
func (w deviceWork) end(failed bool) {
	for _, call := range w.calls {
		call.end(failed)
	}
}

// finish waits for the end of the operation on the device.
func (w deviceWork) finish() *coll.Failure {
	for {
		done, f := w.Wait(time.Second)
		if done {
			w.end(f != nil)
			w.Release()
			return f
		}
	}
}
