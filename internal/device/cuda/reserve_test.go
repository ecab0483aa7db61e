//go:build cuda

package cuda

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The driver has 8 queues, or 2 where processes share the device, unless the variable names another number, and 32 at most.
func TestConnections(t *testing.T) {
	for text, expected := range map[string]int{"": 8, "1": 1, " 4": 4, "32": 32, "100": 32, "320": 32, "0": 8, "-3": 8, "many": 8, "4x": 4, "12x": 8} {
		require.Equal(t, expected, connections(text, false), "%q", text)
	}
	for text, expected := range map[string]int{"": 2, "1": 1, "4": 4, "4x": 2, "many": 2} {
		require.Equal(t, expected, connections(text, true), "%q", text)
	}
}

// A variable that is set while the process runs is another one than that with which it was started.
func TestVariableOfTheStart(t *testing.T) {
	const name, asked = "SET_WHILE_IT_RUNS", "ASK_FOR_A_VARIABLE"
	if os.Getenv(asked) != "" {
		require.NoError(t, os.Setenv(name, "3"))
		now, atStart := variable(name)
		require.Equal(t, "3", now)
		require.Equal(t, "12", atStart)
		require.NoError(t, os.Unsetenv(name))
		now, atStart = variable(name)
		require.Empty(t, now)
		require.Equal(t, "12", atStart)
		return
	}
	own, err := os.Executable()
	require.NoError(t, err)
	command := exec.Command(own, "-test.run", "^"+t.Name()+"$")
	command.Env = append(os.Environ(), asked+"=1", name+"=12")
	said, err := command.CombinedOutput()
	require.NoError(t, err, "%s", said)
	require.True(t, strings.Contains(string(said), "PASS"))
}
