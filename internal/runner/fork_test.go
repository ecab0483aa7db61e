package runner

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// A forked child has closed the descriptors that its parent has named, and no other.
func TestDescriptorsOfForkedChildren(t *testing.T) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	defer w.Close()
	look := func(f *os.File) bool {
		open, forked := openInChild(f.Fd())
		require.True(t, forked)
		return open
	}
	CloseInChild(r.Fd())
	require.False(t, look(r))
	require.True(t, look(w))
	require.False(t, look(r), "the child's copy of the list is its own")
	KeepInChild(r.Fd())
	require.True(t, look(r))
	CloseInChild(1 << 20) // beyond the list
}
