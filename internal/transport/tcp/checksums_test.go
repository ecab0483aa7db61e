package tcp

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Both ends of a link agree whether payloads have checksums, whoever dials: if one of them wants that always, or they are on different machines and
// one of them does not do without.
func TestPayloadsHaveChecksums(t *testing.T) {
	noLeaks(t)
	for _, one := range []Checksums{ChecksumsAlways, ChecksumsBetweenMachines, ChecksumsNever} {
		for _, other := range []Checksums{ChecksumsAlways, ChecksumsBetweenMachines, ChecksumsNever} {
			for _, apart := range []bool{false, true} {
				with := func(c Checksums, m byte) func(*Config) {
					return func(to *Config) { to.Checksums, to.Machine = c, Machine{m} }
				}
				away := byte(1)
				if apart {
					away = 2
				}
				a, b := newEnd(t, with(one, 1)), newEnd(t, with(other, away))
				want := one == ChecksumsAlways || other == ChecksumsAlways || apart && (one != ChecksumsNever || other != ChecksumsNever)
				what := fmt.Sprintf("%d and %d, apart: %v", one, other, apart)
				l := a.linkTo(t, b)
				back := b.linkOf(t, a)
				require.Equal(t, []bool{want, want}, []bool{l.sums, back.sums}, what)
				for n := uint64(1); n <= 3; n++ {
					require.NoError(t, l.Send(1, message(n), make([]byte, 40_000)))
					require.NoError(t, back.Send(1, message(n), make([]byte, 100)))
				}
				b.await(t, 3)
				a.await(t, 3)
			}
		}
	}
}

// Payloads have checksums where something on this machine passes on what it reads: it may as well lead to another machine.
func TestChecksumsThroughAForwarder(t *testing.T) {
	auto := func(c *Config) { c.Checksums, c.Machine = ChecksumsBetweenMachines, Machine{1} }
	a, b := newEnd(t, auto), newEnd(t, auto)
	r := newRelay(t, b.at[0])
	b.at = []netip.AddrPort{r.address()}
	l := a.linkTo(t, b)
	back := b.linkOf(t, a)
	require.Equal(t, []bool{true, true}, []bool{l.sums, back.sums})
}

// On one machine payloads have checksums where the connection does not go over its loopback: what is between may be anywhere.
func TestChecksumsBeyondLoopback(t *testing.T) {
	for ends, want := range map[[2]string]bool{
		{"127.0.0.1:1", "127.0.0.1:2"}: true, {"127.0.0.1:1", "127.0.0.2:2"}: true, {"[::1]:1", "[::1]:2"}: true, {"10.0.0.1:1", "10.0.0.1:2"}: true,
		{"10.0.0.1:1", "[::ffff:10.0.0.1]:2"}: true, {"10.0.0.1:1", "10.0.0.2:2"}: false, {"127.0.0.1:1", "10.0.0.1:2"}: false, {"[fe80::1]:1", "[fe80::2]:2"}: false,
	} {
		here, there := netip.MustParseAddrPort(ends[0]), netip.MustParseAddrPort(ends[1])
		require.Equal(t, want, areLoopback(here.Addr().Unmap(), there.Addr().Unmap()), ends)
	}
}

// A frame whose payload has no checksum still has one of its header, with its number.
func TestHeadersHaveChecksums(t *testing.T) {
	noLeaks(t)
	bare := func(c *Config) { c.Checksums = ChecksumsNever }
	for name, spoil := range map[string]func(text []byte){
		"nothing": func([]byte) {},
		"header":  func(text []byte) { text[24] ^= 1 },
		"number":  func(text []byte) { text[sumAt] ^= 1 },
	} {
		a, b := newEnd(t, bare), newEnd(t, bare)
		l := a.linkTo(t, b)
		b.linkOf(t, a)
		c := l.conns[1]
		c.sending.Lock()
		h := message(1)
		h.Bytes = 3
		var text [HeaderBytes]byte
		for _, part := range c.encode(h, [][]byte{{1, 2, 3}}) {
			if len(part) == HeaderBytes {
				copy(text[:], part)
			}
		}
		spoil(text[:])
		c.sending.number++
		_, err := c.tcp.Write(append(text[:], 1, 2, 3))
		c.sending.Unlock()
		require.NoError(t, err)
		if name == "nothing" {
			b.await(t, 1)
			continue
		}
		require.ErrorIs(t, b.awaitLoss(t), errSum, name)
		require.Zero(t, b.count())
	}
}

// What is set otherwise than the protocol knows is refused.
func TestUnknownChecksums(t *testing.T) {
	a, b := newEnd(t, func(c *Config) { c.Checksums = ChecksumsNever + 1 }), newEnd(t, nil)
	begun := time.Now()
	_, err := a.dialTo(b)
	require.Error(t, err)
	require.Less(t, time.Since(begun), soon)
}
