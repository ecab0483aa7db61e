package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
	"time"
)

const (
	second      = int64(time.Second)
	millisecond = int64(time.Millisecond)

	callTimeout = 400 * millisecond // of a call that gives up on a rank that was stopped
	soon        = 100 * time.Millisecond
	initTimeout = second      // of groups that will not come to be
	longTimeout = 60 * second // of all others
	slowFor     = 120 * millisecond
	loopFor     = 5 * second // how long calls are repeated until one fails: beyond every bound
)

// anyWay is the default of SAGECOMM_SHM_ATTACH.
const anyWay = "proc,scm,tmpfs"

// trial is one run of a cell.
type trial struct {
	cell
	way     path
	pool    *pool
	random  *rand.Rand
	ranks   []*process
	culprit int
	root    int
	async   bool
	perHost int    // ranks of a host, where there are several hosts
	attach  string // ways to the memory of others
	cold    bool   // the call that meets the fault is the first of its kind
	dir     string
	told    []result // the answers of the ranks to the call that has failed
	notes   []string // what went wrong
	said    []string // by the ranks, if anything did
	timings []timing
}

// timing is the time of one event that has a bound.
type timing struct {
	what  string
	took  int64
	bound int64
}

func (t *trial) wrong(format string, args ...any) {
	t.notes = append(t.notes, fmt.Sprintf(format, args...))
}

// measure notes the time of an event. Bounds are promises on a machine that is not overloaded, so only a time of more than
// three times the bound is an error.
func (t *trial) measure(what string, took, bound int64) {
	t.timings = append(t.timings, timing{what, took, bound})
	if took > 3*bound {
		t.wrong("%s took %v, the bound is %v", what, time.Duration(took), time.Duration(bound))
	}
}

// runCell runs one cell. The error is about the tool itself; errors of the library are in the trial.
func runCell(p *pool, c cell, seed uint64) (*trial, error) {
	way, err := c.path()
	if err != nil {
		return nil, err
	}
	t := &trial{cell: c, way: way, pool: p, random: c.random(seed)}
	t.culprit = t.random.IntN(c.size)
	t.root = t.random.IntN(c.size)
	t.async, t.cold = t.random.IntN(2) == 0, t.random.IntN(4) == 0
	t.perHost = 1
	if c.size > 2 && t.random.IntN(2) == 0 || way.hierarchical() {
		t.perHost = 2
	}
	t.attach = anyWay
	if !atInit(c.moment) { // there a rank that is stopped may not be able to hand its memory out
		t.attach = []string{anyWay, anyWay, "scm", "tmpfs"}[t.random.IntN(4)]
	}
	if t.ranks, err = p.take(c.size); err != nil {
		return nil, err
	}
	if t.dir, err = p.store(); err != nil {
		return nil, err
	}
	ranks := t.ranks
	t.play()
	t.goOn()
	t.closeCell(ranks)
	return t, errors.Join(os.RemoveAll(t.dir), os.RemoveAll(t.dir+".gone"))
}

// closeCell gives processes back, or ends those of a cell that has failed: their state is unknown.
func (t *trial) closeCell(ranks []*process) {
	for _, r := range ranks {
		for _, line := range r.misunderstood() {
			t.wrong("process %d says %q, which is no answer", r.pid, line)
		}
	}
	if len(t.notes) > 0 {
		if anySilent(ranks) {
			dumpAll(ranks)
		}
		t.said = t.sayings(ranks)
		for _, r := range ranks {
			r.kill()
		}
	}
	t.pool.giveBack(ranks)
}

func (t *trial) play() {
	switch {
	case atInit(t.moment):
		t.playInit()
	case t.op == "none":
		t.playDestroy()
	case t.fault == "slow" || strings.HasPrefix(t.fault, "store"):
		t.playHarmless()
	default:
		t.playCall()
	}
}

// ---- calls that fail ----

// playCall runs a cell whose call must fail: on all living ranks, for the right reason, in time, and for good.
func (t *trial) playCall() {
	if !t.begin() {
		return
	}
	culprit := t.ranks[t.culprit]
	timeout := longTimeout
	if t.givesUp() {
		timeout = callTimeout
	}
	e := t.entry(timeout)
	answers := e.answers
	var at int64
	var err error
	switch t.moment {
	case "away":
		if at, err = t.strike(); err == nil {
			err = e.all()
		}
	case "awaited":
		e.told = true
		if err = e.all(); err == nil {
			at, err = t.strike()
		}
	case "goodbye", "left":
		if !t.arm(t.culprit, t.moment, 1, t.fault) {
			return
		}
		answers[t.culprit] = culprit.order("destroy")
		if at, err = t.struck(); err == nil {
			err = e.all()
		}
	default:
		at, err = t.strikeInside(e)
	}
	if err == errNotArmed {
		return
	}
	if err != nil {
		t.wrong("%v", err)
		return
	}
	t.diagnose(at, timeout, answers)
}

var errNotArmed = errors.New("the fault could not be armed")

// strikeInside has the culprit meet its fault in the call that all make.
func (t *trial) strikeInside(e *entry) (at int64, err error) {
	culprit, answers := t.ranks[t.culprit], e.answers
	if strings.HasPrefix(t.fault, "mismatch") {
		at = now()
		if err := e.first(); err != nil {
			return 0, err
		}
		// It may succeed: two ranks that take each other for the root of a reduce need nothing from each other. Then the
		// calls after it show the difference.
		t.call(t.culprit, longTimeout, 0, t.fault)
		answers[t.culprit] = t.call(t.culprit, longTimeout, loopFor, "")
		return at, nil
	}
	point, nth := t.moment, 1
	if point == "later" {
		point, nth = "published", 2+t.random.IntN(9)
	}
	if !t.arm(t.culprit, point, nth, t.fault) {
		return 0, errNotArmed
	}
	loop := loopFor
	if t.fault == "leave" {
		loop = 0 // a rank that leaves waits for the calls that it has made, and must make no more
	}
	if err := e.first(); err != nil {
		return 0, err
	}
	answers[t.culprit] = t.call(t.culprit, longTimeout, loop, "")
	if e.last >= 0 {
		culprit.hitWithin(soon) // the culprit may need the last rank's call to come to that moment
		if err := e.rest(); err != nil {
			return 0, err
		}
	}
	if at, err = t.struck(); err != nil {
		return 0, err
	}
	if t.fault == "leave" || t.fault == "abort" {
		select {
		case did := <-culprit.did:
			if did.Status.Failed() {
				return 0, fmt.Errorf("%s on another thread: %v", t.fault, did)
			}
			at = did.Entered
			if t.fault == "leave" {
				at = did.At // destroy waits for the call first
			}
		case <-time.After(hangAfter):
			culprit.dump()
			return 0, fmt.Errorf("%s on another thread hangs", t.fault)
		}
	}
	return at, nil
}

// struck waits until the armed fault has happened.
func (t *trial) struck() (at int64, err error) {
	culprit := t.ranks[t.culprit]
	if at, err = culprit.hit(); err == nil && t.fault == "stop" {
		err = culprit.stopped() // SIGCONT would be lost before that
	}
	return at, err
}

// strike causes a fault from outside, between two calls of the culprit.
func (t *trial) strike() (at int64, err error) {
	culprit := t.ranks[t.culprit]
	at = now()
	switch t.fault {
	case "kill":
		culprit.signal(syscall.SIGKILL)
	case "exit":
		culprit.order("exit")
	case "stop":
		culprit.signal(syscall.SIGSTOP)
		return at, culprit.stopped()
	case "abort":
		if got, ok := t.await(culprit, culprit.order("abort")); !ok || got.Status.Failed() {
			return at, fmt.Errorf("abort: %v", got)
		}
	case "leave":
		got, ok := t.await(culprit, culprit.order("destroy"))
		if !ok || got.Status.Failed() {
			return at, fmt.Errorf("destroy: %v", got)
		}
		return got.At, nil
	default:
		return at, fmt.Errorf("%s is no fault from outside", t.fault)
	}
	return at, nil
}

// ---- calls that do not fail ----

// playHarmless runs a cell whose fault must harm no rank: a rank is late or slow, or the store is gone.
func (t *trial) playHarmless() {
	if !t.begin() {
		return
	}
	late := t.fault == "slow" && t.moment == "awaited"
	switch {
	case t.fault == "store_vanishes":
		if err := os.RemoveAll(t.dir); err != nil {
			t.wrong("%v", err)
			return
		}
	case !late:
		if !t.arm(t.culprit, t.moment, 1, "slow") {
			return
		}
	}
	answers := make([]<-chan result, t.size)
	for range 3 {
		for _, rank := range t.survivors() {
			answers[rank] = t.call(rank, longTimeout, 0, "")
		}
		if late {
			time.Sleep(time.Duration(slowFor)) // the fault itself
		}
		answers[t.culprit] = t.call(t.culprit, longTimeout, 0, "")
		if !t.succeed("a call with a slow rank or without a store", answers) {
			return
		}
	}
	t.destroyAll(-1)
}

// playDestroy runs a cell in which all ranks destroy the group at once.
func (t *trial) playDestroy() {
	if !t.begin() || !t.arm(t.culprit, t.moment, 1, t.fault) {
		return
	}
	culprit := t.ranks[t.culprit]
	pending := culprit.order("destroy")
	if _, err := t.struck(); err != nil {
		t.wrong("%v", err)
		return
	}
	t.destroyAll(t.culprit)
	switch t.fault {
	case "kill", "exit":
		t.bury()
	default:
		culprit.signal(syscall.SIGCONT) // for a rank that was stopped

		if got, ok := t.await(culprit, pending); ok && got.Status.Failed() {
			t.wrong("rank %d: destroy: %v", t.culprit, got)
		}
	}
}

// destroyAll destroys the group on all living ranks except a rank that is destroying it or has destroyed it.
func (t *trial) destroyAll(but int) {
	answers := make([]<-chan result, t.size)
	for rank, r := range t.ranks {
		if rank != but && r.alive() {
			answers[rank] = r.order("destroy")
		}
	}
	for rank, answer := range answers {
		if answer == nil {
			continue
		}
		got, ok := t.await(t.ranks[rank], answer)
		if !ok {
			continue
		}
		if got.Status.Failed() {
			t.wrong("rank %d: destroy: %v", rank, got)
		}
		t.measure("destroy", got.At-got.Entered, 2*second)
	}
}

// bury waits for the culprit's end and looks at how it ended.
func (t *trial) bury() {
	culprit := t.ranks[t.culprit]
	select {
	case <-culprit.ended:
	case <-time.After(hangAfter):
		t.wrong("rank %d does not end", t.culprit)
		return
	}
	_ = culprit.in.Close()
	status, _ := culprit.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if t.fault == "kill" && status.Signal() != syscall.SIGKILL || t.fault == "exit" && status.ExitStatus() != 7 {
		t.wrong("rank %d was to end by %s: %v %s", t.culprit, t.fault, culprit.cmd.ProcessState, culprit.stderr.String())
	}
}
