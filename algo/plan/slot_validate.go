package plan

import (
	"fmt"

	"sagecomm/internal/coll"
)

// Validate checks one rank's plan by itself: its stages must fit the slots and the runner's tables, and one another.
// The package verify proves that the plans of all ranks together are right.
func (p SlotPlan) Validate() error {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("%v %s, rank %d of %d: %s", p.Kind, p.Algorithm, p.Rank, p.Size, fmt.Sprintf(format, args...))
	}
	switch {
	case p.Size < 1 || p.Size > MaxSize:
		return refuse("size is not within 1 to %d", MaxSize)
	case p.Rank < 0 || p.Rank >= p.Size:
		return refuse("rank is outside the group")
	case p.Root < 0 || p.Root >= p.Size:
		return refuse("root %d is outside the group", p.Root)
	case p.Chunk <= 0 || p.Chunk%Align != 0 || p.Chunk > p.Slots.MaxChunk(p.Kind, p.Size):
		return refuse("chunk of %d bytes, expected a multiple of %d up to %d (%v slots)",
			p.Chunk, Align, p.Slots.MaxChunk(p.Kind, p.Size), p.Slots)
	case p.Head < 0 || p.Head%Align != 0 || p.Head > max(0, HeadBytes(p.Size)):
		return refuse("heads of %d bytes, expected a multiple of %d up to %d", p.Head, Align, HeadBytes(p.Size))
	case p.HasHeads() && !p.publishesNext():
		return refuse("behind the heads comes the stage that publishes chunks")
	case p.HasHeads() && p.Slots == SmallSlots:
		return refuse("chunks behind heads go through the large slots")
	case len(p.Stages) == 0 || len(p.Stages) > MaxStages:
		return refuse("%d stages, expected 1 to %d", len(p.Stages), MaxStages)
	}
	for i, s := range p.Stages {
		at := fmt.Sprintf("stage %d (%v): ", i, s.Action)
		switch {
		case s.Lag < 0 || s.Lag >= p.Slots.Count():
			return refuse("%slag %d, expected 0 to %d: there are %d slots", at, s.Lag, p.Slots.Count()-1, p.Slots.Count())
		case s.Action == Local && p.Size != 1 && p.Kind != coll.Scatter:
			return refuse("%sfor a rank alone only", at)
		case s.Head && (s.Action != Publish && s.Action != Read || s.Lag != 0 || p.Input != Blocks):
			return refuse("%sit has no heads", at)
		case s.Action == ReduceSlots && (s.Part == Block) != (p.Input == Blocks):
			return refuse("%sblocks are reduced one by one, and nothing else is", at)
		case s.Action == ReduceSlots && !s.ToOutput && s.Back == Nobody:
			return refuse("%sthe result goes nowhere", at)
		case (s.Action == Collect || s.Back != Nobody) && p.Slots != LargeSlots:
			// The header of a small slot has one word, "filled", and no other for "reduced".
			return refuse("%ssmall slots carry one round of flags only", at)
		case s.Action == Read && s.From == Others && p.Output != Blocks:
			return refuse("%schunks of several ranks need an output of blocks", at)
		}
	}
	return nil
}

// publishesNext reports whether the first stage after the heads publishes.
func (p SlotPlan) publishesNext() bool {
	for _, s := range p.Stages {
		if !s.Head {
			return s.Action == Publish && s.Lag == 0
		}
	}
	return false
}
