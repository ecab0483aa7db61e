package pgbackend

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/coll"
	"sagecomm/tests/quick"
)

// Send and recv on devices; protocol: docs/protocol.md, sections 8 and 11.

// payload returns the bytes of a send.
func payload(from, to, number, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(31*from + 17*to + 7*number + i)
	}
	return b
}

func p2pOp(kind coll.Kind, peer, tag int) coll.Op {
	return coll.Op{Kind: kind, Type: coll.Uint8, Root: peer, Tag: tag}
}

// sendOn issues a send of bytes that a command of the caller's stream writes first.
func sendOn(g *Group, d *fakeDevice, to, tag int, bytes []byte) (deviceWork, *coll.Failure) {
	b := d.buffer(len(bytes))
	d.fill(b, bytes)
	return issueOn(g, d, p2pOp(coll.Send, to, tag), one(b), nil)
}

// recvOn issues a recv into a new buffer.
func recvOn(g *Group, d *fakeDevice, from, tag, n int) (deviceWork, []byte, *coll.Failure) {
	b := d.buffer(n)
	w, f := issueOn(g, d, p2pOp(coll.Recv, from, tag), nil, one(b))
	return w, b, f
}

// Every rank sends to every rank, itself included, lengths from none to several frames, and receives them in another
// order of tags.
func TestStagedP2P(t *testing.T) {
	onBothKinds(t, func(t *testing.T, waits bool) {
		seeds := uint64(6)
		if testing.Short() {
			seeds = 2
		}
		for _, n := range []int{1, 2, 3} {
			for seed := range seeds {
				t.Run(fmt.Sprintf("%d ranks, seed %d", n, seed), func(t *testing.T) {
					useNewPool(t)
					devices := fakeDevices(t, n, seed, waits)
					newWorld(t, n).each(func(g *Group) error { return exchangeAll(g, devices[g.rank], seed) })
				})
			}
		}
	})
}

func exchangeAll(g *Group, d *fakeDevice, seed uint64) error {
	random := rand.New(rand.NewPCG(seed, uint64(g.rank)))
	lengths := []int{0, 1, 4000, 9000, 200_000, 700_000}
	type received struct {
		deviceWork
		got, want []byte
	}
	var sends []deviceWork
	var recvs []received
	calls := make([]func() *coll.Failure, 0, 2*g.size*len(lengths))
	for peer := range g.size {
		for tag, n := range lengths {
			calls = append(calls, func() *coll.Failure {
				w, f := sendOn(g, d, peer, tag, payload(g.rank, peer, tag, n))
				sends = append(sends, w)
				return f
			}, func() *coll.Failure {
				w, b, f := recvOn(g, d, peer, tag, n)
				recvs = append(recvs, received{w, b, payload(peer, g.rank, tag, n)})
				return f
			})
		}
	}
	random.Shuffle(len(calls), func(i, k int) { calls[i], calls[k] = calls[k], calls[i] })
	for _, call := range calls {
		if f := call(); f != nil {
			return f
		}
	}
	for i, r := range recvs {
		if f := r.finish(); f != nil {
			return f
		}
		if !bytes.Equal(r.got, r.want) {
			return fmt.Errorf("recv %d of %d bytes: wrong payload", i, len(r.want))
		}
	}
	for _, w := range sends {
		if f := w.finish(); f != nil {
			return f
		}
	}
	return nil
}

// Sends with one tag are received in the order in which they were issued, and a recv from any source takes the first
// that was announced and knows its source at the end, also while the stream of the sender is late.
func TestPostedOrderDecidesOnDevices(t *testing.T) {
	onBothKinds(t, func(t *testing.T, waits bool) {
		useNewPool(t)
		devices := fakeDevices(t, 2, 11, waits)
		newWorld(t, 2).each(func(g *Group) error {
			d := devices[g.rank]
			if g.rank == 1 {
				d.hold(true)
				var works []deviceWork
				for i := range 10 {
					w, f := sendOn(g, d, 0, 3, payload(1, 0, i, 5000))
					if f != nil {
						return f
					}
					works = append(works, w)
				}
				if f := sum(g, 1); f != nil { // rank 0 has issued its recvs
					return f
				}
				for i, w := range works {
					if done, f := w.Wait(0); done {
						return fmt.Errorf("send %d is complete although its stream is held: %v", i, f)
					}
				}
				d.hold(false)
				for _, w := range works {
					if f := w.finish(); f != nil {
						return f
					}
				}
				return nil
			}
			var works []deviceWork
			var got [][]byte
			for i := range 10 {
				from := 1
				if i%2 == 0 {
					from = coll.AnySource
				}
				w, b, f := recvOn(g, d, from, 3, 5000)
				if f != nil {
					return f
				}
				works, got = append(works, w), append(got, b)
			}
			if f := sum(g, 1); f != nil {
				return f
			}
			for i, w := range works {
				var f *coll.Failure
				for done := false; !done; {
					done, f = w.Wait(time.Second)
				}
				if f != nil {
					return f
				}
				if w.Source() != 1 {
					return fmt.Errorf("recv %d comes from rank %d", i, w.Source())
				}
				if f := w.finish(); f != nil {
					return f
				}
				if !bytes.Equal(got[i], payload(1, 0, i, 5000)) {
					return fmt.Errorf("recv %d has another payload than send %d", i, i)
				}
			}
			return nil
		})
	})
}

// A recv whose stream is late takes its payload, so that the sender goes on; it ends when its stream has reached it,
// even if the sender has left by then, and no timeout begins before.
func TestRecvWhoseStreamIsLate(t *testing.T) {
	waitingOnBothKinds(t, func(t *testing.T, waits bool) {
		useNewPool(t)
		devices := fakeDevices(t, 2, 12, waits)
		w := newWorld(t, 2)
		require.NoError(t, w.groups[0].SetTimeout(300*time.Millisecond))
		w.each(func(g *Group) error {
			d := devices[g.rank]
			want := payload(1, 0, 0, 2<<20)
			if g.rank == 1 {
				send, f := sendOn(g, d, 0, 0, want)
				if f == nil {
					f = send.finish()
				}
				if f != nil {
					return f
				}
				return g.Destroy()
			}
			d.hold(true)
			recv, got, f := recvOn(g, d, 1, 0, len(want))
			if f != nil {
				return f
			}
			if done, f := recv.Wait(time.Second); done {
				return fmt.Errorf("ended although its stream is held: %v", f)
			}
			d.hold(false)
			if f := recv.finish(); f != nil {
				return f
			}
			if !bytes.Equal(got, want) {
				return fmt.Errorf("wrong payload")
			}
			return nil
		})
	})
}

// The timeout of a send or recv begins when the stream of the rank has reached it.
func TestTimeoutOfP2PBeginsWithTheStream(t *testing.T) {
	onBothKinds(t, func(t *testing.T, waits bool) {
		for _, kind := range []coll.Kind{coll.Send, coll.Recv} {
			t.Run(kind.String(), func(t *testing.T) {
				if waits != (kind == coll.Recv) {
					quick.Skip(t, "each kind of stream waits for one of the two")
				}
				useNewPool(t)
				devices := fakeDevices(t, 2, 13, waits)
				w := newWorld(t, 2)
				require.NoError(t, w.groups[0].SetTimeout(300*time.Millisecond))
				w.each(func(g *Group) error {
					if g.rank == 1 {
						return nil
					}
					d := devices[0]
					d.hold(true)
					var work deviceWork
					var f *coll.Failure
					if kind == coll.Send {
						work, f = sendOn(g, d, 1, 0, make([]byte, 100))
					} else {
						work, _, f = recvOn(g, d, 1, 0, 100)
					}
					if f != nil {
						return f
					}
					if done, f := work.Wait(time.Second); done {
						return fmt.Errorf("ended although its stream is late: %v", f)
					}
					d.hold(false)
					return expect(work.finish(), coll.Timeout, "timed out after", "rank 1", "use tensors of devices on both sides")
				})
			})
		}
	})
}

// A recv whose sender's stream is late says so when it times out.
func TestTimeoutOfRecvNamesTheStreamThatIsLate(t *testing.T) {
	onBothKinds(t, func(t *testing.T, waits bool) {
		useNewPool(t)
		devices := fakeDevices(t, 2, 18, waits)
		w := newWorld(t, 2)
		require.NoError(t, w.groups[0].SetTimeout(300*time.Millisecond))
		sent := make(chan struct{})
		w.each(func(g *Group) error {
			d := devices[g.rank]
			var work deviceWork
			var f *coll.Failure
			if g.rank == 1 {
				d.hold(true)
				work, f = sendOn(g, d, 0, 0, make([]byte, 100))
				close(sent)
			} else {
				<-sent
				work, _, f = recvOn(g, d, 1, 0, 100)
			}
			if f != nil {
				return f
			}
			err := expect(work.finish(), coll.Timeout, "rank 1", "has called the matching send, but its payload has not come: the stream of its device")
			d.hold(false)
			return err
		})
	})
}
