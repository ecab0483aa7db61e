package ranks

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/coll"
)

// A pid from another pid namespace names another process here, or none. The library must not take that for the death of the
// rank, and must notice its real death.
func TestOtherPIDNamespaces(t *testing.T) {
	apart := &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWPID,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: os.Geteuid(), HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getegid(), HostID: os.Getegid(), Size: 1}},
	}
	probe, err := os.StartProcess("/bin/true", []string{"true"}, &os.ProcAttr{Sys: apart})
	if err != nil {
		t.Skipf("no pid namespaces here: %v", err)
	}
	if _, err := probe.Wait(); err != nil {
		t.Fatal(err)
	}
	for _, method := range []string{"scm", "scm,tmpfs"} {
		t.Run(method, func(t *testing.T) {
			list := startWith(t, 3, map[string]string{"shm_attach": method, "shm_dir": t.TempDir()}, func(rank int) *syscall.SysProcAttr {
				if rank == 0 {
					return nil
				}
				return apart
			})
			create(t, list, "g", 0)
			succeed(t, all(list, command{Do: "loop", Ops: 30}))
			require.NoError(t, list[2].cmd.Process.Kill())
			killed := time.Now()
			reports := all(list[:2], command{Do: "loop"})
			for rank, r := range reports {
				f := r.Failure
				if strings.Contains(list[rank].stderr.String(), "noticed by timeout only") {
					t.Skip("this kernel cannot tell the process behind a socket")
				}
				if f == nil || f.Status != coll.PeerFailure || f.Rank != 2 || f.PID != 1 || !strings.Contains(f.Message, "died in or after all_reduce #30") {
					t.Errorf("rank %d: %+v", rank, f)
				}
				measure(t, fmt.Sprintf("rank %d knows", rank), r.At.Sub(killed), bound)
			}
		})
	}
}

// The others do not wait for a rank that dies in the rendezvous between its first and its last write.
func TestDeathInTheRendezvous(t *testing.T) {
	for _, c := range []struct{ methods, at string }{{"proc,scm", "first/attached"}, {"tmpfs", "first/attached"}} {
		t.Run(c.methods, func(t *testing.T) {
			dir := t.TempDir()
			list := start(t, 3, map[string]string{"shm_attach": c.methods, "shm_dir": dir})
			succeed(t, all(list, command{Do: "count"})) // they have started
			for rank, p := range list {
				order := command{Do: "create", Name: "g"}
				if rank == 1 {
					order.Die = c.at
				}
				p.order(order)
			}
			_ = list[1].end()
			died := time.Now()
			for _, p := range []*process{list[0], list[2]} {
				r := p.answer("create")
				measure(t, fmt.Sprintf("rank %d knows", p.rank), r.At.Sub(died), bound)
				if !strings.Contains(r.Error, "rank 1 (host ") || !strings.Contains(r.Error, "died while the group was made") {
					t.Errorf("rank %d: %q", p.rank, r.Error)
				}
			}
			nothingLeft(t, dir, []*process{list[0], list[2]}) // the next arena in the directory sweeps what the dead one left
			// The survivors go on without it.
			for i, p := range []*process{list[0], list[2]} {
				p.order(command{Do: "create", Name: "h", Rank: i, Size: 2, Timeout: opTimeout})
			}
			for _, p := range []*process{list[0], list[2]} {
				if r := p.answer("create"); r.Error != "" {
					t.Fatal(r.Error)
				}
			}
			succeed(t, all([]*process{list[0], list[2]}, command{Do: "loop", Ops: 10}))
		})
	}
}
