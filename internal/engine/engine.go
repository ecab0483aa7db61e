// Package engine is the seam between a group and what carries out its collectives. Each lane of a group has one [Engine]:
// package host moves host memory through the runner; engines for devices stand beside it. pgbackend makes engines and calls
// them; an engine knows no torch and no other group.
package engine

import (
	"sagecomm/algo"
	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
)

// Engine carries out the collectives of one lane of a group. Any goroutine may call its methods. The group stays in place
// during a call.
type Engine interface {
	// Name returns the engine's name for texts and records: "host".
	Name() string

	// Prepare makes what Issue needs for calls like this one, or finds it from an earlier call: the program, slots, channels.
	// It may take tenths of a second, and the first call on a device may wait for peers. The call was checked. Errors are those of
	// Issue.
	Prepare(call runner.Call, op coll.Op) (Prepared, error)

	// Issue numbers the call and queues it. It waits for no peer, unless it says so, and then the call is announced. The error is [runner.ErrDown] if the group is down, or a
	// [Refusal]. After an error, nothing of the call was issued.
	Issue(call runner.Call, op coll.Op, p Prepared) error

	// Abort ends all waits of devices for this engine's operations. The group is down, so no later call is issued.
	Abort()

	// Close gives back what the engine holds. No operation of the lane is under way, and no later call is made.
	Close()
}

// P2P is an Engine that carries out sends and recvs, too. The runner does so itself on host memory.
type P2P interface {
	// IssueP2P posts a send or recv in its place among those of its peer and tag. It waits for no peer, and for the
	// device only in the first call of a group, where a method has to load kernels. The call was checked; errors are those of Issue.
	IssueP2P(call runner.Call, op coll.Op) error
}

// Carrier is an Engine that carries out several operations in one collective, in a group that fuses.
type Carrier interface {
	// IssueCarrier numbers and queues one collective for the first n held operations of the runner. op stands for all of them.
	// It waits for no peer.
	IssueCarrier(n int, op coll.Op) error

	// Agree begins an agreement on the held operations: see runner.Group.Agree. It waits for no peer.
	Agree(about coll.Op, proposal int) (runner.Agreement, error)
}

// Refusal is the error of a call that this rank may not make. The group goes on without it. After any other error of an
// engine the group has failed, because peers make a call that this rank cannot join.
type Refusal struct{ Err error }

func (r *Refusal) Error() string { return r.Err.Error() }
func (r *Refusal) Unwrap() error { return r.Err }

// Prepared is what Prepare returns for one call.
type Prepared struct {
	Class   algo.Class      // the algorithm, its transport and its chunk
	Program runner.Compiled // the program
	Kept    bool            // the program is in the cache of the lane; else it belongs to this call

	// Captured tells that the caller's stream is being captured into a graph, and that Issue makes the operation a part of it: nothing is
	// numbered, and the call is complete when Issue returns. There is no program.
	Captured bool
}
