package main

import (
	"fmt"
	"strings"
	"syscall"

	"sagecomm/internal/coll"
)

// playInit runs a cell whose fault comes while the group is made.
func (t *trial) playInit() {
	tune := t.sameTune
	actions := map[string]string{"store_fails": "fail", "store_vanishes": "vanish"}
	switch {
	case t.fault == "mismatch_settings":
		tune = func(rank int) string {
			if rank == t.culprit {
				return "all_reduce:two_shot@chunk=64K"
			}
			return "all_reduce:two_shot@chunk=32K"
		}
	default:
		action := actions[t.fault]
		if action == "" {
			action = t.fault
		}
		if !t.arm(t.culprit, t.moment, 1, action) {
			return
		}
	}
	timeout := initTimeout
	if t.fault == "slow" {
		timeout = longTimeout
	}
	began := now()
	answers := t.create(timeout, tune)
	at := began
	if t.fault != "mismatch_settings" {
		var err error
		if at, err = t.struck(); err != nil {
			t.wrong("%v", err)
			return
		}
	}
	switch {
	case t.fault == "slow":
		if t.succeed("group_create", answers) {
			t.destroyAll(-1)
		}
	case t.fault == "mismatch_settings":
		t.refused(answers, began, t.ranks, "are set up differently", second)
	case t.fault == "store_vanishes":
		t.refused(answers, at, t.ranks, "store", initTimeout+second)
	case t.fault == "store_fails":
		t.refused(answers[t.culprit:t.culprit+1], at, t.ranks[t.culprit:t.culprit+1], "the store has failed", second)
		answers[t.culprit] = nil
		t.missed(answers)
	case t.moment == "wrote2":
		t.joined(at, answers)
	case t.moment == "write2" && t.fault != "stop":
		t.diedInside(at, answers)
		t.bury()
	default:
		pending := answers[t.culprit]
		answers[t.culprit] = nil
		t.missed(answers)
		if t.fault == "stop" {
			t.resume(pending)
		} else {
			t.bury()
		}
	}
}

// refused expects that all these ranks fail with this text.
func (t *trial) refused(answers []<-chan result, at int64, ranks []*process, text string, bound int64) {
	for i, answer := range answers {
		got, ok := t.await(ranks[i], answer)
		if !ok {
			continue
		}
		ranks[i].gaveUp(t.size)
		if !got.Status.Failed() || !strings.Contains(got.Message, text) {
			t.wrong("process %d: group_create: %v; expected %q", ranks[i].pid, got, text)
			continue
		}
		t.measure("init: "+t.fault, got.At-max(at, got.Entered), bound)
	}
}

// missed expects that the other ranks time out and name the culprit.
func (t *trial) missed(answers []<-chan result) {
	for rank, answer := range answers {
		if answer == nil {
			continue
		}
		r := t.ranks[rank]
		got, ok := t.await(r, answer)
		if !ok {
			continue
		}
		r.gaveUp(t.size)
		named := strings.Contains(got.Message, fmt.Sprintf("1 of %d ranks have not arrived", t.size)) &&
			strings.Contains(got.Message, fmt.Sprintf(": rank %d;", t.culprit))
		if got.Status != coll.Timeout || !named {
			t.wrong("rank %d: group_create: %v; expected a timeout that names rank %d", rank, got, t.culprit)
			continue
		}
		t.measure("init: "+t.fault+", not arrived", got.At-got.Entered, initTimeout+second)
	}
}

// diedInside expects that the other ranks, which have met the culprit, report its death.
func (t *trial) diedInside(at int64, answers []<-chan result) {
	for _, rank := range t.survivors() {
		got, ok := t.await(t.ranks[rank], answers[rank])
		if !ok {
			continue
		}
		t.ranks[rank].gaveUp(t.size)
		t.diagnoseOne(rank, got, verdict{status: coll.PeerFailure, text: "died while the group was made", named: true})
		t.measure("init: "+t.fault, got.At-max(at, got.Entered), 2*second)
	}
}

// resume lets a stopped rank go on with a group that the others have given up. The rank may learn that at once, or join and
// learn it at its first call.
func (t *trial) resume(pending <-chan result) {
	culprit := t.ranks[t.culprit]
	continued := now()
	culprit.signal(syscall.SIGCONT)
	got, ok := t.await(culprit, pending)
	if !ok {
		return
	}
	if got.Status.Failed() {
		culprit.gaveUp(t.size)
	} else {
		call, ok := t.await(culprit, culprit.order("call", single, int(coll.Barrier), int(coll.Int32), 0, 0, 0, 0, 0, 0))
		if !ok {
			return
		}
		if call.Status != coll.PeerFailure || !strings.Contains(call.Message, "gave up") {
			t.wrong("rank %d joined what the others had given up and was told: %v", t.culprit, call)
		}
		got.At = call.At
		if done, ok := t.await(culprit, culprit.order("destroy")); ok && done.Status.Failed() {
			t.wrong("rank %d: destroy: %v", t.culprit, done)
		}
	}
	t.measure("init: the stopped rank learns it", got.At-continued, initTimeout+second)
}

// joined checks a fault right after the culprit has told the others that it is ready: they have a group, or learn of the
// culprit's death while they make it.
func (t *trial) joined(at int64, answers []<-chan result) {
	var inside []int
	for _, rank := range t.survivors() {
		got, ok := t.await(t.ranks[rank], answers[rank])
		if !ok {
			return
		}
		if !got.Status.Failed() {
			inside = append(inside, rank)
			continue
		}
		t.ranks[rank].gaveUp(t.size)
		t.measure("init: "+t.fault, got.At-max(at, got.Entered), 2*second)
		t.diagnoseOne(rank, got, verdict{status: coll.PeerFailure, text: "died while the group was made", named: true})
	}
	if len(inside) > 0 && len(inside) < t.size-1 {
		t.wrong("ranks %v have a group, the others have none", inside)
	}
	timeout := longTimeout
	if t.givesUp() {
		timeout = callTimeout
	}
	e := t.entry(timeout)
	if t.fault == "stop" {
		e.answers[t.culprit] = t.ranks[t.culprit].order("call", single, int(coll.Barrier), int(coll.Int32), 0, 0, 0, 0, 0, 0)
	}
	if len(inside) == t.size-1 {
		if err := e.all(); err != nil {
			t.wrong("%v", err)
			return
		}
		t.diagnose(at, timeout, e.answers)
		return
	}
	for _, rank := range inside {
		t.call(rank, timeout, loopFor, "")
	}
	t.bury()
}
