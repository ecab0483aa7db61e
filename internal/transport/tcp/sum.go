package tcp

import (
	"encoding/binary"
	"net"
	"net/netip"

	"github.com/zeebo/xxh3"
)

// Checksums says of which frames the checksum covers the payload, beside the header. Payloads have checksums if one of the two processes of a link
// wants them. Within TLS there are none.
type Checksums uint8

// The settings.
const (
	ChecksumsAlways          Checksums = iota
	ChecksumsBetweenMachines           // not over the loopback of a kernel, whose TCP has none there either
	ChecksumsNever
)

// Machine names a running kernel.
type Machine [16]byte

// covers reports whether payloads have checksums between this process and one that has introduced itself on a connection.
func (c *Config) covers(i *introduction, raw *net.TCPConn) bool {
	switch {
	case c.Checksums == ChecksumsAlways || i.checksums == ChecksumsAlways:
		return true
	case c.Checksums == ChecksumsNever && i.checksums == ChecksumsNever:
		return false
	default:
		here, there := unmapped(raw.LocalAddr()), unmapped(raw.RemoteAddr())
		passed := i.here != endpointOf(there) || i.there != endpointOf(here) // something between ends one connection and begins another one
		return passed || c.Machine != i.machine || !areLoopback(here.Addr(), there.Addr())
	}
}

// areLoopback reports whether the ends of a connection are addresses of this host, between which the kernel carries bytes over loopback.
func areLoopback(here, there netip.Addr) bool {
	return here == there || here.IsLoopback() && there.IsLoopback()
}

// sumBlock is the length of the blocks of a payload that are hashed one by one. It fits into the first cache of a processor.
const sumBlock = 8 << 10

// sumFactor is the first of the 64-bit primes of xxHash, of which half the bits are set.
const sumFactor = 0x9e3779b185ebca87

// checksum computes the checksum of a frame (docs/protocol.md, section 16, Frames) from parts of any length. Its hash is XXH3 with 64 bits and no seed
// (github.com/Cyan4973/xxHash, doc/xxhash_spec.md).
type checksum struct {
	sum  uint64
	part int         // bytes of the last block so far
	hash xxh3.Hasher // of them
}

// begin starts with the header of a frame, in which the number of the frame on its connection takes the place of the checksum.
func (c *checksum) begin(number uint32, header *[HeaderBytes]byte) {
	binary.LittleEndian.PutUint32(header[sumAt:], number)
	c.sum, c.part = xxh3.Hash(header[:]), 0
}

// add adds bytes of the payload.
func (c *checksum) add(p []byte) {
	for len(p) > 0 {
		n := min(len(p), sumBlock-c.part)
		block := p[:n]
		p = p[n:]
		if n == sumBlock {
			touch(block)
			c.chain(xxh3.Hash(block))
			continue
		}
		if c.part == 0 {
			c.hash.Reset()
		}
		_, _ = c.hash.Write(block) // which has no errors
		if c.part += n; c.part == sumBlock {
			c.chain(c.hash.Sum64())
			c.part = 0
		}
	}
}

// touch reads a byte of each line of the cache, in order. Where the bytes are not in a cache yet, the hash takes less time then, by more than this
// takes (docs/measured.md).
//
//go:noinline
func touch(p []byte) (sum byte) {
	const line = 64
	for i := 0; i < len(p); i += line {
		sum += p[i]
	}
	return sum
}

func (c *checksum) chain(block uint64) { c.sum = c.sum*sumFactor + block }

// value returns the checksum of all that was added.
func (c *checksum) value() uint32 {
	sum := c.sum
	if c.part > 0 {
		sum = sum*sumFactor + c.hash.Sum64()
	}
	return uint32(sum ^ sum>>32)
}
