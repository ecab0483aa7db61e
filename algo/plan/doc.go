// Package plan defines plans: data that describes what one rank does in one collective. It holds the types of both kinds
// of plan and the arithmetic that makes them parametric in length. It builds no plan, proves none and prices none: the
// packages sendrecv and shmplan build, verify proves, cost prices, and algo chooses.
//
// A [SlotPlan] is for ranks that share memory: each rank publishes chunks in its slots and reads or reduces the slots of
// others. A [SendRecvPlan] is for ranks that are joined by channels, whether a channel lies in shared memory or leads to
// another host. Start reading at these two types; slot_steps.go spells a slot plan out for a length.
//
// All functions are pure: any goroutine may call them. Copies of a plan share their slices, so a plan must not be
// changed after it was handed on.
//
// # Why there are two types of plan
//
// Both kinds cut buffers into chunks and let each chunk pass through a list of steps, some of which lag chunks behind
// the head. Beyond that they share nothing but the names of collective, algorithm and rank. In a slot plan the operands
// of a stage follow from rank and size (my slot, all slots, my share), a stage waits for many ranks at once, and at
// most six stages serve all ranks; its proof is about slots that are used again. In a sendrecv plan a step names one
// peer and some pieces, a plan has up to thousands of steps and differs from rank to rank; its proof is about channels.
// One type with both kinds of step would be two halves of which each reader, checker and interpreter uses one. A choice
// between the two kinds needs names and prices, not a common step.
//
// Other libraries: NCCL codes its primitives (send, recv, recvReduceCopySend) into loops over chunks; MSCCL holds them
// as data with explicit dependencies between thread blocks; Gloo and MPICH have code with buffers and requests. Plans
// here have MSCCL's data and NCCL's loop over chunks, and one sequential list for each rank, because a rank is one
// thread.
package plan
