// Package plan defines plans: data that describes what one rank does in one collective. It holds the types of both
// kinds of plan and the arithmetic that makes them parametric in length. It builds, proves and prices no plan: the
// packages sendrecv and shmplan build, verify proves, cost prices, and algo chooses.
//
// A [SlotPlan] is for ranks that share memory: each rank publishes chunks in its slots and reads or reduces the slots
// of others. A [SendRecvPlan] is for ranks that are joined by channels, whether a channel lies in shared memory or
// leads to another host. Start reading at these two types. [Concrete], in slot_steps.go, turns a slot plan into the
// steps for one length.
//
// All functions are pure, and any goroutine may call them. Copies of a plan share their slices, so nobody may change a
// plan that was handed on.
//
// # Why there are two types of plan
//
// Both kinds cut buffers into chunks and let each chunk pass through a list of steps, some of which lag behind the
// others by some chunks. Beyond that they share nothing but the names of collective, algorithm and rank. In a slot plan
// the operands of a stage follow from rank and size (my slot, all slots, my share), a stage waits for many ranks at
// once, and at most six stages serve all ranks; its proof is about slots that are used again. In a sendrecv plan a step
// names one peer and some pieces, a plan has up to thousands of steps and differs from rank to rank; its proof is about
// channels. A single type would consist of two halves, and each reader, checker and interpreter would use only one of
// them. The choice between the two kinds needs names and prices, not a common step.
//
// Other libraries do it as follows. NCCL codes its primitives (send, recv, recvReduceCopySend) into loops over chunks;
// MSCCL holds them as data with explicit dependencies between thread blocks; Gloo and MPICH have code with buffers and
// requests. Plans here have MSCCL's data and NCCL's loop over chunks, and one sequential list for each rank, because a
// rank is one thread.
package plan
