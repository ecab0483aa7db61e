package tcp

import (
	"crypto/tls"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// socketPair returns the two ends of a connection over loopback.
func socketPair(t *testing.T, l net.Listener) (dialed, accepted *net.TCPConn) {
	t.Helper()
	a, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	b, err := l.Accept()
	require.NoError(t, err)
	return a.(*net.TCPConn), b.(*net.TCPConn)
}

func descriptorCount(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(list)
}

// In whatever order processes of the job introduce connections, complete them and give them up, a process has one attempt and one link at most, in which
// no connection has two places, and nothing is left of them when the node is closed. Three bytes are a step.
func FuzzIntroductions(f *testing.F) {
	f.Add([]byte{0, 1, 0, 0, 1, 1})
	f.Add([]byte{0, 1, 0, 0, 2, 0, 0, 1, 1, 0, 2, 1})
	f.Add([]byte{0, 1, 0, 1, 1, 0, 0x40, 1, 0, 0, 1, 1, 1, 1, 1})
	f.Add([]byte{0x80, 1, 0, 0, 1, 1, 0x0c, 1, 0, 2, 9, 9})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(f, err)
	f.Cleanup(func() { _ = l.Close() })
	f.Fuzz(func(t *testing.T, steps []byte) {
		steps = steps[:min(len(steps), 3*16)]
		before := descriptorCount(t)
		own := listenOn(t, "127.0.0.1:0")
		node, err := NewNode(Config{Self: Identity{9}, Data: 1, Receiver: newKeeper(), Timing: Timing{Beat: time.Hour, Unacked: time.Hour, Ending: time.Millisecond, Greeting: time.Hour}}, []net.Listener{own})
		require.NoError(t, err)
		var dialed []*net.TCPConn
		for ; len(steps) >= 3; steps = steps[3:] {
			i := introduction{from: Identity{1 + steps[0]&3}, to: Identity{9}, attempt: uint64(steps[1] & 3), index: steps[2] & 1, data: 1}
			if steps[0]&0x0c == 0x0c {
				i.data, i.index = 2, steps[2]%3
			}
			here, there := socketPair(t, l)
			dialed = append(dialed, here)
			in, answer := node.reserve(i, there)
			require.Contains(t, []byte{admitted, admittedBare, crossed, otherSetup, lostBefore, notWanted}, answer)
			require.Equal(t, answer == admitted || answer == admittedBare, in != nil)
			switch {
			case in == nil:
				require.NoError(t, there.Close())
			case steps[0]&0x40 != 0:
				node.giveUp(i.from, in)
			case steps[0]&0x80 == 0:
				node.take(i, in, there)
			}
			node.mu.Lock()
			for _, p := range node.peers {
				if p.incoming == nil {
					continue
				}
				require.True(t, p.link == nil, "an attempt beside a link")
				require.Less(t, p.incoming.ready, len(p.incoming.conns), "it is complete")
				seen := map[*net.TCPConn]bool{}
				for _, c := range p.incoming.tcp {
					require.False(t, c != nil && seen[c])
					seen[c] = true
				}
			}
			node.mu.Unlock()
		}
		node.Close()
		for _, c := range dialed {
			_ = c.Close()
		}
		require.Eventually(t, func() bool { return descriptorCount(t) <= before }, soon, time.Millisecond, "descriptors")
	})
}

// Whatever comes behind a right first challenge, in the place of TLS or within it, nobody is admitted by it.
func FuzzAdmitTLS(f *testing.F) {
	f.Add([]byte{}, false)
	f.Add([]byte{22, 3, 1, 0, 5, 1, 0, 0, 1, 0}, false)
	f.Add(make([]byte, maxBetween+1), false)
	f.Add(append([]byte(linkProtocol.Magic), make([]byte, 80)...), true)
	f.Add(make([]byte, 500), true)
	settings := newAuthority(f).settings(f)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(f, err)
	f.Cleanup(func() { _ = l.Close() })
	node, err := NewNode(Config{Self: Identity{9}, Data: 1, TLS: settings, Receiver: newKeeper(), Timing: Timing{Beat: time.Hour, Unacked: time.Hour, Ending: time.Hour, Greeting: soon}}, nil)
	require.NoError(f, err)
	f.Cleanup(node.Close)
	require.NoError(f, node.AddKey(testSpace, testKey))
	f.Fuzz(func(t *testing.T, text []byte, within bool) {
		here, there := socketPair(t, l)
		defer func() { _, _ = here.Close(), there.Close() }()
		ended := make(chan error, 1)
		go func() {
			_, _, _, err := node.admit(there)
			_ = there.Close()
			ended <- err
		}()
		_, err := linkProtocol.Greet(here, testSpace, testKey, time.Now().Add(soon))
		require.NoError(t, err)
		if within {
			secure := tls.Client(here, settings)
			require.NoError(t, secure.Handshake())
			_, _ = secure.Write(text)
			_ = secure.CloseWrite()
		} else {
			_, _ = here.Write(text)
		}
		_ = here.CloseWrite()
		began := time.Now()
		require.Error(t, <-ended)
		require.Less(t, time.Since(began), soon/2, "it waits for more")
	})
}
