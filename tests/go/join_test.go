package ranks

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/tests/quick"
)

// joinProgram builds tests/cabi/join.c and returns a function that runs it with so many ranks, and with variables.
func joinProgram(t *testing.T, variables ...string) func(t *testing.T, mode string, ranks int) {
	t.Helper()
	lib, program := library(t), filepath.Join(t.TempDir(), "join")
	compile(t, words("CC", "gcc"), "-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", filepath.Join(root, "tests/cabi/join.c"), "-o", program, "-ldl", "-lpthread")
	return func(t *testing.T, mode string, ranks int) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, program, lib, mode, strconv.Itoa(ranks))
		cmd.WaitDelay = time.Second
		cmd.Env = append(os.Environ(), variables...)
		output, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", output)
		require.Contains(t, string(output), "all ranks agree")
	}
}

// Ranks meet at unique ids, as processes, as threads, and all in one call of one thread; their groups are split and shrunk.
func TestRanksMeetAtUniqueIDs(t *testing.T) {
	run := joinProgram(t)
	sizes := []int{2, 3, 4, 8}
	if testing.Short() {
		sizes = []int{2, 4}
	}
	for _, mode := range []string{"processes", "threads", "call"} {
		for _, ranks := range sizes {
			t.Run(mode+strconv.Itoa(ranks), func(t *testing.T) { run(t, mode, ranks) })
		}
	}
}

// Ranks join, make no operation, and end. That of the process which serves the id takes the store from nobody. Without
// that about one start in ten fails.
func TestRanksThatEndBehindTheirJoin(t *testing.T) {
	joinProgram(t)(t, "brief", 3)
}

// Ranks that are processes on several hosts meet at unique ids, of a process that is no rank as well. Rank 0 dies, and those that are left
// make a group at the process of rank 1.
func TestRanksOnSeveralHostsMeetAtUniqueIDs(t *testing.T) {
	for _, hosts := range []string{"0011", "01"} {
		t.Run(hosts, func(t *testing.T) {
			if len(hosts) == 2 {
				quick.Skip(t, "four ranks suffice")
			}
			joinProgram(t, "TEST_HOSTS="+hosts)(t, "processes", len(hosts))
		})
	}
	for _, mode := range []string{"server-dies", "rank-dies"} {
		t.Run(mode, func(t *testing.T) {
			quick.Skip(t, "it waits for seconds")
			joinProgram(t, "TEST_HOSTS=012")(t, mode, 3)
		})
	}
}

// A process that dies while the others join is named, whether it served the id or was to be a rank.
func TestProcessesThatDieBeforeTheyHaveJoined(t *testing.T) {
	run := joinProgram(t)
	for _, mode := range []string{"server-dies", "rank-dies"} {
		t.Run(mode, func(t *testing.T) {
			if mode == "server-dies" {
				quick.Skip(t, "it waits for seconds")
			}
			run(t, mode, 3)
		})
	}
}
