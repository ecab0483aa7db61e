// Package message holds the second kind of plan: collectives made of messages between pairs of ranks. A board plan
// (package board) is for ranks that share memory, a message plan for ranks that are joined by channels: rings of shared
// memory between two processes, connections between two hosts. Like board it is data and arithmetic only.
//
// A [Plan] is what one rank does: [Step]s (send, recv, recv-and-reduce, reduce, copy) on pieces of the input, the
// output and scratch memory. The same value is proved ([Check]), counted ([Count]), priced ([Price]), and written so
// that whoever has channels can carry it out. Start reading at [Plan], then all_reduce_ring.go; testdata/plans.txt
// shows all plans for 4 and 5 ranks, and compose.go puts plans together into hierarchical ones.
//
// # Why two types of plan
//
// Both kinds cut buffers into chunks and let each chunk pass through a list of steps, some of them lag chunks behind
// the head; that and the names of collective, algorithm and place are all that they share. What a board's stage works
// on follows from rank and size (my slot, all slots, my share), it waits for flags of many ranks at once and one list
// of at most six stages serves all; its proof is about slots that are used again. A message step names a peer and
// pieces, a plan has up to thousands of them and differs from rank to rank; its proof is about channels. One type with
// both kinds of step would be two halves of which each reader, checker and interpreter may use one. Where both are to
// be chosen from, that choice needs a name and a price, not a common step.
//
// Of the libraries, NCCL codes its primitives (send, recv, recvReduceCopySend) into loops over chunks, MSCCL holds
// them as data with explicit dependencies between thread blocks, Gloo and MPICH have code with buffers and requests.
// This is MSCCL's data with NCCL's loop over chunks, and with one sequential list for each rank: a rank here is one
// thread.
//
// # Lengths
//
// Plans are parametric in length. A buffer is flat, or a block for each rank, in rank order. Each block, or the flat
// buffer, is cut into chunks of [Plan.Chunk] bytes, the last one shorter. Every chunk is cut into [Plan.Pieces] pieces:
// of u = ceil(bytes / 64) units the first u mod Pieces pieces get one more than the others, and the last unit may be
// short. A unit of 64 bytes is a cache line and a multiple of every element (1 to 16 bytes), so no piece divides an
// element, no two pieces share a line of an aligned buffer, and a plan need not know the type. With fewer units than
// pieces the last pieces are empty.
//
// A message of no bytes is sent in chunk 0 and left out in later ones: both ends see this from the lengths of the
// blocks concerned. So ranks meet, and find out that they call different things, also where there is nothing to move: a
// collective of 0 bytes has one chunk. Ranks may know the lengths of different blocks (all_to_all with uneven splits)
// and so go through different numbers of chunks.
//
// # Channels
//
// A channel takes messages from one rank to one other, first in, first out; there may be several, numbered, between the
// same two. It holds at least one message ([Plan.Largest] bounds its bytes). A send may go on as soon as the channel
// has room, and whether it copies the bytes or keeps reading them from where they lie is the channel's matter: a step
// that overwrites them names the send in [Step.After], and waits until its message has been taken: until the channel
// reads the sender's memory no more, which is at once where it copies, and at the latest when the receiver has the
// message. A recv waits for the next message.
//
// A rank carries out its steps in this order: at position i of the pipeline each step in turn, on chunk i - Lag. Before
// position i, sends out of scratch memory of chunk i - [Plan.Sets] must have been taken, since its cells are used
// again; before the collective is over, all sends must have been.
//
// Factors are the business of whoever runs the plan: PREMUL_SUM scales the input before, AVG the output after it.
package sendrecv
