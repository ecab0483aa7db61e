package pgbackend

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
)

// toItself returns sends of a rank to itself and recvs from itself, which must pair in one call.
func toItself(g *Group, sends, recvs [][]byte) (calls []runner.Coalesced) {
	op := coll.Op{Type: coll.Uint8, Root: g.rank, Paired: true}
	for _, b := range sends {
		op.Kind = coll.Send
		calls = append(calls, runner.Coalesced{Op: op, In: one(b)})
	}
	for _, b := range recvs {
		op.Kind = coll.Recv
		calls = append(calls, runner.Coalesced{Op: op, Out: one(b)})
	}
	return calls
}

// A rank that sends to itself and does not receive that in the same call would wait for ever.
func TestP2PWithItselfMustPair(t *testing.T) {
	newWorld(t, 2).each(func(g *Group) error {
		b := func() []byte { return make([]byte, 8) }
		for _, c := range []struct {
			sends, recvs [][]byte
			text         string
		}{
			{[][]byte{b()}, nil, "1 sends to itself and 0 recvs from itself"},
			{nil, [][]byte{b()}, "0 sends to itself and 1 recvs from itself"},
			{[][]byte{b(), b()}, [][]byte{b()}, "2 sends to itself and 1 recvs from itself"},
			{[][]byte{b(), b()}, [][]byte{b(), b()[1:]}, "sends itself 8 bytes of uint8, and its recv for them takes 7 bytes of uint8"},
		} {
			calls := toItself(g, c.sends, c.recvs)
			_, f := g.IssueCoalesced(calls)
			if err := expect(f, coll.Invalid, fmt.Sprintf("rank %d", g.rank), c.text); err != nil {
				return err
			}
			calls = append(calls, operation(coll.AllReduce, coll.Int32, 0, 1, g.rank, 2).Coalesced)
			_, f = g.IssueCoalesced(calls) // nothing of it is issued
			if err := expect(f, coll.Invalid, c.text); err != nil {
				return err
			}
		}
		return asError(sum(g, 1))
	})
}

// itselfBesides returns a call in which a rank sends two buffers to itself, one of them onto itself, beside an
// all_reduce and an exchange.
func itselfBesides(g *Group, buffer func([]byte) []byte) *mixed {
	in, onto, out := payload(g.rank, g.rank, 0, 3000), payload(g.rank, g.rank, 1, 3000), make([]byte, 3000)
	m := &mixed{want: [][]byte{in, onto}}
	from, both, to := buffer(in), buffer(onto), buffer(out)
	m.got = [][]byte{to, both}
	m.calls = toItself(g, [][]byte{both, from}, [][]byte{both, to})
	next, last := (g.rank+1)%g.size, (g.rank+g.size-1)%g.size
	if next != g.rank {
		got := buffer(make([]byte, 10))
		m.calls = append(m.calls, runner.Coalesced{Op: p2pOp(coll.Send, next, 5), In: one(buffer(payload(g.rank, next, 5, 10)))},
			runner.Coalesced{Op: p2pOp(coll.Recv, last, 5), Out: one(got)})
		m.got, m.want = append(m.got, got), append(m.want, payload(last, g.rank, 5, 10))
	}
	b := buffer(contributionBytes(coll.Int32, coll.Sum, g.rank, g.size, 100))
	m.calls = append(m.calls, runner.Coalesced{Op: coll.Op{Kind: coll.AllReduce, Type: coll.Int32}, In: one(b), Out: one(b)})
	m.got, m.want = append(m.got, b), append(m.want, reducedBytes(coll.Int32, coll.Sum, g.size, 100))
	return m
}

// A send to itself and its recv in one buffer leave that as it is, alone and beside other operations, on host memory
// and on a device.
func TestP2POntoItself(t *testing.T) {
	for _, n := range []int{1, 2} {
		t.Run(fmt.Sprintf("host, %d ranks", n), func(t *testing.T) {
			newWorld(t, n).each(func(g *Group) error {
				m := itselfBesides(g, bytes.Clone)
				if err := coalesced(g, m.calls); err != nil {
					return err
				}
				if err := m.check(); err != nil {
					return err
				}
				return coalesced(g, toItself(g, m.got[1:2], m.got[1:2]))
			})
		})
		t.Run(fmt.Sprintf("device, %d ranks", n), func(t *testing.T) {
			onBothKinds(t, func(t *testing.T, waits bool) {
				useNewPool(t)
				devices := fakeDevices(t, n, 31, waits)
				newWorld(t, n).each(func(g *Group) error {
					d := devices[g.rank]
					m := itselfBesides(g, func(b []byte) []byte {
						at := d.buffer(len(b))
						d.fill(at, b)
						return at
					})
					w, f := issueAllOn(g, d, m.calls)
					if f == nil {
						f = w.finish()
					}
					if f != nil {
						return f
					}
					if err := m.check(); err != nil {
						return err
					}
					_, f = issueAllOn(g, d, toItself(g, m.got[1:2], m.got[1:2]))
					return asError(f)
				})
			})
		})
	}
}

// Without pairs, the recv with the same tag takes a send of a rank to itself: only one into the same buffer changes no
// memory.
func TestP2POntoItselfByTag(t *testing.T) {
	newWorld(t, 2).each(func(g *Group) error {
		one, two := []byte("first"), []byte("other")
		call := func(kind coll.Kind, b []byte, tag int) runner.Coalesced {
			if op := p2pOp(kind, g.rank, tag); kind == coll.Recv {
				return runner.Coalesced{Op: op, Out: [][]byte{b}}
			} else {
				return runner.Coalesced{Op: op, In: [][]byte{b}}
			}
		}
		sends := []runner.Coalesced{call(coll.Send, one, 1), call(coll.Send, two, 2)}
		_, f := g.IssueCoalesced(append(slices.Clone(sends), call(coll.Recv, one, 2), call(coll.Recv, two, 1)))
		if err := expect(f, coll.Invalid, "share memory that one of them writes"); err != nil {
			return err
		}
		if err := coalesced(g, append(slices.Clone(sends), call(coll.Recv, two, 2), call(coll.Recv, one, 1))); err != nil {
			return err
		}
		if string(one) != "first" || string(two) != "other" {
			return fmt.Errorf("the buffers are %q and %q", one, two)
		}
		return asError(sum(g, 1))
	})
}
