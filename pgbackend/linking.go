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
	"sync/atomic"
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
	linkLimit     = time.Minute            // until all links of a group are there
	firstDial     = 300 * time.Millisecond // how long the process with the higher identity waits for the other one to dial
	noWayLimit    = 10 * time.Second       // how long a process is dialed to which no network leads
	otherWay      = 2 * time.Second        // how long a process that cannot dial waits for the other one, which perhaps can
	linkingQuiet  = 50 * time.Millisecond  // how long the wait for links, or for a name server, may take before it looks for signals,
	linkingSlices = 100 * time.Millisecond // and how often it does so then
)

// addressLimit bounds the time until all ranks, which have described themselves, have told where they listen. Tests change it.
var addressLimit = 30 * time.Second

// groupLinks is what a rank of a group over several hosts has for its peers on other hosts.
type groupLinks struct {
	network   *network
	number    uint64                  // of the group in frames
	space     handshake.Space         // names the key of the group's links
	keyed     bool                    // the node has that key from this group
	processes []linkedProcess         // in the order of their lowest ranks, this one included
	self      int                     // this process
	pairs     []*shadow.Pair          // by rank; nil for ranks of this host
	making    bool                    // the network waits for this group to be made
	lost      []atomic.Pointer[error] // by rank: why the link to it is lost
}

// linkedProcess is a process of the group.
type linkedProcess struct {
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

// findHosts finds out which ranks share a host.
// Requires: g.members are known.
func (g *Group) findHosts() {
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

// isRemote reports whether a rank is on another host than this one.
func (g *Group) isRemote(rank int) bool { return g.apart() && g.hostOf[rank] != g.hostOf[g.rank] }

// checkHosts refuses what a group over several hosts cannot do. All ranks return the same.
func (g *Group) checkHosts() error {
	if !g.apart() {
		return nil
	}
	if g.birth != nil {
		return fmt.Errorf("a group that meets at a unique id has all ranks on one host, and %s and %s are on two; make it with a store, as init_process_group does, or unset SAGECOMM_HOSTID where both are on one machine", g.who(0), g.who(g.hosts[1][0]))
	}
	if with, without, differ := g.differ(func(m *member) bool { return m.HasSecret }); differ {
		return fmt.Errorf("SAGECOMM_SECRET_FILE is set on rank %d and not on rank %d, and the ranks are on several hosts: set it on all ranks, or on none", with, without)
	}
	if !g.members[0].HasSecret && len(g.secret) != len(handshake.Key{}) {
		return fmt.Errorf("rank 0 wrote a secret of %d bytes into the store: expected %d", len(g.secret), len(handshake.Key{}))
	}
	return g.checkEncryption()
}

// machines reports whether loopback does not lead from each rank to all others.
func (g *Group) machines() bool {
	return slices.ContainsFunc(g.members, func(m member) bool {
		return m.Arena.BootID != g.members[0].Arena.BootID || m.Network != g.members[0].Network
	})
}

// openLinks opens this process's end of the links, admits the processes of the group, and returns what the others need to know of it. The key is
// one that await takes.
func (g *Group) openLinks(store bootstrap.Store, key string) ([]byte, error) {
	shared := networkKey{host: networkName(g), machines: g.machines()}
	l := &groupLinks{number: g.members[0].Number, pairs: make([]*shadow.Pair, g.size), lost: make([]atomic.Pointer[error], g.size), making: true}
	job, err := jobSecret(g.settings)
	if err != nil {
		return nil, err
	}
	secure, err := openEncryption(g.settings)
	if err != nil {
		return nil, err
	}
	shared.files = secure.files
	if job != nil {
		shared.secret = handshake.MAC(job, "sagecomm links, secret of the job")
	}
	find := func(find func() []netip.Addr) ([]netip.Addr, error) {
		done, found := make(chan struct{}), make(chan []netip.Addr, 1)
		go func() {
			defer recoverFrom("the address of links")
			defer close(done)
			found <- find()
		}()
		if err := g.await(done, store, key); err != nil {
			return nil, err
		}
		select {
		case list := <-found:
			return list, nil
		default: // it has panicked
			return nil, nil
		}
	}
	if l.network, err = g.process.network(shared, secure.config, g.settings, find); err != nil {
		return nil, err
	}
	g.links = l
	if job == nil {
		name := handshake.MAC(g.secret, "sagecomm links, name")
		copy(l.space[:], name[:])
		if err := l.network.node.AddKey(l.space, handshake.MAC(g.secret, "sagecomm links, key")); err != nil {
			return nil, err
		}
		l.keyed = true
	}
	return json.Marshal(networkDescription{l.network.id[:], l.network.at})
}

// warnOfLinks warns of what protects links that leave the host, once in a job as a rule.
func (g *Group) warnOfLinks() {
	at := g.links.network.at[0].Addr()
	if g.rank != 0 || g.globalRank(0) != 0 || at.IsLoopback() || g.members[0].Encrypts {
		return
	}
	joining := ""
	if !g.members[0].HasSecret {
		joining = "; whoever reads the store can join the job, unless SAGECOMM_SECRET_FILE is set"
	}
	g.process.networks.warned.Do(func() {
		observe.Warn("links between hosts (here at %v) are not encrypted, so whoever reads the network sees the data of the job%s; docs/security.md says what protects them", at, joining)
	})
}

// shareAddresses tells the others where this process listens, or why the rank cannot go on, and learns that of the others.
func (g *Group) shareAddresses(store bootstrap.Store, prefix string, limit time.Duration, failed error) error {
	var mine []byte
	if failed == nil {
		mine, failed = g.openLinks(store, fmt.Sprint(prefix, "/", g.rank))
	}
	limit = min(limit, addressLimit)
	all, err := bootstrap.ExchangeOr(store, prefix, g.rank, g.size, limit, mine, telling(failed))
	var late *bootstrap.TimeoutError
	switch {
	case err == nil:
		return g.links.readAddresses(all, g.rank)
	case !errors.As(err, &late):
		return err
	}
	// Ranks of other hosts cannot see a death on this one.
	for _, rank := range g.life.dead() {
		if slices.Contains(late.Missing, rank) {
			_ = bootstrap.Abandon(store, prefix, rank, telling(g.diedMeanwhile(rank)))
		}
	}
	if len(g.life.dead()) > 0 || limit < addressLimit {
		return err
	}
	rank := late.Missing[0]
	f := g.failedRank(coll.Timeout, rank)
	f.Message = fmt.Sprintf("sagecomm: group %q: %s came, and has told no address for %v: its process has died or is stopped; look at its log", g.name, g.who(rank), limit)
	return f
}

// readAddresses finds the processes of the group in what its ranks have told.
func (l *groupLinks) readAddresses(all [][]byte, self int) error {
	for rank, text := range all {
		var at networkDescription
		if err := json.Unmarshal(text, &at); err != nil || len(at.ID) != len(tcp.Identity{}) || len(at.At) == 0 {
			return fmt.Errorf("rank %d wrote an invalid address of its process into the store: %.80q", rank, text)
		}
		i := slices.IndexFunc(l.processes, func(p linkedProcess) bool { return bytes.Equal(p.at.ID, at.ID) })
		if i < 0 {
			i = len(l.processes)
			l.processes = append(l.processes, linkedProcess{at: at})
		}
		l.processes[i].ranks = append(l.processes[i].ranks, rank)
		if rank == self {
			l.self = i
		}
	}
	if len(l.processes) > mostApart {
		return fmt.Errorf("a group over several hosts has at most %d processes, and this one has %d: let each process have several devices, or make smaller groups", mostApart, len(l.processes))
	}
	return nil
}

// linking makes the links of a group while its ranks attach what memory they share, and notices until the group is made that one is lost.
type linking struct {
	g         *Group
	processes []linkedProcess
	cancel    context.CancelFunc
	done      chan struct{} // closed when all links are there, or one is not made

	mu     sync.Mutex
	links  []*tcp.Link   // by process; nil for this one
	failed *coll.Failure // why the group cannot be made
	ended  bool
}

// startLinking begins to make the links to all other processes of the group, those of this host included: members of the verdict ask each
// other.
func (g *Group) startLinking(deadline time.Time) *linking {
	if limit := time.Now().Add(linkLimit); limit.Before(deadline) {
		deadline = limit
	}
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	processes := g.links.processes
	l := &linking{g: g, processes: processes, links: make([]*tcp.Link, len(processes)), cancel: cancel, done: make(chan struct{})}
	g.links.network.watch(l)
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
					l.fail(g.noLink(p, err))
				}
			}()
			var link *tcp.Link
			if link, err = g.links.linkTo(ctx, p); err == nil {
				l.mu.Lock()
				l.links[i] = link
				l.mu.Unlock()
				err = link.Err() // it may be lost since, and nobody knew whose it was
			}
		})
	}
	go func() {
		defer recoverFrom("the links of a group")
		defer close(l.done)
		all.Wait()
	}()
	return l
}

// fail notes why the group cannot be made, unless there is another reason already, gives up links that are not there yet, and ends the waits of
// this rank for others in the store: the process at the end of the link may have died.
func (l *linking) fail(f *coll.Failure) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed == nil && !l.ended {
		l.failed = f
		l.g.unlinked.Store(f)
	}
	l.cancel()
}

// lost is called when a link of this process is lost.
func (l *linking) lost(link *tcp.Link, why error) {
	if i := l.process(link); i >= 0 {
		l.fail(l.g.noLink(l.processes[i], why))
	}
}

// process returns which process a link leads to, -1 for none, or if the group is made.
func (l *linking) process(link *tcp.Link) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return -1
	}
	return slices.Index(l.links, link)
}

// askWhyUnlinked takes the reason of a rank at the end of a link that was lost, if one there has given the group up before its process ended.
func (g *Group) askWhyUnlinked(store bootstrap.Store, prefix string) {
	lost := g.unlinked.Load()
	if lost == nil {
		return
	}
	i := slices.IndexFunc(g.links.processes, func(p linkedProcess) bool { return slices.Contains(p.ranks, lost.Rank) })
	for _, rank := range g.links.processes[i].ranks {
		told := bootstrap.Abandoned(store, prefix, rank)
		if told == nil {
			continue
		}
		f := g.failedRank(coll.System, rank)
		if of := readTold(told.Detail); of != nil && of.Rank != g.rank {
			of.giveTo(f)
		}
		f.Message = fmt.Sprintf("sagecomm: group %q: %s does not make the group any more: %s", g.name, g.who(rank), strings.TrimPrefix(told.Reason, "sagecomm: "))
		g.unlinked.Store(f)
		return
	}
}

// await returns when done is closed. While that takes long it looks for ranks of this host that have died, and asks the store now and then for a
// key that only this rank writes, later: who interrupts waits for the store ends this one, too.
func (g *Group) await(done <-chan struct{}, store bootstrap.Store, key string) error {
	for slice := linkingQuiet; ; slice = linkingSlices {
		select {
		case <-done:
			return nil
		case <-time.After(slice):
		}
		if dead := g.life.dead(); len(dead) > 0 {
			return g.diedMeanwhile(dead[0])
		}
		if _, err := store.Get(key, 0); err != nil && !errors.Is(err, bootstrap.ErrTimeout) {
			return err
		}
	}
}

// wait returns when the links are there, or one is not made. The key is one that await takes.
func (l *linking) wait(store bootstrap.Store, key string) ([]*tcp.Link, error) {
	if err := l.g.await(l.done, store, key); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed != nil {
		return nil, l.failed
	}
	return l.links, nil
}

// end gives up what is not there yet. Links that are lost later are the group's.
func (l *linking) end() {
	l.mu.Lock()
	l.ended = true
	l.mu.Unlock()
	l.cancel()
	<-l.done
	l.g.links.network.unwatch(l)
}

// link waits for the links of the group and puts them to use.
func (g *Group) link(c Config, l *linking, key string) error {
	links, err := l.wait(c.Store, key)
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
	g.arbiter = l.network.join(arbiterConfig{info: g.info, number: l.number, size: g.size, lowest: lowest, self: l.self, store: store, key: g.keys + "/cause"}, ranks, links)
	g.recause = func(run *runner.Group, f *coll.Failure) {
		if !run.Recause(f) {
			observe.Warn("group %q: no memory for the first cause of its failure, which other ranks have: %s", g.title(), strings.TrimPrefix(f.Message, "sagecomm: "))
		}
	}
	g.remotes = make([]*remoteControl, g.size)
	for i, p := range l.processes {
		for _, rank := range p.ranks {
			if !g.isRemote(rank) {
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
	m, lost := g.members[rank], &g.links.lost[rank] // the group may have left its links when it is told of a loss
	r := &remoteControl{own: g.ownControl(), rounds: &g.control}
	pair, err := g.links.network.set.Add(shadow.Config{Link: link, Group: g.links.number, Rank: g.rank, To: rank, Size: g.size, Geometry: g.geometry(), Own: g.peers[g.rank],
		Control: r.take,
		Stated:  func() { r.states.Add(1) },
		GaveUp: runner.EncodeFailure(&coll.Failure{Status: coll.PeerFailure, Rank: rank, PID: m.PID, Host: m.Host, Group: g.name,
			Message: fmt.Sprintf("sagecomm: group %q: %s gave up while the group was made; its log has the reason", g.name, g.who(rank))}),
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

// leaveRemotes frees what a group that was given up has for ranks of other hosts, while its shared block stays for those of this one.
// Requires: no rank touches the memory of the group any more.
func (g *Group) leaveRemotes() {
	for rank := range g.size {
		if g.isRemote(rank) {
			g.life.lost(rank) // its shadow is not looked at again
		}
	}
	g.freeLinks()
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
		g.process.made(l.network)
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
	g.closeLinking()
	for _, p := range l.pairs {
		if p != nil {
			p.Free()
		}
	}
	g.process.leaveNetwork(l.network)
	g.links = nil
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
	return fmt.Sprintf("links over %s (%d processes, at %v): ranks %v", over, len(g.links.processes), g.links.network.at[0], far)
}
