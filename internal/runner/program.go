package runner

/*
#include "runner.h"

static int scr_set_reduction(scr_program *p, int dtype, int op, _Bool premul) {
  p->reduce = p->kernels->reduce[dtype][op];
  p->scale = premul ? p->kernels->scale[dtype] : NULL;
  return p->reduce != NULL && (!premul || p->scale != NULL);
}
*/
import "C"

import (
	"errors"
	"fmt"
	"unsafe"

	"sagecomm/internal/coll"
)

// Stage is one stage of a slot program: plan.Stage in the form of C. The constants are those of runner.h.
type Stage struct {
	Action, Lag, From, Back    uint8
	Share, ToOutput, SkipOwnIn bool
	Head                       bool
}

// Actions and sources of stages, as in shared_block.h.
const (
	Publish = C.SCR_PUBLISH
	Reduce  = C.SCR_REDUCE
	Collect = C.SCR_COLLECT
	Read    = C.SCR_READ
	Await   = C.SCR_AWAIT
	Local   = C.SCR_LOCAL

	Nobody    = C.SCR_NOBODY
	Everybody = C.SCR_EVERYBODY
	Others    = C.SCR_OTHERS
	FromRoot  = C.SCR_FROM_ROOT

	MaxStages = C.SCR_MAX_STAGES
)

// Program describes a slot program to NewProgram.
type Program struct {
	Kind         coll.Kind
	Algorithm    string // for statistics
	Type         coll.DataType
	Reduce       coll.ReduceOp
	Large        int // 1: its chunks go through large slots, 0: small slots
	Chunk        int // bytes
	Head         int // bytes
	Divisor      float64
	InputBlocks  bool
	OutputBlocks bool
	OwnFromInput bool // reductions read this rank's contribution from its input, not from its slot
	Stages       []Stage
}

// Compiled is a program in C memory. It belongs to a group's cache or to one run.
type Compiled struct{ c *C.scr_program }

// NewProgram returns the program in C memory.
func NewProgram(p Program) (Compiled, error) {
	if len(p.Stages) > MaxStages {
		return Compiled{}, fmt.Errorf("sagecomm: %v: a program has at most %d stages, this plan has %d", p.Kind, MaxStages, len(p.Stages))
	}
	c := C.scr_program_new()
	if c == nil {
		return Compiled{}, errors.New("sagecomm: no memory for a program")
	}
	c.large, c.n_stages, c.elem = C.uint8_t(p.Large), C.uint8_t(len(p.Stages)), C.uint8_t(p.Type.Size())
	c.input_blocks, c.output_blocks, c.own_from_input = bit(p.InputBlocks), bit(p.OutputBlocks), bit(p.OwnFromInput)
	c.chunk, c.head, c.divisor = C.uint32_t(p.Chunk), C.uint32_t(p.Head), C.double(p.Divisor)
	c.algorithm = algorithmNumber(p.Algorithm)
	c.kernels = C.scr_get_kernels()
	if p.Kind.Reduces() && C.scr_set_reduction(c, C.int(p.Type), C.int(p.Reduce), C._Bool(p.Reduce == coll.PremulSum)) == 0 {
		C.scr_program_free(c)
		return Compiled{}, fmt.Errorf("sagecomm: %v: no kernel for %v of %v", p.Kind, p.Reduce, p.Type)
	}
	for i, s := range p.Stages {
		c.stage[i] = C.scr_stage{action: C.uint8_t(s.Action), lag: C.uint8_t(s.Lag), from: C.uint8_t(s.From),
			share: bit(s.Share), to_output: bit(s.ToOutput), back: C.uint8_t(s.Back), skip_own: bit(s.SkipOwnIn), head: bit(s.Head)}
		if s.Head {
			c.n_heads++
		}
		c.max_lag = max(c.max_lag, C.uint8_t(s.Lag))
	}
	return Compiled{c}, nil
}

// NewExternal returns the program of an external run ([Gate.External]), which has no stages. algorithm is for statistics.
func NewExternal(kind coll.Kind, t coll.DataType, algorithm string) (Compiled, error) {
	c := C.scr_program_new()
	if c == nil {
		return Compiled{}, errors.New("sagecomm: no memory for a program")
	}
	c.elem, c.chunk = C.uint8_t(t.Size()), C.uint32_t(1<<30)
	c.algorithm = algorithmNumber(algorithm)
	return Compiled{c}, nil
}

func bit(b bool) C.uint8_t {
	if b {
		return 1
	}
	return 0
}

// Free frees a program that no run and no cache has taken.
func (p Compiled) Free() { C.scr_program_free(p.c) }

// Chunk returns the bytes of a chunk of each block.
func (p Compiled) Chunk() uint64 { return uint64(p.c.chunk) }

// Lag returns how many chunks the last stage of a chunk is behind its first one.
func (p Compiled) Lag() uint32 {
	if p.c.sendrecv != nil {
		return uint32(p.c.sendrecv.max_lag)
	}
	return uint32(p.c.max_lag)
}

// Key returns the key in the cache of the program for such a call, and class its size class. length is the length by which C
// identifies the call (scr_op_bytes).
func (g *Group) Key(c Call, length uint64) (key uint64, class int) {
	bytes := C.uint64_t(length)
	return uint64(C.scr_cache_key(g.c, c.raw, bytes)), int(C.scr_group_class(g.c, C.int(c.raw.kind), bytes))
}

// Lookup returns the program of the cache with a key.
func (g *Group) Lookup(key uint64) (Compiled, bool) {
	p := C.scr_cache_find(g.c, C.uint64_t(key))
	return Compiled{(*C.scr_program)(unsafe.Pointer(p))}, p != nil
}

// Keep puts a program into the cache, where it stays as long as the group. It returns false if the cache is full.
// Requires: no other call of Keep is under way.
func (g *Group) Keep(key uint64, p Compiled) bool {
	return bool(C.scr_cache_insert(g.c, C.uint64_t(key), p.c))
}
