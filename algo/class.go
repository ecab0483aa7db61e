// A class of lengths, and the plans it stands for.

package algo

import (
	"fmt"
	"math"

	"sagecomm/algo/plan"
	"sagecomm/algo/sendrecv"
	"sagecomm/algo/shmplan"
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
	Slots Transport = iota
	// Channels lead from rank to rank: the class is one of message plans.
	Channels
)

func (t Transport) String() string {
	if t == Slots {
		return "slots"
	}
	return "channels"
}

// Class is a range of lengths for which one kind always does the same. It begins above the class before it.
type Class struct {
	UpTo      uint64 // the longest message of the class
	Algorithm string
	Transport Transport
	Slots     plan.Slots // of a slot plan; else 0
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
func (s *Selector) SlotPlan(kind coll.Kind, c Class, rank, root int) (plan.SlotPlan, error) {
	if c.Transport != Slots {
		return plan.SlotPlan{}, fmt.Errorf("%v %s is a plan of messages", kind, c.Algorithm)
	}
	return shmplan.Build(kind, c.Algorithm, shmplan.Place{Rank: rank, Size: s.shape.Size, Root: root, Slots: c.Slots,
		Chunk: c.Chunk})
}

// MessagePlan builds one rank's plan of a class of [Channels].
func (s *Selector) SendRecvPlan(kind coll.Kind, c Class, rank, root int) (plan.SendRecvPlan, error) {
	if c.Transport != Channels {
		return plan.SendRecvPlan{}, fmt.Errorf("%v %s is a slot plan", kind, c.Algorithm)
	}
	return sendrecv.Build(kind, c.Algorithm, s.shape.place(c.Algorithm, rank, root, c.Chunk))
}
