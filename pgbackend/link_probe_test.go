package pgbackend

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/algo"
	"sagecomm/algo/cost"
	"sagecomm/internal/bootstrap"
	"sagecomm/internal/coll"
	"sagecomm/internal/transport/tcp"
)

// probing lets groups measure their links, and forgets what was measured before and in the test. measure takes the
// place of the probe unless it is nil.
func probing(t *testing.T, measure func(l *tcp.Link, ctx context.Context, limit time.Duration) tcp.Costs) {
	t.Helper()
	t.Setenv("SAGECOMM_PROBE", "on")
	eachAProcess(t)
	forgetLinks()
	real := measureLink
	if measure != nil {
		measureLink = measure
	}
	t.Cleanup(func() {
		measureLink = real
		forgetLinks()
	})
}

// forgetLinks forgets what was measured.
func forgetLinks() {
	p := &Get().linkProbes
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.known)
}

// groupOver makes a group over several hosts.
func groupOver(t *testing.T, hosts string, more options) *world {
	t.Helper()
	w, errs := tryWorld(t, len(hosts), opTimeout, func(rank int) options {
		o := onHosts(hosts)(rank)
		for name, value := range more {
			o[name] = value
		}
		return o
	})
	for rank, err := range errs {
		require.NoError(t, err, rank)
	}
	return w
}

// requireAlike requires that all ranks choose alike, and that collectives work.
func requireAlike(t *testing.T, w *world) {
	t.Helper()
	for rank, g := range w.groups {
		require.Equal(t, w.groups[0].probed, g.probed, rank)
		require.Equal(t, w.groups[0].choicesHash(), g.choicesHash(), rank)
	}
	w.each(func(g *Group) error { return asError(sum(g, 100_000)) })
}

func TestEachPairOfHostsIsMeasuredOnce(t *testing.T) {
	for hosts := 2; hosts <= 64; hosts++ {
		for a := range hosts {
			measured := 0
			for b := range hosts {
				if a == b {
					continue
				}
				require.NotEqual(t, measures(a, b, hosts), measures(b, a, hosts), "hosts %d and %d of %d", a, b, hosts)
				if measures(a, b, hosts) {
					measured++
				}
			}
			require.LessOrEqual(t, measured, hosts/2)
			require.GreaterOrEqual(t, measured, (hosts-1)/2)
		}
	}
}

func TestCostsOfLinks(t *testing.T) {
	for _, c := range []struct {
		got  tcp.Costs
		want linkCosts
	}{
		{tcp.Costs{}, linkCosts{}},
		{tcp.Costs{Frame: 1e-6, Byte: 1e-10}, linkCosts{}}, // nobody has answered
		{tcp.Costs{RoundTrip: 50e-6, Frame: 5e-6, Byte: 100e-12}, linkCosts{Latency: 15e9, Step: 5e9, Byte: 100_000}},
		{tcp.Costs{RoundTrip: 60e-6, Frame: 50e-6, Byte: 1e-12}, linkCosts{Latency: 10e9, Step: 10e9, Byte: 1000}}, // a frame that takes too long
		{tcp.Costs{RoundTrip: 60e-6, Frame: 5e-6}, linkCosts{}},                                                    // the time was over
		{tcp.Costs{RoundTrip: 60e-6, Byte: 1e-12}, linkCosts{}},
		{tcp.Costs{RoundTrip: 1e9, Frame: 1, Byte: 1e-12}, linkCosts{}}, // no link is that slow
		// What the kernel knows of the network counts where bursts were not measured, and the network takes longer than
		// the defaults say.
		{tcp.Costs{Network: 62e-6}, linkCosts{}},
		{tcp.Costs{Network: 66e-6}, linkCosts{Latency: 27e9, Step: 3e9, Byte: 320_000}},
		{tcp.Costs{Network: 150e-3}, linkCosts{Latency: 74_994e9, Step: 3e9, Byte: 320_000}},
		{tcp.Costs{RoundTrip: 9e-3, Network: 8e-3, Byte: 1e-9}, linkCosts{Latency: 3994e9, Step: 3e9, Byte: 320_000}},
		{tcp.Costs{RoundTrip: 20e-3, Network: 20e-6, Unclear: true}, linkCosts{}}, // others had the processors
		{tcp.Costs{Network: 3}, linkCosts{}},
		{tcp.Costs{RoundTrip: 50e-6, Frame: 5e-6, Byte: 100e-12, Network: 40e-6}, linkCosts{Latency: 15e9, Step: 5e9, Byte: 100_000}},
	} {
		got := costsOf(c.got)
		require.InDelta(t, c.want.Latency, got.Latency, 2, "%+v", c.got)
		require.InDelta(t, c.want.Step, got.Step, 2, "%+v", c.got)
		require.InDelta(t, c.want.Byte, got.Byte, 2, "%+v", c.got)
		require.Equal(t, c.want.Latency > 0 && c.got.Byte*c.got.Frame == 0, got.Part, "%+v", c.got)
		require.Equal(t, c.want.Latency > 0 && !got.Part, got.measured(), "%+v", c.got)
	}
}

func TestOctavesOfLinks(t *testing.T) {
	usual := defaultCosts()
	require.Equal(t, linkCosts{Latency: 25e9, Step: 3e9, Byte: 320_000}, usual)
	for ratio, want := range map[float64]int8{1: 0, 3.9: 0, 0.26: 0, 4: 2, 0.25: -2, 0.18: -2, 0.17: -3, 5.6: 2, 5.7: 3, 1e-4: -mostOctaves, 1e4: mostOctaves} {
		times := func(x int64) int64 { return int64(ratio * float64(x)) }
		require.Equal(t, networkOctaves{want, want, want}, linkCosts{times(usual.Latency), times(usual.Step), times(usual.Byte)}.octaves(), ratio)
	}
	for _, octave := range []int8{-mostOctaves, 0, mostOctaves} { // all are parameters that the selector takes
		r := networkOctaves{octave, octave, octave}
		require.NoError(t, r.scale(algo.DefaultParams()).Validate())
		require.Equal(t, cost.Link{Latency: 25e-6 * math.Exp2(float64(octave)), Step: 3e-6 * math.Exp2(float64(octave)), Byte: 320e-12 * math.Exp2(float64(octave))},
			r.scale(algo.DefaultParams()).Network)
	}
}

// Each link is measured by one process, all ranks take the highest values, and choose by them. Later groups of these
// hosts measure nothing, in whatever order and number they have them.
func TestRanksChooseByTheSlowestLink(t *testing.T) {
	var links atomic.Int64
	probing(t, func(*tcp.Link, context.Context, time.Duration) tcp.Costs {
		n := float64(links.Add(1)) // each measures something else
		return tcp.Costs{RoundTrip: n * 1e-3, Frame: 0.5e-6 / n, Byte: n * 1e-9}
	})
	withLimits(t, linkProbeLimit, opTimeout)
	w := groupOver(t, "001232", nil)
	requireAlike(t, w)
	require.EqualValues(t, 6, links.Load())
	probed := w.groups[0].probed
	require.Equal(t, 6, probed.pairs)
	require.Equal(t, 6, probed.measured)
	require.InDelta(t, 3e12, probed.worst.Latency, 3e9, "half of the round trip of the slowest one")
	require.InDelta(t, 0.5e9, probed.worst.Step, 2, "of another link than that")
	require.InDelta(t, 6e6, probed.worst.Byte, 2)
	require.Equal(t, networkOctaves{7, -3, 4}, probed.octaves)
	require.InEpsilon(t, 5.12e-9, w.groups[0].selector.Params().Network.Byte, 1e-9)
	text := w.groups[0].describeProbe()
	require.Contains(t, text, "network.latency=3.2ms;network.step=375ns;network.byte=5.12ns")
	require.Contains(t, text, "the highest of 6 of 6 pairs of hosts;")

	t.Setenv("SAGECOMM_PROBE", "off")
	usual := groupOver(t, "001232", nil)
	require.NotEqual(t, w.groups[0].selector.Describe(coll.AllReduce), usual.groups[0].selector.Describe(coll.AllReduce))
	t.Setenv("SAGECOMM_PROBE", "on")

	for _, hosts := range []string{"001232", "10", "213"} {
		again := groupOver(t, hosts, nil)
		requireAlike(t, again)
		require.EqualValues(t, 6, links.Load(), hosts)
		require.Equal(t, again.groups[0].probed.pairs, again.groups[0].probed.measured)
	}
	further := groupOver(t, "024", nil)
	requireAlike(t, further)
	require.EqualValues(t, 8, links.Load(), "those of host 4")
}

// What is off is not measured. What users set wins.
func TestLinksThatAreNotMeasured(t *testing.T) {
	var links atomic.Int64
	probing(t, func(*tcp.Link, context.Context, time.Duration) tcp.Costs {
		links.Add(1)
		return tcp.Costs{RoundTrip: 1e-3, Frame: 20e-6, Byte: 5e-9}
	})
	withLimits(t, linkProbeLimit, opTimeout)
	step := options{"tune_file": tuningFile(t, algo.Entry{Machine: Machine(), Params: map[string]string{"network.step": "7us"}})}
	step["tune"] = "network.latency=1us;all_to_all:pairwise;network.byte=1ns"
	all := groupOver(t, "01", step)
	requireAlike(t, all)
	require.Zero(t, links.Load(), "nothing depends on the links")
	require.Equal(t, cost.Link{Latency: 1e-6, Step: 7e-6, Byte: 1e-9}, all.groups[1].selector.Params().Network)
	w := groupOver(t, "01", options{"tune": "network.latency=1us;all_to_all:pairwise;network.byte=1ns"})
	requireAlike(t, w)
	require.EqualValues(t, 1, links.Load())
	require.Equal(t, cost.Link{Latency: 1e-6, Step: 24e-6, Byte: 1e-9}, w.groups[0].selector.Params().Network)
	require.Contains(t, w.groups[0].describeProbe(), `SAGECOMM_TUNE="all_to_all:pairwise;network.latency=1us;network.step=24us;network.byte=1ns" keeps`)
	w = groupOver(t, "01", options{"tune_file": step["tune_file"]})
	require.InEpsilon(t, 7e-6, w.groups[0].selector.Params().Network.Step, 1e-9)

	t.Setenv("SAGECOMM_PROBE", "off")
	w = groupOver(t, "02", nil)
	requireAlike(t, w)
	w.each(func(g *Group) error {
		if got := g.selector.Params(); got != algo.DefaultParams() || g.probed.measured != 0 {
			return fmt.Errorf("%+v, %+v", got, g.probed)
		}
		return nil
	})
	require.Contains(t, w.groups[0].describeProbe(), "network.latency=25us;network.step=3us;network.byte=320ps; not measured")
	text, err := json.Marshal(w.groups[0].probedLinks())
	require.NoError(t, err)
	require.JSONEq(t, `{"pairs": 1, "measured": 0}`, string(text), "nothing is said to be measured")
	t.Setenv("SAGECOMM_PROBE", "on")
	groupOver(t, "00", nil) // on one host
	require.EqualValues(t, 1, links.Load())
}

// Links answer as they are, also encrypted ones, whose costs are others. What they cost on this machine is not looked
// at here.
func TestLinksAreMeasured(t *testing.T) {
	probing(t, func(l *tcp.Link, ctx context.Context, _ time.Duration) tcp.Costs {
		for l.Err() == nil && ctx.Err() == nil { // however busy the machine is
			if c := l.Probe(ctx, 100*time.Millisecond); c.RoundTrip > 0 && c.Network > 0 {
				return tcp.Costs{RoundTrip: 1e-3, Frame: 1e-6, Byte: 1e-9}
			}
		}
		t.Error("a link does not answer")
		return tcp.Costs{}
	})
	withLimits(t, opTimeout, opTimeout)
	for _, o := range []options{nil, newCertificates(t).options(t, time.Now().Add(time.Hour))} {
		w := groupOver(t, "0012", o)
		requireAlike(t, w)
		p := w.groups[3].probed
		require.Equal(t, 3, p.pairs)
		require.Equal(t, 3, p.measured)
		require.NotZero(t, p.worst)
	}
	require.Len(t, Get().linkProbes.known, 6)
}

// withLimits bounds the probe of a link, and of all links, until the test ends.
func withLimits(t *testing.T, each, all time.Duration) {
	t.Helper()
	beforeEach, beforeAll := linkProbeLimit, linkProbesLimit
	linkProbeLimit, linkProbesLimit = each, all
	t.Cleanup(func() { linkProbeLimit, linkProbesLimit = beforeEach, beforeAll })
}

// A process that does not answer costs a moment and no group. The pair counts as one with the default costs, in later
// groups of the process as well.
func TestProbeWithoutAnswers(t *testing.T) {
	var links atomic.Int64
	probing(t, func(l *tcp.Link, ctx context.Context, limit time.Duration) tcp.Costs {
		if limit > linkProbeLimit {
			t.Errorf("a limit of %v", limit)
		}
		if links.Add(1) == 2 {
			<-time.After(limit)
			return tcp.Costs{}
		}
		return tcp.Costs{RoundTrip: 1e-6, Frame: 1e-7, Byte: 1e-12}
	})
	withLimits(t, linkProbeLimit, opTimeout) // on a busy machine all have their time
	of := linkCosts{Latency: 300e6, Step: 100e6, Byte: 1000}
	for range 2 {
		w := groupOver(t, "012", nil)
		requireAlike(t, w)
		require.EqualValues(t, 3, links.Load())
		got := w.groups[0].probed
		require.InDelta(t, of.Latency, got.worst.Latency, 2, "of a pair that was measured, and not the default")
		got.worst = of
		require.Equal(t, networkProbe{worst: of, pairs: 3, measured: 2}, got, "by the default of the pair that was not")
		require.Contains(t, w.groups[0].describeProbe(), "the highest of 2 of 3 pairs of hosts; the others count with the defaults")
	}
}

// Pairs for which no time was left were not tried: this group takes the defaults, and a later one measures them.
func TestPairsOfHostsThatWereNotTriedAreTriedLater(t *testing.T) {
	var links atomic.Int64
	var slow atomic.Bool
	probing(t, func(_ *tcp.Link, _ context.Context, limit time.Duration) tcp.Costs {
		links.Add(1)
		if slow.Load() {
			<-time.After(limit)
		}
		return tcp.Costs{RoundTrip: 1e-3, Frame: 1e-6, Byte: 1e-12}
	})
	withLimits(t, linkProbeLimit, linkProbeLimit) // a process that is to measure two links has time for the first one
	slow.Store(true)
	w := groupOver(t, "0123", nil)
	requireAlike(t, w)
	first := w.groups[0].probed
	require.Less(t, first.measured, first.pairs)
	require.EqualValues(t, links.Load(), first.measured)
	require.Len(t, Get().linkProbes.known, first.measured)
	slow.Store(false)
	linkProbesLimit = opTimeout
	w = groupOver(t, "0123", nil)
	requireAlike(t, w)
	require.EqualValues(t, 6, links.Load())
	require.Equal(t, 6, w.groups[0].probed.measured)
}

// What says nothing of a pair is no reason not to measure it later: a probe that had less than its time, and one in
// which others had the processors.
func TestPairsOfHostsOfWhichNothingFollowsAreTriedLater(t *testing.T) {
	for name, c := range map[string]struct {
		each  time.Duration
		first tcp.Costs
		again bool
	}{
		"less than its time":             {time.Hour, tcp.Costs{RoundTrip: 1e-3}, true},
		"busy processors":                {linkProbeLimit, tcp.Costs{RoundTrip: 1e-3, Unclear: true}, true},
		"in vain":                        {linkProbeLimit, tcp.Costs{RoundTrip: 1e-3}, false},
		"a long way":                     {linkProbeLimit, tcp.Costs{Network: 1e-3}, false},
		"a long way, less than its time": {time.Hour, tcp.Costs{Network: 1e-3}, true},
		"a long way, busy processors":    {linkProbeLimit, tcp.Costs{Network: 1e-3, Unclear: true}, true},
	} {
		t.Run(name, func(t *testing.T) {
			var links atomic.Int64
			probing(t, func(*tcp.Link, context.Context, time.Duration) tcp.Costs {
				if links.Add(1) == 1 {
					return c.first
				}
				return tcp.Costs{RoundTrip: 1e-3, Frame: 1e-6, Byte: 1e-12}
			})
			withLimits(t, c.each, opTimeout)
			first := groupOver(t, "01", nil)
			requireAlike(t, first)
			probed := first.groups[0].probed
			require.Zero(t, probed.measured)
			require.Contains(t, first.groups[0].describeProbe(), "; not measured")
			if c.first.Network > 0 {
				require.Equal(t, 1, probed.parts)
				require.Equal(t, networkOctaves{4, 0, 0}, probed.octaves)
				require.Contains(t, first.groups[0].describeProbe(), "; of 1 pair of hosts only the latency is known; SAGECOMM_TUNE=")
				require.Equal(t, &probedLinks{Pairs: 1, LatencyKnown: 1}, first.groups[0].probedLinks())
			}
			second := groupOver(t, "01", nil)
			requireAlike(t, second)
			if c.again {
				require.EqualValues(t, 2, links.Load())
				require.Equal(t, 1, second.groups[0].probed.measured)
			} else {
				require.EqualValues(t, 1, links.Load())
				require.Equal(t, first.groups[0].probed, second.groups[0].probed)
			}
		})
	}
}

// A link that is lost while links are measured fails the group as at any other time, and the probe of another link ends
// at once.
func TestLinkLostWhileItIsProbed(t *testing.T) {
	store := bootstrap.NewMemStore()
	dying := &dyingStore{MemStore: store, round: "no round"}
	probing(t, func(l *tcp.Link, ctx context.Context, _ time.Duration) tcp.Costs {
		dying.dead.Store(true)
		closeNodes(" 2")
		select {
		case <-ctx.Done():
		case <-time.After(hangAfter):
			t.Error("the probe does not end")
		}
		return tcp.Costs{}
	})
	errs := dying.rankDies(t, "012", 2)
	for rank := range 2 {
		require.NoError(t, expect(CreateFailure("g", errs[rank]), coll.PeerFailure, "rank 2 (host"), rank)
	}
	require.Error(t, errs[2])
}

// A link that is lost while it is measured says nothing about the network: nothing is told or remembered of it.
func TestCostsOfALostLinkAreForgotten(t *testing.T) {
	probing(t, func(l *tcp.Link, _ context.Context, _ time.Duration) tcp.Costs {
		l.Break(errors.New("lost in a test"))
		return tcp.Costs{RoundTrip: 1e-3, Frame: 1e-6, Byte: 1e-12}
	})
	_, errs := tryWorld(t, 2, opTimeout, onHosts("01"))
	for rank, err := range errs {
		require.Error(t, err, rank)
	}
	require.Empty(t, Get().linkProbes.known)
}

// What ranks tell of links may be anything.
func TestRecordsOfLinksThatNoRankWrites(t *testing.T) {
	good := `[{"host":1,"latency":200000000000,"step":3000000000,"byte":2560000}]`
	g := &Group{process: &Process{linkProbes: newLinkProbes()}, hosts: [][]int{{0, 1}, {2}}, hostOf: []int{0, 0, 1}, members: make([]member, 3)}
	g.links = &groupLinks{processes: []linkedProcess{{ranks: []int{0, 1}}, {ranks: []int{2}}}}
	for rank := range g.members {
		g.members[rank].HostSetting = fmt.Sprint(rank / 2)
	}
	told := func(of ...string) networkProbe {
		var all [][]byte
		for _, text := range of {
			all = append(all, []byte(text))
		}
		return g.agreeOnLinks(all)
	}
	usual := networkProbe{pairs: 1}
	for _, bad := range []string{"", "{", "null", "[1]", `[{"host":7,"latency":5}]`, `[{"host":-1}]`, strings.Replace(good, "step", "stop", 1), strings.Replace(good, `"host":1`, `"host":0`, 1), strings.ReplaceAll(good, ":", ":-"),
		`[{"host":1,"latency":9000000000000000000,"step":9000000000000000000,"byte":9000000000000000000}]`} {
		require.Equal(t, usual, told(bad, "", ""), bad)
	}
	require.Equal(t, usual, told("", good, good), "of ranks that do not measure it")
	for _, c := range g.process.linkProbes.known {
		require.False(t, c.measured())
	}
	clear(g.process.linkProbes.known)
	require.Equal(t, networkProbe{networkOctaves{3, 0, 3}, linkCosts{200e9, 3e9, 2_560_000}, 1, 1, 0}, told(good, "", ""))
	require.Len(t, g.process.linkProbes.known, 1)
	clear(g.process.linkProbes.known)
	part := strings.Replace(good, "}", `,"part":true,"again":true}`, 1)
	require.Equal(t, networkProbe{networkOctaves{3, 0, 3}, linkCosts{}, 1, 0, 1}, told(part, "", ""))
	require.Empty(t, g.process.linkProbes.known)
}
