package pgbackend

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"sagecomm/internal/handshake"
	"sagecomm/internal/transport/tcp"
)

// A process without descriptors says so once, a panic has its stack, and others fill no log.
func TestLogOfStrangers(t *testing.T) {
	from := netip.MustParseAddrPort("10.0.0.9:7")
	for _, info := range []bool{false, true} {
		var lines []string
		now := time.Now()
		s := &strangers{info: info, log: func(level, text string) { lines = append(lines, level+" "+text) }, now: func() time.Time { return now }}
		for range 3 {
			s.refused(netip.AddrPort{}, fmt.Errorf("accept: %w", unix.EMFILE))
			s.refused(from, handshake.ErrStranger)
		}
		now = now.Add(strangerPause)
		s.refused(from, errors.New("bad certificate"))
		s.refused(from, fmt.Errorf("%w: of the test", tcp.ErrPanic))
		want := []string{"WARN links to other hosts: this process cannot take connections of others, and their groups are not made until it can: raise `ulimit -n`: accept: too many open files"}
		if info {
			want = append(want, "INFO links to other hosts: a connection from 10.0.0.9:7 was not admitted: "+handshake.ErrStranger.Error(),
				"INFO links to other hosts: a connection from 10.0.0.9:7 was not admitted: bad certificate; 2 more since the last one that was logged")
		}
		require.Equal(t, append(want, "WARN links to other hosts: a connection from 10.0.0.9:7 was not admitted: internal error: panic: of the test; please report this"), lines)
	}
}

// What the other end of a link refuses is in its log.
func TestRefusedLinksAreLogged(t *testing.T) {
	eachAProcess(t)
	var mu sync.Mutex
	var lines []string
	real := logStranger
	logStranger = func(level, text string) {
		mu.Lock()
		defer mu.Unlock()
		lines = append(lines, level+" "+text)
	}
	t.Cleanup(func() { logStranger = real })
	_, errs := tryWorld(t, 2, opTimeout, func(rank int) options {
		o := onHosts("01")(rank)
		o["secret_file"] = writeSecret(t, strings.Repeat(fmt.Sprint("log", rank), 20))
		o["debug"] = "INFO"
		return o
	})
	for _, err := range errs {
		require.Error(t, err)
	}
	mu.Lock()
	defer mu.Unlock()
	require.NotEmpty(t, lines)
	require.Contains(t, lines[0], "INFO links to other hosts: a connection from 127.0.0.1:")
	require.Contains(t, lines[0], handshake.ErrStranger.Error())
}
