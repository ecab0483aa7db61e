package pgbackend

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"sagecomm/algo"
	"sagecomm/internal/coll"
	"sagecomm/internal/transport/tcp"
)

// This file measures the links of a group between hosts, and makes the ranks agree on what they cost (docs/protocol.md,
// section 16, The probe of links).

// Bounds of the probe, which tests change.
var (
	linkProbeLimit  = 40 * time.Millisecond  // for a link
	linkProbesLimit = 120 * time.Millisecond // for all links that a process measures for a group
)

// measureLink measures a link. Tests replace it.
var measureLink = (*tcp.Link).Probe

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
	known map[hostPair]foundCosts
}

func newLinkProbes() linkProbes {
	return linkProbes{turn: make(chan struct{}, 1), known: map[hostPair]foundCosts{}}
}

func (p *linkProbes) of(pair hostPair) (c foundCosts, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c, known = p.known[pair]
	return c, known
}

// remember keeps costs, unless the pair is known: all groups of the process tell the same, also where another group has
// used the link while it was measured. A pair that was tried in vain is not tried again: it has no costs, or a latency
// alone.
func (p *linkProbes) remember(pair hostPair, c foundCosts) {
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

// measuredLink is the link by which two hosts are measured: processes of the group, of which the first one measures.
type measuredLink struct{ from, to int }

// orderedHosts names a pair of hosts.
func orderedHosts(a, b int) [2]int { return [2]int{min(a, b), max(a, b)} }

// measuredLinks returns the link of each pair of hosts by which it is measured: the first one between processes that
// watch each other, which is that of the processes of both lowest ranks where all do. In a large group there may be
// none between two hosts. All ranks find the same.
func (g *Group) measuredLinks() map[[2]int]measuredLink {
	found := map[[2]int]measuredLink{}
	for i, p := range g.links.processes {
		for j, q := range g.links.processes {
			a, b := g.hostOf[p.ranks[0]], g.hostOf[q.ranks[0]]
			if a == b || !measures(a, b, len(g.hosts)) || !g.links.watched(i, j) {
				continue
			}
			if _, known := found[orderedHosts(a, b)]; !known {
				found[orderedHosts(a, b)] = measuredLink{i, j}
			}
		}
	}
	return found
}

// probedHost is what a rank tells of the link to a host that was tried.
type probedHost struct {
	Host int `json:"host"` // of the group
	foundCosts
	Again bool `json:"again,omitempty"` // a later group measures it: others had the processors, or the time
}

// probe measures the links that this process is to measure. It ends early when the context is done.
func (l *linking) probe(ctx context.Context) {
	g := l.g
	self, hosts := g.hostOf[g.rank], len(g.hosts)
	l.mu.Lock()
	links, failed := slices.Clone(l.links), l.failed
	l.mu.Unlock()
	if failed != nil || !g.tuningSettings.probe || l.processes[g.links.self].ranks[0] != g.rank {
		return
	}
	measured := g.measuredLinks()
	if !slices.ContainsFunc(slices.Collect(maps.Values(measured)), func(m measuredLink) bool { return m.from == g.links.self }) {
		return
	}
	if tune, err := g.tuningSettings.forShape(g.members[0].Machine, g.shape()); err != nil || tune.SetsNetwork() {
		return // nothing depends on what would be measured
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
		between, ok := measured[orderedHosts(self, host)]
		if !ok || between.from != g.links.self {
			continue
		}
		pair := g.hostPair(self, host)
		found, is := known.of(pair)
		if !is {
			link := links[between.to]
			limit := min(linkProbeLimit, time.Until(deadline))
			if link == nil || limit <= 0 || ctx.Err() != nil {
				continue // not tried: a later group does
			}
			costs := measureLink(link, ctx, limit)
			if link.Err() != nil || ctx.Err() != nil {
				continue // something else than the time has ended the probe
			}
			found = costsOf(costs)
			if again := !found.measured() && (costs.Unclear || limit < linkProbeLimit); again {
				if found.Part {
					l.probed = append(l.probed, probedHost{host, found, again})
				}
				continue
			}
			known.remember(pair, found)
		}
		l.probed = append(l.probed, probedHost{Host: host, foundCosts: found})
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
	octaves  networkOctaves
	worst    linkCosts // of the pairs that were measured, before they are rounded; 0 if none was
	pairs    int       // of hosts between which there is a link to be measured
	measured int       // of these pairs; the defaults stand for the others,
	parts    int       // but for the latency of so many
}

// agreeOnLinks returns what the costs of links are for the group, from what all ranks have told in the round linked.
// Pairs of hosts between which no link is to be measured count as those that are.
func (g *Group) agreeOnLinks(all [][]byte) (out networkProbe) {
	hosts := len(g.hosts)
	told := make([]map[int]probedHost, len(g.links.processes))
	for i, p := range g.links.processes {
		told[i] = map[int]probedHost{}
		var list []probedHost
		if json.Unmarshal(all[p.ranks[0]], &list) != nil { // as of one that tells nothing
			continue
		}
		for _, one := range list {
			one.foundCosts = one.believed()
			told[i][one.Host] = one
		}
	}
	measured := g.measuredLinks()
	var used linkCosts
	for a := range hosts {
		for b := a + 1; b < hosts; b++ {
			between, ok := measured[orderedHosts(a, b)]
			if !ok {
				continue
			}
			found, tried := told[between.from][g.hostOf[g.links.processes[between.to].ranks[0]]]
			if tried && !found.Again {
				g.process.linkProbes.remember(g.hostPair(a, b), found.foundCosts)
			}
			out.pairs++
			costs := found.linkCosts
			switch {
			case found.measured():
				out.measured++
				out.worst = out.worst.worst(costs)
			case found.Part:
				out.parts++
			default:
				costs = defaultCosts()
			}
			used = used.worst(costs)
		}
	}
	out.octaves = used.octaves()
	return out
}

// probedLinks returns what was measured of links between hosts, nil where there are none.
func (g *Group) probedLinks() *probedLinks {
	if !g.apart() {
		return nil
	}
	l := g.probed.worst.link()
	return &probedLinks{l.Latency, l.Step, l.Byte, g.probed.pairs, g.probed.measured, g.probed.parts}
}

// describeProbe returns what the group predicts messages between hosts by, for logs.
func (g *Group) describeProbe() string {
	p, network := g.probed, g.selector.Params().Network
	measured, others, keeps := "not measured", "", ""
	if p.measured > 0 {
		measured = fmt.Sprintf("measured: %s, the highest of %d of %s of hosts", algo.NetworkSettings(p.worst.link(), 3), p.measured, coll.Count(p.pairs, "pair"))
	}
	if p.parts > 0 {
		others = fmt.Sprintf("; of %s of hosts only the latency is known", coll.Count(p.parts, "pair"))
	}
	if p.measured > 0 && p.measured+p.parts < p.pairs {
		others += "; the others count with the defaults"
	}
	if p.measured+p.parts > 0 {
		keeps = fmt.Sprintf("; SAGECOMM_TUNE=%q keeps these choices", algo.KeepNetwork(g.tuningSettings.text, network))
	}
	return fmt.Sprintf("messages between hosts: %s; %s%s%s", algo.NetworkSettings(network, 7), measured, others, keeps)
}
