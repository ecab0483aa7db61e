package observe_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/observe"
)

func TestLogFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log-%p-%r-%%")
	w := newWorld(t, 1, options{"debug": "INFO", "debug_file": path})
	defer observe.SetOutput(nil)
	w.destroy()
	observe.FlushLog(time.Minute)
	text, err := os.ReadFile(strings.NewReplacer("%%", "%", "%p", fmt.Sprint(os.Getpid()), "%r", "0").Replace(path))
	if err != nil || !strings.Contains(string(text), fmt.Sprintf(":%d] group %q rank 0: ", os.Getpid(), t.Name())) || !strings.Contains(string(text), "sagecomm INFO [") {
		t.Errorf("%q, %v", text, err)
	}
}

// A file that cannot be opened is named on standard error, where the lines go then. A later group may name another file.
func TestLogFileThatCannotBeOpened(t *testing.T) {
	dir := t.TempDir()
	old, err := os.Create(filepath.Join(dir, "stderr"))
	require.NoError(t, err)
	old, os.Stderr = os.Stderr, old
	defer func() { os.Stderr = old }()
	defer observe.SetOutput(nil)
	missing := filepath.Join(dir, "missing", "log")
	for i, path := range []string{missing, missing, filepath.Join(dir, "log")} {
		w := newWorld(t, 1, options{"debug": "INFO", "debug_file": path})
		observe.Log("INFO", fmt.Sprintf("from world %d", i))
		w.destroy()
		observe.FlushLog(time.Minute)
	}
	text := func(name string) string {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
		}
		return string(b)
	}
	warning := "SAGECOMM_DEBUG_FILE: " + missing + " cannot be written: no such file or directory; log lines go to standard error\n"
	if s := text("stderr"); strings.Count(s, warning) != 1 || !strings.Contains(s, "from world 1") || strings.Contains(s, "from world 2") {
		t.Error(s)
	}
	if s := text("log"); strings.Contains(s, "from world 1") || !strings.Contains(s, "from world 2") {
		t.Error(s)
	}
}

// A file system that hangs while the file is opened delays neither the creation of groups nor a failure, and no line is lost.
func TestLogFileThatHangs(t *testing.T) {
	hang := make(chan struct{})
	var out strings.Builder
	defer observe.SetOutput(nil)
	defer observe.SetOpenLog(func(string) (io.Writer, error) {
		<-hang
		return &out, nil
	})()
	done := make(chan struct{})
	go func() {
		defer close(done)
		w := newWorld(t, 2, options{"debug": "INFO", "debug_file": filepath.Join(t.TempDir(), "log")})
		w.groups[0].Abort("for the test")
		if f := sum(w.groups[1], 2); f == nil {
			t.Error("the group did not fail")
		}
		w.destroy()
	}()
	await(t, done, "the groups")
	close(hang)
	observe.FlushLog(time.Minute)
	if !strings.Contains(out.String(), "aborted") {
		t.Error(out.String())
	}
}
