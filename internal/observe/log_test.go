package observe_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sagecomm/internal/observe"
)

func TestLogFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log-%p-%r-%%")
	w := newWorld(t, 1, options{"debug": "INFO", "debug_file": path})
	defer observe.SetOutput(nil)
	w.destroy()
	text, err := os.ReadFile(strings.NewReplacer("%%", "%", "%p", fmt.Sprint(os.Getpid()), "%r", "0").Replace(path))
	if err != nil || !strings.Contains(string(text), fmt.Sprintf(":%d] group %q rank 0: ", os.Getpid(), t.Name())) || !strings.Contains(string(text), "sagecomm INFO [") {
		t.Errorf("%q, %v", text, err)
	}
}
