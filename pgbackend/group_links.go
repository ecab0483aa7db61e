package pgbackend

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"sagecomm/internal/bootstrap"
	"sagecomm/internal/coll"
	"sagecomm/internal/handshake"
	"sagecomm/internal/observe"
	"sagecomm/internal/runner"
	"sagecomm/internal/shadow"
	"sagecomm/internal/transport/tcp"
)

// This file has what a group does with its links when they are there (linking.go), until it gives them back.

// groupLinks is what a rank of a group over several hosts has for its peers on other hosts.
type groupLinks struct {
	network   *network
	number    uint64          // of the group in frames
	space     handshake.Space // names the key of the group's links
	keyed     bool            // the node has that key from this group
	processes []linkedProcess // in the order of their lowest ranks, this one included
	self      int             // this process
	pairs     []*shadow.Pair  // by rank; nil for ranks of this host
	shadows   *shadow.Memory  // of all pairs
	met       metRanks
	sparse    bool // not all processes watch each other
	needed    neededLinks
	making    bool                    // the network waits for this group to be made
	lost      []atomic.Pointer[error] // by rank: why the link to it is lost
}

// metRanks are the ranks of other hosts of which the pair is made. The lanes of the group look at them as at those of
// this host.
type metRanks struct {
	mu    sync.Mutex
	ranks []int
	runs  []*runner.Group
}

// add is called when a pair is made.
func (m *metRanks) add(rank int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ranks = append(m.ranks, rank)
	for _, run := range m.runs {
		run.Visit(rank)
	}
}

// showMet lets a lane look at the ranks of other hosts of which the pair is made, from now on.
func (g *Group) showMet(run *runner.Group) {
	if g.links == nil {
		return
	}
	m := &g.links.met
	m.mu.Lock()
	defer m.mu.Unlock()
	m.runs = append(m.runs, run)
	for _, rank := range m.ranks {
		run.Visit(rank)
	}
}

// hideMet ends that, for a lane that is closed before its group.
func (g *Group) hideMet(run *runner.Group) {
	if g.links == nil {
		return
	}
	m := &g.links.met
	m.mu.Lock()
	defer m.mu.Unlock()
	m.runs = slices.DeleteFunc(m.runs, func(r *runner.Group) bool { return r == run })
}

// linkedProcess is a process of the group.
type linkedProcess struct {
	at    networkDescription
	ranks []int // rising
}

// warnOfPlainLinks warns. Tests replace it.
var warnOfPlainLinks = func(text string) { observe.Warn("%s", text) }

// warnOfLinks warns of links that leave the host and are not encrypted, once in a job as a rule, and of what their
// secret protects from if rank 0 has made it.
func (g *Group) warnOfLinks() {
	at := g.links.network.told[0].Addr()
	if g.rank != 0 || g.globalRank(0) != 0 || at.IsLoopback() || g.members[0].Encrypts {
		return
	}
	secret := ""
	switch {
	case g.members[0].HasSecret:
	case g.birth != nil:
		secret = "; their secret is made of the unique id: whoever has read that on its way to the ranks can join the job, unless SAGECOMM_SECRET_FILE or SAGECOMM_SECRET is set"
	default:
		secret = "; rank 0 has made their secret and put it into the store: it keeps out strangers who cannot read the store, " +
			"and whoever can read it can join the job, unless SAGECOMM_SECRET_FILE or SAGECOMM_SECRET is set"
	}
	g.process.networks.warned.Do(func() {
		warnOfPlainLinks(fmt.Sprintf("links between hosts (here at %v) are not encrypted, so whoever reads the network sees the data of the job%s; docs/security.md says what protects them", at, secret))
	})
}

// useLinks makes this process a member of the verdict on the group, and reserves the shadows of all ranks of other
// hosts. Requires: the memory of this host's ranks is attached.
func (g *Group) useLinks(lasting bootstrap.Lasting, links []*tcp.Link) error {
	l := g.links
	var store bootstrap.Claimer
	if lasting != nil {
		var err error
		if store, err = lasting.Last(); err != nil {
			g.info("the first cause of a failure will be decided without the store: %v", err)
		}
	}
	ranks, lowest := make([][]int, len(l.processes)), make([]int, len(l.processes))
	for i, p := range l.processes {
		ranks[i], lowest[i] = p.ranks, p.ranks[0]
	}
	var watched func(i, j int) bool
	if l.sparse {
		watched = l.watched
	}
	g.arbiter = l.network.join(arbiterConfig{watched: watched, info: g.info, number: l.number, size: g.size, lowest: lowest, self: l.self, store: store, key: g.keys + "/cause"}, ranks, links)
	g.recause = func(run *runner.Group, f *coll.Failure) {
		if !run.Recause(f) {
			observe.Warn("group %q: no memory for the first cause of its failure, which other ranks have: %s", g.title(), strings.TrimPrefix(f.Message, "sagecomm: "))
		}
	}
	g.remotes = make([]*remoteControl, g.size)
	var err error
	if l.shadows, err = shadow.NewMemory(g.size-len(g.hosts[g.hostOf[g.rank]]), g.size, g.geometry()); err != nil {
		return fmt.Errorf("%s has no shadows: %w", g.who(g.rank), err)
	}
	place := 0
	for i, p := range l.processes {
		for _, rank := range p.ranks {
			if !g.isRemote(rank) {
				continue
			}
			if err := g.addShadow(rank, i, links[i], place); err != nil {
				return fmt.Errorf("%s has no shadow of %s: %w", g.who(g.rank), g.who(rank), err)
			}
			place++
		}
	}
	return nil
}

// addShadow adds the pair with a rank of another host, whose shadow has a place among those of this rank. link is nil
// where there is none yet to the process of that rank.
func (g *Group) addShadow(rank, process int, link *tcp.Link, place int) error {
	m, lost := g.members[rank], &g.links.lost[rank] // the group may have left its links when it is told of a loss
	r := &remoteControl{set: g.links.network.set, own: g.ownControl(), rounds: &g.control}
	l, a := g.links, g.arbiter
	met := &l.met
	var need func()
	if l.sparse {
		need = func() { l.need(process, g.rank, a) }
	}
	pair, err := r.set.Add(shadow.Config{Link: link, Group: g.links.number, Rank: g.rank, To: rank, Size: g.size, Geometry: g.geometry(), Own: g.peers[g.rank],
		Memory: g.links.shadows, Shadow: place,
		Peer:    tcp.Identity(l.processes[process].at.ID),
		Need:    need,
		Control: r.take,
		Stated:  func() { r.states.Add(1) },
		Made: func() {
			met.add(rank)
			r.noteMade()
		},
		GaveUp: func() []byte {
			return runner.EncodeFailure(&coll.Failure{Status: coll.PeerFailure, Rank: rank, PID: m.PID, Host: m.Host, Group: g.name,
				Message: fmt.Sprintf("sagecomm: group %q: %s gave up while the group was made; its log has the reason", g.name, g.who(rank))})
		},
		Lost: func(why error) {
			lost.Store(&why)
			go func() {
				defer recoverFrom("the failure of a group")
				g.peerDied(rank)
			}()
		}})
	if err != nil {
		return err
	}
	r.pair = pair
	g.links.pairs[rank], g.remotes[rank], g.peers[rank] = pair, r, pair.Peer()
	return nil
}

// haveLeft implements servedGroup.
func (g *Group) haveLeft(ranks []int) (left, known bool) {
	if !g.life.acquire() {
		return false, false
	}
	defer g.life.release()
	return !slices.ContainsFunc(ranks, func(rank int) bool {
		_, left := g.run.LastCall(rank)
		return !left
	}), true
}

// ownControl returns the control area of this rank.
func (g *Group) ownControl() *controlArea {
	return (*controlArea)(unsafe.Pointer(unsafe.SliceData(g.memory.arena.Bytes(g.memory.control))))
}

// leaveRemotes frees what a group that was given up has for ranks of other hosts, while its shared block stays for
// those of this one. Requires: no rank touches the memory of the group any more.
func (g *Group) leaveRemotes() {
	for rank := range g.size {
		if g.isRemote(rank) {
			g.life.lost(rank) // its shadow is not looked at again
		}
	}
	g.freeLinks()
}

// linked takes note that the group has the links that it begins with. Unless others are made at first need, no further
// process makes one for it.
func (g *Group) linked() {
	if !g.links.sparse {
		g.closeLinking()
	}
}

// closeLinking lets no further process make a link for the group.
func (g *Group) closeLinking() {
	l := g.links
	if l.keyed {
		l.keyed = false
		l.network.node.RemoveKey(l.space)
	}
	if l.making {
		l.making = false
		g.process.made(l.network, g.size)
	}
}

// whyLost returns why the link to a rank is lost, nil if it is not.
func (g *Group) whyLost(rank int) error {
	if g.links == nil {
		return nil
	}
	if why := g.links.lost[rank].Load(); why != nil {
		return *why
	}
	return nil
}

// discardLinks ends what a group that is not made has of links. No process can have the group.
func (g *Group) discardLinks() {
	l := g.links
	if l == nil {
		return
	}
	for _, p := range l.pairs {
		if p != nil {
			l.network.set.Remove(p)
		}
	}
	if g.arbiter != nil {
		g.arbiter.leave(g)
	}
	g.closeLinking()
	g.arbiter, g.remotes = nil, nil
	g.freeLinks()
}

// freeLinks frees shadows and gives the network back.
// Requires: the runner's part of the group is closed, and nothing comes for it any more.
func (g *Group) freeLinks() {
	l := g.links
	if l == nil {
		return
	}
	l.needed.stop()
	if l.sparse && l.keyed {
		l.keyed = false
		l.network.keepKey(l.space)
	}
	g.closeLinking()
	for _, p := range l.pairs {
		if p != nil {
			p.Free()
		}
	}
	if l.shadows != nil {
		l.shadows.Free()
	}
	g.process.leaveNetwork(l.network)
	g.links = nil
}

// openPair makes the pair with a rank of another host, before something is sent to it or awaited of it. Where this rank
// has left, or the group is not made, there is none.
func (g *Group) openPair(rank int) {
	if g.isRemote(rank) {
		g.links.pairs[rank].Open()
	}
}

// haveHeard reports whether all processes of other hosts were told that this rank has left, or nothing is told any
// more.
func (g *Group) haveHeard() bool {
	return g.links == nil || !slices.ContainsFunc(g.links.pairs, func(p *shadow.Pair) bool { return p != nil && !p.HasLeft() })
}

// ringPumps lets pumps look for what this rank tells ranks of other hosts.
func (g *Group) ringPumps() {
	if g.links == nil {
		return
	}
	for _, p := range g.links.pairs {
		if p != nil {
			p.Wake()
		}
	}
}

// movedBetweenHosts returns a number that changes while data of the group cross between hosts.
func (g *Group) movedBetweenHosts() (n uint64) {
	if g.links == nil {
		return 0
	}
	for _, p := range g.links.pairs {
		if p != nil {
			n += p.Moved()
		}
	}
	return n
}

// describedLinks returns the hosts of the ranks that this one reaches over links, for logs.
func (g *Group) describedLinks() string {
	var far []int
	for rank := range g.size {
		if g.isRemote(rank) {
			far = append(far, rank)
		}
	}
	over := "TCP"
	if g.members[0].Encrypts {
		over = "TCP with TLS"
	}
	var there []string
	for _, p := range g.links.processes { // one of each host
		if rank := p.ranks[0]; g.isRemote(rank) && rank == g.hosts[g.hostOf[rank]][0] {
			there = append(there, fmt.Sprintf("%s at %v", g.who(rank), p.at.At))
		}
	}
	return fmt.Sprintf("links over %s (%d processes, this one at %v): ranks %v; of each other host %s", over, len(g.links.processes), g.links.network.told, far, strings.Join(there, ", "))
}
