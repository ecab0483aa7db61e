package pgbackend

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
)

// The all_reduce of sparse tensors is a composite operation. A rank does not know how many elements the others have. So
// an all_gather of headers comes first, which says how many, and gives the call its number among the collectives of the
// group. Then each rank sends its elements to every other rank with p2p operations, and the caller adds what has come,
// in rank order: the result has the same bits on all ranks. The p2p operations have an order of their own and tags that
// users cannot have, so collectives that are issued meanwhile are not disturbed, and nobody waits inside the call.

// SparseHeader describes the tensor of one rank to all ranks. All members but Elements must be the same on all ranks.
// The layout is that of sagecomm_sparse_header.
type SparseHeader struct {
	Elements   int64
	SparseDims int64
	Dims       int64
	Sizes      [8]int64 // the first sizes
	Hash       uint64   // of all sizes
	Type       [16]byte // the type's name, padded with zeros
}

// SparseSum is one all_reduce of sparse tensors. Everything in it belongs to the operation until that is complete.
type SparseSum struct {
	Header          SparseHeader
	Indices, Values []byte        // of this rank's elements
	Timeout         time.Duration // of each operation that it is made of; 0: the group's
	Stack           uint64        // as coll.Op.Stack
	// Allocate returns memory for the elements of another rank. It is called for each rank that has any.
	Allocate func(rank int, elements int64) (indices, values []byte, err error)
	// Add adds the elements of all ranks once they are here. culprit is the rank whose elements are not valid, -1: it is
	// this rank that cannot add.
	Add func() (culprit int, err error)
}

// sparseName is how errors call the operation.
const sparseName = "all_reduce"

// numberedHeader is what a rank contributes to the all_gather of headers.
type numberedHeader struct {
	Number int64 // counts the sparse sums of this rank; rank 0's number is in the tags of the p2p operations
	SparseHeader
}

// sparseHeaderBytes is the length of a numberedHeader, whole elements of [coll.Sparse].
var sparseHeaderBytes = binary.Size(numberedHeader{})

// sparseSum is a SparseSum that goes on. Its steps are the operations that it is made of. It is used by the goroutine
// that calls AllReduceSparse and then by the threads that complete the steps.
type sparseSum struct {
	SparseSum
	group    *Group
	promise  *runner.Promise
	sequence uint64                       // of the all_gather
	headers  []byte                       // of all ranks; the all_gather writes them
	left     atomic.Int64                 // steps that go on, and AllReduceSparse
	failure  atomic.Pointer[coll.Failure] // the first one
}

// AllReduceSparse begins the all_reduce of a sparse tensor and returns the work that stands for it and its number. The
// operation is asynchronous.
func (g *Group) AllReduceSparse(s SparseSum) (work *runner.Promise, sequence uint64, failure *coll.Failure) {
	mine := bytes.NewBuffer(make([]byte, 0, sparseHeaderBytes))
	if err := binary.Write(mine, binary.NativeEndian, numberedHeader{g.sparseSums.Add(1), s.Header}); err != nil {
		return nil, 0, g.system(coll.Op{Kind: coll.AllReduce}, err)
	}
	promise, err := g.run.NewPromise()
	if err != nil {
		return nil, 0, g.system(coll.Op{Kind: coll.AllReduce}, err)
	}
	o := &sparseSum{SparseSum: s, group: g, promise: promise, headers: make([]byte, g.size*sparseHeaderBytes)}
	o.left.Store(1)
	g.composites.Add(1)
	gathered, failure := g.Issue(coll.Op{Kind: coll.AllGather, Type: coll.Sparse, Async: true, Timeout: s.Timeout, Stack: s.Stack},
		[][]byte{mine.Bytes()}, [][]byte{o.headers})
	if failure != nil {
		g.composites.Add(-1)
		promise.Drop()
		return nil, 0, failure
	}
	o.sequence = gathered.Sequence()
	o.follow(gathered, o.exchange)
	o.stepEnded()
	return promise, o.sequence, nil
}

// follow calls next when a step has succeeded. The step counts in left until next has returned.
func (o *sparseSum) follow(step runner.Work, next func()) {
	o.left.Add(1)
	step.OnDone(func(f *coll.Failure) {
		var fault *coll.Failure
		defer o.stepEnded()
		defer func() { o.fail(fault) }()
		defer o.group.recoverInto(&fault)
		step.Release()
		if f != nil {
			o.fail(f)
		} else {
			next()
		}
	})
}

// fail keeps the first failure. nil is none.
func (o *sparseSum) fail(f *coll.Failure) {
	if f != nil {
		o.failure.CompareAndSwap(nil, f)
	}
}

// failGroup fails the group, so that the other ranks and the steps that go on end as well. Where another rank has
// failed it first, that rank's cause is kept.
func (o *sparseSum) failGroup(status coll.Status, culprit int, format string, args ...any) {
	f := &coll.Failure{Status: status, Rank: culprit, Op: sparseName, Message: "sagecomm: " + sparseName + ": " + fmt.Sprintf(format, args...)}
	o.group.fail(f)
	if first := o.group.failed(); first != nil {
		f = first
	}
	o.fail(f)
}

// stepEnded is called when a step, or AllReduceSparse, has ended. The last call completes the operation.
func (o *sparseSum) stepEnded() {
	if o.left.Add(-1) != 0 {
		return
	}
	if o.failure.Load() == nil {
		o.add()
	}
	// The count falls first, because the work's done function may destroy the group, which would wait for this operation.
	// Destroy may free the group from here on; Complete touches none of its memory.
	o.group.composites.Add(-1)
	o.promise.Complete(o.failure.Load())
}

func (o *sparseSum) add() {
	var fault *coll.Failure
	defer func() { o.fail(fault) }()
	defer o.group.recoverInto(&fault)
	switch culprit, err := o.Add(); {
	case err == nil:
	case culprit >= 0:
		o.failGroup(coll.Internal, culprit, "rank %d sent elements that are not valid: %v", culprit, err)
	default:
		o.failGroup(coll.System, o.group.rank, "rank %d cannot add the elements of all ranks: %v", o.group.rank, err)
	}
}

// header decodes what a rank has contributed. Another process wrote it, so nothing in it is believed.
func (o *sparseSum) header(rank int) (h numberedHeader) {
	_, _ = binary.Decode(o.headers[rank*sparseHeaderBytes:], binary.NativeEndian, &h) // the length is right
	return h
}

// exchange posts the p2p operations, or fails if the headers differ.
func (o *sparseSum) exchange() {
	g := o.group
	first := o.header(0)
	elements := make([]int64, g.size)
	for rank := range g.size {
		h := o.header(rank)
		if !h.agrees(first.SparseHeader) || h.Elements < 0 {
			o.failGroup(coll.Mismatch, rank,
				"ranks disagree in #%d of group %s: rank 0 gave a sparse tensor of %v, rank %d one of %v; every rank must give the same shape, type and sparse dimensions",
				o.sequence, g.name, first.SparseHeader, rank, h.SparseHeader)
			return
		}
		elements[rank] = h.Elements
	}
	for i := 1; i < g.size && o.failure.Load() == nil; i++ {
		peer := (g.rank + i) % g.size
		if elements[peer] > 0 {
			indices, values, err := o.Allocate(peer, elements[peer])
			if err != nil {
				o.failGroup(coll.System, g.rank, "rank %d has no memory for the elements of rank %d: %v", g.rank, peer, err)
				return
			}
			o.post(coll.Recv, first.Number, sparseIndices, peer, indices)
			o.post(coll.Recv, first.Number, sparseValues, peer, values)
		}
		if elements[g.rank] > 0 {
			o.post(coll.Send, first.Number, sparseIndices, peer, o.Indices)
			o.post(coll.Send, first.Number, sparseValues, peer, o.Values)
		}
	}
}

// The tensors of a rank that travel, each in a p2p operation of its own.
const (
	sparseIndices = iota
	sparseValues
	sparseFields
)

// sparseTag is the tag of a p2p operation: negative, which users' tags are not. Each call has tags of its own, because
// a rank may post the receives of a later call first.
func sparseTag(number int64, field int) int {
	const numbers = 1 << 30 / sparseFields
	return -1 - int(uint64(number)%numbers)*sparseFields - field
}

func (o *sparseSum) post(kind coll.Kind, number int64, field, peer int, memory []byte) {
	op := coll.Op{Kind: kind, Type: coll.Uint8, Root: peer, Tag: sparseTag(number, field), Async: true, Timeout: o.Timeout}
	in, out := [][]byte{memory}, [][]byte(nil)
	if kind == coll.Recv {
		in, out = out, in
	}
	step, failure := o.group.Issue(op, in, out)
	if failure != nil {
		o.fail(failure)
		return
	}
	o.follow(step, func() {})
}

func (h SparseHeader) agrees(other SparseHeader) bool {
	h.Elements = other.Elements
	return h == other
}

// String describes the tensor: "Float (50, 7), 1 dimension sparse".
func (h SparseHeader) String() string {
	name, _, _ := bytes.Cut(h.Type[:], []byte{0})
	var text strings.Builder
	fmt.Fprintf(&text, "%s (", strings.ToValidUTF8(string(name), "?"))
	shown := min(max(h.Dims, 0), int64(len(h.Sizes)))
	for i, size := range h.Sizes[:shown] {
		if i > 0 {
			text.WriteString(", ")
		}
		fmt.Fprint(&text, size)
	}
	if h.Dims > shown {
		fmt.Fprintf(&text, ", ... of %d with hash %08x", h.Dims, uint32(h.Hash)) // the sizes that are not shown may differ
	}
	fmt.Fprintf(&text, "), %d dimension", h.SparseDims)
	if h.SparseDims != 1 {
		text.WriteByte('s')
	}
	text.WriteString(" sparse")
	return text.String()
}
