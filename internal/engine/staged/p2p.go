package staged

import (
	"sagecomm/internal/coll"
	"sagecomm/internal/engine"
	"sagecomm/internal/runner"
)

var _ engine.P2P = (*Engine)(nil)

// origin is a stream of a caller, as an implementation of device.Runtime reaches it. The handle of a stream that is gone may come
// back for another one; both are in the order of one stream then.
type origin struct {
	place
	stream uintptr
}

// mostOrigins bounds the streams that p2p operations take of each device. Callers beyond that share streams with others, and a
// late stream of one may delay the operations of the other.
const mostOrigins = 4

// IssueP2P implements engine.P2P. Operations of different streams of the caller do not wait for each other, so they have streams
// of their own, which no collective uses either. InputReady of a recv says that the stream has come past the earlier users of its
// output.
//
// Where the caller can queue the copies back, it does, in the order in which operations end. A stream that waited for one recv would
// hold up the next one, whose sender may need what that one brings.
func (e *Engine) IssueP2P(call runner.Call, op coll.Op) error {
	b, err := e.open(call, op)
	if err != nil {
		return &engine.Refusal{Err: e.errorOf(op, err)}
	}
	if a, ok := b.(*adopted); ok {
		b = a.bridge
	}
	l := layoutOf(call.In(), call.Out(), op.Writes(e.rank))
	memory, err := e.pool.acquire(b, source{op.Device.Type, b.Name()}, l.bytes)
	if err != nil {
		return e.errorOf(op, err)
	}
	defer e.pool.release(source{op.Device.Type, b.Name()}, memory)
	e.issuing.Lock()
	defer e.issuing.Unlock()
	s, err := e.streamsFor(b, origin{place{op.Device, b.Name()}, op.Stream})
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

// streamsFor returns the streams for p2p operations of a stream of the caller.
// Requires: issuing.
func (e *Engine) streamsFor(b Access, from origin) (streams, error) {
	if s, known := e.p2p[from]; known {
		return s, nil
	}
	var shared *streams
	n := 0
	for other, s := range e.p2p {
		if other.place == from.place {
			n, shared = n+1, &s
		}
	}
	if n >= mostOrigins {
		return *shared, nil
	}
	s, err := e.pool.takeStreams(b, from.place)
	if err == nil {
		e.p2p[from] = s
	}
	return s, err
}

// closeP2P gives the streams back. Requires: issuing.
func (e *Engine) closeP2P() {
	for from, s := range e.p2p {
		e.pool.giveStreams(from.place, s)
	}
	clear(e.p2p)
}
