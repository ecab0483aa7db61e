package lint

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Files that serve tests only, and may not be called _test.go because they use cgo, are no part of the library.
func TestCodeOfTestsIsNotReleased(t *testing.T) {
	found := 0
	for _, dir := range []string{"algo", "export", "fusion", "internal", "pgbackend"} {
		require.NoError(t, filepath.WalkDir(filepath.Join("../..", dir), func(path string, e fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, "testing.go") {
				return err
			}
			found++
			text, err := os.ReadFile(path)
			if !bytes.HasPrefix(text, []byte("//go:build !release\n")) {
				t.Errorf("%s does not begin with the build constraint !release", path)
			}
			return err
		}))
	}
	require.NotZero(t, found)
}
