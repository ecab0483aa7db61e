package lint

import (
	"go/build"
	"io"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// The go command leaves a file out whose name ends in the name of another system, and its tests with it: long_windows_test.go is
// for Windows. So no name of this project, which is for Linux, ends in a system; what is for one architecture says so in a tag.
func TestNoFileIsForAnotherSystem(t *testing.T) {
	system := build.Default
	system.OpenFile = func(string) (io.ReadCloser, error) { // the name alone decides
		return io.NopCloser(strings.NewReader("package p")), nil
	}
	seen := 0
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "build" || len(d.Name()) > 2 && d.Name()[0] == '.'):
			return filepath.SkipDir
		case d.IsDir() || filepath.Ext(path) != ".go":
			return nil
		}
		seen++
		built, err := system.MatchFile(filepath.Dir(path), d.Name())
		if err == nil && !built {
			t.Errorf("%s is for another system, by its name: rename it", path)
		}
		return err
	})
	if err != nil || seen < 100 {
		t.Fatalf("%d files: %v", seen, err)
	}
}
