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
