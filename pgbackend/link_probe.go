package pgbackend

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"sagecomm/algo"
	"sagecomm/algo/cost"
	"sagecomm/internal/coll"
	"sagecomm/internal/transport/tcp"
)

// This file measures the links of a group between hosts, and makes the ranks agree on what they cost (docs/protocol.md, section 16, The probe of
// links).

// Bounds of the probe, which tests change.
var (
	linkProbeLimit  = 40 * time.Millisecond  // for a link
	linkProbesLimit = 120 * time.Millisecond // for all links that a process measures for a group
)

// measureLink measures a link. Tests replace it.
var measureLink = (*tcp.Link).Probe

// linkCosts is what messages between two hosts cost, in whole femtoseconds. What is 0 was not measured.
type linkCosts struct {
	Latency int64 `json:"latency"`
	Step    int64 `json:"step"`
	Byte    int64 `json:"byte"`
}

// Bounds of what is believed, in femtoseconds.
const (
	mostOfLink = 1e15 // of a latency or step
	mostOfByte = 1e12
	second     = 1e15
)

// costsOf derives the costs of messages from those of frames. Half a round trip has a latency and the steps of both ends. A step takes a sixth of
// the round trip at most, so that a latency is left.
func costsOf(c tcp.Costs) (out linkCosts) {
	if c.RoundTrip <= 0 {
		return out
	}
	step := cmp.Or(c.Frame, algo.DefaultParams().Network.Step)
	step = min(step, c.RoundTrip/6)
	out.Latency = int64((c.RoundTrip/2 - 2*step) * second)
	if c.Frame > 0 {
		out.Step = int64(step * second)
	}
	out.Byte = int64(c.Byte * second)
	return out.believed()
}

// believed returns the costs without what cannot be.
func (c linkCosts) believed() linkCosts {
	within := func(x, most int64) int64 {
		if x < 0 || x > most {
			return 0
		}
		return x
	}
	return linkCosts{within(c.Latency, mostOfLink), within(c.Step, mostOfLink), within(c.Byte, mostOfByte)}
}

func (c linkCosts) complete() bool { return c.Latency > 0 && c.Step > 0 && c.Byte > 0 }

// worst returns the higher costs of two links, one by one.
func (c linkCosts) worst(of linkCosts) linkCosts {
	return linkCosts{max(c.Latency, of.Latency), max(c.Step, of.Step), max(c.Byte, of.Byte)}
}

// link returns the costs in seconds.
func (c linkCosts) link() cost.Link {
	return cost.Link{Latency: float64(c.Latency) / second, Step: float64(c.Step) / second, Byte: float64(c.Byte) / second}
}

// defaultCosts returns what messages between hosts cost if nobody has measured it.
func defaultCosts() linkCosts {
	of := func(seconds float64) int64 { return int64(math.Round(seconds * second)) }
	n := algo.DefaultParams().Network
	return linkCosts{of(n.Latency), of(n.Step), of(n.Byte)}
}

// networkResult holds log2(measured/default) of latency, step and byte.
type networkResult [3]int8

// octavesOf returns the powers of two that are nearest to some costs. It takes single operations on numbers only, since processors may
// contract several and round differently.
func octavesOf(c linkCosts) networkResult {
	of := func(got, usual int64) (octave int8) {
		value, low := float64(got), float64(usual)/math.Sqrt2
		high := 2 * low
		for ; value >= high && octave < mostOctaves; octave++ {
			value /= 2
		}
		for ; value < low && octave > -mostOctaves; octave-- {
			value *= 2
		}
		return octave
	}
	usual := defaultCosts()
	return networkResult{of(c.Latency, usual.Latency), of(c.Step, usual.Step), of(c.Byte, usual.Byte)}
}

// scale returns the parameters with the costs of messages between hosts that the result says.
func (r networkResult) scale(p algo.Params) algo.Params {
	x := func(i int) float64 { return math.Exp2(float64(r[i])) }
	return p.ScaledNetwork(x(0), x(1), x(2))
}

// hostPair names the links between two hosts.
type hostPair struct {
	low, high string // host keys
	encrypted bool
}

func (g *Group) hostPair(a, b int) hostPair {
	of := func(host int) string { return g.members[g.hosts[host][0]].hostKey() }
	low, high := min(of(a), of(b)), max(of(a), of(b))
	return hostPair{low, high, g.members[0].Encrypts}
}

// linkProbes is what a process knows of the links between hosts.
type linkProbes struct {
	turn  chan struct{} // has an element while a group is measured
	mu    sync.Mutex
	known map[hostPair]linkCosts
}

func newLinkProbes() linkProbes {
	return linkProbes{turn: make(chan struct{}, 1), known: map[hostPair]linkCosts{}}
}

func (p *linkProbes) of(pair hostPair) (c linkCosts, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c, known = p.known[pair]
	return c, known
}

// remember keeps costs, unless the pair is known: all groups of the process tell the same. What was tried in vain is not tried again.
func (p *linkProbes) remember(pair hostPair, c linkCosts) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, known := p.known[pair]; !known {
		p.known[pair] = c
	}
}

// measures reports whether of two of that many hosts the first one measures the link, and not the second one.
func measures(host, other, hosts int) bool {
	ahead := 2 * ((other - host + hosts) % hosts)
	return ahead < hosts || ahead == hosts && host < other
}

// probedHost is what a rank tells of the link to a host.
type probedHost struct {
	Host int `json:"host"` // of the group
	linkCosts
}

// probe measures the links that this process is to measure. It ends early when the context is done.
func (l *linking) probe(ctx context.Context) {
	g := l.g
	self, hosts := g.hostOf[g.rank], len(g.hosts)
	l.mu.Lock()
	links, failed := slices.Clone(l.links), l.failed
	l.mu.Unlock()
	if failed != nil || !g.tuningSettings.probe || g.hosts[self][0] != g.rank {
		return
	}
	known := &g.process.linkProbes
	select { // another group may measure the same links
	case known.turn <- struct{}{}:
		defer func() { <-known.turn }()
	case <-ctx.Done():
		return
	}
	deadline := time.Now().Add(linkProbesLimit)
	for ahead := 1; 2*ahead <= hosts; ahead++ {
		host := (self + ahead) % hosts
		if !measures(self, host, hosts) {
			continue
		}
		pair := g.hostPair(self, host)
		found, is := known.of(pair)
		if limit := min(linkProbeLimit, time.Until(deadline)); !is && limit > 0 && ctx.Err() == nil {
			lowest := g.hosts[host][0]
			i := slices.IndexFunc(l.processes, func(p linkedProcess) bool { return slices.Contains(p.ranks, lowest) })
			if links[i] != nil {
				found = costsOf(measureLink(links[i], ctx, limit))
			}
			if ctx.Err() == nil { // nothing but the link has ended the probe
				known.remember(pair, found)
			}
		}
		l.probed = append(l.probed, probedHost{host, found})
	}
}

// told returns what this rank tells in the round linked.
// Requires: the links are there.
func (l *linking) told() []byte {
	if len(l.probed) == 0 {
		return nil
	}
	text, err := json.Marshal(l.probed)
	if err != nil { // numbers
		return nil
	}
	return text
}

// networkProbe is what the ranks of a group have agreed on.
type networkProbe struct {
	octaves  networkResult
	worst    linkCosts // of all pairs of hosts; the defaults stand for those that were not measured
	pairs    int
	measured int // pairs of which everything was measured
}

// agreeOnLinks returns what the costs of links are for the group, from what all ranks have told in the round linked.
func (g *Group) agreeOnLinks(all [][]byte) (out networkProbe) {
	hosts := len(g.hosts)
	told := make([]map[int]linkCosts, hosts)
	for host, ranks := range g.hosts {
		told[host] = map[int]linkCosts{}
		var list []probedHost
		if json.Unmarshal(all[ranks[0]], &list) != nil { // as of one that tells nothing
			continue
		}
		for _, one := range list {
			told[host][one.Host] = one.believed()
		}
	}
	usual := defaultCosts()
	for a := range hosts {
		for b := a + 1; b < hosts; b++ {
			from, to := a, b
			if !measures(a, b, hosts) {
				from, to = b, a
			}
			found, was := told[from][to]
			if was {
				g.process.linkProbes.remember(g.hostPair(a, b), found)
			}
			out.pairs++
			if found.complete() {
				out.measured++
			} else {
				found = usual // what took too long is no measure of the rest either
			}
			out.worst = out.worst.worst(found)
		}
	}
	out.octaves = octavesOf(out.worst)
	return out
}

// probedLinks returns what was measured of links between hosts, nil where there are none.
func (g *Group) probedLinks() *probedLinks {
	if !g.apart() {
		return nil
	}
	l := g.probed.worst.link()
	return &probedLinks{l.Latency, l.Step, l.Byte, g.probed.pairs, g.probed.measured}
}

// describeProbe returns what the group predicts messages between hosts by, for logs.
func (g *Group) describeProbe() string {
	settings := algo.NetworkSettings(g.selector.Params().Network, 7)
	if g.probed.measured == 0 {
		return fmt.Sprintf("messages between hosts: %s; not measured", settings)
	}
	return fmt.Sprintf("messages between hosts: %s; measured: %s, the highest of %s of hosts, of which %d were measured; SAGECOMM_TUNE=%q keeps these choices",
		settings, algo.NetworkSettings(g.probed.worst.link(), 3), coll.Count(g.probed.pairs, "pair"), g.probed.measured, settings)
}
