package pgbackend

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"sagecomm/algo/sendrecv"
	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
)

// apart returns a group of ranks on two hosts.
func apart(t *testing.T, size int, wires ...*wire) (*hosts, *world) {
	t.Helper()
	h := newHosts(t, size, twoHosts(size), wires...)
	return h, worldBy(t, size, coll.AllReduce, sendrecv.Algorithms(coll.AllReduce)[0], 0, nil)
}

func sendTo(g *Group, to, tag int, b []byte) (runner.Work, *coll.Failure) {
	return g.Issue(coll.Op{Kind: coll.Send, Root: to, Tag: tag, Async: true, Type: coll.Uint8}, one(b), nil)
}

func recvFrom(g *Group, from, tag int, b []byte) (runner.Work, *coll.Failure) {
	return g.Issue(coll.Op{Kind: coll.Recv, Root: from, Tag: tag, Async: true, Type: coll.Uint8}, nil, one(b))
}

// lengthsOfP2P has every class of messages: none, eager, announced in one piece and in several, and the lengths at
// which classes begin.
var lengthsOfP2P = []int{0, 1, 64, 8 << 10, 8<<10 + 1, 64 << 10, 64<<10 + 1, 1<<20 + 3}

// Every rank sends every other one messages of every class, in both orders of posting. What comes is what was sent.
func TestP2PBetweenHosts(t *testing.T) {
	for _, size := range []int{2, 4} {
		for _, sendsFirst := range []bool{true, false} {
			t.Run(fmt.Sprintf("2 x %d, sends first: %t", size/2, sendsFirst), func(t *testing.T) {
				_, w := apart(t, size)
				w.each(func(g *Group) error {
					var works []runner.Work
					sends := func() error {
						for to := range size {
							for tag, n := range lengthsOfP2P {
								if to == g.rank {
									continue
								}
								work, f := sendTo(g, to, tag, pattern(g.rank, tag, n))
								if f != nil {
									return f
								}
								works = append(works, work)
							}
						}
						return nil
					}
					got := map[[2]int][]byte{}
					recvs := func() error {
						for from := range size {
							for tag, n := range lengthsOfP2P {
								if from == g.rank {
									continue
								}
								b := make([]byte, n)
								got[[2]int{from, tag}] = b
								work, f := recvFrom(g, from, tag, b)
								if f != nil {
									return f
								}
								works = append(works, work)
							}
						}
						return nil
					}
					first, second := sends, recvs
					if !sendsFirst {
						first, second = recvs, sends
					}
					if err := first(); err != nil {
						return err
					}
					if err := second(); err != nil {
						return err
					}
					for _, work := range works {
						if f := finish(work); f != nil {
							return f
						}
					}
					for at, b := range got {
						if !bytes.Equal(b, pattern(at[0], at[1], len(b))) {
							return fmt.Errorf("from rank %d, %d bytes: they differ", at[0], len(b))
						}
					}
					return nil
				})
			})
		}
	}
}

// More eager bytes than the credit lie unmatched at the receiver, and many times the length of a fifo goes through it,
// of random lengths.
func TestManySendsBetweenHosts(t *testing.T) {
	_, w := apart(t, 2)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	sends := 400
	if testing.Short() {
		sends = 100
	}
	w.each(func(g *Group) error {
		random := rand.New(rand.NewPCG(seed, 0)) // both ranks draw the same
		var works []runner.Work
		var in [][]byte
		issue := func(send bool) error {
			for i := range sends {
				n := []int{random.IntN(100), random.IntN(8<<10 + 2), random.IntN(200 << 10)}[random.IntN(3)]
				var work runner.Work
				var f *coll.Failure
				if send {
					work, f = sendTo(g, 1-g.rank, i, pattern(g.rank, i, n))
				} else {
					in = append(in, make([]byte, n))
					work, f = recvFrom(g, []int{1 - g.rank, coll.AnySource}[i%2], i, in[i])
				}
				if f != nil {
					return f
				}
				works = append(works, work)
			}
			return nil
		}
		for _, send := range []bool{g.rank == 0, g.rank != 0} {
			if err := issue(send); err != nil {
				return err
			}
		}
		for _, work := range works {
			if f := finish(work); f != nil {
				return f
			}
		}
		for i, b := range in {
			if !bytes.Equal(b, pattern(1-g.rank, i, len(b))) {
				return fmt.Errorf("message %d of %d bytes differs", i, len(b))
			}
		}
		return nil
	})
}

// phases are what a p2p operation of rank 1 is in when rank 0 ends. `other` is what rank 0 has posted.
var phases = []struct {
	name        string
	kind        coll.Kind // of rank 1
	n           int
	other, half bool // rank 0 has posted the other side; a part of it has been moved
	done        bool // the operation of rank 1 is complete by itself
}{
	{"a recv without a send", coll.Recv, 100, false, false, false},
	{"an eager send without a recv", coll.Send, 100, false, false, true},
	{"an announced send without a recv", coll.Send, 100_000, false, false, false},
	{"a send half of which has come", coll.Send, 32 << 20, true, true, false},
	{"a recv half of which has come", coll.Recv, 32 << 20, true, true, false},
}

// begin makes a group of two ranks, posts the operations of a phase and returns them when the phase is reached, that of
// rank 1 first. Where half of an operation has come, nothing more comes until unblock. block would not do there: where
// an operation fails, it waits for who handles what has come.
func begin(t *testing.T, phase int) (h *hosts, w *world, works []runner.Work) {
	t.Helper()
	p := phases[phase]
	from := 0 // whose bytes are many
	if p.kind == coll.Send {
		from = 1
	}
	var between []*wire
	if p.half {
		x := newWire(t, 0, 1, false)
		x.arm(wireFault{action: "stop", from: from, index: -1, part: "byte", skip: p.n / 8})
		between = append(between, x)
	}
	h, w = apart(t, 2, between...)
	unblock := h.unblock
	h.unblock = func() {
		unblock()
		for _, x := range between {
			x.goOn()
		}
	}
	post := func(rank int, kind coll.Kind) runner.Work {
		issue := recvFrom
		if kind == coll.Send {
			issue = sendTo
		}
		work, f := issue(w.groups[rank], 1-rank, 0, make([]byte, p.n))
		require.Nil(t, f)
		return work
	}
	other := map[coll.Kind]coll.Kind{coll.Send: coll.Recv, coll.Recv: coll.Send}[p.kind]
	works = append(works, post(1, p.kind))
	if p.other {
		works = append(works, post(0, other))
	}
	if p.half {
		peer := h.pair(from, 1-from).Peer()
		told := runner.WordsOf(unsafe.Add(peer.Arena, peer.Shared[runner.HostLane]), 2).Read(from)
		require.Eventually(t, func() bool { return told.Load() > 1<<20 }, opTimeout, time.Millisecond)
	}
	return h, w, works
}

// A rank that aborts and leaves in any phase of an operation ends it on the other rank. Links stay, and the memory of
// all is given back.
func TestP2PIsGivenUpBetweenHosts(t *testing.T) {
	for phase, p := range phases {
		t.Run(p.name, func(t *testing.T) {
			h, w, works := begin(t, phase)
			w.groups[0].Abort("enough")
			require.NoError(t, w.groups[0].Destroy())
			h.unblock()
			if f := finish(works[0]); p.done {
				require.Nil(t, f)
			} else {
				require.NoError(t, expect(f, coll.PeerFailure, "rank 0", "has left the group"))
			}
			for _, work := range works[1:] {
				require.NoError(t, expect(finish(work), coll.Aborted, "enough"))
			}
			require.NoError(t, w.groups[1].Destroy())
			require.Eventually(t, func() bool {
				Get().sweep()
				return w.groups[0].life.now() == freed && w.groups[1].life.now() == freed
			}, opTimeout, time.Millisecond)
			require.NoError(t, h.pair(0, 1).Link.Err())
		})
	}
}

// A link that is lost in any phase of an operation ends it: the other process closes it, or it is cut.
func TestP2PEndsWithTheLink(t *testing.T) {
	for n := range 2 * len(phases) {
		phase, cut := n/2, n%2 == 1
		p := phases[phase]
		t.Run(fmt.Sprintf("%s, cut: %t", p.name, cut), func(t *testing.T) {
			h, w, works := begin(t, phase)
			closed := make(chan struct{})
			go func() {
				defer close(closed)
				if cut {
					h.pair(0, 1).Link.Break(errors.New("it was cut"))
				} else {
					h.nodes[0].Close()
				}
			}()
			require.Eventually(t, func() bool { return h.pair(0, 1).Link.Err() != nil }, opTimeout, time.Millisecond)
			h.unblock()
			losers := []int{<-h.lost}
			if cut {
				losers = append(losers, <-h.lost)
			}
			require.Contains(t, losers, 1)
			<-closed
			w.groups[1].peerDied(0)
			w.groups[0].peerDied(1)
			if f := finish(works[0]); p.done {
				require.Nil(t, f)
			} else {
				require.NoError(t, expect(f, coll.PeerFailure, "rank 0"))
			}
			for _, work := range works[1:] {
				require.NoError(t, expect(finish(work), coll.PeerFailure, "rank 1"))
			}
		})
	}
}
