// A class of lengths, and the plans it stands for.

package algo

import (
	"fmt"
	"math"

	"sagecomm/algo/board"
	"sagecomm/algo/message"
	"sagecomm/internal/coll"
)

// NoLimit as [Class.UpTo] or [Rule.To] means every length beyond the class or rule before.
const NoLimit = math.MaxUint64

// MaxClasses is how many classes a kind can have: the runner's table of boundaries holds one less.
const MaxClasses = 17

// Transport is what a plan moves bytes through, and so which of the two kinds of plan it is.
type Transport uint8

const (
	// Boards are shared memory that all ranks see: the class is one of board plans.
	Boards Transport = iota
	// Channels lead from rank to rank: the class is one of message plans.
	Channels
)

func (t Transport) String() string {
	if t == Boards {
		return "boards"
	}
	return "channels"
}

// Class is a range of lengths for which one kind always does the same. It begins above the class before it.
type Class struct {
	UpTo      uint64 // the longest message of the class
	Algorithm string
	Transport Transport
	Lane      board.Lane // of boards; else 0
	Chunk     int
	// Even says that the plan needs blocks of equal length. Only an all_to_all can be set to such a one, and only by a
	// rule; see [Class.CheckBlocks].
	Even bool
}

// same says whether two classes do the same.
func (c Class) same(other Class) bool {
	c.UpTo = other.UpTo
	return c == other
}

// BoardPlan builds one rank's plan of a class of [Boards].
func (s *Selector) BoardPlan(kind coll.Kind, c Class, rank, root int) (board.Plan, error) {
	if c.Transport != Boards {
		return board.Plan{}, fmt.Errorf("%v %s is a plan of messages", kind, c.Algorithm)
	}
	return board.Build(kind, c.Algorithm, board.Place{Rank: rank, Size: s.shape.Size, Root: root, Lane: c.Lane, Chunk: c.Chunk})
}

// MessagePlan builds one rank's plan of a class of [Channels].
func (s *Selector) MessagePlan(kind coll.Kind, c Class, rank, root int) (message.Plan, error) {
	if c.Transport != Channels {
		return message.Plan{}, fmt.Errorf("%v %s is a plan of boards", kind, c.Algorithm)
	}
	return message.Build(kind, c.Algorithm, s.shape.place(c.Algorithm, rank, root, c.Chunk))
}

// CheckBlocks refuses a call whose blocks the class cannot carry: blocks are the lengths of those that this rank sends
// and of those that it receives, or nil where they are equal. Ranks know the lengths of their own blocks only, so some
// may see nothing wrong where others do: whoever refuses takes the group down, and all ranks get this error.
func (c Class) CheckBlocks(kind coll.Kind, blocks ...[]uint64) error {
	if !c.Even {
		return nil
	}
	length, first := uint64(0), true
	for _, list := range blocks {
		for rank, n := range list {
			if first {
				length, first = n, false
			}
			if n != length {
				return fmt.Errorf("%v: a block of %d bytes (rank %d) and one of %d: %s, which a rule of %s sets, moves blocks of equal length only; "+
					"take the rule away, or set %v to one of those that move any: %s", kind, n, rank, length, c.Algorithm, tuneName, kind, anyBlocks(kind))
			}
		}
	}
	return nil
}
