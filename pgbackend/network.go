package pgbackend

import (
	"crypto/tls"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"sagecomm/internal/env"
	"sagecomm/internal/handshake"
	"sagecomm/internal/shadow"
	"sagecomm/internal/transport/tcp"
	"sagecomm/internal/verdict"
)

// This file has the links of this process to processes of other hosts, which its groups share. linking.go makes those
// of one group.

// networkRest is how long a network without groups stays: for a next group, and for processes that are still to find
// out why they have none, otherWay at most. Tests change it.
var networkRest atomic.Int64

func init() { networkRest.Store(int64(3 * time.Second)) }

// partLimit is how long the end of a process waits until the goodbyes of its ranks are sent, over links that are there.
// Tests change it.
var partLimit atomic.Int64

func init() { partLimit.Store(int64(time.Second)) }

// allWatch is the largest number of processes of a group of which every two watch each other, and have a link from the
// beginning. Tests change it.
var allWatch = verdict.AllWatch

// mostStrangers bounds the connections that have proved nothing yet, unless groups of so many processes are being made
// that these may have more. Tests change it.
var mostStrangers = tcp.DefaultStrangers

// networkKey is what groups have alike that share links.
type networkKey struct {
	host     string        // hostKey
	secret   handshake.Key // by which processes prove that they belong to a job; zero: each group draws one
	machines bool          // loopback does not lead to all other processes
	files    [32]byte      // of encryption
	listens  string        // the settings of where the process listens

	advertise env.Optional[netip.AddrPort] // SAGECOMM_ADVERTISE, where it counts
	checksums tcp.Checksums
	unacked   time.Duration // SAGECOMM_LINK_TIMEOUT
	data      int           // SAGECOMM_DATA_CONNECTIONS
}

// network is this process's end of links, with the listeners, and what crosses for its groups.
type network struct {
	key  networkKey
	id   tcp.Identity
	node *tcp.Node
	set  *shadow.Set
	at   []netip.AddrPort // where it listens
	told []netip.AddrPort // where others dial it

	dials chan struct{} // has a value for each connection that is dialed for a link at first need
	worn  atomic.Bool   // a link was lost that a group needed, and no such link is made again: later groups get another network

	// Guarded by networks.mu:
	users  int // groups
	unused int // timers that end the network if nobody uses it by then
	making int // of them, those that are being made

	mu       sync.Mutex
	joints   map[uint64]*joint // by the number of their group
	linkings map[*linking]bool // of groups that are being made
	kept     []handshake.Space // keys of groups that have ended, the oldest one first
}

// joint is what the ranks of this process have in common of a group over several hosts.
type joint struct {
	arbiter *arbiter
	members []*tcp.Link // by member; nil for this process
	stops   []func()    // end what takes frames of the verdict
}

// networks are those of a process.
type networks struct {
	mu     sync.Mutex
	newest map[networkKey]*network
	all    map[*network]bool          // that groups use
	ending map[*network]chan struct{} // closed when the network has ended

	opening sync.Mutex // held while a network is opened
	warned  sync.Once  // that links are not encrypted
}

func newNetworks() networks {
	return networks{newest: map[networkKey]*network{}, all: map[*network]bool{}, ending: map[*network]chan struct{}{}}
}

// network returns the links of this process for a group of so many ranks that is being made, which gives them back by
// made and leaveNetwork. secure is nil where they are not encrypted. await calls what finds the address of this
// process, which may ask a name server, and returns early where the caller cannot wait. elsewhere is as for endpoint.
func (p *Process) network(key networkKey, ranks int, secure *tls.Config, settings *env.Settings, elsewhere []netip.Addr, await func(func() []netip.Addr) ([]netip.Addr, error)) (*network, error) {
	all := &p.networks
	if n := all.use(key, ranks); n != nil {
		return n, nil
	}
	at, err := p.linkEndpoint(settings, key.machines, elsewhere)
	if err != nil {
		return nil, err
	}
	if at.Find != nil {
		if at.Addresses, err = await(at.Find); err != nil {
			return nil, err
		}
		at.Find = nil
	}
	all.opening.Lock() // another group of this process may open it at the same time
	defer all.opening.Unlock()
	if n := all.use(key, ranks); n != nil {
		return n, nil
	}
	all.renewed(key)
	n, err := p.newNetwork(key, secure, at, settings)
	if err != nil {
		return nil, err
	}
	all.mu.Lock()
	defer all.mu.Unlock()
	all.newest[key] = n
	all.all[n] = true
	n.begin(ranks)
	return n, nil
}

// begin takes note that a group is made.
// Requires: networks.mu.
func (n *network) begin(ranks int) {
	n.users++
	n.making++
	n.node.Expect(ranks)
}

// use returns the network of a key for one more group, nil if there is none that can have new links.
func (all *networks) use(key networkKey, ranks int) *network {
	all.mu.Lock()
	defer all.mu.Unlock()
	n := all.newest[key]
	if n == nil || n.worn.Load() {
		return nil
	}
	n.begin(ranks)
	return n
}

// renewed wears networks with older files for encryption: nobody is admitted by authorities that were replaced, and the
// port can be used again.
func (all *networks) renewed(key networkKey) {
	all.mu.Lock()
	defer all.mu.Unlock()
	for older, n := range all.newest {
		same := older
		same.files = key.files
		if same == key && older != key && older.files != [32]byte{} && key.files != [32]byte{} {
			n.worn.Store(true)
			n.stopIfWorn()
		}
	}
}

// made takes note that a group of so many ranks is made, or will not be: it needs no further link.
func (p *Process) made(n *network, ranks int) {
	p.networks.mu.Lock()
	defer p.networks.mu.Unlock()
	n.making--
	n.node.Expect(-ranks)
	n.stopIfWorn()
}

// stopIfWorn gives the port of a network back that no further link is made for.
// Requires: networks.mu.
func (n *network) stopIfWorn() {
	if n.making == 0 && n.worn.Load() {
		n.node.StopListening()
	}
}

// leaveNetwork gives a network back. It ends when no group has used it for a while.
func (p *Process) leaveNetwork(n *network) {
	p.networks.mu.Lock()
	defer p.networks.mu.Unlock()
	if n.users--; n.users > 0 || !p.networks.all[n] {
		return
	}
	n.unused++
	time.AfterFunc(time.Duration(networkRest.Load()), func() {
		defer recoverFrom("the end of links to other hosts")
		p.networks.mu.Lock()
		defer p.networks.mu.Unlock()
		if n.unused--; n.unused == 0 && n.users == 0 && p.networks.all[n] {
			p.endNetwork(n)
		}
	})
}

// endNetwork ends a network that no group uses. Its links end in the background.
// Requires: networks.mu.
func (p *Process) endNetwork(n *network) {
	n.worn.Store(true)
	if !n.set.AwaitsLinks() { // perhaps only the other process can dial
		n.node.StopListening()
	}
	delete(p.networks.all, n)
	if p.networks.newest[n.key] == n {
		delete(p.networks.newest, n.key)
	}
	ended := make(chan struct{})
	p.networks.ending[n] = ended
	go func() {
		defer recoverFrom("the end of links to other hosts")
		defer close(ended)
		n.close()
		p.networks.mu.Lock()
		defer p.networks.mu.Unlock()
		delete(p.networks.ending, n)
	}()
}

// closeNetworks ends all networks, and returns when their links have ended. What ranks have published before they left
// goes out first. Requires: no group is live.
func (p *Process) closeNetworks() {
	p.networks.mu.Lock()
	for n := range p.networks.all {
		p.endNetwork(n)
	}
	ending := slices.Collect(maps.Values(p.networks.ending))
	p.networks.mu.Unlock()
	for _, ended := range ending {
		<-ended
	}
}

// close ends the network. When it returns, nothing of it runs, and nothing touches the memory of groups. Links that
// ranks have wanted before they left have as long as a process that is refused, since they are made from nothing.
func (n *network) close() {
	flushes := time.Duration(partLimit.Load())
	n.set.FlushWithin(flushes, flushes+time.Duration(neededWait.Load()))
	n.node.Close()
	n.set.Close()
}

// lostLink takes note that a link is lost and nothing of it is read any more. Groups learn of it behind their arbiters,
// which they ask.
func (p *Process) lostLink(n *network, l *tcp.Link, why error) {
	if n.needs(l) {
		p.networks.mu.Lock()
		n.worn.Store(true)
		n.stopIfWorn()
		p.networks.mu.Unlock()
	} else { // as a rule the process there has ended its network, which no group used, and comes again with another identity
		n.node.Forget(l)
	}
	n.mu.Lock()
	for _, j := range n.joints {
		if member := slices.Index(j.members, l); member >= 0 {
			j.arbiter.linkLost(member)
		}
	}
	linkings := slices.Collect(maps.Keys(n.linkings))
	n.mu.Unlock()
	for _, making := range linkings {
		making.lost(l, why)
	}
	n.set.Lost(l, why)
	p.sweep() // memory that only ranks behind the link could touch
}

// needs reports whether a group of this process, also one that is being made, counts on a link: not all ranks at its
// other end have left.
func (n *network) needs(l *tcp.Link) bool {
	if n.set.Needs(l) {
		return true
	}
	n.mu.Lock()
	linkings, joints := slices.Collect(maps.Keys(n.linkings)), slices.Collect(maps.Values(n.joints))
	n.mu.Unlock()
	return slices.ContainsFunc(linkings, func(making *linking) bool { return making.process(l) >= 0 }) ||
		slices.ContainsFunc(joints, func(j *joint) bool {
			member := slices.Index(j.members, l)
			return member >= 0 && !j.arbiter.left(member)
		})
}

// watch tells a linking of lost links until unwatch.
func (n *network) watch(l *linking) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.linkings[l] = true
}

func (n *network) unwatch(l *linking) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.linkings, l)
}

// join returns the arbiter of this process for a group, for one more rank of it. The first rank makes the arbiter,
// which takes the store over; others give theirs back. ranks are those of each member, and links those to them, nil for
// this process. The rank leaves the arbiter when the group is destroyed, or was not made.
func (n *network) join(c arbiterConfig, ranks [][]int, links []*tcp.Link) *arbiter {
	a, first := n.joinOrMake(c, ranks, links)
	if !first && c.store != nil {
		c.store.Release()
	}
	return a
}

func (n *network) joinOrMake(c arbiterConfig, ranks [][]int, links []*tcp.Link) (a *arbiter, first bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if j := n.joints[c.number]; j != nil {
		j.arbiter.expect()
		return j.arbiter, false
	}
	j := &joint{members: links}
	n.joints[c.number] = j
	c.links = make([]memberLink, len(links))
	for member, l := range links {
		if l != nil {
			c.links[member] = l
		}
	}
	c.left = func(member int) bool { return n.arbiterOf(j).knowsLeft(ranks[member]) }
	c.closed = func() { n.end(c.number, j) }
	j.arbiter = newArbiter(c)
	j.arbiter.expect()
	for member, l := range links {
		if l == nil {
			continue
		}
		stop, err := n.set.Serve(l, c.number, func(h *tcp.Header, payload []byte) error { return j.arbiter.take(member, h, payload) })
		if err != nil { // it was lost before it was known here
			j.arbiter.linkLost(member)
			continue
		}
		j.stops = append(j.stops, stop)
	}
	return j.arbiter, true
}

// arbiterOf is for the goroutine of the arbiter, which may run before join has stored it.
func (n *network) arbiterOf(j *joint) *arbiter {
	n.mu.Lock()
	defer n.mu.Unlock()
	return j.arbiter
}

// end takes a group out whose arbiter has ended.
func (n *network) end(number uint64, j *joint) {
	n.mu.Lock()
	delete(n.joints, number)
	stops := j.stops
	n.mu.Unlock()
	for _, stop := range stops {
		stop()
	}
}
