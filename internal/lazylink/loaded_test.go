package lazylink

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// made compiles an empty library.
func made(t testing.TB) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "libnothing.so")
	output, err := exec.Command("gcc", "-shared", "-nostdlib", "-Wl,-soname,libnothing.so", "-o", path, "-x", "c", "/dev/null").CombinedOutput()
	require.NoError(t, err, "%s", output)
	return path
}

// A library that was not loaded when it was asked for is found once somebody has loaded it.
func TestLoadedSeesWhatIsLoadedLater(t *testing.T) {
	path := made(t)
	for range 2 {
		require.False(t, Loaded("libnothing.so"))
	}
	require.NoError(t, BindNVML(path))
	for range 2 {
		require.True(t, Loaded("libnothing.so"))
	}
}

func BenchmarkLoadedOfWhatIsNot(b *testing.B) {
	for b.Loop() {
		if Loaded("libabsent.so") {
			b.Fatal("it is")
		}
	}
}
