package runner

/*
#include "runner.h"
#include "shared_block.h"
#include "bell.h"

static void scr_bell_wake_at(void *bell) { scr_bell_wake((_Atomic uint32_t *)bell); }
*/
import "C"

import (
	"sync/atomic"
	"unsafe"
)

// This file gives package shadow the words of shared blocks and channels that cross to other hosts (docs/protocol.md, section 16).
// sync/atomic is sequentially consistent, which is what the protocol asks for or more.

// Words are the words of one shared block.
type Words struct {
	b    *C.scr_shared_block
	size C.uint32_t
}

// WordsOf returns the words of the shared block at an address, of a group of that size.
func WordsOf(shared unsafe.Pointer, size int) Words {
	return Words{(*C.scr_shared_block)(shared), C.uint32_t(size)}
}

func word64(p unsafe.Pointer) *atomic.Uint64 { return (*atomic.Uint64)(p) }
func word32(p unsafe.Pointer) *atomic.Uint32 { return (*atomic.Uint32)(p) }

// Left returns the goodbye.
func (w Words) Left() *atomic.Uint64 { return word64(unsafe.Pointer(&w.b.left)) }

// FailureRecord returns the place of the owner's failure record.
func (w Words) FailureRecord() []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(&w.b.failure_record[0])), FailureBytes)
}

// LastCall returns the number of the last collective that the owner has recorded, 0 if there is none.
func (w Words) LastCall() uint64 { return uint64(C.scr_shared_recorded(unsafe.Pointer(w.b))) }

// Channel returns the offset of a channel to a rank.
func (w Words) Channel(to, channel int) *atomic.Uint64 {
	return word64(unsafe.Pointer(C.scr_shared_channel(w.b, w.size, C.uint32_t(to), C.uint32_t(channel))))
}

// Taken returns the number of messages that the owner has taken from a channel of a rank.
func (w Words) Taken(from, channel int) *atomic.Uint64 {
	return word64(unsafe.Pointer(&C.scr_shared_channel_reader(w.b, w.size, C.uint32_t(from)).taken[channel]))
}

// Detached returns the word by which a rank says that it does not touch the shared block any more.
func (w Words) Detached(by int) *atomic.Uint64 {
	return word64(unsafe.Pointer(C.scr_shared_detached(w.b, w.size, C.uint32_t(by))))
}

// SleepFor makes the owner look as if its progress engine slept for a rank: whatever that rank publishes wakes the bell of the engine.
func (w Words) SleepFor(rank int) {
	word32(unsafe.Pointer(&w.b.collective.waits_for)).Store(C.SCR_SLEEP_ENGINE | uint32(1+rank))
	waits, _ := w.P2PSleeper()
	waits.Store(SleepEngine)
}

// ForgetAwaited takes back for whom the owner waits, as it has told that last. Requires: the words are a shadow's.
func (w Words) ForgetAwaited() { word32(unsafe.Pointer(&w.b.collective.told)).Store(0) }

// SleepEngine is the bit of a rank whose progress engine sleeps.
const SleepEngine = uint32(C.SCR_SLEEP_ENGINE)

// P2PSleeper returns the word in which the owner says who of it sleeps for p2p operations, a count of threads and SleepEngine, and the bell of
// these threads.
func (w Words) P2PSleeper() (waitsFor, bell *atomic.Uint32) {
	return word32(unsafe.Pointer(&w.b.p2p.waits_for)), word32(unsafe.Pointer(&w.b.p2p.bell))
}

// Wake wakes the owner if it sleeps for a flag of a rank. Requires: the flag was stored.
func (w Words) Wake(rank int, engine Bell) {
	word := word32(unsafe.Pointer(&w.b.collective.waits_for)).Load()
	if word&0xffff != uint32(1+rank) {
		return
	}
	if word&C.SCR_SLEEP_ENGINE != 0 {
		engine.Ring()
	} else {
		Bell{word32(unsafe.Pointer(&w.b.collective.bell))}.Ring()
	}
}

// WakeP2P wakes the owner if it sleeps for p2p operations. Requires: the count was stored.
func (w Words) WakeP2P(engine Bell) {
	waits, bell := w.P2PSleeper()
	word := waits.Load()
	if word&SleepEngine != 0 {
		engine.Ring()
	}
	if word&^SleepEngine != 0 {
		Bell{bell}.Ring()
	}
}

// WakeAll wakes the owner whatever it sleeps for.
func (w Words) WakeAll(engine Bell) {
	Bell{word32(unsafe.Pointer(&w.b.collective.bell))}.Ring()
	Bell{word32(unsafe.Pointer(&w.b.p2p.bell))}.Ring()
	engine.Ring()
}

// Bell is a bell in shared memory.
type Bell struct{ word *atomic.Uint32 }

// BellAt returns the bell at an address.
func BellAt(p unsafe.Pointer) Bell { return Bell{word32(p)} }

// Ring changes the bell and wakes its sleepers.
func (b Bell) Ring() { C.scr_bell_wake_at(unsafe.Pointer(b.word)) }

// Place is one place of a channel.
type Place struct {
	Filled             *atomic.Uint64
	Hash, Bytes, Block *uint64
	Delivered          *uint64 // of a shadow: number of the last message whose bytes lie in the reader's buffer already
	Data               []byte  // room for the longest message
}

// PlaceOf returns the place of a message of the channel at an address.
func (g Geometry) PlaceOf(channel unsafe.Pointer, number uint64) Place {
	c := (*C.scr_channel)(channel)
	p := unsafe.Add(unsafe.Pointer(c), C.sizeof_scr_channel+number%ChannelPlaces*uint64(C.scr_channel_stride(C.uint64_t(g.Message))))
	s := (*C.scr_place)(p)
	return Place{word64(unsafe.Pointer(&s.filled)), (*uint64)(unsafe.Pointer(&s.hash)), (*uint64)(unsafe.Pointer(&s.bytes)), (*uint64)(unsafe.Pointer(&s.block)),
		(*uint64)(unsafe.Pointer(&s.delivered)),
		unsafe.Slice((*byte)(unsafe.Add(p, C.SCR_CHANNEL_DATA)), int(g.Message))}
}

// SentOf returns the count of messages of the channel at an address.
func SentOf(channel unsafe.Pointer) *atomic.Uint64 {
	return word64(unsafe.Pointer(&(*C.scr_channel)(channel).sent))
}
