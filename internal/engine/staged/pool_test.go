package staged

import (
	"testing"
	"unsafe"

	"sagecomm/internal/coll"
	"sagecomm/internal/device"
)

// pinnedWords is pinned memory of the host. Its device does nothing.
type pinnedWords []uint64

func (p pinnedWords) Address() unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(p)) }
func (p pinnedWords) Release()                {}

type pinning struct {
	device.Runtime
	pins int
}

func (p *pinning) Pin(bytes uint64) (device.Pinned, error) {
	p.pins++
	return pinnedWords(make([]uint64, bytes/8+32)), nil
}

// A block is idle again when an operation is given up before the device got a command, also if an earlier one had used it.
func TestBlockOfAnOperationWithoutCommands(t *testing.T) {
	pool, rt, owner := NewPool(), &pinning{}, source{coll.PrivateUse1, "test"}
	for round := range 4 {
		b, err := pool.acquire(rt, owner, 100)
		if err != nil {
			t.Fatal(err)
		}
		if round == 0 { // the only one that uses it
			b.inputs.Store(1)
			b.outputs.Store(1)
			*b.words.InputReady(), *b.words.OutputTaken() = 1, 1
		}
		b.words.Open()
		pool.release(owner, b)
	}
	if rt.pins != 1 {
		t.Errorf("%d blocks for operations that came one after the other", rt.pins)
	}
}
