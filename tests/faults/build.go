package main

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// built holds the paths of the library and of the program that ranks run.
type built struct{ library, rank string }

// findRoot returns the root of the repository. This tool is started there or in its own directory.
func findRoot() (string, error) {
	dir, err := os.Getwd()
	for err == nil {
		if _, missing := os.Stat(filepath.Join(dir, "export/sagecomm.h")); missing == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			err = fmt.Errorf("this is not a directory of the repository: start it there with go run ./tests/faults")
		}
		dir = filepath.Dir(dir)
	}
	return "", err
}

// build makes the library with its fault points, and the program of a rank, unless they are newer than their sources.
func build(root string) (built, error) {
	dir := filepath.Join(root, "build", "faults")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return built{}, err
	}
	b := built{filepath.Join(dir, "libsagecomm.so"), filepath.Join(dir, "rank")}
	sources := []string{"algo", "export", "fusion", "internal", "pgbackend", "go.mod"}
	err := remake(root, b.library, sources, "go", "build", "-tags", "faults", "-buildvcs=false", "-trimpath", "-buildmode=c-shared",
		"-ldflags", "-extldflags \"-Wl,--version-script="+filepath.Join(root, "export/exports.map")+" -Wl,-soname,libsagecomm.so\"")
	if err != nil {
		return b, err
	}
	compiler := "gcc"
	if cc := os.Getenv("CC"); cc != "" {
		compiler = cc
	}
	words := append(strings.Fields(compiler), "-std=c11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-DSCR_FAULTS", "-pthread", "-ldl")
	return b, remake(root, b.rank, []string{"tests/faults/rank", "tests/cabi", "export/sagecomm.h", "internal/runner/faults.h"}, words...)
}

// remake runs a compiler if its output is older than a source. The output is moved into place when it is whole: several
// tools may build at the same time, and ranks may have the old one mapped.
func remake(root, output string, sources []string, words ...string) error {
	newest, err := newestOf(root, sources)
	if err != nil {
		return err
	}
	if info, err := os.Stat(output); err == nil && info.ModTime().After(newest) {
		return nil
	}
	fresh := fmt.Sprintf("%s.%d", output, os.Getpid())
	words = append(words, "-o", fresh)
	if words[0] == "go" {
		words = append(words, "./export")
	} else {
		files, err := filepath.Glob(filepath.Join(root, "tests/faults/rank/*.c"))
		if err != nil {
			return err
		}
		words = append(words, files...)
	}
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Dir = root
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(words, " "), err, said)
	}
	_ = os.Remove(fresh + ".h")
	_ = os.Remove(strings.TrimSuffix(fresh, filepath.Ext(fresh)) + ".h") // cgo's header, whatever it calls it
	return os.Rename(fresh, output)
}

func newestOf(root string, sources []string) (newest time.Time, err error) {
	for _, source := range sources {
		err = filepath.WalkDir(filepath.Join(root, source), func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() || strings.HasSuffix(path, "_test.go") {
				return err
			}
			info, err := e.Info()
			if err == nil && info.ModTime().After(newest) {
				newest = info.ModTime()
			}
			return err
		})
		if err != nil {
			return newest, err
		}
	}
	return newest, nil
}
