package tcp

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/zeebo/xxh3"
)

func randomBytes(random *rand.Rand, n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(random.Uint32())
	}
	return p
}

// The parts in which a payload comes make no difference.
func TestSumOfParts(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	data := randomBytes(random, 5*sumBlock+77)
	header := [HeaderBytes]byte{1, 2, 3}
	for _, n := range []int{0, 1, 63, 64, 1087, 1088, 1089, sumBlock - 1, sumBlock, sumBlock + 1, 2 * sumBlock, len(data)} {
		want := sumOf(9, &header, data[:n])
		for range 50 {
			var parts [][]byte
			for from := 0; from < n; {
				to := from + 1 + random.IntN(min(n-from, 1<<random.IntN(16)))
				parts, from = append(parts, data[from:to]), to
			}
			require.Equal(t, want, sumOf(9, &header, parts...), "%d bytes in %d parts", n, len(parts))
		}
	}
}

// The definition in docs/protocol.md, in its own words, and values that a program with the xxHash library 0.8.1 has computed by it.
func TestSumIsAsSpecified(t *testing.T) {
	data := make([]byte, 2*sumBlock+100)
	for i := range data {
		data[i] = byte(i * 31)
	}
	for _, c := range []struct {
		bytes int
		want  uint32
	}{{0, 0x758d06e4}, {1, 0x9b1dee3d}, {4096, 0xded1e59d}, {8192, 0x7abb997f}, {len(data), 0x60245834}} {
		header := [HeaderBytes]byte{7, 1: 0, 4: byte(c.bytes), 5: byte(c.bytes >> 8)}
		text := header
		binary.LittleEndian.PutUint32(text[60:], 12)
		sum := xxh3.Hash(text[:])
		for from := 0; from < c.bytes; from += 8192 {
			sum = sum*0x9e3779b185ebca87 + xxh3.Hash(data[from:min(from+8192, c.bytes)])
		}
		got := sumOf(12, &header, data[:c.bytes])
		require.Equal(t, uint32(sum)^uint32(sum>>32), got)
		require.Equalf(t, c.want, got, "%d bytes: %#x", c.bytes, got)
	}
}

// What faults of hardware do changes the checksum: bits that flip, words and blocks that change places, another number.
func TestSumNoticesDamage(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	data := randomBytes(random, 3*sumBlock)
	header := [HeaderBytes]byte{7}
	want := sumOf(5, &header, data)
	require.NotEqual(t, want, sumOf(6, &header, data), "the number")
	for bit := range 8 * sumAt {
		harmed := header
		harmed[bit/8] ^= 1 << (bit % 8)
		require.NotEqual(t, want, sumOf(5, &harmed, data), "bit %d of the header", bit)
	}
	for range 2000 {
		bit := random.IntN(8 * len(data))
		data[bit/8] ^= 1 << (bit % 8)
		require.NotEqual(t, want, sumOf(5, &header, data), "bit %d", bit)
		data[bit/8] ^= 1 << (bit % 8)
	}
	swapped := append(append(append([]byte{}, data[sumBlock:2*sumBlock]...), data[:sumBlock]...), data[2*sumBlock:]...)
	require.NotEqual(t, want, sumOf(5, &header, swapped), "two blocks in each other's place")
	copy(swapped, data)
	copy(swapped[8:16], data[:8])
	copy(swapped[:8], data[8:16])
	require.NotEqual(t, want, sumOf(5, &header, swapped), "two words in each other's place")
}

// 16 MiB that no cache holds, in messages of 512 KiB.
func BenchmarkSum(b *testing.B) {
	const bytes, buffers = 16 << 20, 24
	data := make([]byte, bytes*buffers)
	for i := range data {
		data[i] = byte(i)
	}
	var c checksum
	var header [HeaderBytes]byte
	b.SetBytes(bytes)
	for i := range b.N {
		at := i % buffers * bytes
		for from := at; from < at+bytes; from += MaxMessage {
			c.begin(0, &header)
			c.add(data[from : from+MaxMessage])
			_ = c.value()
		}
	}
}
