package pgbackend

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"sagecomm/internal/coll"
	"sagecomm/internal/device"
	"sagecomm/internal/engine"
	"sagecomm/internal/engine/vendor"
	"sagecomm/internal/runner"
)

// A fakeDevice whose streams can wait takes kernels as well.

var _ device.Launcher = waitingCall{}

func (c waitingCall) Handle(s device.Stream) (uintptr, error) { return s.Handle, nil }
func (c waitingCall) Vendor() string                          { return "cuda" }
func (c waitingCall) Identity() (string, error)               { return fmt.Sprintf("%p", c.d), nil }
func (c waitingCall) Current(f func() error) error            { return f() }

func (c waitingCall) Allocate(bytes uint64, _ bool) (device.Memory, error) {
	return &fakeMemory{c.d, c.d.buffer(int(bytes))}, nil
}

func (c waitingCall) CopyWithin(s device.Stream, to, from uintptr, bytes uint64) error {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	c.d.queue(s, command{run: func() { copy(c.d.at(to, bytes), c.d.at(from, bytes)) }})
	return nil
}

// fakeMemory is memory of a fakeDevice. A command that uses it when it was given back fails the test.
type fakeMemory struct {
	d     *fakeDevice
	bytes []byte
}

func (m *fakeMemory) Address() uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(m.bytes))) }

func (m *fakeMemory) Release() {
	m.d.mu.Lock()
	defer m.d.mu.Unlock()
	m.d.memory = slices.DeleteFunc(m.d.memory, func(b []byte) bool { return unsafe.SliceData(b) == unsafe.SliceData(m.bytes) })
}

// fakeLibrary is a vendor's library of ranks in this process that sums and moves integers, by kernels in the streams of
// fake devices. A kernel waits for those of the peers.
type fakeLibrary struct {
	devices []*fakeDevice
	state   func(rank int) error // of a communicator; nil: it has joined, and there is no error

	mu    sync.Mutex
	joins map[string]*kernelTable // by unique id
	made  []*fakeCommunicator
}

// kernelTable is where the kernels of a communicator's ranks meet.
type kernelTable struct {
	mu     sync.Mutex
	inputs map[int][][]byte // by the number of the call and the rank
}

// put is the first part of a kernel: it brings a rank's input, unless that was cut.
func (m *kernelTable) put(call, rank, size int, input []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.inputs[call] == nil {
		m.inputs[call] = make([][]byte, size)
	}
	if m.inputs[call][rank] == nil {
		m.inputs[call][rank] = append([]byte{}, input...)
	}
}

// all returns the inputs of all ranks, nil if one is not there.
func (m *kernelTable) all(call int) [][]byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := m.inputs[call]
	if slices.ContainsFunc(list, func(b []byte) bool { return b == nil }) {
		return nil
	}
	return list
}

// useLibrary makes the groups of a test have the library for collectives.
func useLibrary(t *testing.T, devices []*fakeDevice) *fakeLibrary {
	l := &fakeLibrary{devices: devices, joins: map[string]*kernelTable{}}
	p := Get()
	before := p.vendors
	t.Cleanup(func() { p.vendors = before })
	p.vendors = vendor.NewPool() // a stream of another test is none of these devices
	testEngines(t, nil)
	deviceEngines["nccl"] = registeredEngine{
		library:   true,
		transport: "library",
		supports:  collectivesOf(vendor.Calls(l)),
		absent:    func(*Group) error { return nil },
		open: func(g *Group, run *runner.Group) (engine.Engine, error) {
			others := g.stagedEngine(run)
			return g.vendorEngine(vendor.Calls(l), run, others, others), nil
		},
	}
	return l
}

var uniqueIDs atomic.Uint64

func (*fakeLibrary) Name() string   { return "nccl" }
func (*fakeLibrary) Vendor() string { return "cuda" }

func (*fakeLibrary) Element(t coll.DataType) vendor.Element {
	return vendor.Element{Bytes: uint64(t.Size())}
}

func (l *fakeLibrary) Reduction(op coll.ReduceOp, t coll.DataType) (vendor.Reduction, bool) {
	return vendor.Reduction{Element: l.Element(t)}, op == coll.Sum && t == coll.Int32
}

func (*fakeLibrary) NewID() ([]byte, error) {
	return binary.LittleEndian.AppendUint64(nil, uniqueIDs.Add(1)), nil
}

func (l *fakeLibrary) Join(id []byte, size, rank int, _ vendor.Group) (vendor.Communicator, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.joins[string(id)]
	if m == nil {
		m = &kernelTable{inputs: map[int][][]byte{}}
		l.joins[string(id)] = m
	}
	c := &fakeCommunicator{l: l, kernels: m, size: size, rank: rank}
	l.made = append(l.made, c)
	return c, nil
}

// fakeCommunicator is one rank's side. Its calls come one after the other.
type fakeCommunicator struct {
	l          *fakeLibrary
	kernels    *kernelTable
	size, rank int
	calls      int
	reads      []uint64 // by the number of the call: bytes of the input; guarded by the mutex of the device
	aborted    atomic.Bool
	destroyed  atomic.Bool
}

func (c *fakeCommunicator) State() (bool, error) {
	if c.l.state == nil {
		return true, nil
	}
	err := c.l.state(c.rank)
	return err == nil, err
}

func (c *fakeCommunicator) Settled() bool { return c.aborted.Load() || c.destroyed.Load() }
func (c *fakeCommunicator) Destroy()      { c.destroyed.Store(true) }

// Abort ends kernels, which write nothing then, and tell those of peers that they have brought their inputs.
func (c *fakeCommunicator) Abort() bool {
	d := c.l.devices[c.rank]
	d.mu.Lock() // no kernel is between its wait and its output
	c.aborted.Store(true)
	for call, bytes := range c.reads {
		c.kernels.put(call, c.rank, c.size, make([]byte, bytes))
	}
	d.mu.Unlock()
	d.changed.Broadcast()
	return true
}

func (c *fakeCommunicator) Do(calls []vendor.Call, stream uintptr) error {
	if c.Settled() {
		return errors.New("a call behind the end of the communicator")
	}
	d := c.l.devices[c.rank]
	for _, call := range calls {
		number := c.calls
		c.calls++
		bytes := call.Count * call.Bytes
		reads, parts := bytes, uint64(c.size)
		switch {
		case call.Kind == vendor.ReduceScatter:
			reads *= parts
		case call.Kind == vendor.Broadcast && c.rank != call.Peer:
			reads = 0
		case call.Kind >= vendor.Send:
			return fmt.Errorf("the library of the test has no function %d", call.Kind)
		}
		d.mu.Lock()
		c.reads = append(c.reads, reads)
		d.queue(device.Stream{Handle: stream}, command{run: func() {
			c.kernels.put(number, c.rank, c.size, d.at(call.From, reads)[:reads])
		}})
		d.queue(device.Stream{Handle: stream}, command{polls: true, ready: func() bool { return c.aborted.Load() || c.kernels.all(number) != nil }, run: func() {
			if c.aborted.Load() {
				return
			}
			c.output(d, call, c.kernels.all(number), bytes)
		}})
		d.mu.Unlock()
	}
	return nil
}

// output writes what a call gives. Requires: d.mu.
func (c *fakeCommunicator) output(d *fakeDevice, call vendor.Call, in [][]byte, bytes uint64) {
	switch call.Kind {
	case vendor.AllReduce:
		copy(d.at(call.To, bytes), sumOf(in))
	case vendor.Reduce:
		if c.rank == call.Peer {
			copy(d.at(call.To, bytes), sumOf(in))
		}
	case vendor.Broadcast:
		copy(d.at(call.To, bytes), in[call.Peer])
	case vendor.AllGather:
		copy(d.at(call.To, bytes*uint64(c.size)), slices.Concat(in...))
	case vendor.ReduceScatter:
		copy(d.at(call.To, bytes), sumOf(in)[uint64(c.rank)*bytes:])
	}
}

// sumOf returns the sums of integers of 32 bits.
func sumOf(in [][]byte) []byte {
	return reduceOf(in, func(a, b int32) int32 { return a + b })
}

// reduceOf reduces integers of 32 bits.
func reduceOf(in [][]byte, f func(a, b int32) int32) []byte {
	out := slices.Clone(in[0])
	for _, one := range in[1:] {
		for i := 0; i+4 <= len(out); i += 4 {
			a, b := int32(binary.LittleEndian.Uint32(out[i:])), int32(binary.LittleEndian.Uint32(one[i:]))
			binary.LittleEndian.PutUint32(out[i:], uint32(f(a, b)))
		}
	}
	return out
}
