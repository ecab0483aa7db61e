package sendrecv

import (
	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
)

// Place is a rank's place in its group, for which a plan is built. Root matters to rooted kinds, Hosts to hierarchical
// algorithms.
type Place struct {
	Rank, Size, Root int
	Chunk            int     // bytes, of the flat buffer or of each block
	Hosts            [][]int // the ranks of each host, equally many on each

	inner bool // the plan becomes a part of another one, which adds the dependencies
}

// maker collects the steps of one rank.
type maker struct {
	plan.SendRecvPlan
	inner   bool  // see Place
	lag     int   // lag of the steps that are added next
	channel uint8 // channel of the messages that are added next
}

// newMaker starts the plan of a place.
func newMaker(at Place, kind coll.Kind, algorithm string, pieces int) *maker {
	m := &maker{inner: at.inner, SendRecvPlan: plan.SendRecvPlan{Algorithm: algorithm, Kind: kind, Rank: at.Rank, Size: at.Size,
		Chunk: at.Chunk, Pieces: pieces}}
	if kind.Rooted() {
		m.Root = at.Root
	}
	return m
}

// pieces returns a range of pieces of a flat buffer, or of cell 0 of scratch memory of a flat kind.
func pieces(space plan.Space, first, count int) []plan.Region {
	return []plan.Region{{Space: space, First: first, Count: count}}
}

// blockOf returns a rank's whole block of a buffer that has blocks.
func (m *maker) blockOf(space plan.Space, block int) plan.Region {
	return plan.Region{Space: space, Block: block, Count: m.Pieces}
}

// whole returns a whole flat buffer.
func (m *maker) whole(space plan.Space) []plan.Region { return pieces(space, 0, m.Pieces) }

// cell returns a cell of scratch memory that holds all pieces of a block.
func (m *maker) cell(cell, block int) plan.Region {
	m.Cells = max(m.Cells, cell+1)
	return plan.Region{Space: plan.Scratch, Cell: cell, Block: block, Count: m.Pieces}
}

// add appends a step with the maker's lag and channel.
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

// recvReduce reduces own bytes and a message. The own bytes are the left operand.
func (m *maker) recvReduce(peer int, own, to []plan.Region) {
	m.add(plan.Step{Op: plan.RecvReduce, Peer: peer, From: own, To: to})
}

// recvReduceFirst is recvReduce with the message as the left operand.
func (m *maker) recvReduceFirst(peer int, own, to []plan.Region) {
	m.add(plan.Step{Op: plan.RecvReduce, Peer: peer, From: own, To: to, MessageFirst: true})
}

func (m *maker) reduce(from, to []plan.Region) { m.add(plan.Step{Op: plan.Reduce, From: from, To: to}) }

// copy moves bytes inside the rank. The plan of a group of one rank consists of one copy.
func (m *maker) copy(from, to []plan.Region) { m.add(plan.Step{Op: plan.Copy, From: from, To: to}) }

// done adds the dependencies and returns the plan.
func (m *maker) done() plan.SendRecvPlan {
	if !m.inner {
		plan.AddDependencies(&m.SendRecvPlan)
	}
	return m.SendRecvPlan
}
