// Package runner carries out programs on shared memory: it sets flags, waits for them, copies and reduces. Its work is done in
// C, because a flag in shared memory costs 0.1 us, while entering Go costs microseconds after a short idle time. The Go files
// are its interface.
//
// It decides nothing. Go decides which program serves an operation, whether a call is allowed, what a failure means and how its
// text reads; the C reaches Go through [Handler]. The package knows no torch, no Python and no network.
//
// Any goroutine may call the functions, unless their comments say otherwise.
//
// Start reading at docs/protocol.md, then shared_block.h (the layout of shared memory), program.c and sendrecv.c (the interpreters
// of slot programs and of sendrecv programs), issue.c (who drives), engine.c (the progress engine) and p2p.c (sends and recvs of
// users).
package runner

/*
#cgo CFLAGS: -std=c11 -O3 -Wall -Wextra -Wno-unused-parameter -fno-strict-aliasing
#include <stdlib.h>
#include "runner.h"
#include "shared_block.h"

extern char **environ;
static char *scr_environ_at(size_t i) { return environ ? environ[i] : NULL; }
*/
import "C"

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"sagecomm/internal/coll"
	_ "sagecomm/internal/kernels" // the C of this package calls the C of that one
)

// Environ returns the present environment of the process, from C. os.Environ returns the one at the time when the library was
// loaded.
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

// SharedBlockBytes returns the length of the shared block of a lane for a group of that size.
func SharedBlockBytes(lane Lane, size int) int64 {
	return int64(C.scr_shared_bytes(C.int(lane), C.int32_t(size)))
}

// Sizes of shared_block.h.
const (
	LargeSlots     = 4
	LargeSlotBytes = 256 << 10
	LargeStride    = 256 + LargeSlotBytes
	FifoHeader     = 256
	FailureBytes   = 4096
	Records        = C.SCR_RECORDS
	bellBytes      = 128
)

// FormatSharedBlock writes the header of a shared block into zeroed memory. engineBell is the offset of the engine's bell in the
// same arena.
func FormatSharedBlock(shared unsafe.Pointer, lane Lane, rank, size int, engineBell int64) {
	C.scr_shared_format(shared, C.int(lane), C.int32_t(rank), C.int32_t(size), C.uint64_t(engineBell))
}

// Check reports whether there is a shared block of that rank and size, and sets p.Bell. The header is not read again afterwards,
// because its owner may write anything into it.
func (p *Peer) Check(rank, size int) bool {
	c := p.config()
	ok := C.scr_shared_check(&c, C.int32_t(rank), C.int32_t(size)) == 0
	p.Bell = int64(c.engine_bell)
	return ok
}

// Peer is the place of the shared blocks of one rank.
type Peer struct {
	Arena  unsafe.Pointer // base of this process's mapping of the rank's arena
	Bytes  int64          // length of the mapping
	Shared [Lanes]int64   // offsets of its shared blocks, by lane
	Bell   int64          // offset of the bell of the rank's engine; Check sets it
	Pair   uint64         // not 0: the number of a pair (AddPair), whose shadow the shared blocks are
	// Flights is the capacity of the rank's flight recorder for the lane and FlightLog its offset; both are 0 if the arena holds
	// none.
	Flights      int
	FlightLog    int64
	FlightStacks bool // the recorder keeps call stacks
}

// GaveUp reports whether the rank has called GiveUp.
func (p *Peer) GaveUp() bool {
	return bool(C.scr_shared_gave_up(unsafe.Add(p.Arena, p.Shared[HostLane])))
}

func (p *Peer) config() C.scr_peer_config {
	c := C.scr_peer_config{arena: p.Arena, arena_bytes: C.uint64_t(p.Bytes), engine_bell: C.uint64_t(p.Bell), pair: C.uint64_t(p.Pair)}
	for lane, at := range p.Shared {
		c.shared[lane] = C.uint64_t(at)
	}
	return c
}

// Lane is one of the two orders of operations of a group (docs/protocol.md, section 10).
type Lane int

// The lanes.
const (
	HostLane   Lane = C.SCR_HOST_LANE
	DeviceLane Lane = C.SCR_DEVICE_LANE
	Lanes           = C.SCR_LANES
)

func (l Lane) String() string {
	if l == DeviceLane {
		return "device lane"
	}
	return "host lane"
}

// Backoff says how a thread waits for a flag: it spins, then yields its core, then sleeps.
type Backoff struct {
	Spin  int           // rounds of spinning before it yields
	Yield time.Duration // for how long it yields before it sleeps
}

// Policy bounds how long a thread of a group works on operations, and on how much, before it leaves them to other threads.
type Policy struct {
	Sync       time.Duration // how long a synchronous call keeps its caller before it returns PENDING
	Gate       time.Duration // the longest sleep of a driver that is blocked at a gate
	Sleep      time.Duration // the longest sleep of a driver before it checks whether its wait can still succeed
	BeginBytes uint64        // callers begin asynchronous collectives up to this length, and move that much of p2p operations
	Begin      time.Duration // for how long they drive the operations before them in the queue
	Brief      time.Duration // how long wait_briefly waits for operations up to BeginBytes
	Drain      time.Duration // for how long queued operations may complete after the group has gone down
	Soon       time.Duration // an asynchronous collective that is waited for within this time needed no engine
	AtOnce     time.Duration // a recv counts as waited for from its start if its waiter comes within this time
}

// Config describes a lane of a group to OpenGroup.
type Config struct {
	Rank        int
	Lane        Lane
	Host        *Group // of the device lane: the host lane of its group, which is closed later
	Timeout     time.Duration
	Backoff     Backoff
	StreamBytes uint64 // outputs of at least this length are written with non-temporal stores
	Peers       []Peer // by rank, this one included
	Flights     int    // capacity of this rank's flight recorder, which lies in its arena if Peers has its offset; 0: it is off
	Stacks      bool   // the recorder keeps call stacks
	Timeline    bool   // the group keeps events for TakeTrace
	Trace       bool   // Handler.Trace is called for every operation
	Fuses       bool   // Handler gathers collectives: see bucket.go
	Geometry    Geometry
	FailureRank int // of the host lane: the rank whose shared block has the failure word: 0, or Rank where the ranks of the group share no memory
	Policy      Policy
}

// Group is one lane of a group as one of its ranks has it. The host lane stands for the group: its handle is the group's, and
// the first cause, goodbyes and Detach are called on it.
type Group struct {
	c      *C.scr_group
	handle uint64
	lane   Lane
	rank   int
	size   int
	word   int // the rank whose shared block has the failure word
}

// OpenGroup opens a lane. Requires: the shared blocks of all ranks are mapped.
func OpenGroup(c Config) (*Group, error) {
	word := c.FailureRank
	if c.Host != nil {
		word = c.Host.word
	}
	if word < 0 || word >= len(c.Peers) {
		return nil, fmt.Errorf("internal error: the failure word of a group of %d ranks in the shared block of rank %d", len(c.Peers), word)
	}
	// The memory is zeroed, because the garbage collector looks at a pointer before it is overwritten.
	peers := C.calloc(C.size_t(len(c.Peers)), C.sizeof_scr_peer_config)
	defer C.free(peers)
	list := unsafe.Slice((*C.scr_peer_config)(peers), len(c.Peers))
	for i, p := range c.Peers {
		list[i] = p.config()
		list[i].flight, list[i].flight_entries, list[i].flight_stacks = C.uint64_t(p.FlightLog), C.uint32_t(p.Flights), C.bool(p.FlightStacks)
	}
	config := C.scr_group_config{
		rank: C.int32_t(c.Rank), size: C.int32_t(len(c.Peers)), lane: C.uint32_t(c.Lane), timeout_ns: C.int64_t(c.Timeout),
		spin: C.uint32_t(c.Backoff.Spin), yield_us: C.uint32_t(c.Backoff.Yield / time.Microsecond),
		stream_bytes: C.uint64_t(c.StreamBytes), flight_entries: C.uint32_t(c.Flights), flight_stacks: C.bool(c.Stacks), timeline: C.bool(c.Timeline), trace: C.bool(c.Trace), fuses: C.bool(c.Fuses), failure_rank: C.int32_t(word), message_bytes: C.uint64_t(c.Geometry.Message), fifo_bytes: C.uint64_t(c.Geometry.Fifo), peers: (*C.scr_peer_config)(peers),
		policy: C.scr_policy{sync_ns: C.int64_t(c.Policy.Sync), sleep_ns: C.int64_t(c.Policy.Sleep), begin_bytes: C.uint64_t(c.Policy.BeginBytes),
			begin_ns: C.int64_t(c.Policy.Begin), brief_ns: C.int64_t(c.Policy.Brief), drain_ns: C.int64_t(c.Policy.Drain), gate_ns: C.int64_t(c.Policy.Gate), at_once_ns: C.int64_t(c.Policy.AtOnce), soon_ns: C.int64_t(c.Policy.Soon)},
	}
	if c.Host != nil {
		config.host = c.Host.c
	}
	g := &Group{rank: c.Rank, size: len(c.Peers), lane: c.Lane, word: word}
	g.handle = uint64(C.scr_group_open(&config, &g.c))
	if g.handle == 0 {
		return nil, errors.New("sagecomm: no memory for another group, or more than 4096 of them exist; destroy some")
	}
	return g, nil
}

// Handle returns the handle of the lane. That of the host lane is the group's in the C ABI.
func (g *Group) Handle() uint64 { return g.handle }

// Lane returns which lane of its group this is.
func (g *Group) Lane() Lane { return g.lane }

// Reached returns the number of the last collective of the device lane whose input was ready on a rank. Both lanes have it.
func (g *Group) Reached(rank int) uint64 {
	return uint64(C.scr_group_reached(g.c, C.int32_t(rank)))
}

// P2PStreamsAreLate reports, of the device lane, whether a stream of this rank has not reached its p2p operation, or a peer has
// called the send of a recv and its payload is not all here.
func (g *Group) P2PStreamsAreLate() bool { return bool(C.scr_p2p_streams_are_late(g.c)) }

// Close frees the group. When it returns, the handle is refused and no thread uses the group.
// Requires: the group is down and nothing is queued.
func (g *Group) Close() { C.scr_group_close(g.c) }

// SetTimeout changes the timeout of later operations.
func (g *Group) SetTimeout(d time.Duration) { C.scr_group_set_timeout(g.c, C.int64_t(d)) }

// HasLarge reports whether the large slots of this rank exist.
func (g *Group) HasLarge() bool { return bool(C.scr_group_has_large(g.c)) }

// SetLarge publishes the offset of this rank's large slots in its arena.
func (g *Group) SetLarge(offset int64) { C.scr_group_set_large(g.c, C.uint64_t(offset)) }

// HasFifo reports whether the fifo from this rank to a peer exists.
func (g *Group) HasFifo(to int) bool { return bool(C.scr_group_has_fifo(g.c, C.int32_t(to))) }

// FifoBytes returns how much of this rank's arena the fifo to a peer takes.
func (g *Group) FifoBytes(to int) int64 { return int64(C.scr_group_fifo_bytes(g.c, C.int32_t(to))) }

// SetFifo publishes the offset of the fifo from this rank to a peer in this rank's arena.
func (g *Group) SetFifo(to int, offset int64) {
	C.scr_group_set_fifo(g.c, C.int32_t(to), C.uint64_t(offset))
}

// MaxClasses bounds the number of size classes of a kind.
const MaxClasses = C.SCR_MAX_CLASSES

// SetClasses sets the lengths, in rising order, at which the size classes of a kind begin, except for the first class.
func (g *Group) SetClasses(kind coll.Kind, boundaries []uint64) {
	var list [MaxClasses]C.uint64_t
	n := min(len(boundaries), MaxClasses)
	for i := range n {
		list[i] = C.uint64_t(boundaries[i])
	}
	C.scr_group_set_classes(g.c, C.int(kind), &list[0], C.int(n))
}

// Sequence returns the number of the last collective of this lane.
func (g *Group) Sequence() uint64 { return uint64(C.scr_group_sequence(g.c)) }

// Unfinished returns a number above zero while an issued operation is not complete or a thread uses the group.
func (g *Group) Unfinished() int { return int(C.scr_group_unfinished(g.c)) }

// HasFailed reports whether an issued operation has ended with the failure of the group.
func (g *Group) HasFailed() bool { return bool(C.scr_group_has_failed(g.c)) }

// Visit lets the lane look at a rank of another host from now on, when it looks at its peers.
func (g *Group) Visit(rank int) { C.scr_group_visit(g.c, C.int32_t(rank)) }

// Goodbye tells the peers that this rank issues no more operations.
func (g *Group) Goodbye() { C.scr_group_goodbye(g.c) }

// Detach tells the peers that this rank will not touch their shared blocks any more.
func (g *Group) Detach() { C.scr_group_detach(g.c) }

// Detached reports whether a rank has called Detach: it will not touch the shared block any more.
func Detached(shared unsafe.Pointer, size, rank int) bool {
	return bool(C.scr_shared_detached_by(shared, C.int32_t(size), C.int32_t(rank)))
}
