package board

import (
	"fmt"
	"strings"

	"sagecomm/internal/coll"
)

// Place is where a plan runs: the rank it is for and the memory it uses. Root matters to rooted kinds.
type Place struct {
	Rank, Size, Root int
	Lane             Lane
	Chunk            int
}

func (at Place) plan(algorithm string, kind coll.Kind, stages ...Stage) Plan {
	p := Plan{Algorithm: algorithm, Kind: kind, Rank: at.Rank, Size: at.Size, Lane: at.Lane, Chunk: at.Chunk,
		Stages: stages}
	if kind.Rooted() {
		p.Root = at.Root
	}
	switch kind {
	case coll.AllGather, coll.Gather:
		p.Output = Blocks
	case coll.ReduceScatter, coll.Scatter:
		p.Input = Blocks
	case coll.AllToAll:
		p.Input, p.Output = Blocks, Blocks
	}
	return p
}

// Names of the algorithms. One-shot: every reader takes all it needs straight from the contributors' slots, one round
// of flags. Two-shot: each rank first combines a share and the shares are then collected, two rounds of flags.
const (
	OneShotName = "one_shot"
	TwoShotName = "two_shot"
	LocalName   = "local"
)

type family struct {
	kind  coll.Kind
	name  string
	build func(Place) Plan
}

// families lists what the selector may choose from, the simpler one first: it wins a tie.
var families = []family{
	{coll.AllReduce, OneShotName, OneShotAllReduce},
	{coll.AllReduce, TwoShotName, TwoShotAllReduce},
	{coll.Broadcast, OneShotName, OneShotBroadcast},
	{coll.AllGather, OneShotName, OneShotAllGather},
	{coll.Reduce, OneShotName, OneShotReduce},
	{coll.Reduce, TwoShotName, TwoShotReduce},
	{coll.Barrier, OneShotName, OneShotBarrier},
	{coll.ReduceScatter, OneShotName, OneShotReduceScatter},
	{coll.AllToAll, OneShotName, OneShotAllToAll},
	{coll.Gather, OneShotName, OneShotGather},
	{coll.Scatter, OneShotName, OneShotScatter},
}

// Algorithms names the algorithms that a kind can be set to in a group of several ranks.
func Algorithms(kind coll.Kind) []string {
	var names []string
	for _, f := range families {
		if f.kind == kind {
			names = append(names, f.name)
		}
	}
	return names
}

func find(kind coll.Kind, algorithm string) (family, bool) {
	if algorithm == LocalName && kind.Collective() {
		return family{kind, LocalName, func(at Place) Plan { return LocalCopy(kind, at) }}, true
	}
	for _, f := range families {
		if f.kind == kind && f.name == algorithm {
			return f, true
		}
	}
	return family{}, false
}

// Build makes the plan of one rank and refuses what no runner could carry out.
func Build(kind coll.Kind, algorithm string, at Place) (Plan, error) {
	f, ok := find(kind, algorithm)
	if !ok {
		return Plan{}, fmt.Errorf("%v: unknown algorithm %q, there are: %s",
			kind, algorithm, strings.Join(Algorithms(kind), ", "))
	}
	p := f.build(at)
	if err := p.Validate(); err != nil {
		return Plan{}, err
	}
	return p, nil
}

// Roles returns the plans that stand for those of all ranks: the root's and another rank's of a rooted kind, one plan of
// any other. Among ranks that do the same it takes the lowest, whose shares are the longest. The rank of the place does
// not matter.
func Roles(kind coll.Kind, algorithm string, at Place) ([]Plan, error) {
	ranks := []int{0}
	switch {
	case !kind.Rooted() || at.Size == 1:
	case at.Root == 0:
		ranks = []int{0, 1}
	default:
		ranks = []int{at.Root, 0}
	}
	plans := make([]Plan, len(ranks))
	for i, rank := range ranks {
		at.Rank = rank
		p, err := Build(kind, algorithm, at)
		if err != nil {
			return nil, err
		}
		plans[i] = p
	}
	return plans, nil
}

// Validate checks what can be seen in one rank's plan alone. That the plans of all ranks together are right is
// [Check]'s matter.
func (p Plan) Validate() error {
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
	case p.Chunk <= 0 || p.Chunk%Align != 0 || p.Chunk > p.Lane.MaxChunk(p.Kind, p.Size):
		return refuse("chunk of %d bytes, expected a multiple of %d up to %d (%v lane)",
			p.Chunk, Align, p.Lane.MaxChunk(p.Kind, p.Size), p.Lane)
	case p.Head < 0 || p.Head%Align != 0 || p.Head > max(0, HeadBytes(p.Size)):
		return refuse("heads of %d bytes, expected a multiple of %d up to %d", p.Head, Align, HeadBytes(p.Size))
	case p.heads() && !p.publishesNext():
		return refuse("behind the heads comes the stage that publishes chunks")
	case p.heads() && p.Lane == SmallLane:
		return refuse("chunks behind heads go through the large lane")
	case len(p.Stages) == 0 || len(p.Stages) > MaxStages:
		return refuse("%d stages, expected 1 to %d", len(p.Stages), MaxStages)
	}
	for i, s := range p.Stages {
		at := fmt.Sprintf("stage %d (%v): ", i, s.Action)
		switch {
		case s.Lag < 0 || s.Lag >= p.Lane.Slots():
			return refuse("%slag %d, expected 0 to %d: the lane has %d slots", at, s.Lag, p.Lane.Slots()-1, p.Lane.Slots())
		case s.Action == Local && p.Size != 1 && p.Kind != coll.Scatter:
			return refuse("%sfor a rank alone only", at)
		case s.Head && (s.Action != Publish && s.Action != Read || s.Lag != 0 || p.Input != Blocks):
			return refuse("%sit has no heads", at)
		case s.Action == Fold && (s.Part == Block) != (p.Input == Blocks):
			return refuse("%sblocks are folded one by one, and nothing else is", at)
		case s.Action == Fold && !s.ToOutput && s.Back == Nobody:
			return refuse("%sthe result goes nowhere", at)
		case (s.Action == Collect || s.Back != Nobody) && p.Lane != LargeLane:
			// Its slots have no room for the word that says "reduced" beside the one that says "filled".
			return refuse("%sthe small lane carries one round of flags only", at)
		case s.Action == Read && s.From == Others && p.Output != Blocks:
			return refuse("%schunks of several ranks need an output of blocks", at)
		}
	}
	return nil
}

// MaxLag is the largest lag of the plan: how many chunks it has in flight, less one.
func (p Plan) MaxLag() int {
	lag := 0
	for _, s := range p.Stages {
		lag = max(lag, s.Lag)
	}
	return lag
}

// publishesNext says whether the stage behind the heads publishes.
func (p Plan) publishesNext() bool {
	for _, s := range p.Stages {
		if !s.Head {
			return s.Action == Publish && s.Lag == 0
		}
	}
	return false
}
