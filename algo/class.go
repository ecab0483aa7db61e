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
	// rule: ranks know the lengths of their own blocks only. A call with others takes the group down.
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
	return board.Build(kind, c.Algorithm, board.Place{Rank: rank, Size: s.shape.Size, Root: root, Lane: c.Lane,
		Chunk: c.Chunk})
}

// MessagePlan builds one rank's plan of a class of [Channels].
func (s *Selector) MessagePlan(kind coll.Kind, c Class, rank, root int) (message.Plan, error) {
	if c.Transport != Channels {
		return message.Plan{}, fmt.Errorf("%v %s is a plan of boards", kind, c.Algorithm)
	}
	return message.Build(kind, c.Algorithm, s.shape.place(c.Algorithm, rank, root, c.Chunk))
}
