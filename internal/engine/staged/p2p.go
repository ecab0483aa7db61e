package staged

import (
	"cmp"
	"errors"
	"slices"

	"sagecomm/internal/coll"
	"sagecomm/internal/device"
	"sagecomm/internal/engine"
	"sagecomm/internal/runner"
)

var _ engine.P2P = (*Engine)(nil)

// origin is a stream of a caller, as an implementation of device.Runtime reaches it. The handle of a stream that is gone may come
// back for another one; both are in the order of one stream then, unless the streams of the first one were taken over meanwhile.
type origin struct {
	place
	stream uintptr
	sender int // of a recv for which a stream of the library waits; else -1
}

// Bounds of the streams that p2p operations of a group have on a device. Threads that make streams at the same time may take some more.
//
// A stream of the caller beyond mostOrigins takes over the streams of another one that wait for nothing any more. If there are none, it shares
// those of another one, chosen by the peer: its operations come behind all that the other one waits for, which may be what these operations
// bring. So programs that use many streams in turn hang nowhere, and those that use more than mostOrigins at once may.
const (
	mostOrigins = 4
	mostSenders = 8 // and streams of callers
)

// IssueP2P implements engine.P2P. Operations of different streams of the caller do not wait for each other, so they have streams
// of their own, which no collective uses either. InputReady of a recv says that the stream has come past the earlier users of its
// output.
func (e *Engine) IssueP2P(call runner.Call, op coll.Op) error {
	b, err := e.open(call, op)
	if err != nil {
		return &engine.Refusal{Err: e.errorOf(op, err)}
	}
	l := layoutOf(call.In(), call.Out(), op.Writes(e.rank))
	_, waits := b.(device.Waiter)
	l.sends = waits && op.Kind == coll.Send
	return e.issueInRoom(b, op, &l, func(at runner.Gate) error { return e.run.PostAtGate(call, at) })
}

// issueInRoom issues an operation in streams that have room for it. post posts it, behind its commands.
func (e *Engine) issueInRoom(b device.Access, op coll.Op, l *layout, post func(runner.Gate) error) error {
	err := e.issueP2P(op, e.accessFor(b, op, l), l, post)
	if errors.Is(err, errNoRoom) { // another thread was faster
		err = e.issueP2P(op, e.accessAlone(b, op), l, post)
	}
	return err
}

// access is by what a p2p operation is carried out.
type access struct {
	device.Access
	from origin   // what the streams are for
	s    *streams // nil: they are to be made; else chosen, until the operation is queued
}

// issueP2P issues an operation. It returns errNoRoom if the streams of a sender have no room for a recv.
func (e *Engine) issueP2P(op coll.Op, by access, l *layout, post func(runner.Gate) error) (err error) {
	if by.s == nil {
		by.s, err = e.makeP2P(by, by.from)
	}
	if err != nil {
		return e.errorOf(op, err)
	}
	memory, err := e.pool.acquire(by, source{op.Device.Type, by.Name()}, l.bytes)
	if err != nil {
		e.issuing.Lock()
		defer e.issuing.Unlock()
		e.leave(by.s)
		return e.errorOf(op, err)
	}
	defer e.pool.release(memory)
	q := e.queueFor(by.Access, by.from.place, by.s, memory, l)
	defer e.issuing.Unlock()
	defer e.leave(by.s)
	defer q.close()
	if by.from.sender >= 0 && q.full {
		return errNoRoom
	}
	if err = enqueue(by.Access, memory, l, q); err != nil {
		err = e.errorOf(op, err)
	} else {
		err = post(runner.Gate{Words: memory.words, Inputs: 1, Outputs: 1, In: l.in.pinned(memory), Out: l.out.pinned(memory)})
	}
	if err != nil { // a stream may wait for this operation
		memory.words.Open()
	}
	return err
}

// accessFor returns the access by which an operation is carried out.
func (e *Engine) accessFor(b device.Access, op coll.Op, l *layout) access {
	if f, ok := b.(frameworkStreams); !ok || op.Kind != coll.Recv {
		return e.accessBy(b, op)
	} else if by, waits := e.accessForSender(f, b, op, l); waits {
		return by
	}
	return e.accessAlone(b, op)
}

// accessAlone returns the access of an operation for which no stream waits.
func (e *Engine) accessAlone(b device.Access, op coll.Op) access {
	return e.accessBy(b.(frameworkStreams).alone(), op)
}

func (e *Engine) accessBy(b device.Access, op coll.Op) access {
	e.issuing.Lock()
	defer e.issuing.Unlock()
	from := origin{place{op.Device, b.Name()}, op.Stream, -1}
	return access{b, from, e.choose(e.p2pStreams(from, op.Root))}
}

// choose notes that an operation has chosen streams, nil if they are to be made. Nobody takes them over until it leaves them.
// Requires: issuing.
func (e *Engine) choose(s *streams) *streams {
	if s != nil {
		e.chosen[s]++
	}
	return s
}

// leave takes back what choose has noted: the operation is queued, and the streams have it, or was given up.
// Requires: issuing.
func (e *Engine) leave(s *streams) {
	if e.chosen[s]--; e.chosen[s] == 0 {
		delete(e.chosen, s)
	}
}

func (e *Engine) accessForSender(f frameworkStreams, b device.Access, op coll.Op, l *layout) (by access, waits bool) {
	e.issuing.Lock()
	defer e.issuing.Unlock()
	by = access{b, origin{place{op.Device, b.Name()}, op.Stream, op.Root}, nil}
	by.s, waits = e.streamsForSender(f, op, by.from, l)
	if waits {
		e.choose(by.s)
	}
	return by, waits
}

// streamsForSender reports whether a stream may wait for a recv, and returns its streams, nil if they are to be made. It holds up the recvs
// behind it in that stream, whose senders may need what this one brings. So each sender has streams of its own, whose recvs end in their
// order, and each of these streams has a queue of the hardware. Where tags or a recv from any source leave the order open, where there is no
// queue, or no room in the streams, the caller of the library queues the copies when the recv has ended. Streams stay with their sender until
// the group ends: behind a recv without anything queued, the caller of the library may have let them wait for recvs of others.
// Requires: issuing.
func (e *Engine) streamsForSender(f frameworkStreams, op coll.Op, from origin, l *layout) (s *streams, waits bool) {
	if op.Tag != 0 || op.Root < 0 || op.Root == e.rank {
		return nil, false
	}
	n := l.commands(true)
	if max(n[sideIn], n[sideOut]) > mostQueued {
		return nil, false
	}
	if s := e.p2p[from]; s != nil {
		return s, e.pool.fits(s, n)
	}
	if len(e.originsLike(from)) >= mostSenders {
		return nil, false
	}
	if s, waits = e.pool.claimRecvs(from.place, f.recvQueues()); s != nil {
		e.p2p[from] = s
	}
	return s, waits
}

// makeP2P makes streams for an origin without a lock: the device may wait.
func (e *Engine) makeP2P(b device.Access, from origin) (*streams, error) {
	var made *streams
	var err error
	if from.sender >= 0 {
		made, err = e.pool.makeRecvs(b, from.place)
	} else {
		made, _, err = e.pool.takeStreams(b, from.place, device.Outputs)
	}
	if err != nil {
		return nil, err
	}
	e.issuing.Lock()
	defer e.issuing.Unlock()
	return e.choose(e.keepP2P(from, made)), nil
}

// originsLike returns the origins that have streams on the device: those of senders, or the others, in the order of their handles.
// Requires: issuing.
func (e *Engine) originsLike(from origin) (known []origin) {
	for other := range e.p2p {
		if other.place == from.place && (other.sender < 0) == (from.sender < 0) {
			known = append(known, other)
		}
	}
	slices.SortFunc(known, func(a, b origin) int { return cmp.Compare(a.stream, b.stream) })
	return known
}

// p2pStreams returns the streams for p2p operations of a stream of the caller with a peer, nil if they are to be made.
// Requires: issuing, no sender.
func (e *Engine) p2pStreams(from origin, peer int) *streams {
	if s := e.p2p[from]; s != nil {
		return s
	}
	known := e.originsLike(from)
	if len(known) < mostOrigins {
		return nil
	}
	if s := e.takeOver(from, known); s != nil {
		return s
	}
	return e.p2p[known[(peer-coll.AnySource)%len(known)]] // AnySource is the least peer
}

// takeOver gives an origin the streams of one that wait for nothing any more, nil if there are none: its sends have been read, and its recvs
// have ended. That one counts as unknown then.
// Requires: issuing.
func (e *Engine) takeOver(from origin, known []origin) *streams {
	for _, other := range known {
		if s := e.p2p[other]; e.chosen[s] == 0 && e.pool.passed(s) {
			delete(e.p2p, other)
			e.p2p[from] = s
			return s
		}
	}
	return nil
}

// keepP2P returns the streams for an origin: those that were made, or those of a thread that was faster.
// Requires: issuing.
func (e *Engine) keepP2P(from origin, made *streams) *streams {
	if s := e.p2p[from]; s != nil {
		e.pool.giveStreams(from.place, made)
		return s
	}
	e.p2p[from] = made
	return made
}

// closeP2P gives the streams back. Requires: issuing.
func (e *Engine) closeP2P() {
	for from, s := range e.p2p {
		e.pool.giveStreams(from.place, s)
	}
	clear(e.p2p)
}
