// Package runner carries programs out on shared memory: flags, copies, reductions, waiting. It is C, because a flag in
// shared memory costs 0.1 us and entering Go costs microseconds after a short idle time; this file and its neighbours
// are its Go face.
//
// It decides nothing. Which program serves an operation, whether a call is allowed, what a failure means and how it is
// worded is decided in Go, which the C reaches through [Handler]. It knows no torch, no Python and no network.
//
// Start reading at docs/protocol.md, then shared_block.h (what lies in shared memory), program.c and sendrecv.c (the interpreters, of
// stages on shared blocks and of messages), issue.c (who drives), engine.c (the progress engine) and p2p.c (sends and recvs of users).
package runner

/*
#cgo CFLAGS: -std=c11 -O3 -Wall -Wextra -Wno-unused-parameter -fno-strict-aliasing
#include <stdlib.h>
#include "runner.h"

extern char **environ;
static char *scr_environ_at(size_t i) { return environ ? environ[i] : NULL; }
*/
import "C"

import (
	"errors"
	"time"
	"unsafe"

	"sagecomm/internal/coll"
	_ "sagecomm/internal/kernels" // the C of this package calls the C of that one
)

// Environ is the process's environment as C sees it now. os.Environ is the one at the time the library was loaded.
func Environ() []string {
	var list []string
	for i := C.size_t(0); ; i++ {
		s := C.scr_environ_at(i)
		if s == nil {
			return list
		}
		list = append(list, C.GoString(s))
	}
}

// SharedBlockBytes is the length of a shared block of a group of that size.
func SharedBlockBytes(size int) int64 { return int64(C.scr_shared_bytes(C.int32_t(size))) }

// Geometry of shared blocks, as shared_block.h has it.
const (
	LargeSlots     = 4
	LargeSlotBytes = 256 << 10
	LargeStride    = 256 + LargeSlotBytes
	FifoBytes      = 512 << 10
	FifoHeader     = 256
	FailureBytes   = 4096
	bellBytes      = 128
)

// FormatSharedBlock lays a shared block out in zeroed memory. engineBell is the offset of the process's bell in the same arena.
func FormatSharedBlock(shared unsafe.Pointer, rank, size int, engineBell int64) {
	C.scr_shared_format(shared, C.int32_t(rank), C.int32_t(size), C.uint64_t(engineBell))
}

// Check reports whether there is a shared block of that rank and size, and fills in the bell. Nothing of a shared block's header is
// believed later.
func (p *Peer) Check(rank, size int) bool {
	c := C.scr_peer_config{arena: p.Arena, arena_bytes: C.uint64_t(p.Bytes), shared: C.uint64_t(p.Shared)}
	ok := C.scr_shared_check(&c, C.int32_t(rank), C.int32_t(size)) == 0
	p.Bell = int64(c.engine_bell)
	return ok
}

// Peer is where the shared block of one rank lies.
type Peer struct {
	Arena  unsafe.Pointer // base of this process's mapping of the rank's arena
	Bytes  int64          // length of the mapping
	Shared int64          // offset of the shared block
	Bell   int64          // offset of the rank's engine's bell, from Check
	// Flights is the capacity of its flight recorder and FlightLog the offset of it; 0 where there is none in the arena.
	Flights      int
	FlightLog    int64
	FlightStacks bool // it records stacks
}

// GaveUp says whether the rank has left its shared block by GiveUp.
func (p *Peer) GaveUp() bool {
	return bool(C.scr_shared_gave_up(unsafe.Add(p.Arena, p.Shared)))
}

// Backoff is how a waiting thread behaves.
type Backoff struct {
	Spin  int           // rounds before the processor is given away
	Yield time.Duration // then it is given away for so long, then the thread sleeps
}

// Policy is how long, and how much, the threads of a group do before they leave the rest to others.
type Policy struct {
	Sync       time.Duration // a synchronous call keeps its caller for so long, then it returns PENDING
	Sleep      time.Duration // a driver sleeps for so long at most before it looks around
	BeginBytes uint64        // callers begin asynchronous collectives up to this length, and move so much of p2p operations
	Begin      time.Duration // what is before them in the queue goes on for so long
	Brief      time.Duration // wait_briefly waits for so long, for operations up to BeginBytes
	Drain      time.Duration // what is queued when the group goes down may complete for so long
	AtOnce     time.Duration // a recv that is waited for within this time had a waiter from the start
}

// Config describes a group to OpenGroup.
type Config struct {
	Rank        int
	Timeout     time.Duration
	Backoff     Backoff
	StreamBytes uint64 // outputs of at least this length are written past the cache
	Peers       []Peer // by rank, this one included
	Flights     int    // operations that this rank's flight recorder keeps, in its arena if Peers says so; 0: off
	Stacks      bool   // it records who called
	Timeline    bool   // it keeps events for TakeTrace
	Trace       bool   // tell the handler of every operation
	Policy      Policy
}

// Group is one rank's side of a group.
type Group struct {
	c      *C.scr_group
	handle uint64
	rank   int
	size   int
}

// OpenGroup makes a group of shared blocks that are mapped.
func OpenGroup(c Config) (*Group, error) {
	// Zeroed, because storing a pointer makes the collector look at the one that was there before.
	peers := C.calloc(C.size_t(len(c.Peers)), C.sizeof_scr_peer_config)
	defer C.free(peers)
	list := unsafe.Slice((*C.scr_peer_config)(peers), len(c.Peers))
	for i, p := range c.Peers {
		list[i] = C.scr_peer_config{arena: p.Arena, arena_bytes: C.uint64_t(p.Bytes), shared: C.uint64_t(p.Shared),
			engine_bell: C.uint64_t(p.Bell), flight: C.uint64_t(p.FlightLog), flight_entries: C.uint32_t(p.Flights), flight_stacks: C.bool(p.FlightStacks)}
	}
	config := C.scr_group_config{
		rank: C.int32_t(c.Rank), size: C.int32_t(len(c.Peers)), timeout_ns: C.int64_t(c.Timeout),
		spin: C.uint32_t(c.Backoff.Spin), yield_us: C.uint32_t(c.Backoff.Yield / time.Microsecond),
		stream_bytes: C.uint64_t(c.StreamBytes), flight_entries: C.uint32_t(c.Flights), flight_stacks: C.bool(c.Stacks), timeline: C.bool(c.Timeline), trace: C.bool(c.Trace), peers: (*C.scr_peer_config)(peers),
		policy: C.scr_policy{sync_ns: C.int64_t(c.Policy.Sync), sleep_ns: C.int64_t(c.Policy.Sleep), begin_bytes: C.uint64_t(c.Policy.BeginBytes),
			begin_ns: C.int64_t(c.Policy.Begin), brief_ns: C.int64_t(c.Policy.Brief), drain_ns: C.int64_t(c.Policy.Drain), at_once_ns: C.int64_t(c.Policy.AtOnce)},
	}
	g := &Group{rank: c.Rank, size: len(c.Peers)}
	g.handle = uint64(C.scr_group_open(&config, &g.c))
	if g.handle == 0 {
		return nil, errors.New("sagecomm: no memory for another group, or more than 4096 of them exist; destroy some")
	}
	return g, nil
}

// Handle is what the C ABI calls the group.
func (g *Group) Handle() uint64 { return g.handle }

// Close ends the group: the handle is refused from now on and no thread is inside. The group is down and nothing is
// queued.
func (g *Group) Close() { C.scr_group_close(g.c) }

// SetTimeout changes the timeout of later operations.
func (g *Group) SetTimeout(d time.Duration) { C.scr_group_set_timeout(g.c, C.int64_t(d)) }

// HasLarge reports whether this rank's large slots exists.
func (g *Group) HasLarge() bool { return bool(C.scr_group_has_large(g.c)) }

// SetLarge shows the peers this rank's large slots, at that offset of its arena.
func (g *Group) SetLarge(offset int64) { C.scr_group_set_large(g.c, C.uint64_t(offset)) }

// HasFifo reports whether the fifo to that rank exists.
func (g *Group) HasFifo(to int) bool { return bool(C.scr_group_has_fifo(g.c, C.int32_t(to))) }

// SetFifo shows the peer the fifo that this rank writes for it.
func (g *Group) SetFifo(to int, offset int64) {
	C.scr_group_set_fifo(g.c, C.int32_t(to), C.uint64_t(offset))
}

// MaxClasses is how many size classes a kind can have.
const MaxClasses = C.SCR_MAX_CLASSES

// SetClasses sets the lengths at which the next size class of a kind begins, rising.
func (g *Group) SetClasses(kind coll.Kind, boundaries []uint64) {
	var list [MaxClasses]C.uint64_t
	n := min(len(boundaries), MaxClasses)
	for i := range n {
		list[i] = C.uint64_t(boundaries[i])
	}
	C.scr_group_set_classes(g.c, C.int(kind), &list[0], C.int(n))
}

// Sequence is the number of collectives issued so far.
func (g *Group) Sequence() uint64 { return uint64(C.scr_group_sequence(g.c)) }

// Unfinished is non-zero while something that was issued is not complete.
func (g *Group) Unfinished() int { return int(C.scr_group_unfinished(g.c)) }

// Goodbye tells the peers that this rank issues nothing more.
func (g *Group) Goodbye() { C.scr_group_goodbye(g.c) }

// Detach tells the peers that this rank will not touch their shared blocks any more.
func (g *Group) Detach() { C.scr_group_detach(g.c) }

// Detached reports whether a rank of a group has told the owner of the shared block, by Detach, that it will not touch it any more.
func Detached(shared unsafe.Pointer, size, rank int) bool {
	return bool(C.scr_shared_detached_by(shared, C.int32_t(size), C.int32_t(rank)))
}
