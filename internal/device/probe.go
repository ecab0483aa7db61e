package device

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// Probes keeps, for each device of a vendor, whether its streams can wait for a word. The zero Probes knows of none.
type Probes struct {
	known  sync.Map           // of *probe, by index of the device
	trying Once[int, *trying] // by index of the device
}

// trying is held by the call that tries a device.
type trying struct {
	sync.Mutex
	failed int // tries
}

// mostTries is for a device that is short of something for a while. A runtime that maps no host memory never has it, and each try
// costs a few calls of the driver.
const mostTries = 3

// probe is what was found on a device, and the stream with which that was tried, which is for inputs.
type probe struct {
	stream atomic.Pointer[Stream] // nil: an operation uses it, or there is none
	err    error
}

// Check returns why the streams of a device cannot wait for a word, nil if they can. The first call for a device tries it. If the
// device gives no memory or no stream, that is the error, and the next call tries again, up to mostTries times. The words stay
// allocated, because to free them would wait for the device.
func (p *Probes) Check(index int, w Waiter) error {
	if known, ok := p.known.Load(index); ok {
		return known.(*probe).err
	}
	try, _ := p.trying.Get(index, func() (*trying, error) { return new(trying), nil })
	try.Lock()
	defer try.Unlock()
	if known, ok := p.known.Load(index); ok {
		return known.(*probe).err
	}
	memory, s, err := parts(w)
	if err != nil {
		if try.failed++; try.failed == mostTries {
			p.known.Store(index, &probe{err: err})
		}
		return err
	}
	found := new(probe)
	if settler, ok := w.(Settler); ok {
		found.err = seen(settler, s, memory)
	} else {
		found.err = queued(w, s, memory)
	}
	if found.err == nil { // else the stream may hang
		found.stream.Store(&s)
	}
	p.known.Store(index, found)
	return found.err
}

// parts returns what a probe needs.
func parts(w Waiter) (Pinned, Stream, error) {
	memory, err := w.Pin(probeBytes)
	if err != nil {
		return nil, Stream{}, err
	}
	s, err := w.NewStream(Inputs)
	if err != nil { // the memory stays allocated, too
		return nil, Stream{}, err
	}
	return memory, s, nil
}

// A probe has two words, each in a line of its own; a runtime may write and compare 64 bits.
const (
	probeBytes = 2 * probeLine
	probeLine  = 64
)

func probeWord(memory Pinned, i int) *uint32 {
	return (*uint32)(unsafe.Add(memory.Address(), i*probeLine))
}

// queued queues a write of a word and a wait for it. A runtime without such waits refuses one of them.
func queued(w Waiter, s Stream, memory Pinned) error {
	if err := w.WriteValue(s, probeWord(memory, 0), 1); err != nil {
		return err
	}
	return w.WaitValue(s, probeWord(memory, 0), 1)
}

// Settler is a Waiter whose documentation does not say that words may be in host memory. So a probe looks at what the device does.
type Settler interface {
	Waiter
	// Settled reports whether a stream has done all that it holds within a time.
	Settled(s Stream, within time.Duration) bool
}

const (
	beforeStore = time.Millisecond // a stream that does not wait goes on within this time
	afterStore  = 2 * time.Second  // takes microseconds on a device that is free
)

var (
	errNotAwaited = errors.New("a stream did not wait for a word of host memory")
	errNotSeen    = fmt.Errorf("a stream did not see within %v a word of host memory that this process wrote", afterStore)
	errNotWritten = errors.New("a stream did not write a word of host memory")
)

// seen has a stream wait for a word, which this process writes, and then write another one.
func seen(w Settler, s Stream, memory Pinned) error {
	clear(unsafe.Slice((*byte)(memory.Address()), probeBytes))
	awaited, written := probeWord(memory, 0), probeWord(memory, 1)
	defer atomic.StoreUint32(awaited, 1) // the stream goes on in any case
	if err := w.WaitValue(s, awaited, 1); err != nil {
		return err
	}
	if err := w.WriteValue(s, written, 1); err != nil {
		return err
	}
	if w.Settled(s, beforeStore) {
		return errNotAwaited
	}
	atomic.StoreUint32(awaited, 1)
	if !w.Settled(s, afterStore) {
		return errNotSeen
	}
	if atomic.LoadUint32(written) != 1 {
		return errNotWritten
	}
	return nil
}

// Take returns the stream with which Check has tried a device, once.
func (p *Probes) Take(index int) (Stream, bool) {
	known, ok := p.known.Load(index)
	if !ok {
		return Stream{}, false
	}
	s := known.(*probe).stream.Swap(nil)
	if s == nil {
		return Stream{}, false
	}
	return *s, true
}
