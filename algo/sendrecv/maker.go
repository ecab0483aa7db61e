// How builders write plans.

package sendrecv

import (
	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
)

// Place is where a plan runs. Root matters to rooted kinds, Hosts to hierarchical algorithms.
type Place struct {
	Rank, Size, Root int
	Chunk            int     // bytes, of the flat buffer or of each block
	Hosts            [][]int // the ranks of each host, as many on each

	inner bool // the plan becomes a part of another one, which finds out what its steps wait for
}

// maker collects the steps of one rank.
type maker struct {
	plan.SendRecvPlan
	inner   bool  // see Place
	lag     int   // of the steps that follow
	channel uint8 // of the messages that follow
}

func newMaker(at Place, kind coll.Kind, algorithm string, pieces int) *maker {
	m := &maker{inner: at.inner, SendRecvPlan: plan.SendRecvPlan{Algorithm: algorithm, Kind: kind, Rank: at.Rank, Size: at.Size,
		Chunk: at.Chunk, Pieces: pieces}}
	if kind.Rooted() {
		m.Root = at.Root
	}
	return m
}

// pieces is a range of pieces of a flat buffer or of one block of it; of a cell of scratch memory where that is flat.
func pieces(space plan.Space, first, count int) []plan.Region {
	return []plan.Region{{Space: space, First: first, Count: count}}
}

// blockOf is a rank's whole block; of buffers that are blocks or one of them.
func (m *maker) blockOf(space plan.Space, block int) plan.Region {
	return plan.Region{Space: space, Block: block, Count: m.Pieces}
}

// whole is a flat buffer.
func (m *maker) whole(space plan.Space) []plan.Region { return pieces(space, 0, m.Pieces) }

// cell is a cell of scratch memory that holds all pieces of a block.
func (m *maker) cell(cell, block int) plan.Region {
	m.Cells = max(m.Cells, cell+1)
	return plan.Region{Space: plan.Scratch, Cell: cell, Block: block, Count: m.Pieces}
}

func (m *maker) add(s plan.Step) {
	s.Lag, s.Channel = m.lag, m.channel
	m.Steps = append(m.Steps, s)
}

func (m *maker) send(to int, from ...plan.Region) {
	m.add(plan.Step{Op: plan.Send, Peer: to, From: from})
}

func (m *maker) recv(from int, to ...plan.Region) {
	m.add(plan.Step{Op: plan.Recv, Peer: from, To: to})
}

// recvReduce combines own bytes and a message, own ones on the left.
func (m *maker) recvReduce(peer int, own, to []plan.Region) {
	m.add(plan.Step{Op: plan.RecvReduce, Peer: peer, From: own, To: to})
}

// recvReduceFirst has the message on the left.
func (m *maker) recvReduceFirst(peer int, own, to []plan.Region) {
	m.add(plan.Step{Op: plan.RecvReduce, Peer: peer, From: own, To: to, MessageFirst: true})
}

func (m *maker) reduce(from, to []plan.Region) { m.add(plan.Step{Op: plan.Reduce, From: from, To: to}) }

// copy moves bytes inside the rank. A group of one is nothing else.
func (m *maker) copy(from, to []plan.Region) { m.add(plan.Step{Op: plan.Copy, From: from, To: to}) }

// done finds out which sends each step must wait for and returns the plan.
func (m *maker) done() plan.SendRecvPlan {
	if !m.inner {
		plan.AddDependencies(&m.SendRecvPlan)
	}
	return m.SendRecvPlan
}
