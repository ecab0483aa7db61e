package env

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Interfaces is a choice of network interfaces in NCCL's syntax: a list of prefixes of names, of whole names behind "=", or of what
// is not wanted behind "^". An entry may also be an address, or a network such as 10.0.0.0/8.
type Interfaces struct {
	Not, Exact bool
	Names      []string
	Networks   []netip.Prefix
}

func parseInterfaces(text string) (c Interfaces, err error) {
	text, c.Not = strings.CutPrefix(text, "^")
	text, c.Exact = strings.CutPrefix(text, "=")
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		network, err := netip.ParsePrefix(part)
		if err != nil {
			var a netip.Addr
			if a, err = netip.ParseAddr(part); err == nil {
				network = netip.PrefixFrom(a.Unmap().WithZone(""), a.Unmap().BitLen())
			}
		}
		switch {
		case err == nil:
			c.Networks = append(c.Networks, network.Masked())
		case part == "" || strings.ContainsAny(part, " /^="):
			return c, reject(fmt.Sprintf("%q is no name of an interface, no address and no network", part))
		default:
			c.Names = append(c.Names, part)
		}
	}
	return c, nil
}

// Takes reports whether an address of an interface is chosen.
func (c Interfaces) Takes(name string, a netip.Addr) bool {
	found := slices.ContainsFunc(c.Names, func(n string) bool { return n == name || !c.Exact && strings.HasPrefix(name, n) }) ||
		slices.ContainsFunc(c.Networks, func(n netip.Prefix) bool { return n.Contains(a) })
	return found != c.Not
}

func interfaces() parser[Optional[Interfaces]] {
	const accepts = "list of names or prefixes of names of interfaces, addresses or networks, behind = for whole names or ^ for all others"
	return orWord("auto", parser[Interfaces]{accepts, parseInterfaces})
}

// Ports is a range of TCP ports.
type Ports struct{ First, Last uint16 }

func ports() parser[Optional[Ports]] {
	return orWord("auto", parser[Ports]{"port or range of ports such as 29600-29700", func(s string) (Ports, error) {
		low, high, isRange := strings.Cut(strings.TrimSpace(s), "-")
		if !isRange {
			high = low
		}
		first, err := strconv.ParseUint(low, 10, 16)
		last, err2 := strconv.ParseUint(high, 10, 16)
		if err != nil || err2 != nil || first == 0 || last < first {
			return Ports{}, reject("")
		}
		return Ports{uint16(first), uint16(last)}, nil
	}})
}

// advertised accepts an address, perhaps with a port; a port of 0 stands for none.
func advertised() parser[Optional[netip.AddrPort]] {
	return orWord("auto", parser[netip.AddrPort]{"address such as 10.0.0.2, or one with a port such as 10.0.0.2:29600 or [fd00::2]:29600", func(s string) (netip.AddrPort, error) {
		at, err := netip.ParseAddrPort(s)
		if err != nil || at.Port() == 0 {
			var a netip.Addr
			if a, err = netip.ParseAddr(s); err != nil {
				return at, reject("")
			}
			at = netip.AddrPortFrom(a, 0)
		}
		if a := at.Addr(); a.IsUnspecified() || a.IsMulticast() || a.Zone() != "" || a.IsLinkLocalUnicast() {
			return at, reject("others cannot dial it")
		}
		return netip.AddrPortFrom(at.Addr().Unmap(), at.Port()), nil
	}})
}
