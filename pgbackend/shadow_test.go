package pgbackend

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"math"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"sagecomm/algo/sendrecv"
	"sagecomm/internal/coll"
	"sagecomm/internal/handshake"
	"sagecomm/internal/runner"
	"sagecomm/internal/shadow"
	"sagecomm/internal/transport/tcp"
)

// In these tests the ranks of a group are on several hosts as far as the runner knows: each rank has shadows of those
// of other hosts, and what crosses goes over links on loopback. Runner, plans and programs are those of one host.

// hosts are the ends of links of the ranks of one group.
type hosts struct {
	t     *testing.T
	size  int
	on    func(rank int) int // the host of a rank
	ids   []tcp.Identity
	nodes []*tcp.Node
	at    []netip.AddrPort
	sets  []*shadow.Set
	wires []*wire        // which stand between some of them
	meet  sync.WaitGroup // ranks that have no shadows yet
	lost  chan int       // ranks that have lost a link

	stated    atomic.Int32 // states that have come
	receivers []*blocker
	unblock   func()

	mu       sync.Mutex
	pairs    map[[2]int]*shadow.Pair // by rank and remote rank, as the next one
	controls map[[2]int]*atomic.Pointer[remoteControl]
}

func (h *hosts) pair(rank, to int) *shadow.Pair {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.pairs[[2]int{rank, to}]
}

func newHosts(t *testing.T, size int, on func(rank int) int, wires ...*wire) *hosts {
	t.Helper()
	h := &hosts{t: t, size: size, on: on, wires: wires, lost: make(chan int, size*size), pairs: map[[2]int]*shadow.Pair{}, controls: map[[2]int]*atomic.Pointer[remoteControl]{}}
	free := make(chan struct{})
	h.unblock = sync.OnceFunc(func() { close(free) })
	key := handshake.MAC([]byte("a secret"), "test")
	for range size {
		var id tcp.Identity
		_, _ = rand.Read(id[:])
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		set := shadow.NewSet()
		receiver := &blocker{Receiver: set, free: free}
		h.receivers = append(h.receivers, receiver)
		node, err := tcp.NewNode(tcp.Config{Self: id, Data: 2, Receiver: receiver, Lost: set.Lost}, []net.Listener{l})
		require.NoError(t, err)
		require.NoError(t, node.AddKey(handshake.Space{}, key))
		h.ids, h.nodes, h.sets, h.at = append(h.ids, id), append(h.nodes, node), append(h.sets, set), append(h.at, l.Addr().(*net.TCPAddr).AddrPort())
	}
	for _, x := range wires {
		x.mu.Lock()
		for _, end := range x.ends {
			x.real[end] = h.at[end]
		}
		x.mu.Unlock()
	}
	h.meet.Add(size)
	real := openGroup
	openGroup = func(c runner.Config) (*runner.Group, error) {
		if c.Lane == runner.HostLane {
			h.replace(&c)
		}
		run, err := real(c)
		for to, p := range c.Peers {
			if err == nil && p.Pair != 0 {
				run.Visit(to)
			}
		}
		return run, err
	}
	t.Cleanup(func() {
		openGroup = real
		h.unblock()
		for rank, n := range h.nodes {
			n.Close()
			h.sets[rank].Close()
		}
		for _, x := range wires {
			x.close()
		}
	})
	return h
}

// replace puts shadows into the places of ranks of other hosts. It returns when all ranks have theirs.
func (h *hosts) replace(c *runner.Config) {
	c.FailureRank = c.Rank
	own := c.Peers[c.Rank]
	memory, err := shadow.NewMemory(len(c.Peers), len(c.Peers), c.Geometry)
	require.NoError(h.t, err)
	h.t.Cleanup(memory.Free)
	for to := range c.Peers {
		if h.on(to) == h.on(c.Rank) {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), opTimeout)
		at := h.at[to]
		for _, x := range h.wires {
			if other, through := x.address(c.Rank, to); through {
				at = other
			}
		}
		l, err := h.nodes[c.Rank].Link(ctx, h.ids[to], []netip.AddrPort{at}, handshake.Space{})
		cancel()
		require.NoError(h.t, err)
		control := new(atomic.Pointer[remoteControl])
		h.mu.Lock()
		h.controls[[2]int{c.Rank, to}] = control
		h.mu.Unlock()
		p, err := h.sets[c.Rank].Add(shadow.Config{Link: l, Group: 77, Rank: c.Rank, To: to, Size: len(c.Peers), Geometry: c.Geometry, Own: own, Memory: memory, Shadow: to,
			Control: func(h *tcp.Header, payload []byte) error { return control.Load().take(h, payload) },
			Stated: func() {
				h.stated.Add(1)
				if r := control.Load(); r != nil {
					r.states.Add(1)
				}
			},
			GaveUp: func() []byte {
				return runner.EncodeFailure(&coll.Failure{Status: coll.PeerFailure, Rank: to, Message: fmt.Sprintf("rank %d gave up, see its log", to)})
			},
			Lost: func(error) { h.lost <- c.Rank }})
		require.NoError(h.t, err)
		c.Peers[to] = p.Peer()
		h.mu.Lock()
		h.pairs[[2]int{c.Rank, to}] = p
		h.mu.Unlock()
	}
	h.meet.Done()
	h.meet.Wait()
	for to, p := range c.Peers {
		if p.Pair != 0 {
			require.True(h.t, h.pairs[[2]int{c.Rank, to}].Open())
		}
	}
}

func twoHosts(size int) func(int) int { return func(rank int) int { return rank * 2 / size } }

func TestAllReduceBetweenHosts(t *testing.T) {
	for _, size := range []int{2, 4} {
		for _, algorithm := range sendrecv.Algorithms(coll.AllReduce) {
			t.Run(fmt.Sprintf("2 x %d, %s", size/2, algorithm), func(t *testing.T) {
				newHosts(t, size, twoHosts(size))
				w := worldBy(t, size, coll.AllReduce, algorithm, 0, nil)
				for _, n := range []int{1, 1000, 100_000} {
					for round := range 3 {
						w.each(func(g *Group) error {
							in, out := make([]byte, 4*n), make([]byte, 4*n)
							for i := range n {
								binary.LittleEndian.PutUint32(in[4*i:], math.Float32bits(float32((i+round)%1000*(g.rank+1))))
							}
							if _, f := g.Issue(coll.Op{Kind: coll.AllReduce, Type: coll.Float32}, one(in), one(out)); f != nil {
								return f
							}
							for i := range n {
								want := float32((i + round) % 1000 * size * (size + 1) / 2)
								if got := math.Float32frombits(binary.LittleEndian.Uint32(out[4*i:])); got != want {
									return fmt.Errorf("element %d of %d: %v, expected %v", i, n, got, want)
								}
							}
							return nil
						})
					}
				}
			})
		}
	}
}

// A rank that leaves is known to have left, behind everything that it has sent, and the memory of all is given back.
func TestGoodbyeBetweenHosts(t *testing.T) {
	newHosts(t, 2, twoHosts(2))
	w := worldBy(t, 2, coll.AllReduce, sendrecv.Algorithms(coll.AllReduce)[0], 0, nil)
	w.each(func(g *Group) error { return asError(sum(g, 100_000)) })
	require.NoError(t, w.groups[0].Destroy())
	require.NoError(t, expect(sum(w.groups[1], 10), coll.PeerFailure, "rank 0", "has left the group"))
	require.NoError(t, w.groups[1].Destroy())
	require.Eventually(t, func() bool {
		Get().sweep()
		return w.groups[0].life.now() == freed && w.groups[1].life.now() == freed
	}, opTimeout, time.Millisecond)
}

// A link that is lost is told to each rank whose peer has not left, once nothing writes into its memory any more.
func TestLossBetweenHosts(t *testing.T) {
	h := newHosts(t, 2, twoHosts(2))
	w := worldBy(t, 2, coll.AllReduce, sendrecv.Algorithms(coll.AllReduce)[0], 0, nil)
	failed := make(chan *coll.Failure, 1)
	go func() { failed <- sum(w.groups[0], 100_000) }()
	h.nodes[1].Close()
	require.Equal(t, 0, <-h.lost)
	w.groups[0].peerDied(1)
	require.NoError(t, expect(<-failed, coll.PeerFailure, "rank 1"))
}

// A rank that has given up, while others have joined, is known by the record that was made with its shadow, and the
// memory of all is given back.
func TestGiveUpBetweenHosts(t *testing.T) {
	h := newHosts(t, 2, twoHosts(2))
	w := worldBy(t, 2, coll.AllReduce, sendrecv.Algorithms(coll.AllReduce)[0], 0, nil)
	w.groups[0].peers[1] = h.pair(0, 1).Peer() // as if this process had no mapping of the other's memory
	own := h.pair(1, 0).Own
	runner.GiveUp(unsafe.Add(own.Arena, own.Shared[runner.HostLane]), &coll.Failure{Status: coll.System, Rank: 1, Message: "what only its log has"})
	require.NoError(t, expect(sum(w.groups[0], 10), coll.PeerFailure, "rank 1 gave up, see its log"))
	require.NoError(t, w.groups[0].Destroy())
	require.NoError(t, w.groups[1].Destroy())
	require.Eventually(t, func() bool {
		Get().sweep()
		return w.groups[0].life.now() == freed && w.groups[1].life.now() == freed
	}, opTimeout, time.Millisecond)
	require.NoError(t, h.pair(0, 1).Link.Err())
}
