package cuda

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"sagecomm/internal/shmem"
)

// An inbox is host memory of one rank that its peers write and its stream waits for. Each word has a line of its own, so that no
// line has two writers:
//
//	line 0                        not 0: a peer has ended a wait, and what the stream has done since may be void; any peer writes it
//	line 1 + 17 peer + w          word w of the peer, for the words filled, reduced, left; the peer's stream writes it
//	line 1 + 17 peer + 3          not 0: the peer uses nothing of this rank any more; the peer's CPU writes it
//	line 1 + 17 peer + 4          not 0: no stream of the peer sets tokens of this rank any more; the peer's CPU writes it
//	line 1 + 17 peer + 5 + 3 s + w   token w of slot s for the peer, of captured operations; the peer's stream sets it, and this rank's
//	                              stream clears it
//
// Commands of a stream write words of peers and wait for words of the own inbox, never the other way round, except that they clear
// tokens.
const (
	lineBytes = 128
	closed    = words // behind the words of a peer
	departed  = words + 1
	tokens    = words + 2
	lines     = tokens + slotCount*words
)

func inboxBytes(size int) int64 { return int64(1+size*int(lines)) * lineBytes }

// tokenOf returns where a token lies among the words of a peer.
func tokenOf(w word, slot int64) word { return tokens + word(slot)*words + w }

// inbox is a rank's inbox in this process.
type inbox struct {
	memory  []byte
	mapping *shmem.Mapping // of a peer's
	address uintptr        // for the device
}

func offset(w word, peer int) uintptr {
	return (1 + uintptr(peer)*uintptr(lines) + uintptr(w)) * lineBytes
}

// at returns the address of a peer's word for the device.
func (b *inbox) at(w word, peer int) uintptr { return b.address + offset(w, peer) }

// line returns the word at an offset for the CPU.
func (b *inbox) line(at uintptr) *uint32 { return (*uint32)(unsafe.Pointer(&b.memory[at])) }

func (b *inbox) load(w word, peer int) uint32 { return atomic.LoadUint32(b.line(offset(w, peer))) }
func (b *inbox) store(w word, peer int, value uint32) {
	atomic.StoreUint32(b.line(offset(w, peer)), value)
}

// void returns the word of line 0.
func (b *inbox) void() *uint32 { return b.line(0) }

// makeInbox makes this rank's inbox, and what its peers need to map it. The caller calls joined of its home.
func makeInbox(d driver, size int, methods []shmem.Method) (b inbox, at lodging, o shmem.Descriptor, err error) {
	if at, err = lodge(inboxBytes(size)); err != nil {
		return b, at, o, err
	}
	b.memory = at.memory()
	clear(b.memory)
	for peer := range size {
		for slot := range int64(slotCount) {
			b.store(tokenOf(left, slot), peer, 1) // no peer reads a slot yet
		}
	}
	if b.address, err = registered(d, at.home.arena.Mapping(), at.place); err == nil {
		o, err = at.home.publish(methods)
	}
	if err != nil {
		at.leave()
	}
	return b, at, o, err
}

// openInbox maps the inbox of a peer.
func openInbox(ctx context.Context, on driver, d shmem.Descriptor, place shmem.Range, size int, methods []shmem.Method) (inbox, error) {
	if err := d.Check(); err != nil {
		return inbox{}, err
	}
	page := int64(os.Getpagesize())
	if d.Size > longestHome {
		return inbox{}, fmt.Errorf("inboxes in an arena of %d bytes, expected %d at most", d.Size, longestHome)
	}
	if place.Off < page || place.Off%page != 0 || place.Len < inboxBytes(size) || place.Len%page != 0 || place.Len > d.Size-place.Off {
		return inbox{}, fmt.Errorf("an inbox of %d bytes at %d, expected %d within %d", place.Len, place.Off, inboxBytes(size), d.Size)
	}
	m, err := shmem.Attach(ctx, d, methods)
	if err != nil {
		return inbox{}, err
	}
	b := inbox{memory: m.Bytes(place), mapping: m}
	if b.address, err = registered(on, m, place); err != nil {
		_ = m.Release()
		return inbox{}, err
	}
	return b, nil
}
