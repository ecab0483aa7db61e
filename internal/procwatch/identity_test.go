package procwatch

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOwnProcess(t *testing.T) {
	start, err := StartTime(os.Getpid())
	if err != nil || start == 0 {
		t.Fatalf("start time %d, %v", start, err)
	}
	if Gone(os.Getpid(), start) {
		t.Error("this process counts as gone")
	}
	if !Gone(os.Getpid(), start+1) {
		t.Error("another start time counts as this process")
	}
	if id, err := BootID(); err != nil || len(id) != 36 {
		t.Errorf("boot id %q, %v", id, err)
	}
	if ns, err := PIDNamespace(); err != nil || ns == 0 {
		t.Errorf("pid namespace %d, %v", ns, err)
	}
}

func TestEndedProcess(t *testing.T) {
	cmd := exec.Command("true")
	require.NoError(t, cmd.Run())
	if _, err := StartTime(cmd.Process.Pid); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("start time of an ended process: %v", err)
	}
	if !Gone(cmd.Process.Pid, 1) {
		t.Error("an ended process does not count as gone")
	}
}

func TestStartTimeSurvivesOddCommandNames(t *testing.T) {
	tail := " S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20 21\n"
	for _, name := range []string{"(go)", "(a b)", "(x) S 1 (y))", "()"} {
		if got, ok := parseStartTime([]byte("77 " + name + tail)); !ok || got != 4711 {
			t.Errorf("%s: %d %v", name, got, ok)
		}
	}
	for _, bad := range []string{"", "77 (go", "77 (go) S 1 2", "77 (go) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 x"} {
		if _, ok := parseStartTime([]byte(bad)); ok {
			t.Errorf("%q was read", bad)
		}
	}
}
