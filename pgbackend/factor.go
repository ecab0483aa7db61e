package pgbackend

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"
	"unsafe"

	"sagecomm/internal/coll"
	"sagecomm/internal/device"
	"sagecomm/internal/device/vendors"
	"sagecomm/internal/runner"
)

// This file finds memory that callers of other libraries name by its address alone, and reads factors of PREMUL_SUM
// there.

// Locate returns where memory is: on the host, unless a vendor's runtime that this process uses knows it as memory of a
// device.
func Locate(pointer uintptr) (coll.Device, error) { return vendors.Locate(pointer) }

// factorTimeout bounds the wait for the stream in front of a factor.
const factorTimeout = 10 * time.Minute

// elementBytes is the length of the longest element.
const elementBytes = 16

// factorSlice is how long a runtime waits for a stream at once.
const factorSlice = 20 * time.Millisecond

// ReadFactor returns one element as Op.Factor takes it. On a device it is what the stream leaves there, for which
// ReadFactor waits.
func (p *Process) ReadFactor(pointer unsafe.Pointer, t coll.DataType, stream uintptr) (float64, error) {
	if pointer == nil {
		return 0, fmt.Errorf("no address is given")
	}
	if _, ok := decodeFactor(t, make([]byte, 16)); !ok {
		return 0, fmt.Errorf("%v cannot be a factor", t)
	}
	at, err := Locate(uintptr(pointer))
	if err != nil {
		return 0, err
	}
	text := make([]byte, t.Size())
	if at.IsHost() {
		copy(text, unsafe.Slice((*byte)(pointer), len(text)))
	} else if err := p.readDevice(at, stream, uintptr(pointer), text); err != nil {
		return 0, err
	}
	value, _ := decodeFactor(t, text)
	return value, nil
}

// readDevice reads memory of a device as it is when the commands are done that the stream holds now.
func (p *Process) readDevice(at coll.Device, stream, from uintptr, to []byte) error {
	access, err := vendors.New(coll.Op{Kind: coll.AllReduce, Device: at, Stream: stream, Ordering: coll.InStream})
	if err != nil {
		return err
	}
	reader, err := p.factorReader(at, access)
	if err != nil {
		return err
	}
	side, words := reader.stream, (*runner.GateWords)(reader.pinned.Address())
	element := unsafe.Add(reader.pinned.Address(), runner.GateBytes)
	words.Reset()
	if err = access.Fork(side); err == nil {
		err = access.CopyIn(side, device.Copy{Host: element, Device: from, Bytes: uint64(len(to))})
	}
	settler, settles := access.(device.Settler)
	if err == nil && !settles {
		err = access.WriteValue(side, words.InputReady(), 1)
	}
	if err != nil {
		return err // a queued copy may use the memory
	}
	deadline := time.Now().Add(factorTimeout)
	done := func() bool { return words.Moved(1, 0) }
	if settles {
		done = func() bool { return settler.Settled(side, factorSlice) }
	}
	for sleep := 5 * time.Microsecond; !done(); sleep = min(2*sleep, time.Millisecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("the stream has not reached the factor for %v", factorTimeout)
		}
		time.Sleep(sleep)
	}
	copy(to, unsafe.Slice((*byte)(element), len(to)))
	p.factors.Lock()
	p.factorReaders[at] = append(p.factorReaders[at], reader)
	p.factors.Unlock()
	return nil
}

// factorReader has a stream in which nothing is left to do, and pinned memory. Both are kept: to give memory back waits
// for the device.
type factorReader struct {
	stream device.Stream
	pinned device.Pinned
}

// factorReader takes one that nobody uses, or makes one. What a reader waits for may need an operation that another
// thread of this process calls, which has a factor too.
func (p *Process) factorReader(at coll.Device, access device.Access) (r factorReader, err error) {
	p.factors.Lock()
	free := p.factorReaders[at]
	if n := len(free); n > 0 {
		p.factorReaders[at] = free[:n-1]
		p.factors.Unlock()
		return free[n-1], nil
	}
	p.factors.Unlock()
	if r.pinned, err = access.Pin(runner.GateBytes + elementBytes); err == nil {
		r.stream, err = access.NewStream(device.Inputs)
	}
	return r, err
}

// decodeFactor returns the value of an element, or false for types that have no factors.
func decodeFactor(t coll.DataType, b []byte) (float64, bool) {
	le := binary.NativeEndian
	switch t {
	case coll.Int8:
		return float64(int8(b[0])), true
	case coll.Int16:
		return float64(int16(le.Uint16(b))), true
	case coll.Int32:
		return float64(int32(le.Uint32(b))), true
	case coll.Int64:
		return float64(int64(le.Uint64(b))), true
	case coll.Uint8:
		return float64(b[0]), true
	case coll.Uint16:
		return float64(le.Uint16(b)), true
	case coll.Uint32:
		return float64(le.Uint32(b)), true
	case coll.Uint64:
		return float64(le.Uint64(b)), true
	case coll.Float16:
		return float64(halfToFloat(le.Uint16(b))), true
	case coll.BFloat16:
		return float64(math.Float32frombits(uint32(le.Uint16(b)) << 16)), true
	case coll.Float32:
		return float64(math.Float32frombits(le.Uint32(b))), true
	case coll.Float64:
		return math.Float64frombits(le.Uint64(b)), true
	}
	return 0, false
}

// halfToFloat returns the value of an IEEE 754 binary16.
func halfToFloat(h uint16) float32 {
	exponent, fraction := int(h>>10&0x1f), float64(h&0x3ff)
	var value float64
	switch exponent {
	case 0:
		value = math.Ldexp(fraction, -24)
	case 31:
		value = math.Inf(1)
		if fraction != 0 {
			value = math.NaN()
		}
	default:
		value = math.Ldexp(1024+fraction, exponent-25)
	}
	if h&0x8000 != 0 {
		value = -value
	}
	return float32(value)
}
