package pgbackend

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"
	"unsafe"

	"sagecomm/internal/bootstrap"
	"sagecomm/internal/coll"
	"sagecomm/internal/handshake"
	"sagecomm/internal/observe"
	"sagecomm/internal/runner"
	"sagecomm/internal/shadow"
	"sagecomm/internal/transport/tcp"
)

// This file has the part of the rendezvous that links the processes of a group over several hosts (docs/protocol.md, section 16, Rendezvous).

// Times of linking.
const (
	linkLimit     = 20 * time.Second       // until all links of a group are there
	firstDial     = 300 * time.Millisecond // how long the process with the higher identity waits for the other one to dial
	otherWay      = 2 * time.Second        // how long a process that cannot dial waits for the other one, which perhaps can
	linkingQuiet  = 50 * time.Millisecond  // how long the wait for links may take before it looks for signals,
	linkingSlices = 100 * time.Millisecond // and how often it does so then
)

// groupLinks is what a rank of a group over several hosts has for its peers on other hosts.
type groupLinks struct {
	network   *network
	number    uint64          // of the group in frames
	space     handshake.Space // names the key of the group's links
	keyed     bool            // the node has that key from this group
	processes []farProcess    // in the order of their lowest ranks, this one included
	self      int             // this process
	pairs     []*shadow.Pair  // by rank; nil for ranks of this host
}

// farProcess is a process of the group.
type farProcess struct {
	at    networkDescription
	ranks []int // rising
}

// networkDescription is what a rank publishes of the network of its process.
type networkDescription struct {
	ID []byte           `json:"id"`
	At []netip.AddrPort `json:"at"`
}

// hostKey names the host of a rank: ranks with equal ones share memory. SAGECOMM_HOSTID separates hosts, and joins no machines.
func (m *member) hostKey() string { return m.HostSetting + "@" + m.Arena.BootID }

// networkName names the network of a rank among those of its process. Tests, in which the ranks are in one process, replace it.
var networkName = func(g *Group) string { return g.members[g.rank].hostKey() }

// spread finds out which ranks share a host.
// Requires: g.members are known.
func (g *Group) spread() {
	g.hosts, g.hostOf = nil, make([]int, g.size)
	number := map[string]int{}
	for rank := range g.members {
		key := g.members[rank].hostKey()
		host, known := number[key]
		if !known {
			host = len(g.hosts)
			number[key] = host
			g.hosts = append(g.hosts, nil)
		}
		g.hosts[host] = append(g.hosts[host], rank)
		g.hostOf[rank] = host
	}
}

// apart reports whether the ranks are on several hosts.
func (g *Group) apart() bool { return len(g.hosts) > 1 }

// far reports whether a rank is on another host than this one.
func (g *Group) far(rank int) bool { return g.apart() && g.hostOf[rank] != g.hostOf[g.rank] }

// checkHosts refuses what a group over several hosts cannot do. All ranks return the same.
func (g *Group) checkHosts() error {
	if !g.apart() {
		return nil
	}
	other := g.hosts[1][0]
	if g.birth != nil {
		return fmt.Errorf("a group that meets at a unique id has all ranks on one host, and %s and %s are on two; make it with a store, as init_process_group does", g.who(0), g.who(other))
	}
	for rank, m := range g.members {
		if m.HasSecret != g.members[0].HasSecret {
			with, without := 0, rank
			if m.HasSecret {
				with, without = rank, 0
			}
			return fmt.Errorf("SAGECOMM_SECRET_FILE is set on rank %d and not on rank %d, and the ranks are on several hosts: set it on all ranks, or on none", with, without)
		}
	}
	if first := &g.members[0]; !first.HasSecret && len(first.Secret) != len(handshake.Key{}) {
		return fmt.Errorf("rank 0 wrote a secret of %d bytes into the store: expected %d", len(first.Secret), len(handshake.Key{}))
	}
	return nil
}

// machines reports whether loopback does not lead from each rank to all others.
func (g *Group) machines() bool {
	return slices.ContainsFunc(g.members, func(m member) bool {
		return m.Arena.BootID != g.members[0].Arena.BootID || m.Network != g.members[0].Network
	})
}

// openLinks opens this process's end of the links, admits the processes of the group, and returns what the others need to know of it.
func (g *Group) openLinks() ([]byte, error) {
	first := &g.members[0]
	key := networkKey{host: networkName(g), machines: g.machines()}
	l := &groupLinks{number: first.Number, pairs: make([]*shadow.Pair, g.size)}
	job, err := jobSecret(g.settings)
	if err != nil {
		return nil, err
	}
	if job != nil {
		key.secret = handshake.MAC(job, "sagecomm links, secret of the job")
	}
	if l.network, err = g.process.network(key, g.settings); err != nil {
		return nil, err
	}
	g.links = l
	if job == nil {
		name := handshake.MAC(first.Secret, "sagecomm links, name")
		copy(l.space[:], name[:])
		if err := l.network.node.AddKey(l.space, handshake.MAC(first.Secret, "sagecomm links, key")); err != nil {
			return nil, err
		}
		l.keyed = true
		g.warnOfLinks()
	}
	return json.Marshal(networkDescription{l.network.id[:], l.network.at})
}

// warnOfLinks warns, once in a job, of links that leave the host.
func (g *Group) warnOfLinks() {
	if at := g.links.network.at[0].Addr(); g.rank == 0 && !at.IsLoopback() {
		g.process.networks.warned.Do(func() {
			observe.Warn("links between hosts (here at %v) are not encrypted, and are made by a secret that rank 0 puts into the store: whoever reads the store can join the job, and whoever reads the network sees its data; set SAGECOMM_SECRET_FILE, or use a network that is yours alone (docs/security.md)", at)
		})
	}
}

// shareAddresses tells the others where this process listens, or why the rank cannot go on, and learns that of the others.
func (g *Group) shareAddresses(store bootstrap.Store, prefix string, limit time.Duration, failed error) error {
	var mine []byte
	if failed == nil {
		mine, failed = g.openLinks()
	}
	all, err := bootstrap.ExchangeOr(store, prefix, g.rank, g.size, limit, mine, failed)
	if err != nil {
		return err
	}
	return g.links.know(all, g.rank)
}

// know takes note of the processes of the group.
func (l *groupLinks) know(all [][]byte, self int) error {
	for rank, text := range all {
		var at networkDescription
		if err := json.Unmarshal(text, &at); err != nil || len(at.ID) != len(tcp.Identity{}) || len(at.At) == 0 {
			return fmt.Errorf("rank %d wrote an invalid address of its process into the store: %.80q", rank, text)
		}
		i := slices.IndexFunc(l.processes, func(p farProcess) bool { return bytes.Equal(p.at.ID, at.ID) })
		if i < 0 {
			i = len(l.processes)
			l.processes = append(l.processes, farProcess{at: at})
		}
		l.processes[i].ranks = append(l.processes[i].ranks, rank)
		if rank == self {
			l.self = i
		}
	}
	if len(l.processes) > mostApart {
		return fmt.Errorf("a group over several hosts has at most %d processes, and this one has %d", mostApart, len(l.processes))
	}
	return nil
}

// linking makes the links of a group while its ranks attach what memory they share.
type linking struct {
	g      *Group
	links  []*tcp.Link // by process; nil for this one
	cancel context.CancelFunc
	done   chan struct{} // closed when all links are there, or one is not made
	failed error         // once done is closed
	first  sync.Once
}

// startLinking begins to make the links to all other processes of the group, those of this host included: members of the verdict ask each
// other. A link that cannot be made ends waits of this rank for others, because the process at its end may have died.
func (g *Group) startLinking(deadline time.Time) *linking {
	if limit := time.Now().Add(linkLimit); limit.Before(deadline) {
		deadline = limit
	}
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	processes := g.links.processes
	l := &linking{g: g, links: make([]*tcp.Link, len(processes)), cancel: cancel, done: make(chan struct{})}
	g.unlinked.Store(nil)
	var all sync.WaitGroup
	for i, p := range processes {
		if i == g.links.self {
			continue
		}
		all.Go(func() {
			defer recoverFrom("the links of a group")
			err := errors.New("internal error: a panic, whose stack is on standard error")
			defer func() {
				if err != nil {
					l.fail(fmt.Errorf("%s has no link to %s: %w", g.who(g.rank), g.who(p.ranks[0]), err), true)
				}
			}()
			l.links[i], err = g.links.linkTo(ctx, p)
		})
	}
	go func() {
		defer recoverFrom("the links of a group")
		defer close(l.done)
		all.Wait()
	}()
	return l
}

// fail notes why there is no link, unless there is another reason already, and gives up the links that are not there yet. known: waits of this
// rank for others end too.
func (l *linking) fail(err error, known bool) {
	l.first.Do(func() {
		l.failed = err
		if known {
			l.g.unlinked.Store(&err)
		}
		l.cancel()
	})
}

// linkTo returns the link to a process.
func (l *groupLinks) linkTo(ctx context.Context, to farProcess) (link *tcp.Link, err error) {
	id, n := tcp.Identity(to.at.ID), l.network
	if bytes.Compare(n.id[:], id[:]) > 0 {
		link = n.node.Await(ctx, id, firstDial)
	}
	if link == nil {
		link, err = n.node.Link(ctx, id, to.at.At, l.space)
	}
	if link == nil && ctx.Err() == nil && !errors.Is(err, handshake.ErrRefused) {
		link = n.node.Await(ctx, id, otherWay)
	}
	if link == nil {
		return nil, err
	}
	return link, link.Err()
}

// wait returns when the links are there, or one is not made. While that takes long it asks the store now and then for a key that only this rank
// writes, later: who interrupts waits for the store ends this one, too.
func (l *linking) wait(store bootstrap.Store, key string) ([]*tcp.Link, error) {
	defer l.cancel()
	for slice := linkingQuiet; ; slice = linkingSlices {
		select {
		case <-l.done:
			if l.failed != nil {
				return nil, l.failed
			}
			return l.links, nil
		case <-time.After(slice):
		}
		if _, err := store.Get(key, 0); err != nil && !errors.Is(err, bootstrap.ErrTimeout) {
			l.end()
			return nil, err
		}
	}
}

// end gives up what is not there yet. It may be called behind wait, and does nothing then.
func (l *linking) end() {
	l.fail(errors.New("the links were given up"), false)
	<-l.done
}

// link waits for the links of the group and puts them to use.
func (g *Group) link(c Config, l *linking, key string) error {
	links, err := l.wait(c.Store, fmt.Sprint(key, "/", g.rank))
	if err != nil {
		return err
	}
	return g.useLinks(c.Lasting, links)
}

// useLinks makes this process a member of the verdict on the group, and makes shadows of all ranks of other hosts.
// Requires: the memory of this host's ranks is attached.
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
	g.arbiter = l.network.join(arbiterConfig{number: l.number, size: g.size, lowest: lowest, self: l.self, store: store, key: g.keys + "/cause"}, ranks, links)
	g.recause = func(run *runner.Group, f *coll.Failure) {
		if !run.Recause(f) {
			observe.Warn("group %q: no memory for the first cause of its failure, which other ranks have: %s", g.title(), strings.TrimPrefix(f.Message, "sagecomm: "))
		}
	}
	g.remotes = make([]*remoteControl, g.size)
	for i, p := range l.processes {
		for _, rank := range p.ranks {
			if !g.far(rank) {
				continue
			}
			if err := g.addShadow(rank, links[i]); err != nil {
				return fmt.Errorf("%s has no shadow of %s: %w", g.who(g.rank), g.who(rank), err)
			}
		}
	}
	return nil
}

// addShadow makes the shadow of a rank of another host.
func (g *Group) addShadow(rank int, link *tcp.Link) error {
	m := g.members[rank]
	r := &remoteControl{own: g.ownControl(), rounds: &g.control}
	pair, err := g.links.network.set.Add(shadow.Config{Link: link, Group: g.links.number, Rank: g.rank, To: rank, Size: g.size, Own: g.peers[g.rank],
		Control: r.take,
		Stated:  func() { r.states.Add(1) },
		GaveUp: runner.EncodeFailure(&coll.Failure{Status: coll.PeerFailure, Rank: rank, PID: m.PID, Host: m.Host, Group: g.name,
			Message: fmt.Sprintf("sagecomm: group %q: %s gave up while the group was made; its log has the reason", g.name, g.who(rank))}),
		Lost: func(why error) {
			go func() {
				defer recoverFrom("the failure of a group")
				g.linkLost(rank, why)
			}()
		}})
	if err != nil {
		return err
	}
	r.pair = pair
	g.links.pairs[rank], g.remotes[rank], g.peers[rank] = pair, r, pair.Peer()
	return nil
}

// ownControl returns the control area of this rank.
func (g *Group) ownControl() *controlArea {
	return (*controlArea)(unsafe.Pointer(unsafe.SliceData(g.memory.arena.Bytes(g.memory.control))))
}

// forgetKey lets no further process make a link by the key of the group.
func (g *Group) forgetKey() {
	if l := g.links; l != nil && l.keyed {
		l.keyed = false
		l.network.node.RemoveKey(l.space)
	}
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
	g.forgetKey()
	for _, p := range l.pairs {
		if p != nil {
			p.Free()
		}
	}
	g.process.leaveNetwork(l.network)
	g.links = nil
}

// describedLinks returns the hosts of the ranks that this one reaches over links, for logs.
func (g *Group) describedLinks() string {
	var far []int
	for rank := range g.size {
		if g.far(rank) {
			far = append(far, rank)
		}
	}
	return fmt.Sprintf("links over TCP (%d processes, at %v): ranks %v", len(g.links.processes), g.links.network.at[0], far)
}
