package algo

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sagecomm/algo/cost"
	"sagecomm/algo/plan"
	"sagecomm/algo/sendrecv"
	"sagecomm/algo/shmplan"
	"sagecomm/algo/verify"
	"sagecomm/internal/coll"
)

// hosts returns the ranks of count hosts with width consecutive ranks each.
func hosts(count, width int) (list [][]int) {
	for h := range count {
		var ranks []int
		for i := range width {
			ranks = append(ranks, h*width+i)
		}
		list = append(list, ranks)
	}
	return list
}

func selectorOf(t testing.TB, shape Shape, params Params, rules string) *Selector {
	t.Helper()
	tune, err := ParseTune(rules)
	require.NoError(t, err)
	s, err := NewSelector(shape, params, tune)
	require.NoError(t, err)
	return s
}

// refused checks that a selector cannot be made, and that the error has the wanted texts.
func refused(t *testing.T, shape Shape, params Params, rules string, want ...string) {
	t.Helper()
	tune, err := ParseTune(rules)
	if err == nil {
		_, err = NewSelector(shape, params, tune)
	}
	for _, part := range want {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%+v %s: %v, want %q", shape, rules, err, part)
		}
	}
}

// quick returns parameters with channels that cost next to nothing.
func quick() Params {
	p := DefaultParams()
	p.Channel = cost.Link{Latency: 10e-9, Byte: 1e-12, Step: 5e-9}
	return p
}

// On one host small groups have slot plans only, which were compared with measurements.
func TestSendRecvPlansDoNotChangeTablesOfSmallGroups(t *testing.T) {
	for size := 2; size <= 16; size++ {
		s, slots := selector(t, size, ""), newSlotPredictor(size, DefaultParams().Slots)
		for _, kind := range collectives() {
			if got, want := s.Boundaries(kind), slots.predict(kind); !reflect.DeepEqual(got, want) {
				t.Errorf("%v, %d ranks: %v, by slots alone %v", kind, size, got, want)
			}
		}
	}
}

// A sendrecv plan that reduces nothing is chosen where it saves the margin, and only there.
func TestSendRecvPlansMustSaveTheMargin(t *testing.T) {
	chosen := 0
	for _, params := range []Params{DefaultParams(), quick()} {
		for _, size := range []int{2, 5, 16} {
			s := selectorOf(t, Shape{Size: size}, params, "")
			for _, kind := range collectives() {
				for bytes := uint64(64); bytes <= horizon; bytes *= 64 {
					list := s.Explain(kind, bytes)
					i := slices.IndexFunc(list, func(c Candidate) bool { return c.Chosen })
					of := func(transport Transport) (best Candidate) {
						for _, c := range list { // these groups are small enough for all candidates to have prices
							even := strings.Contains(c.Why, "equal length")
							if c.Transport == transport && !even && (best.Algorithm == "" || c.Predicted < best.Predicted) {
								best = c
							}
						}
						return best
					}
					slots, channels := of(Slots), of(Channels)
					switch saves := channels.Predicted*100 <= slots.Predicted*(100-margin); {
					case list[i].Transport == Channels:
						chosen++
						if kind.Reduces() || !saves || list[i].Predicted > channels.Predicted*102/100+1 && !oneClass(kind) {
							t.Errorf("%v of %d bytes, %d ranks: %+v is chosen, slots have %+v, channels %+v", kind, bytes, size, list[i], slots, channels)
						}
					case saves && !oneClass(kind) && !kind.Reduces():
						t.Errorf("%v of %d bytes, %d ranks: %+v is not chosen instead of %+v", kind, bytes, size, channels, slots)
					}
				}
			}
		}
	}
	if chosen == 0 {
		t.Error("no sendrecv plan was ever chosen, so the test shows nothing")
	}
}

// Whatever links cost, tables are well formed and their plans are right.
func TestChosenMessagesAreRight(t *testing.T) {
	lame := DefaultParams()
	lame.Channel.Latency, lame.Network.Step = 5e-3, 5e-3
	for _, shape := range []Shape{
		{Size: 5}, {Size: 8},
		{Size: 8, Apart: true, Hosts: hosts(2, 4)}, {Size: 6, Hosts: hosts(6, 1)},
		{Size: 7, Apart: true, Hosts: [][]int{{0, 1, 2, 6}, {3, 4, 5}}}, {Size: 3, Apart: true, Hosts: [][]int{{0, 2}, {1}}}, {Size: 4, Hosts: hosts(1, 4)},
	} {
		for _, params := range []Params{DefaultParams(), quick(), lame} {
			s := selectorOf(t, shape, params, "")
			for _, kind := range collectives() {
				table := s.Boundaries(kind)
				if len(table) == 0 || len(table) > MaxClasses || table[len(table)-1].UpTo != NoLimit || oneClass(kind) && len(table) > 1 {
					t.Fatalf("%v of %+v: %v", kind, shape, table)
				}
				for _, c := range table {
					if c.Even {
						t.Errorf("%v of %+v: %+v is chosen for blocks of any length", kind, shape, c)
					}
					proveClass(t, s, kind, c)
				}
			}
		}
	}
}

// proveClass proves the plans of a class for a short collective and for one of some chunks.
func proveClass(t *testing.T, s *Selector, kind coll.Kind, c Class) {
	t.Helper()
	if c.Transport == Slots {
		if !s.shape.sharesMemory() {
			t.Errorf("%v of %+v: %+v goes over slots", kind, s.shape, c)
		}
		if _, err := s.SendRecvPlan(kind, c, 0, 0); err == nil {
			t.Errorf("%v: %+v has a sendrecv plan", kind, c)
		}
		return
	}
	if _, err := s.SlotPlan(kind, c, 0, 0); err == nil {
		t.Errorf("%v: %+v has a slot plan", kind, c)
	}
	plans := make([]plan.SendRecvPlan, s.shape.Size)
	for rank := range plans {
		p, err := s.SendRecvPlan(kind, c, rank, s.shape.Size-1)
		require.NoError(t, err)
		if p.Largest() > s.shape.messageBytes() || p.Channels() > plan.ChannelsPerPair {
			t.Errorf("%v: %+v sends messages of %d bytes on %d channels", kind, c, p.Largest(), p.Channels())
		}
		plans[rank] = p
	}
	for _, bytes := range []uint64{8, uint64(c.Chunk) + 100} {
		if kind == coll.Barrier {
			bytes = 0
		}
		if err := verify.CheckSendRecv(plans, plan.Lengths{Bytes: bytes}); err != nil {
			t.Error(err)
		}
	}
}

// Hierarchical plans need several hosts with equally many ranks.
func TestHierarchicalNeedsHosts(t *testing.T) {
	for _, c := range []struct {
		shape Shape
		want  bool
	}{
		{Shape{Size: 4}, false},
		{Shape{Size: 4, Hosts: hosts(1, 4)}, false},
		{Shape{Size: 4, Apart: true, Hosts: hosts(2, 2)}, true},
		{Shape{Size: 4, Apart: true, Hosts: [][]int{{0, 1, 2}, {3}}}, false},
	} {
		list := selectorOf(t, c.shape, DefaultParams(), "").Explain(coll.AllReduce, 1<<20)
		got := slices.ContainsFunc(list, func(c Candidate) bool { return c.Algorithm == sendrecv.Hierarchical })
		if got != c.want {
			t.Errorf("%+v: hierarchical is a candidate: %t", c.shape, got)
		}
	}
	refused(t, Shape{Size: 4, Apart: true, Hosts: [][]int{{0, 1, 2}, {3}}}, DefaultParams(), "all_reduce:hierarchical", `rule "all_reduce:hierarchical"`, "rails need as many on each")
	// Where links between hosts are slow, long collectives use them.
	s := selectorOf(t, Shape{Size: 64, Apart: true, Hosts: hosts(4, 16)}, DefaultParams(), "network.byte=2ns")
	if c := s.Choose(coll.AllReduce, 64<<20); c.Algorithm != sendrecv.Hierarchical {
		t.Errorf("%+v is chosen, expected hierarchical", c)
	}
}

func TestRulesSetMessages(t *testing.T) {
	shape := Shape{Size: 4}
	s := selectorOf(t, shape, DefaultParams(), "all_reduce:0-4K:recursive_doubling;all_reduce:100K-1M:ring@chunk=64K;all_to_all:bruck;broadcast:chain;reduce:4K-inf:one_shot")
	predicted := selectorOf(t, shape, DefaultParams(), "")
	for _, c := range []struct {
		kind  coll.Kind
		bytes uint64
		want  Class
	}{
		{coll.AllReduce, 0, Class{UpTo: 4 << 10, Algorithm: sendrecv.RecursiveDoubling, Transport: Channels, Chunk: plan.MessageBytes}},
		{coll.AllReduce, 5000, Class{UpTo: 8 << 10, Algorithm: shmplan.TwoShot, Slots: plan.LargeSlots, Chunk: 8 << 10}},
		{coll.AllReduce, 50000, Class{UpTo: 100 << 10, Algorithm: shmplan.TwoShot, Slots: plan.LargeSlots, Chunk: 128 << 10}},
		{coll.AllReduce, 1 << 20, Class{UpTo: 1 << 20, Algorithm: sendrecv.Ring, Transport: Channels, Chunk: 64 << 10}},
		{coll.AllReduce, 1 << 21, predicted.Choose(coll.AllReduce, 1<<21)},
		{coll.AllToAll, 1 << 21, Class{UpTo: NoLimit, Algorithm: sendrecv.Bruck, Transport: Channels, Chunk: plan.MessageBytes / 2, Even: true}},
		{coll.Broadcast, 10, Class{UpTo: NoLimit, Algorithm: sendrecv.Chain, Transport: Channels, Chunk: plan.MessageBytes}},
		{coll.Reduce, 5000, Class{UpTo: 8 << 10, Algorithm: shmplan.OneShot, Slots: plan.SmallSlots, Chunk: 8 << 10}},
	} {
		if got := s.Choose(c.kind, c.bytes); got != c.want {
			t.Errorf("%v of %d bytes: %+v, want %+v", c.kind, c.bytes, got, c.want)
		}
		proveClass(t, s, c.kind, s.Choose(c.kind, c.bytes))
	}
	// A rule for a slot algorithm in a range for which a sendrecv plan is predicted has the chunks of slot plans.
	over := selectorOf(t, shape, quick(), "all_reduce:one_shot")
	if got, want := over.Boundaries(coll.AllReduce), selector(t, 4, "all_reduce:one_shot").Boundaries(coll.AllReduce); !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := s.Describe(coll.Broadcast); got != "broadcast: 0-inf:chain@chunk=65536 (SAGECOMM_TUNE)" {
		t.Error(got)
	}
}

func TestRulesOfMessagesAreRefused(t *testing.T) {
	four := Shape{Size: 4}
	refused(t, four, DefaultParams(), "all_reduce:0-8K:ring@chunk=512K", "chunks of 524288 bytes would make messages of 131072: a channel takes 65536, so chunks are at most 262144 among 4 ranks")
	refused(t, four, DefaultParams(), "all_reduce:ring@chunk=100", "chunk 100: expected a multiple of 64")
	refused(t, four, DefaultParams(), "all_to_all:0-8K:bruck", "the ranks of an all_to_all need not know the same lengths", "write all_to_all:bruck")
	refused(t, four, DefaultParams(), "all_to_all:8K-inf:one_shot", "write all_to_all:one_shot")
	refused(t, Shape{Size: 4, Apart: true, Hosts: hosts(2, 2)}, DefaultParams(), "all_reduce:one_shot", "one_shot needs memory that all ranks share, and they are on 2 hosts")
	if s := selectorOf(t, four, DefaultParams(), "all_to_all:0-inf:bruck"); !s.Choose(coll.AllToAll, 7).Even {
		t.Error("a range of all lengths is not accepted")
	}
}

func TestShapesAreRefused(t *testing.T) {
	for want, shape := range map[string]Shape{
		"expected 1 to 1024":                              {Size: 1025},
		"rank 4 on host 1":                                {Size: 4, Apart: true, Hosts: [][]int{{0, 1}, {2, 4}}},
		"rank 1 on host 1: it is on another one":          {Size: 4, Apart: true, Hosts: [][]int{{0, 1}, {1, 2}}},
		"1 of 4 ranks are on no host":                     {Size: 4, Apart: true, Hosts: [][]int{{0, 1}, {2}}},
		"has 0 lists of their ranks":                      {Size: 3, Apart: true},
		"has 1 lists of their ranks":                      {Size: 4, Apart: true, Hosts: hosts(1, 4)},
		"unknown policy \"best\"":                         {Size: 2},
		"slots.hop of -1 seconds: expected 0 to 10ms":     {Size: 2},
		"SAGECOMM_TUNE: unknown parameter \"slots.size\"": {Size: 2},
	} {
		params, tune := DefaultParams(), Tune{}
		switch {
		case strings.Contains(want, "policy"):
			tune.Policy = "best"
		case strings.Contains(want, "hop"):
			params.Slots.Hop = -1
		case strings.Contains(want, "parameter"):
			tune.Settings = []Setting{{"slots.size", 1}}
		}
		if _, err := NewSelector(shape, params, tune); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", shape, err, want)
		}
	}
}
