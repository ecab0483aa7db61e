package pgbackend

import (
	"bytes"
	"fmt"
	"sync"
	"testing"
	"time"

	"sagecomm/internal/coll"
	"sagecomm/tests/quick"
)

// Where streams can wait, a caller does not wait for an operation on the host. Destroy waits longer than for peers if
// the stream of a rank is late; the end of the process does not.
func TestDestroyWaitsForLateStreams(t *testing.T) {
	destroyWithLateStreams(t, 500*time.Millisecond, func() *world { return newWorld(t, 2) })
}

// So it does where that rank is on another host: it is asked how far it is, by nothing else than Destroy.
func TestDestroyWaitsForLateStreamsOverHosts(t *testing.T) {
	setCompareEvery(t, time.Hour)
	patient(t, opTimeout)
	destroyWithLateStreams(t, 500*time.Millisecond, func() *world { return newHostsWorld(t, "01") })
}

// So it does where a peer that has left has no pair with that rank: its last call comes with its goodbye.
func TestDestroyWaitsForLateStreamsWithoutAPair(t *testing.T) {
	quick.Skip(t, "it waits for seconds")
	const hosts, late = "01234567", 3
	limit := 500 * time.Millisecond
	setCompareEvery(t, time.Hour)
	patient(t, opTimeout)
	impatient(t, limit)
	useNewPool(t)
	devices := fakeDevices(t, len(hosts), 1, true)
	newHostsWorld(t, hosts).each(func(g *Group) error {
		d := devices[g.rank]
		d.hold(g.rank == late)
		b := d.buffer(4000)
		work, f := issueOn(g, d, coll.Op{Kind: coll.Broadcast, Type: coll.Float32}, one(b), one(b))
		if f != nil {
			return f
		}
		if g.rank != late {
			if f := work.finish(); f != nil {
				return f
			}
			return g.Destroy()
		}
		for until := time.Now().Add(opTimeout); ; time.Sleep(time.Millisecond) {
			if _, left := g.run.LastCall(0); left {
				break
			}
			if time.Now().After(until) {
				return fmt.Errorf("rank 0 does not leave")
			}
		}
		timer := time.AfterFunc(4*limit, func() { d.hold(false) })
		defer timer.Stop()
		if err := g.Destroy(); err != nil {
			return err
		}
		d.hold(false)
		if f := work.finish(); f != nil {
			return f
		}
		return nil
	})
}

// limit is how long Destroy waits for peers. A busy machine may move nothing for a while.
func destroyWithLateStreams(t *testing.T, limit time.Duration, newWorld func() *world) {
	impatient(t, limit)
	useNewPool(t)
	devices := fakeDevices(t, 2, 1, true)
	for _, ends := range []bool{false, true} {
		w := newWorld()
		var inside sync.WaitGroup
		inside.Add(2)
		w.each(func(g *Group) error {
			d := devices[g.rank]
			late, b, f := lateSum(g, d)
			inside.Done()
			if f != nil {
				return f
			}
			inside.Wait()
			held := 2 * limit
			if ends { // nobody waits for that
				held = 20 * limit
			}
			timer := time.AfterFunc(max(400*time.Millisecond, held), func() { d.hold(false) })
			defer timer.Stop()
			if err := g.destroy(!ends); err != nil {
				return err
			}
			d.hold(false)
			f = late.finish()
			if ends {
				if f == nil {
					return fmt.Errorf("the end of the process waited for a stream")
				}
				return nil
			}
			if f != nil {
				return f
			}
			if !bytes.Equal(b, reducedBytes(coll.Float32, coll.Sum, 2, 1000)) {
				return fmt.Errorf("destroyed before its operation was complete")
			}
			return nil
		})
	}
}

// A send whose stream is late and its recv get the time that a collective gets.
func TestDestroyWaitsForLateStreamsOfP2P(t *testing.T) {
	impatient(t, 500*time.Millisecond)
	useNewPool(t)
	devices := fakeDevices(t, 2, 1, true)
	w := newWorld(t, 2)
	want := payload(1, 0, 0, 100_000)
	w.each(func(g *Group) error {
		d := devices[g.rank]
		var late deviceWork
		var b []byte
		var f *coll.Failure
		if g.rank == 1 {
			d.hold(true)
			late, f = sendOn(g, d, 0, 0, want)
		} else {
			late, b, f = recvOn(g, d, 1, 0, len(want))
		}
		if f != nil {
			return f
		}
		for until := time.Now().Add(opTimeout); !g.streamIsLate(); time.Sleep(time.Millisecond) { // the recv is matched when the announcement of the send has come
			if time.Now().After(until) {
				return fmt.Errorf("the stream of rank %d is never late", g.rank)
			}
		}
		timer := time.AfterFunc(2*destroyTimeout, func() { devices[1].hold(false) })
		defer timer.Stop()
		if err := g.Destroy(); err != nil {
			return err
		}
		if f := late.finish(); f != nil {
			return f
		}
		if g.rank == 0 && !bytes.Equal(b, want) {
			return fmt.Errorf("destroyed before its recv was complete")
		}
		return nil
	})
}

// A rank whose operations are queued whole has not waited for its peers. Destroy waits for them as long as operations
// may take, and not only as long as for those on host memory.
func TestDestroyWaitsForPeersThatCallLater(t *testing.T) {
	const operations = 6
	impatient(t, time.Nanosecond)
	useNewPool(t)
	devices := fakeDevices(t, 2, 1, true)
	w := newWorld(t, 2)
	w.each(func(g *Group) error {
		d := devices[g.rank]
		works, results := make([]deviceWork, operations), make([][]byte, operations)
		if g.rank == 0 {
			awaitWait(t, w.groups[1])
		}
		for i := range works {
			b := d.buffer(4000)
			d.fill(b, contributionBytes(coll.Float32, coll.Sum, g.rank, 2, 1000))
			late, f := issueOn(g, d, coll.Op{Kind: coll.AllReduce, Type: coll.Float32}, one(b), one(b))
			if f != nil {
				return f
			}
			works[i], results[i] = late, b
			if g.rank == 0 { // it comes to the next one when Destroy of the other rank has seen that it has come to this one
				if f := late.finish(); f != nil {
					return f
				}
			}
		}
		if err := g.Destroy(); err != nil {
			return err
		}
		for i := range works {
			if g.rank == 1 {
				if f := works[i].finish(); f != nil {
					return f
				}
			}
			if !bytes.Equal(results[i], reducedBytes(coll.Float32, coll.Sum, 2, 1000)) {
				return fmt.Errorf("destroyed before operation %d was complete", i)
			}
		}
		return nil
	})
}
