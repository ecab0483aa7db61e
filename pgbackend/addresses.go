package pgbackend

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"sagecomm/internal/bootstrap"
	"sagecomm/internal/coll"
	"sagecomm/internal/env"
	"sagecomm/internal/handshake"
	"sagecomm/internal/observe"
	"sagecomm/internal/shadow"
	"sagecomm/internal/transport/tcp"
)

// This file has the round of the rendezvous in which ranks on several hosts tell where their processes listen.

// addressLimit bounds the time until all ranks, which have described themselves, have told where they listen. Tests
// change it.
var addressLimit = 30 * time.Second

// networkDescription is what a rank publishes of the network of its process.
type networkDescription struct {
	ID []byte           `json:"id"`
	At []netip.AddrPort `json:"at"`

	// Near is where ranks of the same machine and network namespace dial it, if that is elsewhere: not all routers send
	// packets back to where they came from.
	Near []netip.AddrPort `json:"near,omitempty"`
}

// networkName names the network of a rank among those of its process. Tests, in which the ranks are in one process,
// replace it.
var networkName = func(g *Group) string { return g.members[g.rank].hostKey() }

// advertisedTo reports whether SAGECOMM_ADVERTISE counts between two ranks. Tests, whose ranks are on one machine,
// replace it.
var advertisedTo = onOtherMachine

// openLinks opens this process's end of the links, admits the processes of the group, and returns what the others need
// to know of it. The key is one that await takes.
func (g *Group) openLinks(store bootstrap.Store, key string) ([]byte, error) {
	shared := networkKey{host: networkName(g), machines: g.machines(), checksums: checksumSettings[env.Checksums.Get(g.settings)], unacked: env.LinkTimeout.Get(g.settings),
		data: env.DataConnections.Get(g.settings), listens: fmt.Sprint(env.SocketIfname.Get(g.settings), env.PortRange.Get(g.settings))}
	if slices.ContainsFunc(g.members, func(m member) bool { return advertisedTo(&g.members[0], &m) }) {
		shared.advertise = env.Advertise.Get(g.settings)
	}
	l := &groupLinks{number: g.members[0].Number, pairs: make([]*shadow.Pair, g.size), lost: make([]atomic.Pointer[error], g.size), making: true}
	job, err := g.jobSecret()
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
	if l.network, err = g.process.network(shared, g.size, secure.config, g.settings, g.elsewhere(), find); err != nil {
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
	told := networkDescription{ID: l.network.id[:], At: l.network.told}
	if shared.advertise.Given {
		told.Near = l.network.at
	}
	return json.Marshal(told)
}

// notBetweenHosts are interfaces that join no machines, beside loopback. Those of private networks over the internet
// do, slowly.
var (
	notBetweenHosts = env.Interfaces{Not: true, Names: []string{"docker", "podman", "lxc", "lxdbr", "veth", "virbr", "br-", "cni", "flannel", "cali", "cilium", "kube"}}
	notWithinASite  = env.Interfaces{Not: true, Names: append([]string{"wg", "tun", "tap", "tailscale", "zt"}, notBetweenHosts.Names...)}
)

// interfacesOf lists interfaces. Tests replace it.
var interfacesOf = bootstrap.InterfacesOf

// betweenMachines returns the addresses of the first interface that joins machines, none without one.
func (p *Process) betweenMachines() []netip.Addr {
	for _, c := range []env.Interfaces{notWithinASite, notBetweenHosts} {
		all, err := interfacesOf(c)
		if err != nil || len(all) == 0 {
			continue
		}
		if len(all) > 1 {
			var names []string
			for _, i := range all {
				names = append(names, fmt.Sprintf("%s (%v)", i.Name, i.Addresses[0]))
			}
			warnOfInterfaces(fmt.Sprintf("links to other hosts use the network interface %s, the first of %s, since MASTER_ADDR means this host by loopback: set SAGECOMM_SOCKET_IFNAME to the one that they should use",
				all[0].Name, strings.Join(names, ", ")))
		}
		return all[0].Addresses
	}
	return nil
}

// warnOfInterfaces warns. Tests replace it.
var warnOfInterfaces = func(text string) { observe.Warn("%s", text) }

// linkEndpoint returns where this process is to listen for links. machines: loopback does not lead to all other
// processes. elsewhere is as for endpoint.
func (p *Process) linkEndpoint(settings *env.Settings, machines bool, elsewhere []netip.Addr) (e bootstrap.Endpoint, err error) {
	if e, err = p.endpoint(settings, elsewhere); err != nil {
		return e, err
	}
	e.Of = "links to other hosts"
	switch {
	case e.Find == nil: // they are chosen by the user
	case !machines:
		e.Find, e.Addresses = nil, bootstrap.Loopback
	default:
		e.Find = func() []netip.Addr {
			towards := p.towards(elsewhere)
			if !slices.ContainsFunc(towards, netip.Addr.IsLoopback) {
				return towards
			}
			if found := p.betweenMachines(); len(found) > 0 { // as where the name of rank 0's host is that of loopback there
				return found
			}
			return towards
		}
	}
	return e, nil
}

// shareAddresses tells the others where this process listens, or why the rank cannot go on, and learns that of the
// others.
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
		return g.links.readAddresses(all, g.rank, g.members)
	case !errors.As(err, &late):
		return err
	}
	// Ranks of other hosts cannot see a death on this one.
	for _, rank := range g.life.dead() {
		if slices.Contains(late.Missing, rank) || rank == 0 && bootstrap.HasRoster(g.size) {
			_ = bootstrap.Abandon(store, prefix, rank, g.size, telling(g.diedMeanwhile(rank)))
		}
	}
	// Who began later than rank 0, whose roster names the missing ranks, cannot tell how long those have been silent.
	if len(g.life.dead()) > 0 || limit < addressLimit || late.Late || late.Waited < limit*9/10 || len(late.Missing) == 0 {
		return err
	}
	rank := late.Missing[0]
	f := g.failedRank(coll.Timeout, rank)
	f.Message = fmt.Sprintf("sagecomm: group %q: %s came, and has told no address for %v: its process has died or is stopped; look at its log", g.name, g.who(rank), min(limit, late.Waited.Round(time.Millisecond)))
	return f
}

// mostAddresses bounds the addresses of a process.
const mostAddresses = 8

// dialable reports whether a process may be dialed at all of some addresses.
func dialable(at []netip.AddrPort) bool {
	return len(at) > 0 && len(at) <= mostAddresses && !slices.ContainsFunc(at, func(a netip.AddrPort) bool {
		return !a.IsValid() || a.Port() == 0 || a.Addr().IsUnspecified() || a.Addr().IsMulticast()
	})
}

// readAddresses finds the processes of the group in what its ranks have told. Ranks of two processes cannot have one
// identity: that of this process would have no link.
func (l *groupLinks) readAddresses(all [][]byte, self int, members []member) error {
	for rank, text := range all {
		var at networkDescription
		if err := json.Unmarshal(text, &at); err != nil || len(at.ID) != len(tcp.Identity{}) || !dialable(at.At) || len(at.Near) > 0 && !dialable(at.Near) {
			return fmt.Errorf("rank %d wrote an invalid address of its process into the store: %.80q", rank, text)
		}
		i := slices.IndexFunc(l.processes, func(p linkedProcess) bool { return bytes.Equal(p.at.ID, at.ID) })
		if i < 0 {
			i = len(l.processes)
			if len(at.Near) > 0 && !advertisedTo(&members[self], &members[rank]) {
				at.At = at.Near
			}
			l.processes = append(l.processes, linkedProcess{at: at})
		} else if first := l.processes[i].ranks[0]; members[first].hostKey() != members[rank].hostKey() || members[first].PID != members[rank].PID {
			return fmt.Errorf("rank %d wrote the identity of rank %d's process into the store, and is in another one: give each job a store, or a prefix, of its own", rank, first)
		}
		l.processes[i].ranks = append(l.processes[i].ranks, rank)
		if rank == self {
			l.self = i
		}
	}
	l.sparse = len(l.processes) > allWatch
	return nil
}
