package bootstrap

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/handshake"
)

// claims makes 100 claims at once and returns what all of them got.
func claims(t *testing.T, s Lasting, key, who string) string {
	t.Helper()
	var got [100]string
	var wg sync.WaitGroup
	for i := range got {
		wg.Go(func() {
			c, err := s.Last()
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Release()
			value, err := c.Claim(key, bytes.Repeat(fmt.Appendf(nil, "%s %d;", who, i), 500)) // longer than a page
			if err != nil {
				t.Error(err)
			}
			got[i] = string(value)
		})
	}
	wg.Wait()
	for _, value := range got {
		require.Equal(t, got[0], value)
	}
	require.True(t, strings.HasPrefix(got[0], strings.Split(got[0], ";")[0]+";"))
	return got[0]
}

// Of claims at the same time one wins, and all get its whole value; so does who reads the key, and who claims later.
func TestOneClaimWins(t *testing.T) {
	for name, s := range map[string]interface {
		Store
		Lasting
	}{"memory": NewMemStore(), "files": newFileStore(t), "server": dialed(t, newIDOf(t, newServer(t)))} {
		t.Run(name, func(t *testing.T) {
			const key = "a/b"
			won := claims(t, s, key, "test")
			value, err := s.Get(key, 0)
			require.NoError(t, err)
			require.Equal(t, won, string(value))
			require.Equal(t, won, claims(t, s, key, "late"))
			require.NoError(t, s.Set("set", []byte("before")))
			c, err := s.Last()
			require.NoError(t, err)
			value, err = c.Claim("set", []byte("after"))
			require.NoError(t, err)
			require.Equal(t, "before", string(value))
			if files, ok := s.(*FileStore); ok {
				entries, err := os.ReadDir(files.dir)
				require.NoError(t, err)
				require.Len(t, entries, 2, "no temporary file stays")
			}
		})
	}
}

// Three processes claim one key in a directory.
func TestOneClaimOfProcessesWins(t *testing.T) {
	const variable = "SAGECOMM_TEST_CLAIMS_IN"
	if dir := os.Getenv(variable); dir != "" {
		s, err := NewFileStore(dir)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(dir+"/result-"+fmt.Sprint(os.Getpid()), []byte(claims(t, s, "key", fmt.Sprint(os.Getpid()))), 0o600))
		return
	}
	dir := t.TempDir()
	var children [3]*exec.Cmd
	for i := range children {
		children[i] = exec.Command(os.Args[0], "-test.run=^TestOneClaimOfProcessesWins$")
		children[i].Env = append(os.Environ(), variable+"="+dir)
		require.NoError(t, children[i].Start())
	}
	var got [3]string
	for i, child := range children {
		require.NoError(t, child.Wait())
		text, err := os.ReadFile(fmt.Sprintf("%s/result-%d", dir, child.Process.Pid))
		require.NoError(t, err)
		got[i] = string(text)
	}
	require.Equal(t, got[0], got[1])
	require.Equal(t, got[0], got[2])
}

// MemStore wakes who waits for a key that a claim stores.
func TestAClaimEndsAWait(t *testing.T) {
	s := NewMemStore()
	got := make(chan string)
	go func() {
		value, err := s.Get("k", ample)
		if err != nil {
			t.Error(err)
		}
		got <- string(value)
	}()
	c, err := s.Last()
	require.NoError(t, err)
	_, err = c.Claim("k", []byte("v"))
	require.NoError(t, err)
	require.Equal(t, "v", <-got)
}

// Release waits for no claim, and the store is given back once, behind the last one. Later claims do not reach it.
func TestReleaseGoesBehindClaims(t *testing.T) {
	begun, end, released := make(chan string, 2), make(chan struct{}), make(chan struct{}, 2)
	c := Counted(func(key string, value []byte) ([]byte, error) {
		begun <- key
		<-end
		return value, nil
	}, func() { released <- struct{}{} })
	var wg sync.WaitGroup
	for _, key := range []string{"a", "b"} {
		wg.Go(func() {
			if value, err := c.Claim(key, []byte("v")); err != nil || string(value) != "v" {
				t.Errorf("%q, %v", value, err)
			}
		})
	}
	<-begun
	<-begun
	c.Release()
	c.Release()
	_, err := c.Claim("c", []byte("v"))
	require.ErrorIs(t, err, errReleased)
	require.Empty(t, released)
	close(end)
	wg.Wait()
	<-released
	require.Empty(t, released)

	c = Counted(nil, func() { released <- struct{}{} })
	c.Release()
	<-released
}

func TestClaimInADirectoryThatHasGone(t *testing.T) {
	s := newFileStore(t)
	c, err := s.Last()
	require.NoError(t, err)
	require.NoError(t, os.RemoveAll(s.dir))
	_, err = c.Claim("k", []byte("v"))
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// A release is waited for, since the process may be about to end, but not for ever: who gives back may wait for
// somebody who is stopped.
func TestReleaseIsWaitedForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, takes := range []time.Duration{releaseLimit / 2, 2 * releaseLimit} {
			began := time.Now()
			c := Counted(nil, func() { time.Sleep(takes) })
			c.Release()
			require.Equal(t, min(takes, releaseLimit), time.Since(began))
			time.Sleep(2 * releaseLimit)
			began = time.Now()
			c.Release()
			require.Zero(t, time.Since(began))
		}
	})
}

// A claim that is under way keeps the store, and its release waits for nothing.
func TestReleaseBesideAClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var released atomic.Bool
		c := Counted(func(string, []byte) ([]byte, error) {
			time.Sleep(time.Hour)
			return nil, nil
		}, func() { released.Store(true) })
		go func() { _, _ = c.Claim("k", nil) }()
		synctest.Wait()
		began := time.Now()
		c.Release()
		require.Zero(t, time.Since(began))
		require.False(t, released.Load())
		_, err := c.Claim("k", nil)
		require.ErrorIs(t, err, errReleased)
		time.Sleep(2 * time.Hour)
		require.True(t, released.Load())
	})
}

// A file system without second names has no claims: the store counts as lost.
func TestClaimWithoutLinks(t *testing.T) {
	before := link
	link = func(string, string) error { return &os.LinkError{Op: "link", Err: syscall.EPERM} }
	t.Cleanup(func() { link = before })
	s := newFileStore(t)
	c, err := s.Last()
	require.NoError(t, err)
	defer c.Release()
	_, err = c.Claim("k", []byte("v"))
	require.ErrorIs(t, err, syscall.EPERM)
	list, err := os.ReadDir(s.dir)
	require.NoError(t, err)
	require.Empty(t, list, "the temporary file stays")
}

// Ranks ask for their claimers at the same moment, and the server may end some of these connections.
func TestClaimersAreTriedAgain(t *testing.T) {
	s := newServer(t)
	store := dialed(t, newIDOf(t, s))
	front, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer front.Close()
	back := store.server.String()
	store.server = front.Addr().(*net.TCPAddr).AddrPort()
	const ended = 2
	go func() {
		for n := 0; ; n++ {
			c, err := front.Accept()
			if err != nil {
				return
			}
			if n < ended {
				_ = c.Close()
				continue
			}
			to, err := net.Dial("tcp", back)
			if err != nil {
				_ = c.Close()
				return
			}
			go func() { _, _ = io.Copy(to, c) }()
			go func() { _, _ = io.Copy(c, to) }()
		}
	}()
	c, err := store.Last()
	require.NoError(t, err)
	defer c.Release()
	_, err = c.Claim("k", []byte("v"))
	require.NoError(t, err)
	store.Close()
	_, err = store.Last()
	require.Error(t, err, "the store was closed")
}

// Forked children can close each descriptor that a server or a store has, and no other: each is told of while it is open.
func TestDescriptorsForForkedChildren(t *testing.T) {
	var mu sync.Mutex
	open, opened := map[uintptr]bool{}, 0
	note := func(now bool) func(uintptr) {
		return func(fd uintptr) {
			mu.Lock()
			defer mu.Unlock()
			if open[fd] == now {
				t.Errorf("descriptor %d is noted twice", fd)
			}
			if now {
				opened++
			}
			open[fd] = now
		}
	}
	hooks := Descriptors{Opened: note(true), Closing: note(false)}
	s := NewServer(hooks)
	t.Cleanup(s.Close)
	id, err := s.NewID(Endpoint{Addresses: Loopback[:1]}, nil)
	require.NoError(t, err)
	stranger := connected(t, id)
	store, err := Dial(t.Context(), id, nil, time.Now().Add(soon), nil, hooks)
	require.NoError(t, err)
	c, err := store.Last()
	require.NoError(t, err)
	require.Eventually(t, func() bool { _, clients, strangers, _ := s.counts(); return clients == 2 && strangers == 1 }, soon, time.Millisecond)
	mu.Lock()
	require.Equal(t, 6, opened, "a listener, two ends of two connections, and one of the stranger's")
	mu.Unlock()
	require.NoError(t, store.Leave(1))
	store.Close()
	c.Release()
	require.NoError(t, stranger.Close())
	require.Eventually(t, func() bool {
		mu.Lock()
		defer mu.Unlock()
		for _, is := range open {
			if is {
				return false
			}
		}
		return true
	}, soon, time.Millisecond)
}

// The server of an id decides claims as long as somebody has a claimer, also when all ranks have met and nothing listens
// any more. What they told each other is gone by then, and so is everything when the last claimer has gone.
func TestClaimsAtTheServerOfAnID(t *testing.T) {
	s := newServer(t)
	id := newIDOf(t, s)
	s.mu.Lock()
	space := s.spaces[id.Space]
	s.mu.Unlock()
	stores, claimers := make([]*TCPStore, 2), make([]Claimer, 2)
	var err error
	for i := range stores {
		stores[i] = dialed(t, id)
		claimers[i], err = stores[i].Last()
		require.NoError(t, err)
	}
	require.NoError(t, stores[0].Set("told", make([]byte, 1000)))
	early, err := claimers[1].Claim("early", []byte("by 1"))
	require.NoError(t, err)
	require.Equal(t, "by 1", string(early))
	for _, store := range stores {
		require.NoError(t, store.Leave(len(stores)))
		store.Close()
	}
	require.Eventually(t, func() bool {
		spaces, clients, _, listeners := s.counts()
		return spaces == 0 && listeners == 0 && clients == 2
	}, soon, time.Millisecond)
	space.mu.Lock()
	require.Len(t, space.values, 1)
	require.Equal(t, len("early")+len("by 1"), space.bytes)
	space.mu.Unlock()
	_, err = Dial(t.Context(), id, nil, time.Now().Add(50*time.Millisecond), nil, Descriptors{})
	require.ErrorIs(t, err, ErrGone, "the group is complete")
	for i, c := range claimers {
		first, err := c.Claim("early", []byte("late"))
		require.NoError(t, err)
		require.Equal(t, "by 1", string(first))
		first, err = c.Claim("cause", fmt.Appendf(nil, "by %d", i))
		require.NoError(t, err)
		require.Equal(t, "by 0", string(first))
		_, err = c.Claim(fmt.Sprint("large ", i), make([]byte, maxValue+1))
		require.ErrorContains(t, err, "at most")
	}
	claimers[0].Release()
	_, err = claimers[0].Claim("cause", nil)
	require.ErrorIs(t, err, errReleased)
	_, err = claimers[1].Claim("cause", nil)
	require.NoError(t, err)
	claimers[1].Release()
	require.Eventually(t, func() bool { _, clients, _, _ := s.counts(); return clients == 0 }, soon, time.Millisecond)
}

// A store that is full refuses a claim, and the next one is answered.
func TestClaimsInAFullStore(t *testing.T) {
	store := dialed(t, newIDOf(t, newServer(t)))
	c, err := store.Last()
	require.NoError(t, err)
	defer c.Release()
	for i := 0; err == nil; i++ {
		err = store.Set(fmt.Sprint(i), make([]byte, maxValue))
	}
	_, err = c.Claim("cause", make([]byte, maxValue))
	require.ErrorContains(t, err, errSpaceFull.Error())
	first, err := c.Claim("0", nil)
	require.NoError(t, err)
	require.Len(t, first, maxValue)
}

// Claimers learn that the process of the server has ended.
func TestClaimsAtAServerThatEnds(t *testing.T) {
	s := newServer(t)
	store := dialed(t, newIDOf(t, s))
	c, err := store.Last()
	require.NoError(t, err)
	s.Close()
	for range 2 {
		_, err = c.Claim("cause", []byte("v"))
		require.ErrorIs(t, err, ErrGone)
	}
	c.Release()
	_, err = store.Last()
	require.ErrorContains(t, err, "no further connection to the store at ")
}

// An answer that comes when its claim was given up is not that to the next one.
func TestAnswerToAClaimThatWasGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		key := [32]byte{1}
		go func() {
			defer there.Close()
			s, _, err := storeProtocol.Admit(there, time.Second, func([spaceBytes]byte) ([32]byte, bool) { return key, true })
			for err == nil {
				if _, err = s.Receive(); err == nil {
					time.Sleep(answerGrace + time.Second)
					err = s.Send(append([]byte{answerOK}, "late"...))
				}
			}
		}()
		s, err := greet(here, [spaceBytes]byte{}, key, time.Now().Add(time.Second))
		require.NoError(t, err)
		c := &claimer{session: s}
		_, err = c.claim("k", []byte("v"))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		time.Sleep(2 * time.Second)
		_, err = c.claim("other", []byte("v"))
		require.ErrorIs(t, err, ErrGone)
		time.Sleep(time.Minute)
	})
}

// The end of a store ends a connection that is being made for it.
func TestEndOfAStoreEndsItsConnections(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	dialing := make(chan net.Conn, 1)
	go func() {
		c, err := l.Accept() // it answers nothing
		if err == nil {
			dialing <- c
		}
	}()
	store := newTCPStore(l.Addr().(*net.TCPAddr).AddrPort(), [spaceBytes]byte{}, [32]byte{}, Descriptors{}, nil)
	store.free, store.all = nil, nil
	ended := make(chan error, 1)
	go func() {
		_, err := store.Last()
		ended <- err
	}()
	defer (<-dialing).Close()
	began := time.Now()
	store.End(errors.New("aborted"))
	require.Error(t, <-ended)
	require.Less(t, time.Since(began), handshake.Timeout*9/10)
}

// When all ranks have met, the store answers claims and nothing else: who asks then is a rank that was started twice, and
// hears so at once. A value that was claimed is not replaced.
func TestACompleteGroupAnswersClaimsOnly(t *testing.T) {
	s := newServer(t)
	id := newIDOf(t, s)
	store := dialed(t, id)
	c, err := store.Last()
	require.NoError(t, err)
	defer c.Release()
	_, err = c.Claim("cause", []byte("first"))
	require.NoError(t, err)
	require.ErrorContains(t, store.Set("cause", []byte("second")), errClaimed.Error())
	waiting := make(chan error)
	go func() {
		_, err := store.Get("never", soon)
		waiting <- err
	}()
	late := dialed(t, id)
	require.NoError(t, dialed(t, id).Leave(1))
	require.ErrorContains(t, <-waiting, errComplete.Error())
	require.ErrorContains(t, late.Set("k", nil), errComplete.Error())
	_, err = late.Get("cause", 0)
	require.ErrorContains(t, err, errComplete.Error())
	_, err = Dial(t.Context(), id, nil, time.Now().Add(time.Second), nil, Descriptors{})
	require.Error(t, err)
	first, err := c.Claim("cause", []byte("third"))
	require.NoError(t, err)
	require.Equal(t, "first", string(first))
}
