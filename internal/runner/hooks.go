package runner

/*
#include "runner.h"

*/
import "C"

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"sagecomm/internal/coll"
)

// Handler decides what the runner does not decide itself. The runner calls it on the threads of callers and holds no lock then.
type Handler interface {
	// Issue checks a call that the fast path cannot take, finds its program and submits it.
	Issue(group uint64, call Call) *coll.Failure
	// Fuse checks the operations of a coalesced call and returns the number of the batch of each operation; see fusion.Plan.
	Fuse(group uint64, calls []Call) ([]uint32, *coll.Failure)
	// Incident diagnoses an incident that a driver has met. The group is down when it returns, or soon: then the driver, when it comes back,
	// meets the incident again.
	Incident(group uint64, t Incident)
	// Fifo creates the fifo from this rank to the peer. If it cannot, the group is down when it returns.
	Fifo(group uint64, peer int)
	// Fail declares a failure whose text the runner has worded.
	Fail(group uint64, cause *coll.Failure)
	// Trace is told of each operation before it is issued, in groups that were opened with Config.Trace.
	Trace(group uint64, call Call)
	// Want is told that somebody waits for a held operation of the group. It calls use with the agreement that is under way, unless
	// there is none: then the operation has a carrier, or the group is down.
	Want(group uint64, use func(Agreement))
}

// Pair is what moves bytes between a rank of this process and one of another host. The runner calls it on any thread, with locks of its own held: so
// it waits for nothing, and for no lock that is held while the runner is entered, but for Visit.
type Pair interface {
	Push()       // what was published goes out, at once or soon
	Wake()       // the pump of the link looks at all that was stored, the goodbye as well
	Detach()     // this rank touches nothing of the group any more
	Poll() bool  // reads what has come, and reports whether there was anything
	Attend(bool) // a thread begins, or ends, to poll again and again

	// Send sends a payload out of the buffer of a user, and reports whether it was taken: not if that would have to wait, or something
	// that comes before it is not sent yet.
	Send(Payload) bool
	// Expect lets a payload that is about to come be written to the buffer of a user, if it has not begun to come.
	// It reports whether there may be something to forget.
	Expect(Payload) bool
	// Forget ends what Expect began, for a lane: when it returns, nothing is written to buffers any more. It waits only while somebody
	// handles what has come.
	Forget(lane int)
}

// Payload is a message of a channel, or a piece of a p2p operation, that passes between a connection and the buffer of a user without a copy.
type Payload struct {
	Lane    int
	Channel int    // Piece: a piece
	Number  uint64 // of the message, or of the operation
	Hash    uint64 // of the message; of a piece to send: bytes of the operation
	Block   uint64 // of the message; of a piece to send: where its frame begins in the fifo
	Data    []byte // memory of C; of a piece that is expected: the whole operation
}

// Piece is the Channel of a piece of a p2p operation.
const Piece = C.SCR_PIECE

func payloadOf(p *C.scr_payload) Payload {
	return Payload{int(p.lane), int(p.channel), uint64(p.number), uint64(p.hash), uint64(p.block), unsafe.Slice((*byte)(p.data), int(p.bytes))}
}

// pairsOfABlock is how many pairs share a block, and mostBlocks how many blocks there may be.
const (
	pairsOfABlock = 4096
	mostBlocks    = 8192
)

// pairBlock holds pairs that the runner may call, by number. A block is made when its first number is given out, and stays.
type pairBlock [pairsOfABlock]atomic.Pointer[Pair]

var pairBlocks [mostBlocks]atomic.Pointer[pairBlock]

// pairNumbers are those that AddPair has given out. A process has a pair for each rank of its own and each of another host, of each group, so
// adding one costs the same however many there are.
var pairNumbers struct {
	sync.Mutex
	last uint64   // 0 is no number
	free []uint64 // that were given back
}

// AddPair gives a pair a number, for Peer.Pair.
func AddPair(p Pair) (number uint64) {
	n := &pairNumbers
	n.Lock()
	defer n.Unlock()
	if last := len(n.free) - 1; last >= 0 {
		number, n.free = n.free[last], n.free[:last]
	} else {
		n.last++
		number = n.last
	}
	block := &pairBlocks[number/pairsOfABlock]
	if block.Load() == nil {
		block.Store(new(pairBlock))
	}
	block.Load()[number%pairsOfABlock].Store(&p)
	return number
}

// RemovePair ends the number of a pair. No group that has it is open any more.
func RemovePair(number uint64) {
	n := &pairNumbers
	n.Lock()
	defer n.Unlock()
	pairBlocks[number/pairsOfABlock].Load()[number%pairsOfABlock].Store(nil)
	n.free = append(n.free, number)
}

// pairAt returns the pair of a number, nil if there is none any more.
func pairAt(number uint64) Pair {
	if number >= mostBlocks*pairsOfABlock {
		return nil
	}
	if block := pairBlocks[number/pairsOfABlock].Load(); block != nil {
		if p := block[number%pairsOfABlock].Load(); p != nil {
			return *p
		}
	}
	return nil
}

var (
	handler Handler
	install sync.Once
)

// SetHandler installs the handler, once per process, before the first group.
func SetHandler(h Handler) {
	install.Do(func() {
		handler = h
		C.scr_call_go()
	})
}

//export scrGoIssue
func scrGoIssue(group C.uint64_t, op *C.sagecomm_op, out **C.scr_run, err *C.sagecomm_error) C.int32_t {
	if f := handler.Issue(uint64(group), Call{op, out}); f != nil {
		if err != nil {
			fillError(err, f)
		}
		return C.int32_t(f.Status)
	}
	return C.SAGECOMM_OK
}

//export scrGoFuse
func scrGoFuse(group C.uint64_t, ops *C.sagecomm_op, n C.uint32_t, batch *C.uint32_t, err *C.sagecomm_error) C.int32_t {
	calls := make([]Call, n)
	for i := range unsafe.Slice(ops, int(n)) {
		calls[i] = Call{raw: &unsafe.Slice(ops, int(n))[i]}
	}
	batches, f := handler.Fuse(uint64(group), calls)
	if f != nil {
		if err != nil {
			fillError(err, f)
		}
		return C.int32_t(f.Status)
	}
	copy(unsafe.Slice((*uint32)(unsafe.Pointer(batch)), int(n)), batches)
	return C.SAGECOMM_OK
}

//export scrGoIncident
func scrGoIncident(group C.uint64_t, t *C.scr_incident) {
	handler.Incident(uint64(group), goIncident(t))
}

//export scrGoFail
func scrGoFail(group C.uint64_t, cause *C.sagecomm_error) {
	handler.Fail(uint64(group), failureOf(cause.status, cause))
}

//export scrGoTrace
func scrGoTrace(group C.uint64_t, op *C.sagecomm_op) {
	handler.Trace(uint64(group), Call{raw: op})
}

//export scrGoPush
func scrGoPush(pair C.uint64_t) {
	if p := pairAt(uint64(pair)); p != nil {
		p.Push()
	}
}

//export scrGoWake
func scrGoWake(pair C.uint64_t) {
	if p := pairAt(uint64(pair)); p != nil {
		p.Wake()
	}
}

//export scrGoDetach
func scrGoDetach(pair C.uint64_t) {
	if p := pairAt(uint64(pair)); p != nil {
		p.Detach()
	}
}

//export scrGoPoll
func scrGoPoll(pair C.uint64_t) C.int32_t {
	if p := pairAt(uint64(pair)); p != nil && p.Poll() {
		return 1
	}
	return 0
}

//export scrGoAttend
func scrGoAttend(pair C.uint64_t, on C.int32_t) {
	if p := pairAt(uint64(pair)); p != nil {
		p.Attend(on != 0)
	}
}

//export scrGoSend
func scrGoSend(pair C.uint64_t, p *C.scr_payload) C.int32_t {
	if to := pairAt(uint64(pair)); to != nil && to.Send(payloadOf(p)) {
		return 1
	}
	return 0
}

//export scrGoExpect
func scrGoExpect(pair C.uint64_t, p *C.scr_payload) C.int32_t {
	if from := pairAt(uint64(pair)); from != nil && from.Expect(payloadOf(p)) {
		return 1
	}
	return 0
}

//export scrGoForget
func scrGoForget(pair C.uint64_t, lane C.int32_t) {
	if from := pairAt(uint64(pair)); from != nil {
		from.Forget(int(lane))
	}
}

//export scrGoFifo
func scrGoFifo(group C.uint64_t, peer C.int32_t) C.int32_t {
	handler.Fifo(uint64(group), int(peer))
	return C.SAGECOMM_OK
}
