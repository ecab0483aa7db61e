package shmem

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A file is handed over as it is: a read goes on where the owner has left it. A wrong token gets none, and nobody does after the end.
func TestHandover(t *testing.T) {
	file, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	defer file.Close()
	_, err = file.WriteString("front, rest")
	require.NoError(t, err)
	_, err = file.Seek(7, 0)
	require.NoError(t, err)
	h, err := HandOver(int(file.Fd()))
	require.NoError(t, err)
	fd, err := Take(t.Context(), h.Offer())
	require.NoError(t, err)
	rest := make([]byte, 10)
	n, err := unix.Read(fd, rest)
	require.NoError(t, err)
	require.Equal(t, "rest", string(rest[:n]))
	require.NoError(t, unix.Close(fd))
	wrong := h.Offer()
	wrong.Token[0]++
	_, err = Take(t.Context(), wrong)
	require.ErrorContains(t, err, "the owner refuses")
	h.Close()
	_, err = Take(t.Context(), h.Offer())
	require.Error(t, err)
	_, err = Take(t.Context(), Offer{})
	require.ErrorContains(t, err, "the owner offers no socket")
}
