package staged

import (
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"sagecomm/internal/coll"
	"sagecomm/internal/device"
	"sagecomm/internal/runner"
)

// Pool keeps the pinned memory and the streams of all groups of the process. They outlive the groups: a stream lives as long as
// the process, and copies into a tensor may still be queued when the group that made them is gone. Pinned memory is never given back:
// a driver waits for the device then, and for streams that wait for peers.
type Pool struct {
	mu      sync.Mutex // nobody holds it in a call of the device, which may wait: it would hold up all groups
	idle    map[source][]*block
	busy    map[source][]*block  // used by an operation, or by copies that are still queued
	streams map[pairs][]*streams // of groups that are gone, and those that were full
	recvs   map[place]int        // pairs whose streams of outputs have the role device.Recvs, made or being made
}

// NewPool returns an empty pool.
func NewPool() *Pool {
	return &Pool{idle: map[source][]*block{}, busy: map[source][]*block{}, streams: map[pairs][]*streams{},
		recvs: map[place]int{}}
}

// place is a device, as an implementation of device.Runtime reaches it.
type place struct {
	device  coll.Device
	runtime string
}

// source is who allocates pinned memory: an implementation of device.Runtime, for devices of a type. Its memory is used by its own
// commands only, because nothing says that the streams of another one reach it.
type source struct {
	device  coll.DeviceType
	runtime string
}

const (
	blockHeader = 4096      // holds the words of the gate; buffers begin on a page of their own
	leastBlock  = 64 << 10  // lengths of blocks are this times a power of two
	longBlock   = 8 << 20   // up to here
	idleBytes   = 256 << 20 // beyond which an operation takes a block that is much too long
)

// block is pinned memory for one operation: the words of its gate and its buffers.
type block struct {
	memory          device.Pinned
	room            uint64
	words           *runner.GateWords
	uses            atomic.Uint64 // operations that have had it
	inputs, outputs atomic.Uint32 // what InputReady and OutputTaken are when no queued command uses the block any more
	awaited         atomic.Bool   // a stream waits for the run, until the gate is open
	unawaited       atomic.Bool   // no command waits for the run, which uses the block until the gate is open
	issuing         bool          // the operation is being issued: the block stays busy; guarded by Pool.mu
}

// data returns the address of a byte of the buffers.
func (b *block) data(offset uint64) unsafe.Pointer {
	return unsafe.Add(b.memory.Address(), blockHeader+offset)
}

// reset prepares the block for an operation. Who has noted its uses finds that it was settled.
// Requires: Pool.mu, settled.
func (b *block) reset() {
	b.words.Reset()
	b.uses.Add(1)
	b.inputs.Store(0) // until commands that use it are queued
	b.outputs.Store(0)
	b.awaited.Store(false)
	b.unawaited.Store(false)
}

// settled reports whether the device has run all commands that use the block, and the run has ended.
func (b *block) settled() bool {
	if b.unawaited.Load() && !b.words.Opened() {
		return false
	}
	return b.words.Moved(b.inputs.Load(), b.outputs.Load())
}

// use is the use of a block by an operation.
type use struct {
	*block
	number uint64
}

// used returns the use of a block by the operation that has it now.
func (b *block) used() use { return use{b, b.uses.Load()} }

// ended reports whether the device has run all commands of the operation, and its run has ended.
// Requires: Pool.mu.
func (u use) ended() bool { return u.over() || u.settled() }

// read reports whether the device has run all commands of the operation for its input.
// Requires: Pool.mu.
func (u use) read() bool { return u.over() || u.words.Read(u.inputs.Load()) }

// over reports whether another operation has the block, so it was settled.
// Requires: Pool.mu.
func (u use) over() bool {
	if u.uses.Load() == u.number {
		return false
	}
	u.words.SeenReset()
	return true
}

// acquire returns a block with room for the buffers of an operation, whose words are 0.
func (p *Pool) acquire(rt device.Runtime, of source, room uint64) (*block, error) {
	if b := p.idleBlock(of, room); b != nil {
		return b, nil
	}
	size := blockBytes(room)
	memory, err := rt.Pin(size)
	if err != nil {
		return nil, err
	}
	b := &block{memory: memory, room: size - blockHeader, words: (*runner.GateWords)(memory.Address())}
	b.words.Reset()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.take(of, b)
	return b, nil
}

// take makes a block busy for an operation. Requires: mu.
func (p *Pool) take(of source, b *block) {
	b.issuing = true
	p.busy[of] = append(p.busy[of], b)
}

// blockBytes returns the length of the memory of a new block. Those of long blocks are closer to each other than powers of two.
func blockBytes(room uint64) uint64 {
	size := uint64(leastBlock)
	for size < blockHeader+room {
		size *= 2
	}
	if part := size / 8; part > longBlock/8 {
		return (blockHeader + room + part - 1) / part * part
	}
	return size
}

// idleBlock takes out the shortest idle block that is long enough, and not much longer. It returns nil if there is none.
func (p *Pool) idleBlock(of source, room uint64) *block {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sweep(of)
	best := -1
	for i, b := range p.idle[of] {
		if b.room >= room && (best < 0 || b.room < p.idle[of][best].room) {
			best = i
		}
	}
	if best < 0 || p.idle[of][best].room > p.longest(of, room) {
		return nil
	}
	b := p.idle[of][best]
	p.idle[of] = append(p.idle[of][:best], p.idle[of][best+1:]...)
	b.reset()
	p.take(of, b)
	return b
}

// release gives back a block when its operation was issued. The device may still have commands queued that use it.
func (p *Pool) release(b *block) {
	p.mu.Lock()
	defer p.mu.Unlock()
	b.issuing = false
}

// sweep moves settled blocks to the idle ones. Requires: mu.
func (p *Pool) sweep(of source) {
	left := p.busy[of][:0]
	for _, b := range p.busy[of] {
		if !b.issuing && b.settled() {
			p.idle[of] = append(p.idle[of], b)
		} else {
			left = append(left, b)
		}
	}
	clear(p.busy[of][len(left):])
	p.busy[of] = left
}

// waits reports whether a stream may wait for a peer in an operation of this pool: for its run, which has not ended.
func (p *Pool) waits() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, list := range p.busy {
		if slices.ContainsFunc(list, func(b *block) bool { return b.awaited.Load() && !b.words.Opened() }) {
			return true
		}
	}
	return false
}

// longest returns how long an idle block may be that an operation takes. One that is short never takes a long one: it may be under way for
// a long time. Requires: mu.
func (p *Pool) longest(of source, room uint64) uint64 {
	var total uint64
	for _, b := range p.idle[of] {
		total += b.room
	}
	if total > idleBytes {
		return max(16*room, leastBlock)
	}
	return max(4*room, leastBlock)
}
