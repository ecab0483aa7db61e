package shadow

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"sagecomm/internal/runner"
	"sagecomm/internal/transport/tcp"
)

// Config describes a pair to Set.Add.
type Config struct {
	Link           *tcp.Link // nil: there is none yet. Need is called when the pair is needed, and Meet when there is one, or Unreachable
	Group          uint64    // number of the group, which all of its processes know
	Rank, To, Size int       // the rank of this process, the remote rank, of a group of that size
	Geometry       runner.Geometry
	Own            runner.Peer
	Memory         *Memory // where the shadow lies, and at which place
	Shadow         int
	Peer           tcp.Identity  // of the process of the remote rank, where Link is nil
	GaveUp         func() []byte // returns the failure record of the remote rank if it gives up in the rendezvous (runner.EncodeFailure)
	Lost           func(error)   // called when the link is lost before the remote rank has left

	// Made is called when the pair is made, before anything is stored into the shadow and before Open returns. It is called with a lock of the set,
	// so it calls no method of the pair or the set and waits for nothing. It may be nil.
	Made func()

	// Need is called, with a lock of the set, when a link is needed and there is none: it calls no method of the pair or the set and waits for nothing. It
	// is called again when a pair is needed behind Unreachable. It is nil where all processes of the group have links from the beginning.
	Need func()

	// Control takes an entry of a control exchange of the remote rank: the header of EXCHANGE, and its payload, which it may keep, but not
	// the header. Stated is called when a state of the remote rank lies in the shadow. Both are called with the lock of the pair, so they
	// call no method of the pair or the set and wait for nothing. An error of Control ends the link. They may be nil.
	Control func(*tcp.Header, []byte) error
	Stated  func()
}

// memoryOf returns the length of the memory of a pair: for each lane a shared block, and the channels and the fifo from the remote rank.
func memoryOf(size int, g runner.Geometry) int64 {
	return laneAt(int(runner.Lanes), size, g)
}

// laneAt returns where the memory of a lane begins in that of a pair.
func laneAt(lane, size int, g runner.Geometry) (at int64) {
	for before := range lane {
		at += runner.SharedBlockBytes(runner.Lane(before), size) + channelsOf(g) + fifoOf(g)
	}
	return at
}

const page = 4096

// channelsOf and fifoOf return the memory of the channels and of the fifo of one lane.
func channelsOf(g runner.Geometry) int64 { return pages(runner.Channels * g.ChannelBytes()) }

func fifoOf(g runner.Geometry) int64 { return pages(g.FifoMemory()) }

func pages(bytes int64) int64 { return (bytes + page - 1) / page * page }

// Pair is one rank of this process and one remote rank. It is made at first need: before, it has no lanes, nothing was written to its shadow, and
// the remote rank knows nothing of it.
type Pair struct {
	Config
	memory *Memory     // nil: it was freed. Under mu once the pair was added.
	engine runner.Bell // of this process's progress engine
	linked atomic.Bool // there is a link: Link and bell do not change any more
	bell   bell        // of the pump
	awaits atomic.Bool // a thread has polled before there was a link
	wanted bool        // it is to be made when there is a link. The lock of the side guards it
	since  time.Time   // when it was first wanted
	side   *side
	shadow runner.Peer
	left   *atomic.Uint64 // of the remote rank: in the shadow
	made   atomic.Bool
	lanes  *[runner.Lanes]lane // nil before it is made

	turn    sync.Mutex   // of who pushes, the pump or a thread that has published; before pushing
	polling atomic.Int32 // threads that poll again and again: Attend
	calmed  atomic.Int32 // of these, those that the link was told of
	unsent  atomic.Bool  // a thread has not sent what it has published, and one that polls, or the pump, is to do it
	trying  bool         // by a thread, which does not wait: send returns errFull where it would
	pushing sync.Mutex   // held by the pump while it uses the memory of the group; before mu
	said    bool         // OPEN was sent, or is being sent
	leaving bool         // GOODBYE was sent, or is being sent
	closing bool         // CLOSE was sent, or is being sent
	told    bool         // STATE was sent before GOODBYE, or is being sent
	gone    bool         // removed

	controlling sync.Mutex // held while an entry is sent on the control connection
	quiet       bool       // no entry is sent there any more

	flushed  chan struct{} // closed when GOODBYE was sent on all connections, or is not sent any more
	flushing sync.Once

	mu      sync.Mutex
	opened  bool   // OPEN has come
	heard   bool   // some frame has come
	after   uint64 // the number of LEFT; 0: it has not come
	byes    uint64 // connections on which GOODBYE has come
	bye     uint64 // its number
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
	unasked bool   // STATE has come for which this rank had not asked: the one before GOODBYE
	payload []byte // of STATE or EXCHANGE, which is being read
}

// gaveUp is the goodbye of a rank that has given up in the rendezvous. It sets no detached.
const gaveUp = math.MaxUint64

// lane is one lane of a pair. Who has the turn to push changes sent and uses told and out, and who reads the channel's connection uses came.
type lane struct {
	own, shadow runner.Words
	left        *atomic.Uint64 // of this rank
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

	expected expected // the buffer of message next
	next     uint64
	direct   []byte // the buffer to which the payload goes that is being read; nil: it goes into the shadow
}

// newPair returns a pair that is not made.
func newPair(c Config, of *side) *Pair {
	c.Memory.use()
	p := &Pair{Config: c, memory: c.Memory, side: of, flushed: make(chan struct{}), engine: runner.BellAt(unsafe.Add(c.Own.Arena, c.Own.Bell))}
	if c.Link != nil {
		p.bell = of.pump.bell
		p.linked.Store(true)
	}
	p.shadow = runner.Peer{Pair: runner.AddPair(p), Arena: c.Memory.at(c.Shadow), Bytes: c.Memory.each}
	for n := range p.shadow.Shared {
		p.shadow.Shared[n] = laneAt(n, c.Size, c.Geometry)
	}
	p.left = p.shadowWords(int(runner.HostLane)).Left()
	return p
}

func (p *Pair) ownWords(lane int) runner.Words {
	return runner.WordsOf(unsafe.Add(p.Own.Arena, p.Own.Shared[lane]), p.Size)
}

func (p *Pair) shadowWords(lane int) runner.Words {
	return runner.WordsOf(unsafe.Add(p.shadow.Arena, p.shadow.Shared[lane]), p.Size)
}

// make makes the shadow, of which the channels and fifos are not touched.
func (p *Pair) make() {
	c := &p.Config
	lanes := new([runner.Lanes]lane)
	for n := range lanes {
		l := &lanes[n]
		at := p.shadow.Shared[n]
		runner.FormatSharedBlock(unsafe.Add(p.shadow.Arena, at), runner.Lane(n), c.To, c.Size, 0)
		at += runner.SharedBlockBytes(runner.Lane(n), c.Size)
		l.own, l.shadow = p.ownWords(n), p.shadowWords(n)
		l.shadow.SleepFor(c.Rank)
		l.left = l.own.Left()
		for k := range l.channels {
			h := &l.channels[k]
			h.in = unsafe.Add(p.shadow.Arena, at+int64(k)*c.Geometry.ChannelBytes())
			h.at, h.taken, h.room = l.own.Channel(c.To, k), l.own.Taken(c.To, k), l.shadow.Taken(c.Rank, k)
			l.shadow.Channel(c.Rank, k).Store(uint64(at + int64(k)*c.Geometry.ChannelBytes()))
		}
		at += channelsOf(c.Geometry)
		l.out.offset, l.out.room, l.out.credit = l.own.Fifo(c.To), l.shadow.Read(c.Rank), l.shadow.Released(c.Rank)
		l.in.read, l.in.released = l.own.Read(c.To), l.own.Released(c.To)
		l.in.fifo = c.Geometry.FifoAt(unsafe.Add(p.shadow.Arena, at))
		l.shadow.Fifo(c.Rank).Store(uint64(at))
	}
	p.lanes = lanes
	if p.Made != nil {
		p.Made()
	}
	p.made.Store(true) // who reads that stores into the shadow: the lanes visit the rank before
}

// HasLink reports whether there is a link that carries the group to the process of the remote rank, or was one.
func (p *Pair) HasLink() bool { return p.linked.Load() }

// Open makes the pair if it is not made yet. It reports whether it is: not if there is no link yet, this rank has left, the remote rank has given up,
// or the pair was removed. Where there is no link, the pair is made when there is one.
func (p *Pair) Open() bool {
	made, _ := p.side.open(p, true)
	return made
}

// Free unmaps the shadow, at the latest when what is being read into it has come or its link has ended.
// Requires: the group is closed, and the pair has ended: detached is set for the remote rank, it has given up, the pair was removed, or the
// set is closed.
func (p *Pair) Free() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.freed = true
	runner.RemovePair(p.shadow.Pair)
	p.unmap()
}

// unmap ends with the memory of the shadow if that was freed and is no place of a payload.
// Requires: the lock.
func (p *Pair) unmap() {
	if p.freed && p.placed == 0 && p.memory != nil {
		p.memory.Free()
		p.memory = nil
	}
}

// unread takes note that the link of the pair has ended: nothing is read into the shadow any more.
func (p *Pair) unread() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.placed, p.payload = 0, nil
	p.forgetBuffers()
	p.unmap()
	p.nothingLeft()
}

// nothingLeft takes note that GOODBYE was sent on all connections, or is not sent any more.
func (p *Pair) nothingLeft() { p.flushing.Do(func() { close(p.flushed) }) }

// awaited reports whether this rank has left and its GOODBYE is still to be sent.
func (p *Pair) awaited() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.over && p.side.left.Load() != 0
}

// remove ends the pair, and keeps nothing that belongs to the group.
func (p *Pair) remove() {
	p.side.mu.Lock() // it is not made behind that
	p.side.pairs = slices.DeleteFunc(p.side.pairs, func(q *Pair) bool { return q == p })
	p.wanted = false
	if len(p.side.pairs) == 0 {
		p.side.done.Store(true)
	}
	p.Made = nil
	p.side.mu.Unlock()
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
	switch left := p.left.Load(); left {
	case 0, gaveUp:
		return 0
	default:
		return left - 1
	}
}

// Moved returns a number that rises while data of the pair come or go.
func (p *Pair) Moved() (n uint64) {
	if !p.made.Load() {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.lanes {
		l := &p.lanes[i]
		for k := range l.channels {
			n += l.channels[k].sent.Load() + l.channels[k].came
		}
		n += l.out.pushed.Load() + l.in.written
	}
	return n
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

// all reports whether a set of connections is complete.
func (p *Pair) all(set uint64) bool { return set == p.everyConnection() }

func (p *Pair) everyConnection() uint64 { return 1<<(p.Link.Data()+1) - 1 }
