package main

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"sagecomm/internal/coll"
)

// verdict is the error that a survivor must get.
type verdict struct {
	status coll.Status
	text   string // part of the message
	bound  int64  // from the fault, or from when the rank entered its call
	named  bool   // names the culprit by rank and pid
}

// expected returns the verdict that the contract demands for a cell.
func (t *trial) expected(timeout int64) verdict {
	left := verdict{coll.PeerFailure, "has left the group", 2 * second, true}
	switch {
	case t.moment == "left" || t.fault == "leave":
		return left // whatever becomes of it afterwards
	case t.way.apart && (t.fault == "kill" || t.fault == "exit"):
		return verdict{coll.PeerFailure, "Connection closed by peer", 3 * second, true}
	case t.fault == "kill" || t.fault == "exit":
		return verdict{coll.PeerFailure, "died", 2 * second, true}
	case t.fault == "stop":
		return verdict{coll.Timeout, "after its timeout of", timeout + second, t.way.collective()}
	case t.fault == "abort":
		return verdict{coll.Aborted, fmt.Sprintf("was aborted by rank %d", t.culprit), 100 * millisecond, true}
	case t.way.collective() && t.way.kind != coll.AllToAll || t.fault == "mismatch_type" && t.way.collective():
		return verdict{coll.Mismatch, fmt.Sprintf("rank %d called", t.culprit), second, false}
	case t.way.collective() && t.fault != "mismatch_bytes":
		return verdict{coll.Mismatch, "ranks disagree", second, false}
	default: // splits of an all_to_all, p2p: who finds it names the other side
		return verdict{coll.Mismatch, "", second, false}
	}
}

// diagnose compares the answers of the ranks with the contract: the same first cause on all, in time, and again later.
func (t *trial) diagnose(at, timeout int64, answers []<-chan result) {
	want := t.expected(timeout)
	first, told, answered := "", make([]result, t.size), make([]bool, t.size)
	for _, rank := range t.survivors() {
		told[rank], answered[rank] = t.await(t.ranks[rank], answers[rank])
	}
	t.told = slices.Clone(told)
	for _, rank := range t.survivors() {
		if !answered[rank] {
			continue
		}
		got := told[rank]
		if first == "" && !t.way.apart {
			first = got.Message
		}
		t.diagnoseOne(rank, got, want)
		if got.Status.Failed() {
			t.measure(fmt.Sprintf("%s: %v", t.fault, want.status), got.At-max(at, got.Entered), want.bound)
		}
	}
	t.diagnoseCulprit(at, answers[t.culprit], first, want)
	told[t.culprit].Message = first // it has been compared
	late := t.survivors()[t.random.IntN(t.size-1)]
	if got, ok := t.await(t.ranks[late], t.ranks[late].order("abort")); ok && got.Status.Failed() { // changes nothing: the group has failed
		t.wrong("rank %d: abort of a group that has failed: %v", late, got)
	}
	gone := !t.ranks[t.culprit].alive() || t.fault == "leave" || atDestroy(t.moment)
	if t.way.apart {
		first = t.agreed(gone)
		for rank := range told {
			told[rank].Message = first // diagnoseOne has looked at it
		}
	}
	for rank := range t.ranks {
		if rank != t.culprit || !gone {
			t.diagnoseAgain(rank, told[rank], first)
		}
	}
	but := -1
	if gone {
		but = t.culprit
	}
	t.destroyAll(but)
}

func (t *trial) diagnoseOne(rank int, got result, want verdict) {
	if got.Status != want.status || !strings.Contains(got.Message, want.text) {
		t.wrong("rank %d: %v; expected %v, %q", rank, got, want.status, want.text)
		return
	}
	if want.named && (got.Rank != t.culprit || got.PID != t.ranks[t.culprit].pid) && !t.alsoRight(got) {
		t.wrong("rank %d: %v; expected rank %d, pid %d", rank, got, t.culprit, t.ranks[t.culprit].pid)
	}
}

// agreed waits until all ranks have one cause, and returns it. Between hosts, a rank whose store is slow raises a reason of its own before.
func (t *trial) agreed(withoutCulprit bool) string {
	for began := time.Now(); ; time.Sleep(time.Millisecond) {
		var causes []string
		for rank, r := range t.ranks {
			if rank == t.culprit && withoutCulprit {
				continue
			}
			got, ok := t.await(r, r.order("error"))
			if !ok {
				return ""
			}
			causes = append(causes, got.Message)
		}
		switch one := len(slices.Compact(slices.Clone(causes))) == 1; {
		case one:
			return causes[0]
		case time.Since(began) > 5*time.Second:
			t.wrong("the causes of ranks differ: %q", causes)
			return causes[0]
		}
	}
}

// Ranks as the text of a timeout names them: those that have not arrived, the culprit first, each with the number of its last call.
var absentRank = regexp.MustCompile(`rank (\d+) \([^()]*\) (?:ha[sd] )?(?:last called \w+ #(\d+)|called no collective yet|begun its first collective on a device)`)

// alsoRight reports whether an error that does not name the rank that was stopped is right all the same. In a rooted operation ranks need not wait
// for each other, so one that a busy machine holds up may be further behind than the one that was stopped. It was late then: it has entered the call
// in which it met the failure behind the rank whose timeout was over. One that was in a call before has waited itself. Between hosts several may
// not answer.
func (t *trial) alsoRight(got result) bool {
	if t.fault != "stop" || !t.way.collective() {
		return false
	}
	if got.Rank < 0 {
		silent := regexp.MustCompile(fmt.Sprintf(`rank %d \([^;]* not answer`, t.culprit))
		return t.way.apart && silent.MatchString(got.Message)
	}
	_, absent, found := strings.Cut(got.Message, "; not arrived: ")
	if !found || !t.way.kind.Rooted() || got.Rank == t.culprit || got.Rank >= t.size || got.PID != t.ranks[got.Rank].pid {
		return false
	}
	if by := reporter.FindStringSubmatch(got.Message); by == nil || !t.wasLate(got.Rank, by[1]) {
		return false
	}
	last := map[int]int{}
	for _, f := range absentRank.FindAllStringSubmatch(absent, -1) {
		rank, _ := strconv.Atoi(f[1])
		last[rank], _ = strconv.Atoi(f[2])
	}
	named, isAbsent := last[got.Rank]
	stopped, isKnown := last[t.culprit]
	hasArrived := !strings.Contains(absent, fmt.Sprintf("rank %d (", t.culprit))
	return isAbsent && (hasArrived || isKnown && named < stopped)
}

// reporter is the rank whose timeout an error is about.
var reporter = regexp.MustCompile(`: rank (\d+) (?:\([^()]*\) )?timed out after `)

// wasLate reports whether a rank has entered its last call behind another one.
func (t *trial) wasLate(rank int, other string) bool {
	by, _ := strconv.Atoi(other)
	return rank < len(t.told) && by < len(t.told) && t.told[by].Entered != 0 && t.told[rank].Entered > t.told[by].Entered
}

// diagnoseAgain checks that the first cause is the same on all ranks and does not change.
func (t *trial) diagnoseAgain(rank int, told result, first string) {
	r := t.ranks[rank]
	again, ok := t.await(r, r.order("call", single, int(coll.Barrier), int(coll.Int32), 0, 0, 0, 0, 0, 0))
	cause, heard := t.await(r, r.order("error"))
	if told.Message != first || ok && again.Message != first || heard && cause.Message != first {
		t.wrong("rank %d was told %q, by a later call %v, by group_error %v; another rank was told %q", rank, told.Message, again, cause, first)
	}
}

// diagnoseCulprit checks that the culprit has ended, or gets the same first cause as the others.
func (t *trial) diagnoseCulprit(at int64, answer <-chan result, first string, want verdict) {
	culprit := t.ranks[t.culprit]
	switch t.fault {
	case "kill", "exit":
		t.bury()
		return
	case "stop":
		at = now()
		culprit.signal(syscall.SIGCONT)
	}
	if answer == nil {
		return // diagnose asks it with the others
	}
	got, ok := t.await(culprit, answer)
	switch {
	case !ok:
	case atDestroy(t.moment) || t.fault == "leave":
		if got.Status.Failed() {
			t.wrong("rank %d: its own call: %v", t.culprit, got)
		}
	case got.Message != first && !t.way.apart:
		t.wrong("rank %d, the culprit, says %v, the others %q", t.culprit, got, first)
	default:
		if t.way.apart {
			t.told[t.culprit] = got
			t.diagnoseOne(t.culprit, got, want)
		}
		t.measure(t.fault+": the rank itself learns it", got.At-max(at, got.Entered), 2*second)
	}
}

// ---- after the cell ----

// goOn lets the living ranks make a new group, and checks what the old one has left behind.
func (t *trial) goOn() {
	if len(t.notes) > 0 {
		return
	}
	var living []*process
	for _, r := range t.ranks {
		if r.alive() {
			living = append(living, r)
		}
	}
	t.ranks = living
	for rank := range living {
		if !t.arm(rank, "none", 0, "tell") {
			return
		}
	}
	next := &trial{cell: cell{"all_reduce", "small", "none", "none", len(living)}, way: paths[0], pool: t.pool, random: t.random,
		ranks: living, async: t.async, attach: t.attach}
	var err error
	if next.dir, err = t.pool.store(); err != nil {
		t.wrong("%v", err)
		return
	}
	defer func() {
		if err := os.RemoveAll(next.dir); err != nil {
			t.wrong("%v", err)
		}
	}()
	if next.begin() {
		next.destroyAll(-1)
	}
	for _, note := range next.notes {
		t.wrong("in the next group: %s", note)
	}
	if len(t.notes) == 0 {
		t.leaks(next.dir)
	}
}

// leaks expects that the ranks soon hold only what they held before their first group. A watch over a peer ends with the
// news from the system, which may come later than the news from another peer.
func (t *trial) leaks(dir string) {
	for _, r := range t.ranks {
		for began, pause := time.Now(), time.Millisecond; ; time.Sleep(pause) {
			pause = min(2*pause, 250*time.Millisecond) // each snapshot makes a group
			got, ok := t.await(r, r.order("snapshot", dir))
			if !ok {
				return
			}
			why := r.leaked(got.held)
			if why == "" {
				break
			}
			if time.Since(began) > t.lingers() {
				t.wrong("process %d: %s", r.pid, why)
				break
			}
		}
	}
	for _, name := range append(filesOf(t.ranks), filesIn(t.pool.files)...) {
		t.wrong("left: %s", name)
	}
}

// lingers returns how long ranks may hold what the group had. Links end 3 s after their last group, and are read for a while then.
func (t *trial) lingers() time.Duration {
	if t.way.apart {
		return 10 * time.Second
	}
	return 4 * time.Second
}
