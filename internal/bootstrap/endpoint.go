package bootstrap

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"sagecomm/internal/env"
)

// Endpoint is where a process is to listen: its [Server], or its links to other hosts.
type Endpoint struct {
	Addresses   []netip.Addr        // most preferred first
	Find        func() []netip.Addr // returns the addresses when listening begins; nil: they are Addresses
	First, Last uint16              // range of ports; 0: any free one
	Beyond      bool                // of a Server: where it listens on loopback only, it is to listen at these addresses as well
	Of          string              // what is to listen, for errors
}

// Loopback are the addresses of a server whose ranks are all on its host.
var Loopback = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}

// AllLoopback reports whether a list has addresses of loopback only.
func AllLoopback(list []netip.Addr) bool {
	return !slices.ContainsFunc(list, func(a netip.Addr) bool { return !a.IsLoopback() })
}

// Open opens one port at all addresses at which that is possible, loopback addresses of the other kind aside.
func (e Endpoint) Open() (all []net.Listener, err error) {
	if e.Find != nil {
		e.Addresses = e.Find()
	}
	for _, a := range e.Addresses {
		if len(all) > 0 && (len(all) == maxAddresses || a.IsLoopback()) {
			break
		}
		first, last := e.First, e.Last
		if len(all) > 0 {
			port := all[0].Addr().(*net.TCPAddr).AddrPort().Port()
			first, last = port, port
		}
		l, e := listenAt(a, first, last)
		if e == nil {
			all = append(all, l)
		} else if len(all) == 0 {
			err = e
		}
	}
	if len(all) > 0 {
		return all, nil
	}
	return nil, fmt.Errorf("sagecomm: cannot listen for %s (SAGECOMM_SOCKET_IFNAME, SAGECOMM_PORT_RANGE): %w", e.Of, cmp.Or(err, errors.New("no address")))
}

func listenAt(a netip.Addr, first, last uint16) (l net.Listener, err error) {
	for port := int(first); port <= int(last); port++ {
		if l, err = net.Listen("tcp", netip.AddrPortFrom(a, uint16(port)).String()); err == nil {
			return l, nil
		}
	}
	return nil, err
}

// Towards returns the address of this host from which it reaches a host, as the system routes. It sends nothing.
func Towards(host string) (netip.Addr, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	found, err := (&net.Resolver{PreferGo: true}).LookupNetIP(ctx, "ip", host)
	if err != nil {
		return netip.Addr{}, err
	}
	slices.SortStableFunc(found, func(a, b netip.Addr) int { return cmp.Compare(a.Unmap().BitLen(), b.Unmap().BitLen()) })
	for _, a := range found {
		var c net.Conn
		if c, err = net.Dial("udp", netip.AddrPortFrom(a.Unmap(), 9).String()); err != nil {
			continue
		}
		own := c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap()
		_ = c.Close()
		if own = own.WithZone(""); usable(own) {
			return own, nil
		}
	}
	return netip.Addr{}, cmp.Or(err, fmt.Errorf("no address of this host leads to %s", host))
}

// Interface is a network interface with its chosen addresses, IPv4 first.
type Interface struct {
	Name      string
	Addresses []netip.Addr
}

// AddressesOf returns the chosen addresses of this host: those of the first of its interfaces.
func AddressesOf(c env.Interfaces) ([]netip.Addr, error) {
	all, err := InterfacesOf(c)
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, errors.New("sagecomm: no network interface of this host is chosen by SAGECOMM_SOCKET_IFNAME, or none has an address: `ip address` lists them")
	}
	return all[0].Addresses, nil
}

// InterfacesOf returns the interfaces of this host that are up and have chosen addresses. Loopback comes after all
// others, and only if it was asked for.
func InterfacesOf(c env.Interfaces) (chosen []Interface, err error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("sagecomm: cannot list the network interfaces: %w", err)
	}
	slices.SortStableFunc(all, func(a, b net.Interface) int { return int(a.Flags&net.FlagLoopback) - int(b.Flags&net.FlagLoopback) })
	for _, i := range all {
		if i.Flags&net.FlagUp == 0 || c.Not && i.Flags&net.FlagLoopback != 0 {
			continue
		}
		own, err := i.Addrs()
		if err != nil {
			continue // the interface has gone
		}
		var list []netip.Addr
		for _, o := range own {
			network, ok := o.(*net.IPNet)
			if !ok {
				continue
			}
			a, _ := netip.AddrFromSlice(network.IP)
			if a = a.Unmap(); usable(a) && c.Takes(i.Name, a) {
				list = append(list, a)
			}
		}
		if len(list) > 0 {
			slices.SortStableFunc(list, func(a, b netip.Addr) int { return cmp.Compare(a.BitLen(), b.BitLen()) })
			chosen = append(chosen, Interface{i.Name, list[:min(len(list), maxAddresses)]})
		}
	}
	return chosen, nil
}
