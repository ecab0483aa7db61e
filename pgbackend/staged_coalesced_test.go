package pgbackend

import (
	"bytes"
	"fmt"
	"testing"

	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
)

// Several operations on devices in one call. Which of them share a collective is tested in package fusion.

// mixed is a coalesced call of a rank with what its outputs must hold.
type mixed struct {
	calls []runner.Coalesced
	got   [][]byte
	want  [][]byte
}

// newMixed returns collectives of several kinds and types with sends and recvs between them. The recvs come first.
func newMixed(g *Group, d *fakeDevice) *mixed {
	m := &mixed{}
	n, rank := g.size, g.rank
	add := func(op coll.Op, in, out, want []byte) {
		c := runner.Coalesced{Op: op}
		if in != nil {
			c.In = one(in)
		}
		if out != nil {
			c.Out = one(out)
			m.got, m.want = append(m.got, out), append(m.want, want)
		}
		m.calls = append(m.calls, c)
	}
	filled := func(bytes []byte) []byte {
		b := d.buffer(len(bytes))
		d.fill(b, bytes)
		return b
	}
	next, last := (rank+1)%n, (rank+n-1)%n
	for tag, bytes := range []int{10, 100_000} {
		add(p2pOp(coll.Recv, last, tag), nil, d.buffer(bytes), payload(last, rank, tag, bytes))
	}
	for _, count := range []int{0, 1, 1000, 50_000} {
		b := filled(contributionBytes(coll.Float32, coll.Sum, rank, n, count))
		add(coll.Op{Kind: coll.AllReduce, Type: coll.Float32}, b, b, reducedBytes(coll.Float32, coll.Sum, n, count))
		b = filled(contributionBytes(coll.Int32, coll.Sum, rank, n, count))
		add(coll.Op{Kind: coll.AllReduce, Type: coll.Int32}, b, b, reducedBytes(coll.Int32, coll.Sum, n, count))
	}
	for _, count := range []int{7, 3000} {
		var all []byte
		for from := range n {
			all = append(all, contributionBytes(coll.Int32, coll.Sum, from, n, count)...)
		}
		add(coll.Op{Kind: coll.AllGather, Type: coll.Int32}, filled(contributionBytes(coll.Int32, coll.Sum, rank, n, count)), d.buffer(4*n*count), all)
	}
	for tag, bytes := range []int{10, 100_000} {
		add(p2pOp(coll.Send, next, tag), filled(payload(rank, next, tag, bytes)), nil, nil)
	}
	return m
}

func (m *mixed) check() error {
	for i := range m.got {
		if !bytes.Equal(m.got[i], m.want[i]) {
			return fmt.Errorf("output %d of %d bytes is wrong", i, len(m.want[i]))
		}
	}
	return nil
}

// A call with collectives and p2p operations gives what they give one by one, in whatever order streams run, several
// calls at once.
func TestStagedCoalesced(t *testing.T) {
	onBothKinds(t, func(t *testing.T, waits bool) {
		seeds := uint64(4)
		if testing.Short() {
			seeds = 2
		}
		for _, n := range []int{1, 2, 3} {
			for seed := range seeds {
				t.Run(fmt.Sprintf("%d ranks, seed %d", n, seed), func(t *testing.T) {
					useNewPool(t)
					devices := fakeDevices(t, n, seed, waits)
					newWorld(t, n).each(func(g *Group) error {
						d := devices[g.rank]
						var works []deviceWork
						var calls []*mixed
						for range 2 {
							m := newMixed(g, d)
							w, f := issueAllOn(g, d, m.calls)
							if f != nil {
								return f
							}
							// 2 recvs, 2 sends, an all_reduce of each type, an all_gather
							if len(w.calls) != 7 {
								return fmt.Errorf("%d operations of the engine were made of %d, expected 7", len(w.calls), len(m.calls))
							}
							works, calls = append(works, w), append(calls, m)
						}
						for i, w := range works {
							if f := w.finish(); f != nil {
								return f
							}
							if err := calls[i].check(); err != nil {
								return err
							}
						}
						return nil
					})
				})
			}
		}
	})
}

// A call ends once, when its last operation has ended: while a stream is held none of it is complete.
func TestCoalescedCallOfALateStream(t *testing.T) {
	onBothKinds(t, func(t *testing.T, waits bool) {
		useNewPool(t)
		devices := fakeDevices(t, 2, 21, waits)
		newWorld(t, 2).each(func(g *Group) error {
			d := devices[g.rank]
			d.hold(g.rank == 1)
			m := newMixed(g, d)
			w, f := issueAllOn(g, d, m.calls)
			if f != nil {
				return f
			}
			if f := sum(g, 1); f != nil { // both ranks have issued it
				return f
			}
			if done, f := w.Wait(0); done {
				return fmt.Errorf("complete although the stream of a rank is held: %v", f)
			}
			if f := sum(g, 1); f != nil { // both ranks have looked
				return f
			}
			d.hold(false)
			if f := w.finish(); f != nil {
				return f
			}
			return m.check()
		})
	})
}

// When a group fails all operations of a call end with the first cause, and pinned memory is used again by a later
// group.
func TestFailureOfACoalescedCall(t *testing.T) {
	onBothKinds(t, func(t *testing.T, waits bool) {
		useNewPool(t)
		devices := fakeDevices(t, 2, 22, waits)
		newWorld(t, 2).each(func(g *Group) error {
			d := devices[g.rank]
			d.hold(true)
			w, f := issueAllOn(g, d, newMixed(g, d).calls)
			if f != nil {
				return f
			}
			if f := sum(g, 1); f != nil {
				return f
			}
			if g.rank == 0 {
				g.Abort("the test")
			}
			err := expect(w.finish(), coll.Aborted, "the test")
			d.hold(false)
			return err
		})
		newWorld(t, 2).each(func(g *Group) error {
			d := devices[g.rank]
			m := newMixed(g, d)
			w, f := issueAllOn(g, d, m.calls)
			if f == nil {
				f = w.finish()
			}
			if f != nil {
				return f
			}
			return m.check()
		})
	})
}

// An error of the device in the middle of a call takes the group down with its text.
func TestDeviceErrorInACoalescedCall(t *testing.T) {
	for _, method := range []string{"Fork", "JoinLater"} {
		t.Run(method, func(t *testing.T) {
			useNewPool(t)
			devices := fakeDevices(t, 2, 23, false)
			newWorld(t, 2).each(func(g *Group) error {
				d := devices[g.rank]
				m := newMixed(g, d)
				if g.rank == 1 {
					d.mu.Lock()
					d.failing = method
					d.mu.Unlock()
				}
				w, f := issueAllOn(g, d, m.calls)
				if f == nil {
					f = w.finish()
				} else {
					w.end(true)
				}
				return expect(f, coll.System, method+" failed", "rank 1")
			})
		})
	}
}
