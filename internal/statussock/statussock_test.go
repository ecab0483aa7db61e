package statussock

import (
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// ask connects to a socket of this process and returns the document.
func ask(t *testing.T, name string) string {
	t.Helper()
	conn, err := net.Dial("unix", "@"+name)
	require.NoError(t, err)
	defer conn.Close()
	text, err := io.ReadAll(conn)
	require.NoError(t, err)
	return string(text)
}

// mine returns the names of this process's status sockets in /proc/net/unix.
func mine(t *testing.T) (list []string) {
	t.Helper()
	text, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		t.Skip(err)
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		name := strings.TrimPrefix(fields[len(fields)-1], "@")
		if strings.HasPrefix(name, fmt.Sprintf("%s%d-%d", Prefix, os.Geteuid(), os.Getpid())) && fields[3] == "00010000" { // it listens
			list = append(list, name)
		}
	}
	return list
}

func TestWhoeverAsksIsAnswered(t *testing.T) {
	count := 0
	var mu sync.Mutex
	s, err := Serve(func() []byte {
		mu.Lock()
		defer mu.Unlock()
		count++
		return fmt.Appendf(nil, `{"asked": %d}`, count)
	})
	require.NoError(t, err)
	names := mine(t)
	if len(names) != 1 {
		t.Fatalf("sockets %v", names)
	}
	var all sync.WaitGroup
	for range clientsAtOnce / 2 {
		all.Go(func() {
			if text := ask(t, names[0]); !strings.HasPrefix(text, `{"asked": `) {
				t.Errorf("%q", text)
			}
		})
	}
	all.Wait()
	if count != clientsAtOnce/2 {
		t.Errorf("answered %d times", count)
	}
	second, err := Serve(func() []byte { return []byte("second") })
	require.NoError(t, err)
	if names := mine(t); len(names) != 2 {
		t.Errorf("sockets %v", names)
	}
	second.Close()
	s.Close()
	if names := mine(t); len(names) != 0 {
		t.Errorf("sockets that stayed: %v", names)
	}
}

// A client that never reads does not block the server: other clients are answered meanwhile.
func TestAClientThatDoesNotRead(t *testing.T) {
	s, err := Serve(func() []byte { return make([]byte, 8<<20) })
	require.NoError(t, err)
	defer s.Close()
	name := mine(t)[0]
	idle, err := net.Dial("unix", "@"+name)
	require.NoError(t, err)
	defer idle.Close()
	if n := len(ask(t, name)); n != 8<<20 {
		t.Errorf("%d bytes", n)
	}
}
