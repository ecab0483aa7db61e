package shadow

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"sagecomm/internal/runner"
	"sagecomm/internal/transport/tcp"
)

// Config describes a pair to Set.Add.
type Config struct {
	Link           *tcp.Link
	Group          uint64 // number of the group, which all of its processes know
	Rank, To, Size int    // the rank of this process, the remote rank, of a group of that size
	Own            runner.Peer
	GaveUp         []byte      // the failure record of the remote rank if it gives up in the rendezvous (runner.EncodeFailure)
	Lost           func(error) // called when the link is lost before the remote rank has left

	// Control takes an entry of a control exchange of the remote rank: the header of EXCHANGE, and its payload, which it may keep, but not
	// the header. Stated is called when a state of the remote rank lies in the shadow. Both are called with the lock of the pair, so they
	// call no method of the pair or the set and wait for nothing. An error of Control ends the link. They may be nil.
	Control func(*tcp.Header, []byte) error
	Stated  func()
}

// memoryOf returns the length of the memory of a pair: for each lane a shared block, and the channels and the fifo from the remote rank.
func memoryOf(size int) int64 {
	return int64(runner.Lanes) * (runner.SharedBlockBytes(size) + channelsBytes + fifoBytes)
}

const (
	page          = 4096
	channelsBytes = (runner.Channels*runner.ChannelBytes + page - 1) / page * page // of one lane
	fifoBytes     = (runner.FifoHeader + runner.FifoBytes + page - 1) / page * page
)

// Pair is one rank of this process and one remote rank.
type Pair struct {
	Config
	memory []byte      // of the shadow; nil: it was freed. Under mu once the pair was added.
	engine runner.Bell // of this process's progress engine
	shadow runner.Peer
	lanes  [runner.Lanes]lane

	pushing sync.Mutex // held by the pump while it uses the memory of the group; before mu
	leaving bool       // GOODBYE was sent, or is being sent
	closing bool       // CLOSE was sent, or is being sent
	gone    bool       // removed

	controlling sync.Mutex // held while an entry is sent on the control connection
	quiet       bool       // no entry is sent there any more

	flushed  chan struct{} // closed when GOODBYE was sent on all connections, or is not sent any more
	flushing sync.Once

	mu      sync.Mutex
	byes    uint64 // connections on which GOODBYE has come
	left    uint64 // its number
	closes  uint64 // connections on which CLOSE has come
	closed  bool   // CLOSE was sent on all
	gaveUp  bool   // the remote rank has given up in the rendezvous
	given   bool   // this rank has: its goodbye was sent, or is being sent
	removed bool   // by Set.Remove: frames are dropped, and CLOSE answers a remote rank that has given up
	over    bool   // nothing touches the memory of the group of this process any more
	placed  uint64 // connections that are in the middle of a payload whose place is in the shadow
	freed   bool   // Free was called, while placed was not 0
	asking  asking // what is asked of the remote rank
	asked   bool   // the remote rank has asked
	payload []byte // of STATE or EXCHANGE, which is being read
}

// gaveUp is the goodbye of a rank that has given up in the rendezvous. It sets no detached.
const gaveUp = math.MaxUint64

// lane is one lane of a pair. The pump's goroutine alone changes sent and uses told and out, and who reads the channel's connection uses came.
type lane struct {
	own, shadow runner.Words
	left        *atomic.Uint64 // of this rank
	detached    *atomic.Uint64 // this rank, from the shadow
	channels    [runner.Channels]channel
	out         outFifo
	in          inFifo
}

type channel struct {
	in    unsafe.Pointer // the shadow's channel
	at    *atomic.Uint64 // offset of this rank's channel, 0 before there is one
	out   unsafe.Pointer // this rank's channel, nil before it was found
	taken *atomic.Uint64 // by this rank
	room  *atomic.Uint64 // taken by the remote rank: in the shadow
	sent  atomic.Uint64  // messages that were sent, or are being sent
	told  uint64         // messages taken, as the remote rank was told
	came  uint64         // messages that have come
	place [1][]byte
}

// newPair makes the shadow, whose engine has the bell of the pump.
func newPair(c Config, bell runner.Bell) (*Pair, error) {
	memory, err := mapPrivate(memoryOf(c.Size))
	if err != nil {
		return nil, err
	}
	p := &Pair{Config: c, memory: memory, flushed: make(chan struct{}), engine: runner.BellAt(unsafe.Add(c.Own.Arena, c.Own.Bell))}
	p.shadow = runner.Peer{Arena: unsafe.Pointer(unsafe.SliceData(memory)), Bytes: int64(len(memory)), Apart: bell}
	at := int64(0)
	for n := range p.lanes {
		l := &p.lanes[n]
		block := unsafe.Add(p.shadow.Arena, at)
		runner.FormatSharedBlock(block, c.To, c.Size, 0)
		p.shadow.Shared[n] = at
		at += runner.SharedBlockBytes(c.Size)
		l.own = runner.WordsOf(unsafe.Add(c.Own.Arena, c.Own.Shared[n]), c.Size)
		l.shadow = runner.WordsOf(block, c.Size)
		l.shadow.SleepFor(c.Rank)
		l.left, l.detached = l.own.Left(), l.shadow.Detached(c.Rank)
		for k := range l.channels {
			h := &l.channels[k]
			h.in = unsafe.Add(p.shadow.Arena, at+int64(k)*runner.ChannelBytes)
			h.at, h.taken, h.room = l.own.Channel(c.To, k), l.own.Taken(c.To, k), l.shadow.Taken(c.Rank, k)
			l.shadow.Channel(c.Rank, k).Store(uint64(at + int64(k)*runner.ChannelBytes))
		}
		at += channelsBytes
		l.out.offset, l.out.room, l.out.credit = l.own.Fifo(c.To), l.shadow.Read(c.Rank), l.shadow.Released(c.Rank)
		l.in.read, l.in.released = l.own.Read(c.To), l.own.Released(c.To)
		l.in.fifo = runner.FifoAt(unsafe.Add(p.shadow.Arena, at))
		l.shadow.Fifo(c.Rank).Store(uint64(at))
		at += fifoBytes
	}
	return p, nil
}

// Free unmaps the shadow, at the latest when what is being read into it has come or its link has ended.
// Requires: the group is closed, and the pair has ended: detached is set for the remote rank, it has given up, the pair was removed, or the
// set is closed.
func (p *Pair) Free() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.freed = true
	p.unmap()
}

// unmap unmaps the shadow if it was freed and is no place of a payload.
// Requires: the lock.
func (p *Pair) unmap() {
	if p.freed && p.placed == 0 && p.memory != nil {
		_ = unix.Munmap(p.memory)
		p.memory = nil
	}
}

// unread takes note that the link of the pair has ended: nothing is read into the shadow any more.
func (p *Pair) unread() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.placed, p.payload = 0, nil
	p.unmap()
	p.nothingLeft()
}

// nothingLeft takes note that GOODBYE was sent on all connections, or is not sent any more.
func (p *Pair) nothingLeft() { p.flushing.Do(func() { close(p.flushed) }) }

// awaited reports whether this rank has left and its GOODBYE is still to be sent.
func (p *Pair) awaited() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.over && p.lanes[runner.HostLane].left.Load() != 0
}

// remove ends the pair, and keeps nothing that belongs to the group.
func (p *Pair) remove() {
	p.pushing.Lock()
	defer p.pushing.Unlock()
	p.gone = true
	p.controlling.Lock()
	p.quiet = true
	p.controlling.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.removed, p.over = true, true
	p.GaveUp, p.Config.Lost, p.Control, p.Stated = nil, nil, nil, nil
	p.nothingLeft()
}

// LeftAfter returns how many collectives of the host lane the remote rank had called when it left, 0 if it has not left.
// Requires: Free was not called.
func (p *Pair) LeftAfter() uint64 {
	switch left := p.lanes[runner.HostLane].shadow.Left().Load(); left {
	case 0, gaveUp:
		return 0
	default:
		return left - 1
	}
}

// Peer returns the place of the shadow, for runner.Config.
func (p *Pair) Peer() runner.Peer { return p.shadow }

// connection returns the data connection of a channel: the same on both sides, and for both directions.
func (p *Pair) connection(number, channel int) int {
	h := p.Group ^ uint64(min(p.Rank, p.To))<<32 ^ uint64(max(p.Rank, p.To))<<8 ^ uint64(number)<<4 ^ uint64(channel)
	h = (h ^ h>>31) * 0x9e3779b97f4a7c15
	return 1 + int(h>>33)%p.Link.Data()
}

func (p *Pair) header(kind tcp.Kind) tcp.Header {
	return tcp.Header{Kind: kind, Group: p.Group, From: uint32(p.Rank), To: uint32(p.To)}
}

// ---- sending: the pump's goroutine ----

// errRemoved is the error of a frame during which the pair was removed.
var errRemoved = errors.New("the pair was removed")

// push sends what this rank has published. It reports whether there was anything.
func (p *Pair) push() (moved bool, err error) {
	p.pushing.Lock()
	defer p.pushing.Unlock()
	moved, err = p.pushAll()
	if errors.Is(err, errRemoved) {
		return true, nil
	}
	return moved, err
}

// bare sends a frame that has nothing of the memory of the group, so a pair is removed without waiting for it. Then the error is errRemoved.
// Requires: pushing, which others may have had meanwhile.
func (p *Pair) bare(on int, h *tcp.Header, payload ...[]byte) error {
	before := p.gone
	if err := p.sendUnlocked(on, h, payload...); err != nil {
		return err
	}
	if p.gone != before {
		return errRemoved
	}
	return nil
}

func (p *Pair) sendUnlocked(on int, h *tcp.Header, payload ...[]byte) error {
	p.pushing.Unlock()
	defer p.pushing.Lock()
	return p.Link.Send(on, h, payload...)
}

func (p *Pair) pushAll() (moved bool, err error) {
	p.mu.Lock()
	over, abandoned, asks := p.over, p.gaveUp, p.asked || p.asking == askSoon
	p.mu.Unlock()
	switch {
	case p.gone && abandoned && !p.closing: // it waits for CLOSE of all others before it gives its memory back
		return true, p.abandon()
	case over:
		return false, nil
	case abandoned:
		return true, p.abandon()
	case p.closing:
		return false, nil
	}
	// Detached comes behind left, and left behind everything else: so they are read first.
	host := &p.lanes[runner.HostLane]
	detached := host.detached.Load() != 0
	left := host.left.Load()
	for n := range p.lanes {
		l := &p.lanes[n]
		for k := range l.channels {
			if p.leaving {
				break // nothing follows a goodbye
			}
			m, err := p.pushChannel(n, k)
			if moved = moved || m; err != nil {
				return moved, err
			}
		}
		if p.leaving {
			continue
		}
		m, err := p.pushFifo(n)
		if moved = moved || m; err != nil {
			return moved, err
		}
	}
	if asks && !p.leaving {
		m, err := p.pushState()
		if moved = moved || m; err != nil {
			return moved, err
		}
	}
	if left != 0 && !p.leaving {
		h := p.header(tcp.Goodbye)
		h.Number = left
		p.leaving, moved = true, true
		p.mu.Lock()
		p.given = left == gaveUp
		p.mu.Unlock()
		if err := p.everywhere(h); err != nil {
			return true, err
		}
		p.nothingLeft()
	}
	if detached || left == gaveUp {
		p.closing = true
		err := p.everywhere(p.header(tcp.Close))
		p.mu.Lock()
		defer p.mu.Unlock()
		p.closed = true
		p.end()
		return true, err
	}
	return moved, nil
}

// abandon ends the pair because the remote rank has given up. Who finds that goodbye in the shadow may give memory back at once, so it is
// stored last.
func (p *Pair) abandon() (err error) {
	if !p.closing {
		p.closing = true
		err = p.everywhere(p.header(tcp.Close))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if !p.over {
		p.storeGaveUp()
	}
	return err
}

// storeGaveUp ends with the memory of the pair. It does not set detached: the group gives memory back when it finds either word, so only one
// of them can be the last access.
// Requires: the lock; the remote rank has given up, and the pair is not over.
func (p *Pair) storeGaveUp() {
	p.over = true
	p.nothingLeft()
	for n := range p.lanes {
		p.lanes[n].own.WakeAll(p.engine)
	}
	copy(p.lanes[runner.HostLane].shadow.FailureRecord(), p.GaveUp)
	p.lanes[runner.HostLane].shadow.Left().Store(gaveUp) // who was woken too early for it looks again within 50 ms
}

// end tells the owner of the memory that nothing touches it any more, once both ranks have said so.
// Requires: the lock.
func (p *Pair) end() {
	if !p.over && p.closed && p.all(p.closes) {
		p.over = true
		p.lanes[runner.HostLane].own.Detached(p.To).Store(1)
	}
}

// isOver reports whether no frame of the pair comes or goes any more, and nothing touches its memory.
func (p *Pair) isOver() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.over && p.closed && p.all(p.closes)
}

// everywhere sends a frame on every connection, behind what was sent there. It sends on all of them, also where the pair is removed meanwhile.
// Requires: pushing, as for bare.
func (p *Pair) everywhere(h tcp.Header) (err error) {
	p.controlling.Lock()
	p.quiet = true
	p.controlling.Unlock()
	removed := false
	for on := 0; err == nil && on <= p.Link.Data(); on++ {
		if err = p.bare(on, &h); errors.Is(err, errRemoved) {
			removed, err = true, nil
		}
	}
	if err == nil && removed {
		err = errRemoved
	}
	return err
}

// find returns the place of n bytes of the group of this rank, of which it has published the offset. A stray store may have changed that: then
// the link ends, since nothing that this rank sends can be trusted.
func (p *Pair) find(what string, offset, n uint64) (unsafe.Pointer, error) {
	if all := uint64(p.Own.Bytes); n > all || offset > all-n || offset%runner.Line != 0 {
		err := fmt.Errorf("shared memory corrupted: the %s of rank %d to rank %d lies at %d of %d bytes; %s", what, p.Rank, p.To, offset, all, runner.StrayPointers)
		p.Link.Break(err)
		return nil, err
	}
	return unsafe.Add(p.Own.Arena, offset), nil
}

func (p *Pair) pushChannel(number, k int) (moved bool, err error) {
	l := &p.lanes[number]
	c := &l.channels[k]
	on := p.connection(number, k)
	if offset := c.at.Load(); c.out == nil && offset != 0 {
		if c.out, err = p.find("channel", offset, runner.ChannelBytes); err != nil {
			return false, err
		}
	}
	if c.out != nil {
		for {
			next := c.sent.Load() + 1
			place := runner.PlaceOf(c.out, next)
			if place.Filled.Load() != next {
				break
			}
			h := p.header(tcp.Message)
			h.Lane, h.Channel, h.Number, h.Hash, h.Block = uint8(number), uint8(k), next, *place.Hash, *place.Block
			h.Taken = c.taken.Load()
			c.sent.Store(next) // the remote rank may have taken it before Send returns
			if err := p.Link.Send(on, &h, place.Data[:*place.Bytes]); err != nil {
				return moved, err
			}
			c.told = h.Taken
			moved = true
		}
	}
	if taken := c.taken.Load(); taken-c.told >= runner.ChannelPlaces/2 {
		h := p.header(tcp.Room)
		h.Lane, h.Channel, h.Taken = uint8(number), uint8(k), taken
		c.told, moved = taken, true
		if err := p.bare(on, &h); err != nil {
			return moved, err
		}
	}
	return moved, nil
}

// all reports whether a set of connections is complete.
func (p *Pair) all(set uint64) bool { return set == 1<<(p.Link.Data()+1)-1 }
