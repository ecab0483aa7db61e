package pgbackend

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"sagecomm/internal/coll"
)

// A long operation takes no more than 8 MiB of pinned memory where the streams of the device can wait, and has the bits of the host.
func TestLongOperationsGoThroughWindows(t *testing.T) {
	bytesOf := 20 << 20
	if !testing.Short() {
		bytesOf = 64 << 20
	}
	for _, e := range []struct {
		kind coll.Kind
		tune string
	}{{coll.AllReduce, ""}, {coll.AllReduce, "all_reduce:ring"}, {coll.Reduce, ""}, {coll.Broadcast, ""}} {
		t.Run(fmt.Sprint(e.kind, " ", e.tune), func(t *testing.T) {
			useNewPool(t)
			devices := fakeDevices(t, 2, 8, true)
			w := newWorldWith(t, 2, time.Minute, map[string]string{"tune": e.tune})
			w.each(func(g *Group) error {
				d, n := devices[g.rank], bytesOf/4+1001
				op := coll.Op{Kind: e.kind, Type: coll.Float32}
				mine := contributionBytes(coll.Float32, coll.Sum, g.rank, 2, n)
				b := d.buffer(len(mine))
				d.fill(b, mine)
				in, out := one(b), one(b)
				if e.kind == coll.Broadcast && g.rank != 0 {
					in = nil
				}
				if e.kind == coll.Reduce && g.rank != 0 {
					out = nil
				}
				work, f := issueOn(g, d, op, in, out)
				if f == nil {
					f = work.finish()
				}
				if f != nil {
					return f
				}
				want := mine
				if e.kind == coll.AllReduce || g.rank == 0 {
					want = reducedBytes(coll.Float32, coll.Sum, 2, n)
				}
				if e.kind == coll.Broadcast {
					want = contributionBytes(coll.Float32, coll.Sum, 0, 2, n)
				}
				if !bytes.Equal(b, want) {
					return fmt.Errorf("wrong result")
				}
				d.mu.Lock()
				defer d.mu.Unlock()
				if d.pinned > 8<<20 {
					return fmt.Errorf("%d bytes of pinned memory for an operation of %d bytes", d.pinned, len(mine))
				}
				return nil
			})
		})
	}
}
