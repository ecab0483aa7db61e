package device

import (
	"sync"
	"sync/atomic"
)

// Probes keeps, for each device of a vendor, whether its streams can wait for a word. The zero Probes knows of none.
type Probes struct {
	known  sync.Map // of *probe, by index of the device
	trying sync.Mutex
}

// probe is what was found on a device, and the stream with which that was tried, which is for inputs.
type probe struct {
	stream atomic.Pointer[Stream] // nil: an operation uses it
	err    error
}

// Check returns why the streams of a device cannot wait for a word, nil if they can. The first call for a device queues a write of
// a word and a wait for it. If the device gives neither memory nor a stream, that is the error, and the next call tries again. The
// word stays allocated, because to free it would wait for the device.
func (p *Probes) Check(index int, w Waiter) error {
	if known, ok := p.known.Load(index); ok {
		return known.(*probe).err
	}
	p.trying.Lock()
	defer p.trying.Unlock()
	if known, ok := p.known.Load(index); ok {
		return known.(*probe).err
	}
	memory, err := w.Pin(256)
	if err != nil {
		return err
	}
	s, err := w.NewStream(Inputs)
	if err != nil {
		memory.Release()
		return err
	}
	found, word := new(probe), (*uint32)(memory.Address())
	if found.err = w.WriteValue(s, word, 1); found.err == nil {
		found.err = w.WaitValue(s, word, 1)
	}
	found.stream.Store(&s)
	p.known.Store(index, found)
	return found.err
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
