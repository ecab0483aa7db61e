package shmem

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const (
	roleVariable = "SHMEM_TEST_OWNER" // its value is the ownerConfig of the child
	deadline     = 20 * time.Second
	testSize     = 64 << 20
)

func TestMain(m *testing.M) {
	if config := os.Getenv(roleVariable); config != "" {
		if err := ownerMain(config); err != nil {
			fmt.Fprintln(os.Stderr, "owner:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if left := os.Getenv(starvedVariable); left != "" {
		starvedMain(left)
	}
	os.Exit(m.Run())
}

type ownerConfig struct {
	Kind    Kind
	Dir     string
	Methods []Method
	Fill    int64 // bytes to allocate and fill with 0x5a
}

type ownerReport struct {
	Descriptor Descriptor
	Range      Range
}

// ownerMain is the main function of a child process that makes an arena and reports its descriptor. For each line of input it
// reports the first byte of its range. It returns when its input ends.
func ownerMain(config string) error {
	var c ownerConfig
	if err := json.Unmarshal([]byte(config), &c); err != nil {
		return err
	}
	a, err := NewArena(c.Kind, testSize, c.Dir)
	if err != nil {
		return err
	}
	r, err := a.Alloc(c.Fill, 0)
	if err != nil {
		return err
	}
	copy(a.Bytes(r), bytes.Repeat([]byte{0x5a}, int(r.Len)))
	d, err := a.Publish(c.Methods)
	if err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(ownerReport{d, r}); err != nil {
		return err
	}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		fmt.Println(a.Bytes(r)[0])
	}
	return a.Close()
}

// owner is a child process that runs ownerMain, as its parent sees it.
type owner struct {
	ownerReport
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func startOwner(t *testing.T, c ownerConfig) *owner {
	t.Helper()
	c.Fill = max(c.Fill, 1)
	config, err := json.Marshal(c)
	require.NoError(t, err)
	o := &owner{cmd: exec.Command(os.Args[0])}
	o.cmd.Env = append(os.Environ(), roleVariable+"="+string(config))
	o.cmd.Stderr = os.Stderr
	if o.in, err = o.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := o.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, o.cmd.Start())
	t.Cleanup(o.kill)
	o.out = bufio.NewReader(out)
	line, err := o.out.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &o.ownerReport)
	}
	if err != nil {
		t.Fatalf("the owner reported %q: %v", line, err)
	}
	return o
}

// firstByte asks the owner for the first byte of its range.
func (o *owner) firstByte(t *testing.T) string {
	t.Helper()
	fmt.Fprintln(o.in)
	line, err := o.out.ReadString('\n')
	require.NoError(t, err)
	return strings.TrimSpace(line)
}

func (o *owner) kill() {
	o.cmd.Process.Kill()
	o.cmd.Wait()
	o.in.Close()
}

func newArena(t *testing.T, kind Kind, dir string) *Arena {
	t.Helper()
	a, err := NewArena(kind, testSize, dir)
	require.NoError(t, err)
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return a
}

func alloc(t *testing.T, a *Arena, n, align int64) Range {
	t.Helper()
	r, err := a.Alloc(n, align)
	require.NoError(t, err)
	return r
}

func publish(t *testing.T, a *Arena, methods ...Method) Descriptor {
	t.Helper()
	d, err := a.Publish(methods)
	require.NoError(t, err)
	return d
}

func attach(t *testing.T, d Descriptor, methods ...Method) *Mapping {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	m, err := Attach(ctx, d, methods)
	require.NoError(t, err)
	return m
}

// refused fails the test unless err contains all the parts.
func refused(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error, expected one with %q", parts)
		return
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("%q is not in %q", p, err)
		}
	}
}

// openDescriptors counts the descriptors of this process. The first call makes the runtime open the descriptors that it keeps.
func openDescriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(list)
}

// bytesHeld returns the memory that the arena's file takes.
func bytesHeld(t *testing.T, a *Arena) int64 {
	t.Helper()
	var st unix.Stat_t
	require.NoError(t, unix.Fstat(a.fd, &st))
	return st.Blocks * 512
}

func allZero(b []byte) bool { return len(bytes.TrimLeft(b, "\x00")) == 0 }
