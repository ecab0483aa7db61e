package pgbackend

import (
	"fmt"
	"slices"

	"sagecomm/internal/handshake"
)

// This file has what a group knows of the hosts of its ranks.

// hostKey names the host of a rank: ranks with equal ones share memory. SAGECOMM_HOSTID separates hosts, and joins no
// machines.
func (m *member) hostKey() string { return m.HostSetting + "@" + m.Arena.BootID }

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
	if with, without, differ := g.differ(func(m *member) bool { return m.HasSecret }); differ {
		return fmt.Errorf("SAGECOMM_SECRET_FILE or SAGECOMM_SECRET is set on rank %d and not on rank %d, and the ranks are on several hosts: set it on all ranks, or on none", with, without)
	}
	if !g.members[0].HasSecret && len(g.secret) != len(handshake.Key{}) {
		return fmt.Errorf("rank 0 wrote a secret of %d bytes into the store: expected %d", len(g.secret), len(handshake.Key{}))
	}
	return g.checkEncryption()
}

// machines reports whether loopback does not lead from each rank to all others.
func (g *Group) machines() bool {
	return slices.ContainsFunc(g.members, func(m member) bool { return onOtherMachine(&g.members[0], &m) })
}

// onOtherMachine reports whether loopback does not lead from one rank to another one.
func onOtherMachine(a, b *member) bool {
	return a.Arena.BootID != b.Arena.BootID || a.Network != b.Network
}
