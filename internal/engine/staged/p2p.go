package staged

import (
	"cmp"
	"slices"

	"sagecomm/internal/coll"
	"sagecomm/internal/device"
	"sagecomm/internal/engine"
	"sagecomm/internal/runner"
)

var _ engine.P2P = (*Engine)(nil)

// origin is a stream of a caller, as an implementation of device.Runtime reaches it. The handle of a stream that is gone may come
// back for another one; both are in the order of one stream then.
type origin struct {
	place
	stream uintptr
	sender int // of a recv for which a stream of the library waits; else -1
}

// Bounds of the streams that p2p operations take of each device. Callers beyond mostOrigins share streams with others, chosen by the
// peer, and a late stream of one may delay the operations of the other.
const (
	mostOrigins = 4
	mostSenders = 8 // and streams of callers
)

// IssueP2P implements engine.P2P. Operations of different streams of the caller do not wait for each other, so they have streams
// of their own, which no collective uses either. InputReady of a recv says that the stream has come past the earlier users of its
// output.
func (e *Engine) IssueP2P(call runner.Call, op coll.Op) error {
	e.Begin(op.Device)
	b, err := e.open(call, op)
	if err != nil {
		return &engine.Refusal{Err: e.errorOf(op, err)}
	}
	b, from := e.accessFor(b, op)
	l, owner := layoutOf(call.In(), call.Out(), op.Writes(e.rank)), source{op.Device.Type, b.Name()}
	memory, err := e.pool.acquire(b, owner, l.bytes)
	if err != nil {
		return e.errorOf(op, err)
	}
	defer e.pool.release(owner, memory)
	s, err := e.streamsFor(b, from, op.Root)
	e.issuing.Lock()
	defer e.issuing.Unlock()
	if err == nil {
		err = enqueue(b, memory, &l, s)
	}
	if err != nil {
		err = e.errorOf(op, err)
	} else {
		err = e.run.PostAtGate(call, runner.Gate{Words: memory.words, Inputs: 1, Outputs: 1, In: l.in.pinned(memory), Out: l.out.pinned(memory)})
	}
	if err != nil { // a stream may wait for this operation
		memory.words.Open()
	}
	return err
}

// accessFor returns the access by which an operation is carried out, and what its streams are for. A stream for a sender is e.p2p's from now
// on, with nil until it is made.
func (e *Engine) accessFor(b device.Access, op coll.Op) (device.Access, origin) {
	from := origin{place{op.Device, b.Name()}, op.Stream, -1}
	f, ok := b.(frameworkStreams)
	if !ok || op.Kind != coll.Recv {
		return b, from
	}
	e.issuing.Lock()
	defer e.issuing.Unlock()
	if from.sender = op.Root; !e.waitsForSender(op, from) {
		b = f.alone()
		return b, origin{place{op.Device, b.Name()}, op.Stream, -1}
	}
	if _, known := e.p2p[from]; !known {
		e.p2p[from] = nil
	}
	return b, from
}

// waitsForSender reports whether a stream may wait for a recv. It holds up the recvs behind it in that stream, whose senders may
// need what this one brings. So each sender has streams of its own, whose recvs end in their order. Where tags or a recv from any
// source leave the order open, the caller of the library queues the copies when the recv has ended.
// Requires: issuing.
func (e *Engine) waitsForSender(op coll.Op, from origin) bool {
	if op.Tag != 0 || op.Root < 0 || op.Root == e.rank {
		return false
	}
	_, known := e.p2p[from]
	return known || e.streamsInUse(from) < mostSenders
}

// streamsInUse returns how many streams p2p operations have on the device: those for senders, or the others.
// Requires: issuing.
func (e *Engine) streamsInUse(from origin) (n int) {
	for other := range e.p2p {
		if other.place == from.place && (other.sender < 0) == (from.sender < 0) {
			n++
		}
	}
	return n
}

// streamsFor returns the streams for p2p operations of a stream of the caller with a peer. It makes them without a lock.
func (e *Engine) streamsFor(b device.Access, from origin, peer int) (*streams, error) {
	if s := e.knownStreams(from, peer, nil); s != nil {
		return s, nil
	}
	made, err := e.pool.takeStreams(b, from.place)
	if err != nil {
		return nil, err
	}
	s := e.knownStreams(from, peer, made)
	if s != made { // another thread was faster
		e.pool.giveStreams(from.place, made)
	}
	return s, nil
}

// knownStreams returns the streams for an origin. If it has none yet, it gets those that were made, which may be nil.
func (e *Engine) knownStreams(from origin, peer int, made *streams) *streams {
	e.issuing.Lock()
	defer e.issuing.Unlock()
	s, known := e.p2p[from]
	switch {
	case s != nil:
		return s
	case !known && from.sender < 0 && e.streamsInUse(from) >= mostOrigins:
		return e.sharedStreams(from.place, peer)
	case made != nil:
		e.p2p[from] = made
	}
	return made
}

// sharedStreams returns the streams of another caller's stream, always the same ones for a peer.
// Requires: issuing; the device has mostOrigins of them.
func (e *Engine) sharedStreams(on place, peer int) *streams {
	var known []origin
	for other := range e.p2p {
		if other.place == on && other.sender < 0 {
			known = append(known, other)
		}
	}
	slices.SortFunc(known, func(a, b origin) int { return cmp.Compare(a.stream, b.stream) })
	return e.p2p[known[(peer-coll.AnySource)%len(known)]] // AnySource is the least peer
}

// closeP2P gives the streams back. Requires: issuing.
func (e *Engine) closeP2P() {
	for from, s := range e.p2p {
		if s != nil {
			e.pool.giveStreams(from.place, s)
		}
	}
	clear(e.p2p)
}
