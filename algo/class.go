package algo

import (
	"fmt"
	"math"

	"sagecomm/algo/plan"
	"sagecomm/algo/sendrecv"
	"sagecomm/algo/shmplan"
	"sagecomm/internal/coll"
)

// NoLimit, as [Class.UpTo] or [Rule.To], means that lengths have no upper limit.
const NoLimit = math.MaxUint64

// MaxClasses bounds the number of classes of a kind. The runner's table holds the boundaries between them, one fewer.
const MaxClasses = 17

// Transport is the kind of memory through which a plan moves bytes. Each has its own kind of plan.
type Transport uint8

const (
	// Slots lie in shared memory that all ranks see: the class has slot plans.
	Slots Transport = iota
	// Channels lead from rank to rank: the class has sendrecv plans.
	Channels
)

func (t Transport) String() string {
	if t == Slots {
		return "slots"
	}
	return "channels"
}

// Class is a range of lengths for which a kind uses one algorithm with one chunk. It begins where the class before it
// ends.
type Class struct {
	UpTo      uint64 // the longest length of the class
	Algorithm string
	Transport Transport
	Slots     plan.Slots // set of slots of a slot plan; 0 for a sendrecv plan
	Chunk     int
	// Even reports that the plan needs blocks of equal length. Only a rule gives a class such a plan, and only for
	// all_to_all: ranks know the lengths of their own blocks only, so a prediction cannot rely on equal ones. A call
	// with other blocks fails the group.
	Even bool
}

// same reports whether two classes differ in their lengths only.
func (c Class) same(other Class) bool {
	c.UpTo = other.UpTo
	return c == other
}

// SlotPlan builds one rank's plan of a class of [Slots].
func (s *Selector) SlotPlan(kind coll.Kind, c Class, rank, root int) (plan.SlotPlan, error) {
	if c.Transport != Slots {
		return plan.SlotPlan{}, fmt.Errorf("%v %s is a sendrecv plan", kind, c.Algorithm)
	}
	return shmplan.Build(kind, c.Algorithm, shmplan.Place{Rank: rank, Size: s.shape.Size, Root: root, Slots: c.Slots,
		Chunk: c.Chunk})
}

// SendRecvPlan builds one rank's plan of a class of [Channels].
func (s *Selector) SendRecvPlan(kind coll.Kind, c Class, rank, root int) (plan.SendRecvPlan, error) {
	if c.Transport != Channels {
		return plan.SendRecvPlan{}, fmt.Errorf("%v %s is a slot plan", kind, c.Algorithm)
	}
	return sendrecv.Build(kind, c.Algorithm, s.shape.place(c.Algorithm, rank, root, c.Chunk))
}
