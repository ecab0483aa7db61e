package runner

/*
#include "runner.h"
*/
import "C"

// PostAtGate posts a send or recv on a device. Its pinned memory has room for all of it, and the device writes InputReady when the
// caller's stream has reached the operation, behind the payload of a send. Words and segments stay in use until the operation is
// complete. The error is [ErrDown] if the group is down.
func (g *Group) PostAtGate(c Call, gate Gate) error {
	return c.atGate(gate, func(op *C.sagecomm_op, at *C.scr_gate) error {
		var down C.bool
		r := C.scr_p2p_submit(g.c, op, at, &down)
		return c.issued(r, down)
	})
}
