package pgbackend

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"

	"sagecomm/internal/bootstrap"
	"sagecomm/internal/env"
	"sagecomm/internal/handshake"
	"sagecomm/internal/procwatch"
	"sagecomm/internal/runner"
	"sagecomm/internal/shadow"
	"sagecomm/internal/transport/tcp"
)

// This file opens a network.

// newNetwork returns a network that listens at an endpoint.
func (p *Process) newNetwork(key networkKey, secure *tls.Config, at bootstrap.Endpoint, settings *env.Settings) (*network, error) {
	advertised := key.advertise.Value
	if advertised.Port() != 0 && (at.First == 0 || at.First != at.Last) {
		ports := "not set"
		if at.First != 0 {
			ports = fmt.Sprintf("%d-%d", at.First, at.Last)
		}
		return nil, fmt.Errorf("sagecomm: SAGECOMM_ADVERTISE names port %d, and SAGECOMM_PORT_RANGE is %s: set that to the one port to which connections are passed on", advertised.Port(), ports)
	}
	listeners, err := at.Open()
	if err != nil {
		return nil, err
	}
	n := &network{key: key, set: shadow.NewSet(), joints: map[uint64]*joint{}, linkings: map[*linking]bool{}, dials: make(chan struct{}, mostDials)}
	n.set.Ended = func() {
		go func() {
			defer recoverFrom("the return of memory")
			p.sweep()
		}()
	}
	for _, l := range listeners {
		n.at = append(n.at, l.Addr().(*net.TCPAddr).AddrPort())
	}
	n.told = n.at
	if key.advertise.Given {
		n.told = []netip.AddrPort{netip.AddrPortFrom(advertised.Addr(), cmp.Or(advertised.Port(), n.at[0].Port()))}
	}
	if key.machines && n.told[0].Addr().IsLoopback() {
		closeAll(listeners)
		return nil, fmt.Errorf("sagecomm: the ranks are on several machines, or in several network namespaces, and the others would dial this process at %v: set SAGECOMM_SOCKET_IFNAME to a network that joins them", n.told[0].Addr())
	}
	_, _ = rand.Read(n.id[:]) // it does not fail
	timing := tcp.DefaultTiming
	timing.Unacked = key.unacked
	n.node, err = tcp.NewNode(tcp.Config{Self: n.id, Data: key.data, TLS: secure, Receiver: n.set, Checksums: key.checksums, Timing: timing, Machine: machineID(), Strangers: mostStrangers,
		Lost:    func(l *tcp.Link, why error) { p.lostLink(n, l, why) },
		Refused: newStrangers(env.Debug.Get(settings) >= env.Info).refused,
		Opened:  runner.CloseInChild, Closing: runner.KeepInChild}, listeners)
	if err != nil {
		closeAll(listeners)
		return nil, err
	}
	if key.secret != (handshake.Key{}) {
		if err := n.node.AddKey(handshake.Space{}, key.secret); err != nil {
			n.node.Close()
			return nil, err
		}
	}
	return n, nil
}

// checksumSettings are those of SAGECOMM_CHECKSUMS.
var checksumSettings = map[string]tcp.Checksums{"auto": tcp.ChecksumsBetweenMachines, "always": tcp.ChecksumsAlways, "never": tcp.ChecksumsNever}

// machineID returns the name of the kernel that this process runs on, one at random if the system does not tell.
func machineID() (id tcp.Machine) {
	if boot, err := procwatch.BootID(); err == nil && boot != "" {
		h := sha256.Sum256([]byte(boot))
		copy(id[:], h[:])
		return id
	}
	_, _ = rand.Read(id[:]) // it does not fail
	return id
}

func closeAll(listeners []net.Listener) {
	for _, l := range listeners {
		_ = l.Close()
	}
}
