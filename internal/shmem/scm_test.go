package shmem

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestIdleClientsDoNotKeepOthersOut(t *testing.T) {
	o := startOwner(t, ownerConfig{Kind: Memfd, Methods: []Method{SCM}})
	for range clientsAtOnce - 1 {
		c, err := net.Dial("unix", "@"+o.Descriptor.Socket)
		require.NoError(t, err)
		defer c.Close()
	}
	begin := time.Now()
	attach(t, o.Descriptor, SCM).Release()
	if took := time.Since(begin); took >= requestTimeout {
		t.Errorf("attaching waited %v for silent clients", took)
	}
}

func TestIdleClientsAreSentAway(t *testing.T) {
	a := newArena(t, Memfd, "")
	d := publish(t, a, SCM)
	c, err := net.Dial("unix", "@"+d.Socket)
	require.NoError(t, err)
	defer c.Close()
	c.Write([]byte("half"))
	c.SetReadDeadline(time.Now().Add(requestTimeout + 10*time.Second))
	if n, err := c.Read(make([]byte, 1)); n != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %d bytes, %v: expected the end of the stream", n, err)
	}
}

func TestStopDoesNotWaitForIdleClients(t *testing.T) {
	a := newArena(t, Memfd, "")
	c, err := net.Dial("unix", "@"+publish(t, a, SCM).Socket)
	require.NoError(t, err)
	defer c.Close()
	begin := time.Now()
	require.NoError(t, a.Close())
	if took := time.Since(begin); took >= requestTimeout {
		t.Errorf("Close took %v", took)
	}
}

func TestAnotherUserGetsNothing(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("becoming another user needs root")
	}
	a := newArena(t, Memfd, "")
	d := publish(t, a, SCM)
	got := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread, which is another user now, ends with the goroutine
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, 65534, 65534, 65534); errno != 0 {
			got <- errno
			return
		}
		c, err := net.Dial("unix", "@"+d.Socket)
		if err != nil {
			got <- err
			return
		}
		defer c.Close()
		c.Write(d.Token[:])
		c.SetReadDeadline(time.Now().Add(deadline))
		_, err = c.Read(make([]byte, 1))
		got <- err
	}()
	if err := <-got; !errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("another user with the right token got: %v", err)
	}
}

// impostor listens on an owner's socket and calls handle for each client.
func impostor(t *testing.T, handle func(*net.UnixConn)) Descriptor {
	t.Helper()
	d := forge(t, wantedSeals, func([]byte) {})
	d.Socket = fmt.Sprintf("sagecomm-test-%s-%d-%s", d.BootID, os.Getpid(), t.Name())
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: "@" + d.Socket, Net: "unix"})
	require.NoError(t, err)
	done := make(chan struct{})
	t.Cleanup(func() { l.Close(); <-done })
	go func() {
		defer close(done)
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			handle(c)
			c.Close()
		}
	}()
	return d
}

func TestSurplusDescriptorsAreNotKept(t *testing.T) {
	d := impostor(t, func(c *net.UnixConn) {
		io.ReadFull(c, make([]byte, 16))
		c.WriteMsgUnix([]byte{1}, unix.UnixRights(0, 1, 2), nil)
	})
	before := openDescriptors(t)
	_, err := Attach(t.Context(), d, []Method{SCM})
	refused(t, err, "descriptors")
	// The impostor closes its end of the connection at any time. There may be fewer than before: a connection of the test
	// before this one has been closed meanwhile.
	got := openDescriptors(t)
	for deadline := time.Now().Add(10 * time.Second); got > before && time.Now().Before(deadline); got = openDescriptors(t) {
		time.Sleep(time.Millisecond)
	}
	if got > before {
		t.Errorf("%d descriptors before, %d after", before, got)
	}
}

func TestASilentOwnerIsLeftWithTheContext(t *testing.T) {
	stop := make(chan struct{})
	d := impostor(t, func(c *net.UnixConn) { <-stop })
	defer close(stop)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	begin := time.Now()
	_, err := Attach(ctx, d, []Method{SCM})
	refused(t, err, "receive the descriptor", "deadline exceeded")
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
}
