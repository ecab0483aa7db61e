package ranks

import (
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/coll"
)

// process is one rank as the test sees it.
type process struct {
	t       *testing.T
	rank    int
	cmd     *exec.Cmd
	in      *json.Encoder
	close   func() error
	reports chan report // closed at the end of its output
	stderr  said
	ended   bool
}

// said is what a process has said, also while it goes on.
type said struct {
	mu   sync.Mutex
	text strings.Builder
}

func (s *said) Write(part []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(part)
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// start starts size ranks. Whatever is still there at the end of the test is killed.
func start(t *testing.T, size int, options map[string]string) []*process {
	t.Helper()
	return startWith(t, size, options, func(int) *syscall.SysProcAttr { return nil })
}

// startWith starts each rank in its own way.
func startWith(t *testing.T, size int, options map[string]string, how func(rank int) *syscall.SysProcAttr) []*process {
	t.Helper()
	dir := t.TempDir()
	return startAll(t, size, func(rank int) orders {
		return orders{Rank: rank, Size: size, Dir: dir, Options: options}
	}, func(p *process) { p.cmd.SysProcAttr = how(p.rank) })
}

// startAll starts processes with these orders; change may alter the command of each.
func startAll(t *testing.T, size int, with func(rank int) orders, change func(*process)) []*process {
	t.Helper()
	list := make([]*process, size)
	for rank := range size {
		text, err := json.Marshal(with(rank))
		require.NoError(t, err)
		p := &process{t: t, rank: rank, cmd: exec.Command(os.Args[0]), reports: make(chan report, 16)}
		// The race detector lets a process linger at its end, for reports of other threads.
		p.cmd.Env = append(os.Environ(), roleVariable+"="+string(text), "GORACE=atexit_sleep_ms=0")
		p.cmd.Stderr = &p.stderr
		change(p)
		in, err := p.cmd.StdinPipe()
		require.NoError(t, err)
		p.in, p.close = json.NewEncoder(in), in.Close
		out, err := p.cmd.StdoutPipe()
		require.NoError(t, err)
		if err := p.cmd.Start(); err != nil {
			if a := p.cmd.SysProcAttr; a != nil && a.Cloneflags != 0 {
				t.Skipf("no process with namespaces of its own here: %v", err)
			}
			t.Fatal(err)
		}
		t.Cleanup(p.kill)
		go p.read(out)
		list[rank] = p
	}
	return list
}

func (p *process) read(out io.Reader) {
	defer close(p.reports)
	for d := json.NewDecoder(out); ; {
		var r report
		if d.Decode(&r) != nil {
			return
		}
		p.reports <- r
	}
}

func (p *process) order(c command) {
	p.t.Helper()
	if err := p.in.Encode(c); err != nil {
		p.t.Fatalf("rank %d does not take orders any more: %v", p.rank, err)
	}
}

// answer waits for the report of that name.
func (p *process) answer(did string) report {
	p.t.Helper()
	select {
	case r, ok := <-p.reports:
		if !ok {
			p.end()
			p.t.Fatalf("rank %d ended, expected %q:\n%s", p.rank, did, &p.stderr)
		}
		if r.Did != did {
			p.t.Fatalf("rank %d: %+v, expected %q", p.rank, r, did)
		}
		return r
	case <-time.After(hangAfter):
		p.t.Fatalf("rank %d hangs, expected %q", p.rank, did)
	}
	panic("unreachable")
}

// end closes the process's input and returns when it has ended.
func (p *process) end() error {
	p.ended = true
	_ = p.close()
	return p.cmd.Wait()
}

func (p *process) kill() {
	if !p.ended {
		_ = p.cmd.Process.Kill()
		_ = p.end()
	}
	if p.t.Failed() && p.stderr.String() != "" {
		p.t.Logf("rank %d said:\n%s", p.rank, &p.stderr)
	}
}

// all gives every process the order and returns their reports.
func all(list []*process, c command) []report {
	for _, p := range list {
		p.t.Helper()
		p.order(c)
	}
	reports := make([]report, len(list))
	for i, p := range list {
		reports[i] = p.answer(c.Do)
	}
	return reports
}

// create makes a group of all processes.
func create(t *testing.T, list []*process, name string, timeout time.Duration) {
	t.Helper()
	for rank, r := range all(list, command{Do: "create", Name: name, Timeout: timeout}) {
		if r.Error != "" {
			t.Fatalf("rank %d: %s", rank, r.Error)
		}
	}
}

// measure logs a time that exceeds its bound, which holds on a machine that is not overloaded. Three times the bound is an
// error.
func measure(t *testing.T, what string, took, bound time.Duration) {
	t.Helper()
	if took > 3*bound {
		t.Errorf("%s after %v, the bound is %v", what, took, bound)
	} else if took > bound {
		t.Logf("%s after %v, the bound is %v", what, took, bound)
	}
}

// succeed expects reports without an error.
func succeed(t *testing.T, reports []report) {
	t.Helper()
	for i, r := range reports {
		if r.Failure != nil || r.Error != "" {
			t.Fatalf("process %d: %s: %s %v", i, r.Did, r.Error, r.Failure)
		}
	}
}

// expectCulprit expects one and the same failure that names a process as the culprit.
func expectCulprit(t *testing.T, reports []report, status coll.Status, culprit *process, parts ...string) {
	t.Helper()
	for i, r := range reports {
		f := r.Failure
		if f == nil || f.Status != status || f.Rank != culprit.rank || f.PID != culprit.cmd.Process.Pid {
			t.Fatalf("process %d: %+v, expected %v that names rank %d, pid %d", i, f, status, culprit.rank, culprit.cmd.Process.Pid)
		}
		for _, part := range parts {
			if !strings.Contains(f.Message, part) {
				t.Fatalf("process %d: %q is not in %q", i, part, f.Message)
			}
		}
		if f.Message != reports[0].Failure.Message {
			t.Fatalf("process %d says %q, another %q", i, f.Message, reports[0].Failure.Message)
		}
	}
}

// leftovers returns the files of the library in a directory.
func leftovers(t *testing.T, dir string) []string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(dir, "sagecomm*"))
	require.NoError(t, err)
	return list
}

// nothingLeft expects no file of one of these processes in the directory.
func nothingLeft(t *testing.T, dir string, list []*process) {
	t.Helper()
	for _, name := range leftovers(t, dir) {
		for _, p := range list {
			if strings.Contains(name, "-"+itoa(p.cmd.Process.Pid)+"-") {
				t.Errorf("rank %d left %s", p.rank, name)
			}
		}
	}
}
