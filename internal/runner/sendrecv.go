package runner

/*
#include "runner.h"

static int scr_set_sendrecv_reduction(scr_program *p, int dtype, int op) {
  _Bool average = op == SAGECOMM_AVG;
  p->reduce = p->kernels->reduce[dtype][average || op == SAGECOMM_PREMUL_SUM ? SAGECOMM_SUM : op];
  p->scale = op == SAGECOMM_PREMUL_SUM ? p->kernels->scale[dtype] : NULL;
  p->sendrecv->average = average ? p->kernels->reduce[dtype][op] : NULL;
  return p->reduce != NULL && (!average || p->sendrecv->average != NULL) && (op != SAGECOMM_PREMUL_SUM || p->scale != NULL);
}

static void scr_set_sendrecv_step(scr_program *p, uint32_t i, const scr_step *s) {
  ((scr_step *)(uintptr_t)p->sendrecv->step)[i] = *s;
}

static void scr_set_sendrecv_region(scr_program *p, uint32_t i, const scr_region *r) {
  ((scr_region *)(uintptr_t)p->sendrecv->region)[i] = *r;
}
*/
import "C"

import (
	"errors"
	"fmt"

	"sagecomm/internal/coll"
)

// Region is plan.Region in the form of C: consecutive pieces of the chunk of a block.
type Region struct {
	Space, Cell, Block, First, Count int
}

// Spaces of regions.
const (
	Input   = C.SCR_INPUT
	Output  = C.SCR_OUTPUT
	Scratch = C.SCR_SCRATCH
)

// SendRecvStep is plan.Step in the form of C: one step of a sendrecv program.
type SendRecvStep struct {
	Op           uint8
	Lag, Peer    int
	Channel      uint8
	MessageFirst bool
	From, To     []Region
}

// Steps of sendrecv programs.
const (
	StepSend       = C.SCR_STEP_SEND
	StepRecv       = C.SCR_STEP_RECV
	StepRecvReduce = C.SCR_STEP_RECV_REDUCE
	StepReduce     = C.SCR_STEP_REDUCE
	StepCopy       = C.SCR_STEP_COPY
)

// SendRecvProgram describes a sendrecv program to NewSendRecvProgram.
type SendRecvProgram struct {
	Kind         coll.Kind
	Algorithm    string // for statistics
	Type         coll.DataType
	Reduce       coll.ReduceOp
	Size         int // of the group
	Chunk        int // bytes
	Pieces       int
	Cells, Sets  int
	Even         bool
	InputBlocks  bool
	OutputBlocks bool
	Steps        []SendRecvStep
	Longest      int // message of the channels, in bytes
}

// NewSendRecvProgram returns the program in C memory.
func NewSendRecvProgram(p SendRecvProgram) (Compiled, error) {
	regions := 0
	for _, s := range p.Steps {
		if s.Channel >= Channels {
			return Compiled{}, fmt.Errorf("sagecomm: %v %s: channel %d: the runner has %d between two ranks", p.Kind, p.Algorithm, s.Channel, Channels)
		}
		list := s.From
		if s.Op == StepRecv || s.Op == StepRecvReduce {
			list = s.To
		}
		if n := p.longest(list); n > p.Longest && s.Op <= StepRecvReduce {
			return Compiled{}, fmt.Errorf("sagecomm: %v %s: messages of %d bytes, at most %d are possible", p.Kind, p.Algorithm, n, p.Longest)
		}
		regions += len(s.From) + len(s.To)
	}
	c := C.scr_program_new()
	if c == nil || !C.scr_program_sendrecv(c, C.uint32_t(len(p.Steps)), C.uint32_t(regions)) {
		C.scr_program_free(c)
		return Compiled{}, errors.New("sagecomm: no memory for a program")
	}
	m := c.sendrecv
	c.elem, c.chunk, c.divisor = C.uint8_t(p.Type.Size()), C.uint32_t(p.Chunk), C.double(p.Size)
	c.input_blocks, c.output_blocks = bit(p.InputBlocks), bit(p.OutputBlocks)
	c.algorithm = algorithmNumber(p.Algorithm)
	c.kernels = C.scr_get_kernels()
	m.pieces, m.cells, m.sets, m.even = C.uint32_t(p.Pieces), C.uint32_t(p.Cells), C.uint32_t(p.Sets), C.bool(p.Even)
	if p.Kind.Reduces() && C.scr_set_sendrecv_reduction(c, C.int(p.Type), C.int(p.Reduce)) == 0 {
		C.scr_program_free(c)
		return Compiled{}, fmt.Errorf("sagecomm: %v: no kernel for %v of %v", p.Kind, p.Reduce, p.Type)
	}
	at := C.uint32_t(0)
	put := func(list []Region) (first, n C.uint32_t) {
		first, n = at, C.uint32_t(len(list))
		for _, r := range list {
			C.scr_set_sendrecv_region(c, at, &C.scr_region{space: C.uint32_t(r.Space), cell: C.uint32_t(r.Cell),
				block: C.int32_t(r.Block), first: C.uint32_t(r.First), count: C.uint32_t(r.Count)})
			at++
		}
		return first, n
	}
	for i, s := range p.Steps {
		step := C.scr_step{op: C.uint8_t(s.Op), channel: C.uint8_t(s.Channel), message_first: bit(s.MessageFirst),
			lag: C.uint32_t(s.Lag), peer: C.int32_t(s.Peer)}
		step.from, step.n_from = put(s.From)
		step.to, step.n_to = put(s.To)
		C.scr_set_sendrecv_step(c, C.uint32_t(i), &step)
		m.max_lag = max(m.max_lag, step.lag)
	}
	return Compiled{c}, nil
}

// longest returns the largest number of bytes that regions hold in any chunk. Like plan.SendRecvPlan.Largest it assumes full
// chunks. Receivers need it too, because it bounds how far they read a place of a channel.
func (p SendRecvProgram) longest(list []Region) int {
	const unit = 64
	units, sum := (p.Chunk+unit-1)/unit, 0
	start := func(piece int) int {
		return min((piece*(units/p.Pieces)+min(piece, units%p.Pieces))*unit, p.Chunk)
	}
	for _, r := range list {
		sum += start(r.First+r.Count) - start(r.First)
	}
	return sum
}

// HasChannel reports whether a channel from this rank to a peer exists.
func (g *Group) HasChannel(to int, channel uint8) bool {
	return bool(C.scr_group_has_channel(g.c, C.int32_t(to), C.int32_t(channel)))
}

// ChannelBytes returns how much of this rank's arena a channel takes.
func (g *Group) ChannelBytes() int64 { return int64(C.scr_group_channel_bytes(g.c)) }

// MessageBytes returns the length of the longest message of a channel.
func (g *Group) MessageBytes() int { return int(C.scr_group_message_bytes(g.c)) }

// SetChannel publishes the offset of a channel from this rank to a peer in this rank's arena.
func (g *Group) SetChannel(to int, channel uint8, offset int64) {
	C.scr_group_set_channel(g.c, C.int32_t(to), C.int32_t(channel), C.uint64_t(offset))
}
