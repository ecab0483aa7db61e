package main

import (
	"fmt"

	"sagecomm/internal/coll"
)

func (t *trial) await(r *process, answer <-chan result) (result, bool) {
	got, err := r.await(answer)
	if err != nil {
		t.wrong("%v", err)
	}
	return got, err == nil
}

// call is the order to make the cell's call; change makes it another one.
func (t *trial) call(rank int, timeout, loop int64, change string) <-chan result {
	form, kind, dtype, reduce, root, n, async := t.way.form, t.way.kind, coll.Int32, 0, t.root, t.way.count(t.size), 0
	if t.async {
		async = 1
	}
	switch change {
	case "mismatch_kind":
		if form, kind = single, coll.Barrier; t.way.kind == coll.Barrier {
			kind = coll.AllReduce
			n = smallCount
		}
	case "mismatch_type":
		dtype = coll.Float32
	case "mismatch_bytes":
		n++
	case "mismatch_reduce":
		reduce = int(coll.Max)
	case "mismatch_root":
		root = (root + 1) % t.size
	}
	return t.ranks[rank].order("call", form, int(kind), int(dtype), reduce, root, n, async, timeout/millisecond, loop/millisecond)
}

// arm arms a fault and forgets earlier events.
func (t *trial) arm(rank int, point string, nth int, action string) bool {
	r := t.ranks[rank]
	for len(r.hits) > 0 {
		<-r.hits
	}
	for len(r.did) > 0 {
		<-r.did
	}
	_, ok := t.await(r, r.order("arm", point, nth, action, slowFor/millisecond))
	return ok
}

// create orders all ranks to make the group.
func (t *trial) create(timeout int64, tune func(rank int) string) []<-chan result {
	list := make([]<-chan result, t.size)
	for rank, r := range t.ranks {
		rules := tune(rank)
		if rules == "" {
			rules = "-"
		}
		list[rank] = r.order("create", t.dir, "group", rank, t.size, timeout/millisecond, rules, t.attach, t.pool.files, t.hostOf(rank))
	}
	return list
}

// hostOf names the host of a rank, "-" where all are on this one.
func (t *trial) hostOf(rank int) string {
	if !t.way.apart {
		return "-"
	}
	return fmt.Sprint("host", rank/t.perHost)
}

func (t *trial) sameTune(int) string { return t.way.tune }

// begin makes the group and, unless the cell is a cold one, makes its call once. Neither may fail.
func (t *trial) begin() bool {
	ok := t.succeed("group_create", t.create(longTimeout, t.sameTune))
	if ok && !t.cold {
		list := make([]<-chan result, t.size)
		for rank := range t.ranks {
			list[rank] = t.call(rank, longTimeout, 0, "")
		}
		ok = t.succeed("the call before the fault", list)
	}
	return ok
}

// succeed awaits all answers and expects no failure.
func (t *trial) succeed(what string, answers []<-chan result) bool {
	ok := true
	for rank, answer := range answers {
		if answer == nil {
			continue
		}
		got, heard := t.await(t.ranks[rank], answer)
		if heard && got.Status.Failed() {
			t.wrong("rank %d: %s: %v", rank, what, got)
		}
		ok = ok && heard && !got.Status.Failed()
	}
	return ok
}

func (t *trial) survivors() (list []int) {
	for rank := range t.ranks {
		if rank != t.culprit {
			list = append(list, rank)
		}
	}
	return list
}
