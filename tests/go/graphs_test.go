package ranks

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sagecomm/tests/quick"
)

// A C program has collectives in CUDA graphs, without torch. It launches them in turns with operations outside of graphs, aborts the group
// while a graph waits, and launches graphs of a group that is gone.
func TestGraphsOfACProgram(t *testing.T) {
	run := emulatedProgram(t, "graphs.c", "cuda")
	t.Parallel()
	schedules := []string{"lazy 1 2", "random 1 3"}
	for seed := range seeds(t, 6, 0) {
		schedules = append(schedules, fmt.Sprintf("random %d %d", seed+2, 1+seed%4))
	}
	if !testing.Short() {
		schedules = append(schedules, "eager 1 3", "threaded 1 4")
	}
	for _, s := range schedules {
		one := strings.Fields(s)
		output, err := run(t, one[2:], "EMULATOR_SCHEDULE="+one[0], "EMULATOR_SEED="+one[1], "EMULATOR_KICK_MS=5")
		if err != nil {
			t.Errorf("%s: %v\n%s", s, err, output)
		}
	}
}

// A rank dies while graphs of all ranks are running.
func TestAPeerOfGraphsDies(t *testing.T) {
	quick.Skip(t, "each launch takes seconds; TestGraphsOfACProgram is quick")
	run := emulatedProgram(t, "graphs.c", "cuda")
	t.Parallel()
	launches := []int{1, 8}
	if os.Getenv("SEEDS") != "" {
		launches = []int{1, 2, 3, 5, 8, 13, 21, 30}
	} else if !testing.Short() {
		launches = []int{1, 2, 8, 21}
	}
	for i, launch := range launches {
		output, err := run(t, []string{strconv.Itoa(2 + i%3), strconv.Itoa(launch)}, "EMULATOR_SCHEDULE=random", fmt.Sprint("EMULATOR_SEED=", i+1), "EMULATOR_KICK_MS=5")
		if err != nil {
			t.Errorf("in launch %d: %v\n%s", launch, err, output)
		}
	}
}

// Without one of its waits a graph gives wrong results. The emulator leaves out the named call of each process and reports success.
func TestWaitsOfGraphsAreNeeded(t *testing.T) {
	if testing.Short() {
		t.Skip("the quick tests run the program as it is")
	}
	run := emulatedProgram(t, "graphs.c", "cuda")
	t.Parallel()
	for _, call := range []int{4, 6, 9, 11} { // without these waits a rank reads what its peer has not written yet
		var err error
		fault := fmt.Sprintf("EMULATOR_FAULTS=cuStreamWaitValue32@%d=#0", call)
		for seed := 1; seed <= 10 && err == nil; seed++ {
			_, err = run(t, []string{"2"}, "EMULATOR_SCHEDULE=random", fmt.Sprint("EMULATOR_SEED=", seed), "EMULATOR_KICK_MS=5", fault)
		}
		require.Error(t, err, fault)
	}
}
