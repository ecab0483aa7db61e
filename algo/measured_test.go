package algo

import (
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sagecomm/algo/shmplan"
	"sagecomm/internal/coll"
)

// machineOf returns the measurements that a machine with the costs params would give, for every candidate of some
// kinds.
func machineOf(s *Selector, params Params, beside float64, kinds []coll.Kind, lengths []uint64) (list []Measured) {
	p := newPredictor(s.shape, params)
	for _, kind := range kinds {
		for _, bytes := range lengths {
			own := beside + p.seconds(kind, s.Choose(kind, bytes), bytes)
			for _, c := range s.Explain(kind, bytes) {
				class := Class{Algorithm: c.Algorithm, Transport: c.Transport, Slots: c.Slots, Chunk: c.Chunk}
				seconds := beside + p.seconds(kind, class, bytes)
				list = append(list, Measured{Kind: kind, Bytes: bytes, Algorithm: c.Algorithm, Seconds: seconds, Ratio: seconds / own, Confirmed: seconds / own})
			}
		}
	}
	return list
}

func lengthsTo(most uint64) (list []uint64) {
	for bytes := uint64(8); bytes <= most; bytes *= 4 {
		list = append(list, bytes)
	}
	return list
}

// tunedBy returns the selector of a group with the same shape whose tuning file has the entry.
func tunedBy(t *testing.T, s *Selector, e Entry) *Selector {
	t.Helper()
	f := File{Version: FileVersion, Entries: []Entry{e}}
	text, err := f.Write()
	require.NoError(t, err)
	read, err := ParseFile("tuned", text)
	require.NoError(t, err)
	tune, err := read.For("tuned", e.Machine, s.shape)
	require.NoError(t, err)
	made, err := NewSelector(s.shape, DefaultParams(), Tune{}.Over(tune))
	require.NoError(t, err)
	return made
}

// On a machine whose costs differ from the defaults, the choices of a tuned group are within a few percent of the best
// candidate at every length that was measured. Reductions over channels are an exception, since they must save more.
func TestTunedGroupsDoTheBest(t *testing.T) {
	kinds := []coll.Kind{coll.AllReduce, coll.AllGather, coll.Broadcast, coll.AllToAll}
	for _, size := range []int{2, 3, 4, 8} {
		s := selectorOf(t, Shape{Size: size}, DefaultParams(), "")
		slow := DefaultParams()
		slow.Slots.Hop, slow.Slots.Claim, slow.Channel.Byte = 2e-6, 300e-12, 40e-12
		list := machineOf(s, slow, 3e-6, kinds, lengthsTo(16<<20))
		e, err := s.Tuned("here", list)
		require.NoError(t, err)
		tuned := tunedBy(t, s, e)
		for _, m := range list {
			c := tuned.Choose(m.Kind, m.Bytes)
			var mine float64
			for _, other := range list {
				if other.Kind == m.Kind && other.Bytes == m.Bytes && other.Algorithm == c.Algorithm {
					mine = other.Seconds
				}
			}
			allowed := worth * worth
			if m.Kind.Reduces() && c.Transport == Slots {
				allowed *= 100. / (100 - margin)
			}
			if m.Kind != coll.AllToAll && !c.Even && mine > m.Seconds*allowed {
				t.Errorf("%d ranks: %v of %d bytes goes by %s in %g s, %s takes %g s\n%v", size, m.Kind, m.Bytes, c.Algorithm, mine, m.Algorithm, m.Seconds, e.Rules)
			}
		}
		if c := tuned.Choose(coll.AllToAll, 1<<20); c.Even {
			t.Errorf("%d ranks: all_to_all by %s", size, c.Algorithm)
		}
	}
}

// On the machine of the defaults the rules repeat the prediction, whatever noise there is.
func TestNoiseChangesNoChoice(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	s := selectorOf(t, Shape{Size: 4}, DefaultParams(), "")
	kinds := collectives()
	list := machineOf(s, DefaultParams(), 0, kinds, lengthsTo(16<<20))
	for i := range list {
		if list[i].Ratio != 1 {
			list[i].Ratio *= 1 + 0.02*rng.Float64() // slower than the choice, by less than a rule is worth
			list[i].Confirmed = list[i].Ratio
		}
	}
	e, err := s.Tuned("here", list)
	require.NoError(t, err)
	tuned := tunedBy(t, s, e)
	for _, m := range list {
		was, is := s.Choose(m.Kind, m.Bytes), tuned.Choose(m.Kind, m.Bytes)
		if was.Algorithm != is.Algorithm || was.Chunk != is.Chunk {
			t.Errorf("%v of %d bytes: %s in %d, before %s in %d\n%v", m.Kind, m.Bytes, is.Algorithm, is.Chunk, was.Algorithm, was.Chunk, e.Rules)
		}
	}
}

// These rows were measured with two ranks on a machine that did other work as well. The first block of the chosen
// algorithm took eight times as long as its others. So the candidates that were dropped after their first turn, and one
// that was not, seem faster. None of them gets a rule unless a separate run confirms it.
func TestOutliersMakeNoRule(t *testing.T) {
	const bytes = 1 << 20
	s := selectorOf(t, Shape{Size: 2}, DefaultParams(), "")
	recorded := []Measured{
		{Kind: coll.AllReduce, Bytes: 8, Algorithm: shmplan.OneShot, Seconds: 1.2e-6, Ratio: 1},
		{Kind: coll.AllReduce, Bytes: bytes, Algorithm: shmplan.TwoShot, Seconds: 45.3e-6, Ratio: 1},
		{Kind: coll.AllReduce, Bytes: bytes, Algorithm: "torus", Chunk: 64 << 10, Seconds: 86.85e-6, Ratio: 1 / 4.14, Dropped: true},
		{Kind: coll.AllReduce, Bytes: bytes, Algorithm: "ring", Seconds: 43e-6, Ratio: 0.5},
	}
	rules := func() []string {
		t.Helper()
		e, err := s.Tuned("here", recorded)
		require.NoError(t, err)
		return e.Rules
	}
	open, err := s.Unconfirmed(recorded)
	if err != nil || len(open) != 1 || open[0].Algorithm != "ring" {
		t.Fatalf("to be confirmed: %v, %v", open, err)
	}
	// The last case leaves the measurement confirmed.
	for _, c := range []struct {
		confirmed float64
		want      string
	}{{0, shmplan.TwoShot}, {1.4, shmplan.TwoShot}, {0.95, shmplan.TwoShot}, {0.5, "ring"}} {
		confirmed, want := c.confirmed, c.want
		recorded[3].Confirmed = confirmed
		got := rules()
		if last := got[len(got)-1]; !strings.HasPrefix(last, "all_reduce:") || !strings.HasSuffix(last, "-1M:"+want) {
			t.Errorf("a run that says %g times as long: %v, want %s up to what was measured", confirmed, got, want)
		}
	}
	if open, err := s.Unconfirmed(recorded); err != nil || len(open) != 0 {
		t.Errorf("still to be confirmed: %v, %v", open, err)
	}
}

// Between hosts, rules and parameters that were fitted are beside costs of messages which another run may measure otherwise, so these are
// written, too: those that were fitted or else the group's own.
func TestTunedGroupsKeepTheirNetwork(t *testing.T) {
	shape := Shape{Size: 4, Hosts: [][]int{{0, 1}, {2, 3}}, Apart: true}
	probed := DefaultParams().ScaledNetwork(8, 1./16, 1)
	s := selectorOf(t, shape, probed, "")
	slow := probed
	slow.Network.Byte *= 20
	for kind, fitted := range map[coll.Kind]bool{coll.Barrier: false, coll.AllReduce: true} {
		lengths := lengthsTo(1 << 20)
		if kind == coll.Barrier {
			lengths = []uint64{0}
		}
		e, err := s.Tuned("here", machineOf(s, slow, 0, []coll.Kind{kind}, lengths))
		require.NoError(t, err)
		require.Subset(t, slices.Collect(maps.Keys(e.Params)), []string{"network.latency", "network.step", "network.byte"})
		later := tunedBy(t, s, e).Params().Network // of a run without a probe
		if fitted {
			require.Greater(t, later.Byte, 2*probed.Network.Byte)
		} else {
			require.InEpsilon(t, probed.Network.Byte, later.Byte, 1e-6)
			require.InEpsilon(t, probed.Network.Latency, later.Latency, 1e-6)
			require.InEpsilon(t, probed.Network.Step, later.Step, 1e-6)
		}
	}
}

// Fitted parameters predict the measurements. Parameters without an effect on them are not written.
func TestParametersAreFitted(t *testing.T) {
	s := selectorOf(t, Shape{Size: 4}, DefaultParams(), "")
	real := DefaultParams()
	real.Slots.Hop *= 6
	real.Channel.Byte *= 0.4
	real.Channel.Step *= 3
	kinds := []coll.Kind{coll.AllReduce, coll.AllGather, coll.ReduceScatter}
	list := machineOf(s, real, 4e-6, kinds, lengthsTo(1<<20))
	e, err := s.Tuned("here", list)
	require.NoError(t, err)
	f := newFit(s.shape, DefaultParams(), list)
	before, after := f.loss(DefaultParams()), f.loss(tunedBy(t, s, e).params)
	if after > 0.05 || before < 3*after {
		t.Errorf("a prediction is %.0f %% off, before %.0f %%\n%v", 100*after, 100*before, e.Params)
	}
	for name := range e.Params {
		if strings.HasPrefix(name, "network.") {
			t.Errorf("%s is written, but nothing that was measured depends on it", name)
		}
	}
	if e.Params["channel.byte"] == "" {
		t.Errorf("%v: expected a value for channel.byte", e.Params)
	}
}

// A rule sets a better chunk at the lengths at which it was measured to be better, and nowhere else.
func TestChunksAreTuned(t *testing.T) {
	s := selectorOf(t, Shape{Size: 2}, DefaultParams(), "")
	var list []Measured
	for _, bytes := range []uint64{8, 64 << 10, 1 << 20, 4 << 20} {
		name := s.Choose(coll.AllReduce, bytes).Algorithm
		list = append(list, Measured{Kind: coll.AllReduce, Bytes: bytes, Algorithm: name, Seconds: 1e-6, Ratio: 1})
		if bytes >= 1<<20 {
			list = append(list, Measured{Kind: coll.AllReduce, Bytes: bytes, Algorithm: name, Chunk: 256 << 10, Seconds: 0.8e-6, Ratio: 0.8, Confirmed: 0.8})
		}
	}
	e, err := s.Tuned("here", list)
	require.NoError(t, err)
	tuned := tunedBy(t, s, e)
	for bytes, chunk := range map[uint64]int{64 << 10: 128 << 10, 255 << 10: 128 << 10, 257 << 10: 256 << 10, 4 << 20: 256 << 10, 64 << 20: 128 << 10} {
		if c := tuned.Choose(coll.AllReduce, bytes); c.Chunk != chunk || c.Algorithm != shmplan.TwoShot {
			t.Errorf("%d bytes: %s in %d, want %d\n%v", bytes, c.Algorithm, c.Chunk, chunk, e.Rules)
		}
	}
}

// However often algorithms change places, there are no more ranges than a kind may have.
func TestRangesAreBounded(t *testing.T) {
	s := selectorOf(t, Shape{Size: 4}, DefaultParams(), "")
	var list []Measured
	for i := range 40 {
		bytes := uint64(64 + 64*i)
		for _, name := range []string{shmplan.OneShot, shmplan.TwoShot} {
			ratio := 1.
			if name != s.Choose(coll.AllReduce, bytes).Algorithm {
				ratio = 0.25 + 4*float64(i%2)
			}
			list = append(list, Measured{Kind: coll.AllReduce, Bytes: bytes, Algorithm: name, Seconds: 1e-6, Ratio: ratio, Confirmed: ratio})
		}
	}
	e, err := s.Tuned("here", list)
	require.NoError(t, err)
	if tunedBy(t, s, e); len(e.Rules) > MaxClasses/2 {
		t.Errorf("%d rules", len(e.Rules))
	}
}

func TestImpossibleMeasurementsAreRefused(t *testing.T) {
	good := Measured{Kind: coll.AllReduce, Bytes: 8, Algorithm: shmplan.OneShot, Seconds: 1e-6, Ratio: 1}
	s := selectorOf(t, Shape{Size: 2}, DefaultParams(), "")
	for want, change := range map[string]func(*Measured){
		"no algorithm":                        func(m *Measured) { m.Algorithm = "fastest" },
		"no algorithm \"one_shot\"":           func(m *Measured) { m.Kind = coll.Send },
		"took 0 s":                            func(m *Measured) { m.Seconds = 0 },
		"took NaN s":                          func(m *Measured) { m.Seconds = math.NaN() },
		"-1 times what was chosen":            func(m *Measured) { m.Ratio = -1 },
		"+Inf times":                          func(m *Measured) { m.Ratio = math.Inf(1) },
		"confirmed as NaN times":              func(m *Measured) { m.Confirmed = math.NaN() },
		"a channel takes":                     func(m *Measured) { m.Algorithm, m.Chunk = "ring", 64<<20 },
		"no all_to_all that takes blocks":     func(m *Measured) { m.Kind, m.Algorithm = coll.AllToAll, "bruck" },
		"was not measured with the algorithm": func(m *Measured) { m.Kind, m.Algorithm = coll.AllToAll, "even and other" },
	} {
		bad := good
		change(&bad)
		list := []Measured{bad}
		if bad.Algorithm == "even and other" {
			list = []Measured{
				{Kind: coll.AllToAll, Bytes: 8, Algorithm: "bruck", Seconds: 1e-6, Ratio: 1},
				{Kind: coll.AllToAll, Bytes: 64, Algorithm: "pairwise", Seconds: 1e-6, Ratio: 1},
			}
		}
		if _, err := s.Tuned("here", list); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// An entry replaces the one for the same groups. The rules of collectives that were not measured stay.
func TestEntriesArePut(t *testing.T) {
	f := File{Version: FileVersion}
	put := func(e Entry) Entry {
		t.Helper()
		is, err := f.Put(e)
		require.NoError(t, err)
		return is
	}
	put(Entry{Machine: "a", Size: 2, Rules: []string{"all_reduce:0-8K:one_shot", "all_reduce:8K-inf:two_shot", "broadcast:chain"}})
	put(Entry{Machine: "a", Size: 4, Rules: []string{"all_reduce:ring"}})
	put(Entry{Machine: "a", Size: 2, Params: map[string]string{"channel.byte": "8ps", "rank.copy": "7ps"}})
	is := put(Entry{Machine: "a", Size: 2, Params: map[string]string{"channel.byte": "9ps"}, Rules: []string{"all_reduce:ring"}})
	if want := []string{"broadcast:chain", "all_reduce:ring"}; !slices.Equal(is.Rules, want) || !slices.Equal(f.Entries[0].Rules, want) {
		t.Errorf("%v, want %v", is.Rules, want)
	}
	if len(f.Entries) != 2 || is.Params["channel.byte"] != "9ps" || is.Params["rank.copy"] != "7ps" {
		t.Errorf("%v: expected two entries, with the new channel.byte and the old rank.copy", f)
	}
	if _, err := f.Put(Entry{Machine: "a", Size: 2, Rules: []string{"all_reduce:fastest"}}); err == nil {
		t.Error("Put accepts an entry with an unknown algorithm")
	}
}

// Parameters survive being written and read, to three digits, and stay within their bounds.
func TestFittedParametersAreWritten(t *testing.T) {
	for _, seconds := range []float64{0, 1e-15, 20e-12, 999.4e-12, 999.6e-12, 250e-9, 999.7e-9, 1e-6, 25e-6, 10e-3} {
		text := Setting{"slots.hop", seconds}.text()
		got, err := parseTime(text)
		if err != nil || math.Abs(got-seconds) > seconds*0.005 || got > 10e-3 || strings.Contains(text, "e") {
			t.Errorf("%g is written as %s, which is %g, %v", seconds, text, got, err)
		}
	}
}
