package pgbackend

import (
	"bytes"
	"fmt"
	"testing"

	"sagecomm/internal/coll"
)

// A recv that fits its send in neither length nor type fails the group, whether or not streams are late.
func TestMismatchOfP2POnDevices(t *testing.T) {
	onBothKinds(t, func(t *testing.T, waits bool) {
		for _, postedFirst := range []coll.Kind{coll.Send, coll.Recv} {
			t.Run(postedFirst.String()+" is posted first", func(t *testing.T) {
				useNewPool(t)
				devices := fakeDevices(t, 2, 14, waits)
				newWorld(t, 2).each(func(g *Group) error {
					d := devices[g.rank]
					d.hold(true)
					kind := coll.Send
					if g.rank == 0 {
						kind = coll.Recv
					}
					if kind != postedFirst {
						if f := sum(g, 1); f != nil {
							return f
						}
					}
					var work deviceWork
					var f *coll.Failure
					if kind == coll.Send {
						work, f = sendOn(g, d, 0, 0, make([]byte, 100))
					} else {
						work, _, f = recvOn(g, d, 1, 0, 60)
					}
					if f == nil && kind == postedFirst {
						f = sum(g, 1)
					}
					if f == nil {
						f = work.finish()
					} else { // the group has failed before it was issued, or while it was
						work.end(true)
					}
					d.hold(false)
					return expect(f, coll.Mismatch, "rank 0 called recv", "rank 1", "sent 100 bytes")
				})
			})
		}
	})
}

// An abort ends sends and recvs that wait for streams and peers. Their pinned memory is not used again before the
// device is done.
func TestAbortOfP2POnDevices(t *testing.T) {
	onBothKinds(t, func(t *testing.T, waits bool) {
		useNewPool(t)
		devices := fakeDevices(t, 2, 15, waits)
		newWorld(t, 2).each(func(g *Group) error {
			d := devices[g.rank]
			d.hold(true)
			var works []deviceWork
			for tag := range 3 {
				send, f := sendOn(g, d, 1-g.rank, tag, make([]byte, 100_000))
				if f != nil {
					return f
				}
				recv, _, f := recvOn(g, d, 1-g.rank, tag+2, 100_000) // of which only tag 2 is sent
				if f != nil {
					return f
				}
				works = append(works, send, recv)
			}
			if f := sum(g, 1); f != nil {
				return f
			}
			if g.rank == 0 {
				g.Abort("the test")
			}
			for _, w := range works {
				if err := expect(w.finish(), coll.Aborted, "the test"); err != nil {
					return err
				}
			}
			if _, _, f := recvOn(g, d, 1-g.rank, 0, 4); f == nil {
				return fmt.Errorf("a recv was issued in a group that has failed")
			}
			d.hold(false)
			return nil
		})
	})
}

// Destroy waits for sends and recvs on devices that both ranks have issued.
func TestDestroyWithP2PInFlightOnDevices(t *testing.T) {
	onBothKinds(t, func(t *testing.T, waits bool) {
		useNewPool(t)
		devices := fakeDevices(t, 2, 16, waits)
		newWorld(t, 2).each(func(g *Group) error {
			d := devices[g.rank]
			send, f := sendOn(g, d, 1-g.rank, 0, payload(g.rank, 1-g.rank, 0, 300_000))
			if f != nil {
				return f
			}
			recv, got, f := recvOn(g, d, 1-g.rank, 0, 300_000)
			if f != nil {
				return f
			}
			if err := g.Destroy(); err != nil {
				return err
			}
			for _, w := range []deviceWork{send, recv} {
				if f := w.finish(); f != nil {
					return f
				}
			}
			if !bytes.Equal(got, payload(1-g.rank, g.rank, 0, 300_000)) {
				return fmt.Errorf("wrong payload")
			}
			return nil
		})
	})
}

// An error of the device takes the group down with its text, and peers learn of it. No stream waits for an operation
// that was queued in part, or queued but not issued.
func TestDeviceErrorsOfP2P(t *testing.T) {
	for _, method := range []string{"NewStream", "Pin", "Fork", "CopyIn", "WriteValue", "JoinLater", "WaitValue", "CopyOut", "Join"} {
		t.Run(method, func(t *testing.T) {
			useNewPool(t)
			receives := method == "WaitValue" || method == "CopyOut" // which a send does without
			devices := fakeDevices(t, 2, 17, receives || method == "Join")
			devices[1].failing = method
			newWorld(t, 2).each(func(g *Group) error {
				d := devices[g.rank]
				var work deviceWork
				var f *coll.Failure
				if sends := (g.rank == 1) != receives; sends {
					work, f = sendOn(g, d, 1-g.rank, 0, make([]byte, 100))
				} else {
					work, _, f = recvOn(g, d, 1-g.rank, 0, 100)
				}
				if f == nil {
					f = work.finish()
				}
				if err := expect(f, coll.System, method+" failed", "rank 1"); err != nil {
					return err
				}
				d.drain()
				return nil
			})
		})
	}
}
