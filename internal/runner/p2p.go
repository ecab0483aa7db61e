package runner

/*
#include "runner.h"
*/
import "C"

import (
	"errors"
	"runtime"
)

// PostAtGate posts a send or recv on a device. Its pinned memory has room for all of it, and the device writes InputReady when the
// caller's stream has reached the operation, behind the payload of a send. Words and segments stay in use until the operation is
// complete. The error is [ErrDown] if the group is down.
func (g *Group) PostAtGate(c Call, gate Gate) error {
	var pins runtime.Pinner
	defer pins.Unpin()
	op := *c.raw
	op.n_in, op.in = cSegments(gate.In, &pins)
	op.n_out, op.out = cSegments(gate.Out, &pins)
	at := C.scr_gate{words: gate.Words.c(), inputs: C.uint32_t(gate.Inputs), outputs: C.uint32_t(gate.Outputs)}
	var down C.bool
	r := C.scr_p2p_submit(g.c, &op, &at, &down)
	switch {
	case r != nil:
		*c.out = r
		return nil
	case bool(down):
		return ErrDown
	default:
		return errors.New("sagecomm: no memory for another send or recv")
	}
}
