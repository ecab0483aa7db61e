package tcp

import (
	"hash/crc32"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSums(t *testing.T) {
	data := make([]byte, 3*sumBlock+1)
	for i := range data {
		data[i] = byte(i * 31)
	}
	for _, n := range []int{0, 1, 63, 64, 65, sumBlock - 1, sumBlock, sumBlock + 1, len(data)} {
		require.Equal(t, crc32.Checksum(data[:n], castagnoli), update(0, data[:n]), n)
		require.Equal(t, crc32.Checksum(data[:n], castagnoli), update(crc32.Checksum(data[:n/2], castagnoli), data[n/2:n]), n)
	}
}

// The checksum of 16 MiB that no cache holds, with each block read in order before and without.
func BenchmarkSum(b *testing.B) {
	const bytes, buffers = 16 << 20, 24
	data := make([]byte, bytes*buffers)
	for i := range data {
		data[i] = byte(i)
	}
	for name, sum := range map[string]func([]byte) uint32{
		"touched": func(p []byte) uint32 { return update(0, p) },
		"plain":   func(p []byte) uint32 { return crc32.Checksum(p, castagnoli) },
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(bytes)
			for i := range b.N {
				at := i % buffers * bytes
				sum(data[at : at+bytes])
			}
		})
	}
}
