package pgbackend

import (
	"crypto/rand"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"sagecomm/internal/bootstrap"
	"sagecomm/internal/env"
	"sagecomm/internal/handshake"
	"sagecomm/internal/runner"
	"sagecomm/internal/shadow"
	"sagecomm/internal/transport/tcp"
)

// This file has the links of this process to processes of other hosts, which its groups share. linking.go makes those of one group.

const (
	linkData  = 1           // data connections of each link, the same in all processes
	partLimit = time.Second // how long the end of a process waits until the goodbyes of its ranks are sent
	mostApart = 64          // processes of a group over several hosts: LOST frames of n processes grow with n^3
)

// networkKey is what groups have alike that share links.
type networkKey struct {
	host     string        // hostKey
	secret   handshake.Key // by which processes prove that they belong to a job; zero: each group draws one
	machines bool          // loopback does not lead to all other processes
}

// network is this process's end of links, with the listeners, and what crosses for its groups.
type network struct {
	key  networkKey
	id   tcp.Identity
	node *tcp.Node
	set  *shadow.Set
	at   []netip.AddrPort
	worn atomic.Bool // a link was lost, and no such link is made again: later groups get another network

	users int // groups. Guarded by networks.mu.

	mu     sync.Mutex
	joints map[uint64]*joint // by the number of their group
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
	all    map[*network]bool
	ending sync.WaitGroup
	warned sync.Once // that links are not encrypted
}

// network returns the links of this process for a group, which gives them back by leaveNetwork.
func (p *Process) network(key networkKey, settings *env.Settings) (*network, error) {
	p.networks.mu.Lock()
	defer p.networks.mu.Unlock()
	known := p.networks.newest[key]
	if known != nil && !known.worn.Load() {
		known.users++
		return known, nil
	}
	n, err := p.newNetwork(key, settings)
	if err != nil {
		return nil, err
	}
	n.users = 1
	if known != nil && known.users == 0 {
		p.endNetwork(known)
	}
	p.networks.newest[key] = n
	p.networks.all[n] = true
	return n, nil
}

// leaveNetwork gives a network back. One that serves later groups stays.
func (p *Process) leaveNetwork(n *network) {
	p.networks.mu.Lock()
	defer p.networks.mu.Unlock()
	if n.users--; n.users == 0 && n.worn.Load() {
		p.endNetwork(n)
	}
}

// endNetwork ends a network that no group uses, in the background.
// Requires: networks.mu.
func (p *Process) endNetwork(n *network) {
	delete(p.networks.all, n)
	if p.networks.newest[n.key] == n {
		delete(p.networks.newest, n.key)
	}
	p.networks.ending.Go(func() {
		defer recoverFrom("the end of links to other hosts")
		n.close()
	})
}

// closeNetworks ends all networks. What ranks have published before they left goes out first.
// Requires: no group is live.
func (p *Process) closeNetworks() {
	p.networks.mu.Lock()
	for n := range p.networks.all {
		p.endNetwork(n)
	}
	p.networks.mu.Unlock()
	p.networks.ending.Wait()
}

func (p *Process) newNetwork(key networkKey, settings *env.Settings) (*network, error) {
	at, err := p.linkEndpoint(settings, key.machines)
	if err != nil {
		return nil, err
	}
	listeners, err := at.Open()
	if err != nil {
		return nil, err
	}
	n := &network{key: key, set: shadow.NewSet(), joints: map[uint64]*joint{}}
	for _, l := range listeners {
		n.at = append(n.at, l.Addr().(*net.TCPAddr).AddrPort())
	}
	if key.machines && n.at[0].Addr().IsLoopback() {
		for _, l := range listeners {
			_ = l.Close()
		}
		return nil, fmt.Errorf("sagecomm: the ranks are on several machines, or in several network namespaces, and this process could only listen at %v: set SAGECOMM_SOCKET_IFNAME to a network that joins them", n.at[0].Addr())
	}
	_, _ = rand.Read(n.id[:]) // it does not fail
	n.node, err = tcp.NewNode(tcp.Config{Self: n.id, Data: linkData, Receiver: n.set,
		Lost:   func(l *tcp.Link, why error) { p.lostLink(n, l, why) },
		Opened: runner.CloseInChild, Closing: runner.KeepInChild}, listeners)
	if err != nil {
		return nil, err
	}
	if key.secret != (handshake.Key{}) {
		err = n.node.AddKey(handshake.Space{}, key.secret)
	}
	return n, err
}

// notBetweenHosts are interfaces that join no hosts.
var notBetweenHosts = env.Interfaces{Not: true, Names: []string{"lo", "docker", "veth", "virbr", "br-", "cni", "flannel", "cali"}}

// linkEndpoint returns where this process is to listen for links. machines: loopback does not lead to all other processes.
func (p *Process) linkEndpoint(settings *env.Settings, machines bool) (e bootstrap.Endpoint, err error) {
	if e, err = p.endpoint(settings); err != nil {
		return e, err
	}
	e.Of = "links to other hosts"
	switch {
	case e.Find == nil: // they are chosen by the user
	case !machines:
		e.Find, e.Addresses = nil, bootstrap.Loopback
	default:
		e.Find = func() []netip.Addr {
			towards := p.towardsMaster()
			if !slices.ContainsFunc(towards, netip.Addr.IsLoopback) {
				return towards
			}
			if found, err := bootstrap.AddressesOf(notBetweenHosts); err == nil { // as where the name of rank 0's host is that of loopback there
				return found
			}
			return towards
		}
	}
	return e, nil
}

// close ends the network. When it returns, nothing of it runs, and nothing touches the memory of groups.
func (n *network) close() {
	n.set.Flush(partLimit)
	n.node.Close()
	n.set.Close()
}

// lostLink takes note that a link is lost and nothing of it is read any more. Groups learn of it behind their arbiters, which they ask.
func (p *Process) lostLink(n *network, l *tcp.Link, why error) {
	n.worn.Store(true)
	n.mu.Lock()
	for _, j := range n.joints {
		if member := slices.Index(j.members, l); member >= 0 {
			j.arbiter.linkLost(member)
		}
	}
	n.mu.Unlock()
	n.set.Lost(l, why)
	p.sweep() // memory that only ranks behind the link could touch
}

// join returns the arbiter of this process for a group, for one more rank of it. The first rank makes the arbiter, which takes the store over;
// others give theirs back. ranks are those of each member, and links those to them, nil for this process. The rank leaves the arbiter when the
// group is destroyed, or was not made.
func (n *network) join(c arbiterConfig, ranks [][]int, links []*tcp.Link) *arbiter {
	n.mu.Lock()
	defer n.mu.Unlock()
	if j := n.joints[c.number]; j != nil {
		if c.store != nil {
			c.store.Release()
		}
		j.arbiter.expect()
		return j.arbiter
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
	return j.arbiter
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
