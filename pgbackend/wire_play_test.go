package pgbackend

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/coll"
)

// What a trial of TestWire does at each moment, and what it expects.

// playOperations runs operations until the fault has happened, and then until all ranks have failed, or three times
// more.
func (x *wireTrial) playOperations() {
	require.NoError(x.t, errors.Join(x.make(x.String(), opTimeout, true)...))
	g := x.world.groups
	want := x.expected()
	round := 0
	next := func() (failed []*coll.Failure) {
		failed = make([]*coll.Failure, len(g))
		n := round
		round++
		ranksOf(x.t, len(g), func(rank int) error {
			err := x.operate(g[rank], n)
			if errors.As(err, &failed[rank]) {
				return nil
			}
			return err
		})
		return failed
	}
	before := time.Now()
	for _, f := range next() {
		require.Nil(x.t, f, "before the fault")
	}
	if want == unheard { // on a busy machine what goes on may take long
		x.limit = min(max(unheardFor, 20*time.Since(before)), opTimeout/4)
		for _, one := range g {
			require.NoError(x.t, one.SetTimeout(x.limit))
		}
	}
	x.strike()
	if x.moment == "idle" {
		select {
		case <-x.wire.struck: // by a heartbeat
		case <-time.After(opTimeout):
			x.t.Fatal("the fault did not happen")
		}
	}
	began := time.Now()
	for after, tries := 0, 0; ; {
		struck := x.hasStruck()
		if tries++; !struck && tries == 3 { // what the operation sends does not come by, or there is too little of it
			x.wire.relax()
		}
		failed := next()
		if all := !slices.Contains(failed, nil); all {
			if !struck && !x.hasStruck() {
				x.t.Fatalf("it did not happen, and yet: %v", failed[0])
			}
			if want == harmless {
				x.t.Fatalf("it has done harm: %v", failed[0])
			}
			x.oneCause(want)
			return
		}
		if struck {
			after++
		}
		if want == harmless && after >= 3 {
			return
		}
		if time.Since(began) > opTimeout/2 {
			x.t.Fatalf("after %v and %d operations: struck: %t, failed: %v", time.Since(began), round, struck, failed)
		}
	}
}

// oneCause expects that all ranks have one cause, which names an end of the link.
func (x *wireTrial) oneCause(want outcome) {
	groups := x.world.groups
	causes := func() (list []string) {
		for _, g := range groups {
			if f := g.Cause(); f != nil {
				list = append(list, f.Message)
			} else {
				list = append(list, "")
			}
		}
		return list
	}
	one := func() bool {
		list := causes()
		return list[0] != "" && len(slices.Compact(list)) == 1
	}
	for began := time.Now(); !one() && time.Since(began) < 10*time.Second; time.Sleep(time.Millisecond) {
	}
	if !one() {
		x.t.Fatalf("causes differ: %q", causes())
	}
	f := groups[0].Cause()
	bound := 3 * time.Second
	if want == unheard {
		bound = x.limit + time.Second + 3*time.Second // a death is noticed, or the timeout comes
	}
	measure(x.t, x.fault, time.Since(x.wire.when()), bound)
	if f.Status != coll.PeerFailure && (want == lost || f.Status != coll.Timeout) {
		x.t.Errorf("%v: %s", f.Status, f.Message)
	}
	if !slices.Contains(x.wire.ends[:], f.Rank) {
		x.t.Errorf("rank %d, which is not of %v: %s", f.Rank, x.wire.ends, f.Message)
	}
	for _, g := range groups { // and again
		if again := sum(g, 1); again == nil || again.Message != f.Message {
			x.t.Errorf("a later operation gives %v, and the cause is %v", again, f)
		}
	}
}

// equal compares what was received with what was sent. Words that C reads tell that it is there; the race detector
// knows nothing of these, and takes the store of the goroutine that has read it from the link for one that may still go
// on.
//
//go:norace
func equal(got, want []byte) bool {
	for i := range want {
		if got[i] != want[i] {
			return false
		}
	}
	return len(got) == len(want)
}

// operate makes one operation, whose result it compares.
func (x *wireTrial) operate(g *Group, round int) error {
	size := g.size
	switch x.op {
	case exchangeOp:
		mine := pattern(g.rank, round, 3000)
		all, f := g.exchange(topicFusion, "wire", mine, x.limit)
		if f != nil {
			return f
		}
		for rank, theirs := range all {
			if !bytes.Equal(theirs, pattern(rank, round, 3000)) {
				return fmt.Errorf("the entry of rank %d is wrong", rank)
			}
		}
		return nil
	case wireP2P:
		to, from := (g.rank+1+round%2)%size, (g.rank+size-1-round%2)%size
		send, f := sendTo(g, to, round, pattern(g.rank, round, x.size))
		if f != nil {
			return f
		}
		got := make([]byte, x.size)
		recv, f := recvFrom(g, from, round, got)
		if f == nil {
			f = finish(recv)
			recv.Release()
		}
		if sent := finish(send); f == nil {
			f = sent
		}
		send.Release()
		if f == nil && !equal(got, pattern(from, round, x.size)) {
			return errors.New("wrong bytes have come")
		}
		return asError(f)
	}
	for kind := range coll.KindCount {
		if kind.String() == x.op {
			return g.try(transfer{kind, round % size, round, equalLength(x.size)}, coll.Op{})
		}
	}
	return errors.New("no such operation: " + x.op)
}

// playMaking expects that all ranks make the group, or none does, and that they can make it afterwards.
func (x *wireTrial) playMaking() {
	if x.moment == "making" { // else when the link is measured
		x.strike()
	}
	began := time.Now()
	errs := x.make(x.String(), x.within, true)
	measure(x.t, "making the group", time.Since(began), x.within+3*time.Second)
	x.awaitStrike()
	failed := slices.IndexFunc(errs, func(err error) bool { return err != nil })
	if failed >= 0 && x.expected() == harmless {
		x.t.Fatal(errs[failed])
	}
	for rank, err := range errs {
		if (err == nil) != (failed < 0) {
			x.t.Fatalf("some have the group: %v", errs)
		}
		// A rank that waits for a late one, or hears of one that does, has the time-out of the rendezvous, which may name any rank.
		if err != nil && !strings.Contains(err.Error(), " ranks have not arrived: ") && !slices.ContainsFunc(x.wire.ends[:], func(end int) bool {
			return strings.Contains(err.Error(), fmt.Sprint("rank ", end))
		}) {
			x.t.Errorf("rank %d: %v", rank, err)
		}
	}
	if x.expected() != harmless {
		triedToMake.Add(1)
	}
	if failed < 0 {
		if x.expected() != harmless {
			made.Add(1)
		}
		x.sums()
		return
	}
	require.NoError(x.t, errors.Join(x.make(x.String()+" again", opTimeout, false)...))
	x.sums()
}

// playLeaving expects that a fault of the last bytes keeps no rank from destroying the group.
func (x *wireTrial) playLeaving() {
	require.NoError(x.t, errors.Join(x.make(x.String(), opTimeout, true)...))
	x.sums()
	x.strike()
	began := time.Now()
	x.world.each(func(g *Group) error { return g.Destroy() })
	measure(x.t, "destroying the group", time.Since(began), 2*time.Second)
	x.awaitStrike()
}

func (x *wireTrial) sums() {
	x.world.each(func(g *Group) error {
		return g.try(transfer{coll.AllReduce, 0, 1, equalLength(100_000)}, coll.Op{})
	})
}
