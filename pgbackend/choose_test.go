package pgbackend

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/algo"
	"sagecomm/internal/coll"
	"sagecomm/internal/topo"
)

func TestRanksAgreeOnWhatTheyFound(t *testing.T) {
	for _, c := range []struct {
		list []probeResult
		want probeResult
	}{
		{[]probeResult{{1, -2, 0, 3}}, probeResult{1, -2, 0, 3}},
		{[]probeResult{{1}, {2}}, probeResult{1}},
		{[]probeResult{{4}, {0}, {1}}, probeResult{1}},
		{[]probeResult{{127}, {127}, {-128}}, probeResult{mostOctaves}}, // a rank may say anything
		{[]probeResult{{-128}, {-128}}, probeResult{-mostOctaves}},
	} {
		if got := agree(c.list); got != c.want {
			t.Errorf("%v: %v, expected %v", c.list, got, c.want)
		}
	}
}

func TestProbeResultsAreCoarse(t *testing.T) {
	for ratio, want := range map[float64]int8{0: 0, 1: 0, 3.9: 0, 0.26: 0, 4: 2, 5.7: 3, 100: 7, 0.2: -2, 0.1: -3} {
		if got := octaves(ratio*usual.Far, usual.Far); got != want {
			t.Errorf("%v times as long: %d octaves, expected %d", ratio, got, want)
		}
	}
	if got := (probeResult{1, 0, -1, 3}).scale(); got != (algo.Scale{Hop: 2, Copy: 1, Far: 0.5, Reduce: 8}) {
		t.Errorf("%+v", got)
	}
}

// A probe that measures much slower memory changes the tables, on all ranks and in later groups.
func TestProbeMakesTheTables(t *testing.T) {
	p := Get()
	p.probing.Do(func() {}) // whatever it was
	before := p.found
	t.Cleanup(func() { p.found = before })
	chosen := func(found probeResult, probe string) string {
		p.found = found
		t.Setenv("SAGECOMM_PROBE", probe)
		w := newWorld(t, 2)
		w.each(func(g *Group) error { return asError(sum(g, 100)) })
		return w.groups[0].selector.Describe(coll.AllReduce)
	}
	usual, slow := chosen(probeResult{}, "off"), chosen(probeResult{6, 0, 0, 0}, "on")
	if usual == slow {
		t.Errorf("64 times as slow hops change nothing: %s", slow)
	}
	if off := chosen(probeResult{6, 0, 0, 0}, "off"); off != usual {
		t.Errorf("without the probe: %s, expected %s", off, usual)
	}
}

// Ranks that share processors use the hop time of crowded groups, unless the probe is off. The processors of all ranks
// count, however the ranks are pinned.
func TestCrowdedRanks(t *testing.T) {
	pinned := func(sets ...topo.CPUSet) *Group {
		g := &Group{size: len(sets), process: Get(), tuningSettings: tuningSettings{probe: true}}
		for _, set := range sets {
			g.members = append(g.members, member{Processors: set})
		}
		return g
	}
	table := func(g *Group) string {
		require.NoError(t, g.choose())
		return g.selector.Describe(coll.AllReduce)
	}
	for _, c := range []struct {
		g       *Group
		crowded bool
	}{
		{pinned(topo.CPUSet{0}, topo.CPUSet{1}, topo.CPUSet{2}, topo.CPUSet{7}), false},
		{pinned(topo.CPUSet{0, 1}, topo.CPUSet{0, 1}, topo.CPUSet{2}, topo.CPUSet{3}), false},
		{pinned(topo.CPUSet{0, 1}, topo.CPUSet{0, 1}, topo.CPUSet{0, 1}, topo.CPUSet{2}), true},
	} {
		if got := c.g.crowded(); got != c.crowded {
			t.Errorf("%v: crowded %v", c.g.members, got)
		}
		with := table(c.g)
		c.g.tuningSettings.probe = false
		if without := table(c.g); (with != without) != c.crowded {
			t.Errorf("%v: %s, without the probe %s", c.g.members, with, without)
		}
	}
	if len(processors()) == 0 {
		t.Error("this process runs nowhere")
	}
}

func tuningFile(t *testing.T, e algo.Entry) string {
	t.Helper()
	text, err := json.Marshal(algo.File{Version: algo.FileVersion, Entries: []algo.Entry{e}})
	require.NoError(t, err)
	name := filepath.Join(t.TempDir(), "tune.json")
	require.NoError(t, os.WriteFile(name, text, 0o644))
	return name
}

func TestTuningFile(t *testing.T) {
	name := tuningFile(t, algo.Entry{Machine: Machine(), Size: 3, Rules: []string{"all_reduce:ring"}})
	for size, want := range map[int]string{2: "one_shot", 3: "ring"} {
		w := newWorldWith(t, size, opTimeout, options{"tune_file": name})
		w.each(func(g *Group) error { return asError(sum(g, 2)) })
		if got := w.groups[0].selector.Choose(coll.AllReduce, 8).Algorithm; got != want {
			t.Errorf("%d ranks: %s, expected %s", size, got, want)
		}
		if text := w.groups[0].untuned(); strings.Contains(text, "no entry for 2 ranks on 1 host of") != (size == 2) {
			t.Errorf("%d ranks: %q", size, text)
		}
	}
	w := newWorldWith(t, 3, opTimeout, options{"tune_file": name, "tune": "all_reduce:0-1K:two_shot"})
	if got := w.groups[0].selector.Choose(coll.AllReduce, 8).Algorithm; got != "two_shot" {
		t.Errorf("%s, expected what the variable says", got)
	}
}

func TestTuningFileThatCannotBeRead(t *testing.T) {
	pipe, long := filepath.Join(t.TempDir(), "pipe"), filepath.Join(t.TempDir(), "long")
	require.NoError(t, errors.Join(syscall.Mkfifo(pipe, 0o600), os.WriteFile(long, nil, 0o600), os.Truncate(long, longestTuning+1)))
	for name, want := range map[string]string{
		filepath.Join(t.TempDir(), "none.json"): "no such file",
		pipe:                                    "is no regular file",
		"/dev/zero":                             "is no regular file",
		t.TempDir():                             "is no regular file",
		long:                                    "has 16777217 bytes, expected at most 16777216",
		tuningFile(t, algo.Entry{Machine: "m", Rules: []string{"all_reduce:fastest"}}):           "fastest",
		tuningFile(t, algo.Entry{Machine: "m", Params: map[string]string{"slots.hop": "1hour"}}): "1hour",
	} {
		_, errs := tryWorld(t, 2, opTimeout, func(int) options { return options{"tune_file": name} })
		for rank, err := range errs {
			if err := expectText(err, "SAGECOMM_TUNE_FILE", want); err != nil {
				t.Errorf("rank %d: %v", rank, err)
			}
		}
	}
}

// A rank that cannot read its tuning settings tells the others, which would wait for it until their timeout otherwise.
func TestTuningSettingsOfOneRankThatCannotBeRead(t *testing.T) {
	for _, bad := range []options{{"tune": "all_reduce:fastest"}, {"tune_file": "/nowhere"}} {
		began := time.Now()
		_, errs := tryWorld(t, 3, time.Minute, func(rank int) options {
			if rank == 1 {
				return bad
			}
			return options{}
		})
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("%v: after %v", bad, took)
		}
		for rank, err := range errs {
			want := []string{"SAGECOMM_TUNE"}
			if rank != 1 {
				want = append(want, "rank 1")
			}
			if err := expectText(err, want...); err != nil {
				t.Errorf("%v, rank %d: %v", bad, rank, err)
			}
		}
	}
}

// Settings that differ are an error on all ranks when the group is made, before they could lead to a hang.
func TestTuningSettingsThatDiffer(t *testing.T) {
	one := tuningFile(t, algo.Entry{Machine: "m"})
	other := tuningFile(t, algo.Entry{Machine: "n"})
	for _, o := range [][2]options{
		{{"tune": "all_reduce:ring"}, {}},
		{{"tune": "channel.byte=1ns"}, {"tune": "channel.byte=2ns"}},
		{{"tune_file": one}, {}},
		{{"tune_file": one}, {"tune_file": other}},
	} {
		_, errs := tryWorld(t, 2, opTimeout, func(rank int) options { return o[rank] })
		for rank, err := range errs {
			if err := expectText(err, "are set up differently", "SAGECOMM_TUNE"); err != nil {
				t.Errorf("%v, rank %d: %v", o, rank, err)
			}
		}
	}
}

// Settings that the shape of the group makes impossible are an error on all ranks as well.
func TestRuleThatTheGroupCannotFollow(t *testing.T) {
	_, errs := tryWorld(t, 2, opTimeout, func(int) options { return options{"tune": "all_reduce:binomial@chunk=128K"} })
	for rank, err := range errs {
		if err := expectText(err, "all_reduce:binomial@chunk=128K"); err != nil {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

func expectText(err error, parts ...string) error {
	if err == nil {
		return fmt.Errorf("no error, expected %q", parts)
	}
	return expect(&coll.Failure{Status: coll.Invalid, Message: err.Error()}, coll.Invalid, parts...)
}

func TestExplain(t *testing.T) {
	w := newWorldWith(t, 3, opTimeout, options{"tune": "all_reduce:1M-inf:ring"})
	handle := w.groups[1].Handle()
	for _, c := range []struct {
		q         Question
		algorithm string
		forced    bool
	}{
		{Question{Op: "all_reduce", Bytes: 8, Group: handle}, "one_shot", false},
		{Question{Op: "all_reduce", Bytes: 2 << 20, Group: handle}, "ring", true},
		{Question{Op: "all_reduce", Bytes: 8, Ranks: 4}, "one_shot", false},
		{Question{Op: "all_reduce", Bytes: 8, Ranks: 4, Tune: "all_reduce:binomial"}, "binomial", true},
		{Question{Op: "broadcast", Bytes: 8, Ranks: 8, Hosts: 2, Tune: "broadcast:hierarchical"}, "hierarchical", true},
		{Question{Op: "all_reduce", Bytes: mostBytes, Ranks: 3}, "two_shot", false},
		{Question{Op: "barrier", Bytes: mostBytes, Ranks: 8}, "one_shot", false},
	} {
		e, err := Get().Explain(c.q)
		if err != nil {
			t.Errorf("%+v: %v", c.q, err)
			continue
		}
		chosen := 0
		for i, one := range e.Candidates {
			if one.Chosen {
				chosen++
				if one.Algorithm != c.algorithm || one.Forced != c.forced {
					t.Errorf("%+v: %+v", c.q, one)
				}
			}
			if one.Why == "" || i > 0 && one.Seconds < e.Candidates[i-1].Seconds {
				t.Errorf("%+v: %+v", c.q, e.Candidates)
			}
		}
		if chosen != 1 || len(e.Candidates) < 2 {
			t.Errorf("%+v: %d of %d are chosen", c.q, chosen, len(e.Candidates))
		}
	}
	for want, q := range map[string]Question{
		`"send" is no collective`:                  {Op: "send", Ranks: 2},
		`overlap: "send" is no collective`:         {Op: "send", Ranks: 2, Device: true, Overlap: &overlapQuestion{Parts: 1}},
		`"float128" is no type: there are int8, `:  {Op: "all_reduce", Ranks: 2, Type: "float128"},
		`"sparse" is no type`:                      {Op: "all_reduce", Ranks: 2, Type: "sparse"},
		`"MEAN" is no reduction: there are SUM, `:  {Op: "all_reduce", Ranks: 2, Reduce: "MEAN"},
		"broadcast has no reduction":               {Op: "broadcast", Ranks: 2, Reduce: "SUM"},
		"AVG is not defined for bool":              {Op: "reduce", Ranks: 2, Type: "bool", Reduce: "AVG"},
		"the group was destroyed":                  {Op: "barrier", Group: handle + 1<<40},
		"7 ranks on 2 hosts":                       {Op: "barrier", Ranks: 7, Hosts: 2},
		"a group of 0 ranks":                       {Op: "barrier"},
		"-1 hosts: expected":                       {Op: "barrier", Ranks: 2, Hosts: -1},
		"9223372036854775806 ranks: expected 1 to": {Op: "barrier", Ranks: math.MaxInt - 1, Hosts: 2},
		"expected at most 281474976710656":         {Op: "all_reduce", Bytes: math.MaxUint64, Ranks: 3},
		"unknown collective":                       {Op: "barrier", Ranks: 2, Tune: "x:y"},
	} {
		if _, err := Get().Explain(q); err == nil {
			t.Errorf("%+v: no error", q)
		} else if err := expectText(err, want); err != nil {
			t.Errorf("%+v: %v", q, err)
		}
	}
}

// HCCL and CNCL have no AVG: of floats it is a SUM beside torch's kernels.
func TestCarriersOfAverages(t *testing.T) {
	for _, name := range []string{"hccl", "cncl"} {
		for of, want := range map[coll.DataType]string{coll.Float32: name, coll.Int32: stagedEngine} {
			carrier, _ := carrierOf(name, coll.Op{Kind: coll.AllReduce, Type: of, Reduce: coll.Avg})
			require.Equal(t, want, carrier, "%s, %v", name, of)
		}
	}
}
