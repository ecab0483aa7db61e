package ranks

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"sagecomm/tests/quick"
)

// Each way to map a peer's memory, forced, carries a loop of all_reduces.
func TestAttach(t *testing.T) {
	for _, method := range []string{"proc", "scm", "tmpfs", "proc,scm,tmpfs"} {
		for _, size := range []int{2, 4} {
			t.Run(fmt.Sprintf("%s, %d ranks", method, size), func(t *testing.T) {
				if size > 2 {
					quick.Skip(t, "two ranks suffice")
				}
				dir := t.TempDir()
				list := start(t, size, map[string]string{"shm_attach": method, "shm_dir": dir})
				create(t, list, "g", 0)
				if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) > 0 {
					t.Errorf("%v has a name after all have attached", left)
				}
				succeed(t, all(list, command{Do: "loop", Ops: 60}))
				create(t, list, "h", 0) // a second group beside it
				succeed(t, all(list, command{Do: "loop", Ops: 20}))
				succeed(t, all(list, command{Do: "destroy"}))
				for _, p := range list { // the first one ends with the processes
					if err := p.end(); err != nil {
						t.Errorf("rank %d: %v\n%s", p.rank, err, &p.stderr)
					}
				}
			})
		}
	}
}

// Where no way is left, every rank raises the same error, which names the ranks that cannot be reached and the reasons.
func TestNoWayToAttach(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	list := start(t, 3, map[string]string{"shm_attach": "tmpfs", "shm_dir": missing})
	for rank, r := range all(list, command{Do: "create", Name: "g"}) {
		if !strings.Contains(r.Error, "has no shared memory") || !strings.Contains(r.Error, missing) {
			t.Errorf("rank %d: %q", rank, r.Error)
		}
	}
	// The processes can be used again.
	for _, p := range list {
		if err := p.end(); err != nil {
			t.Errorf("rank %d: %v", p.rank, err)
		}
	}
}
