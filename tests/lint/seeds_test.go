package lint

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// A file whose tests take a seed of the emulator has one of these names of device_bed.py, or of a file that hands them on.
var takesSeeds = regexp.MustCompile(`(?s)from (?:device_bed|test_device_training) import (?:[^\n(]*|\([^)]*)` +
	`\b(?:SEEDS|FEW|ALL|under_schedules|by_turns|quick_if_\w+|deaths|cases_of)\b`)

// `make test-streams` runs each file of tests/python that takes seeds.
func TestMakeRunsTheTestsThatTakeSeeds(t *testing.T) {
	makefile, err := os.ReadFile("../../Makefile")
	require.NoError(t, err)
	target := regexp.MustCompile(`(?s)\ntest-streams: .*?\n\n`).Find(makefile)
	run := map[string]bool{}
	for _, pattern := range regexp.MustCompile(`tests/python/[\w*]+\.py`).FindAllString(string(target), -1) {
		files, err := filepath.Glob("../../" + pattern)
		require.NoError(t, err)
		require.NotEmpty(t, files, "the Makefile names %s", pattern)
		for _, file := range files {
			run[file] = true
		}
	}
	files, err := filepath.Glob("../python/test_*.py")
	require.NoError(t, err)
	seen := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		if !takesSeeds.Match(text) {
			continue
		}
		seen++
		if !run["../../tests/python/"+filepath.Base(file)] {
			t.Errorf("%s takes seeds of the emulator, and `make test-streams` does not run it", file)
		}
	}
	require.Greater(t, seen, 10)
}
