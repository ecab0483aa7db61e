package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"sagecomm/internal/coll"
)

const (
	killRanks       = 4
	killInitTimeout = 1500 * millisecond // a rank that dies before the others have met it is waited for
)

// plan says when a rank dies: a delay after it has come to a phase of its life. By then it may be in a later phase.
type plan struct {
	victim int
	ops    int // of each rank
	target phase
	delay  time.Duration
	how    int // how the victim's life would end: 1 destroy and exit, 2 exit
	seed   uint64
}

// phaseNames are the phases of a life, and how long about each lasts.
var phaseNames = map[string]time.Duration{"init": 40 * time.Millisecond, "compute": 2 * time.Millisecond, "op": time.Millisecond,
	"destroy": 500 * time.Microsecond, "exit": 4 * time.Millisecond}

func drawPlan(seed, number uint64) plan {
	random := rand.New(rand.NewPCG(seed, number))
	d := plan{victim: random.IntN(killRanks), ops: 2 + random.IntN(6), how: 1, seed: random.Uint64()}
	d.target.name = slices.Sorted(maps.Keys(phaseNames))[random.IntN(len(phaseNames))]
	switch d.target.name {
	case "compute", "op":
		d.target.op = random.IntN(d.ops)
	case "destroy":
		d.target.op = d.ops
	case "exit":
		d.target.op, d.how = d.ops, 1+random.IntN(2)
	}
	d.delay = time.Duration(random.Int64N(int64(phaseNames[d.target.name])))
	return d
}

// death is one run.
type death struct {
	trial
	plan
	killed int64
	last   phase // what the victim said last
	ended  bool  // by itself, before it was killed
}

// runDeath runs one death. The error is about the tool itself.
func runDeath(p *pool, d plan) (*death, error) {
	run := &death{trial: trial{cell: cell{"life", "life", "kill", d.target.name, killRanks}, pool: p, culprit: d.victim, attach: anyWay}, plan: d}
	var err error
	if run.ranks, err = p.take(killRanks); err != nil {
		return nil, err
	}
	if run.dir, err = p.store(); err != nil {
		return nil, err
	}
	ranks := run.ranks
	run.random = rand.New(rand.NewPCG(d.seed, 0))
	if run.playDeath() {
		run.goOn()
	}
	run.closeCell(ranks)
	return run, os.RemoveAll(run.dir)
}

func (d *death) playDeath() bool {
	answers := make([]<-chan result, killRanks)
	for rank, r := range d.ranks {
		how := 0
		if rank == d.victim {
			how = d.how
		}
		for len(r.phases) > 0 {
			<-r.phases
		}
		answers[rank] = r.order("life", d.ops, how, d.plan.seed, d.dir, rank, killRanks, killInitTimeout/millisecond)
	}
	if err := d.strikeAtPhase(); err != nil {
		d.wrong("%v", err)
		return false
	}
	told := d.listen(answers)
	first := ""
	for _, rank := range d.survivors() {
		if r := d.ranks[rank]; told[rank] != nil {
			if first == "" {
				first = told[rank].Message
			}
			d.diagnoseAgain(rank, *told[rank], first)
			if done, ok := d.await(r, r.order("destroy")); ok && done.Status.Failed() {
				d.wrong("rank %d: destroy: %v", rank, done)
			}
		}
	}
	return len(d.notes) == 0
}

// strikeAtPhase kills the victim at the planned moment.
func (d *death) strikeAtPhase() error {
	victim := d.ranks[d.victim]
	hang := time.After(hangAfter)
	for reached := false; !reached; {
		select {
		case d.last = <-victim.phases:
			reached = d.last == d.target
		case <-victim.ended:
			reached = true // its life ended before that phase
		case <-hang:
			return fmt.Errorf("the victim did not come to %v", d.target)
		}
	}
	end := now() + int64(d.delay)
	time.Sleep(d.delay - 2*time.Millisecond) // the rest is spun, because a sleep is not that exact
	for now() < end {
	}
	d.killed = now()
	victim.signal(syscall.SIGKILL)
	<-victim.ended
	_ = victim.in.Close()
	d.ended = victim.cmd.ProcessState.Exited()
	for len(victim.phases) > 0 {
		d.last = <-victim.phases
	}
	if d.ended && !victim.cmd.ProcessState.Success() {
		return fmt.Errorf("the victim was faster and ended with %v: %s", victim.cmd.ProcessState, victim.stderr.String())
	}
	return nil
}

// listen checks the errors of the ranks that have a group: each that is in a call with the victim, or enters one, learns in
// time who died.
func (d *death) listen(answers []<-chan result) []*result {
	told := make([]*result, killRanks)
	for _, rank := range d.survivors() {
		got, ok := d.await(d.ranks[rank], answers[rank])
		switch {
		case !ok:
		case got.Status.Failed() && got.OK < 0:
			d.diagnoseMaking(d.ranks[rank], got)
		default:
			told[rank] = &got
		}
		answers[rank] = nil
		if told[rank] == nil || got.Status.Failed() {
			continue
		}
		if d.last.name == "init" || d.last.name == "compute" || d.last.op < d.ops-1 {
			d.wrong("rank %d has finished %d operations although rank %d died in %v", rank, got.OK, d.victim, d.last)
		}
		answers[rank] = d.ranks[rank].order("call", single, int(coll.Barrier), int(coll.Int32), 0, 0, 0, 0, longTimeout/millisecond, loopFor/millisecond)
	}
	for _, rank := range d.survivors() {
		if answers[rank] != nil {
			if got, ok := d.await(d.ranks[rank], answers[rank]); ok {
				told[rank] = &got
			}
		}
		if told[rank] != nil {
			d.diagnoseOne(rank, *told[rank], verdict{status: coll.PeerFailure, named: true})
			d.measure("in or before an operation", told[rank].At-max(d.killed, told[rank].Entered), 2*second)
		}
	}
	return told
}

// diagnoseMaking checks the errors where the group was not made: the others have met the victim, or wait for it in vain.
func (d *death) diagnoseMaking(r *process, got result) {
	r.gaveUp(killRanks)
	named := strings.Contains(got.Message, fmt.Sprintf("rank %d", d.victim))
	switch {
	case got.Status == coll.PeerFailure && got.Rank == d.victim && got.PID == d.ranks[d.victim].pid:
		d.measure("while the group is made, after all have met", got.At-max(d.killed, got.Entered), 2*second)
	case got.Status == coll.Timeout && named && d.last.name == "init":
		d.measure("while the group is made, before that", got.At-max(d.killed, got.Entered), 2*second)
	default:
		d.wrong("process %d: group_create: %v; rank %d died in %v", r.pid, got, d.victim, d.last)
	}
}

// deaths counts the outcomes of runs.
type deaths struct {
	summary
	phases map[string]int // in which the victim was killed
	killed int
	early  int // runs whose victim ended before the signal came
}

func newDeaths() *deaths { return &deaths{*newSummary(), map[string]int{}, 0, 0} }

// runDeaths makes runs, from number first on, until n victims were killed or going returns false.
func (s *setup) runDeaths(n int, first uint64, going func() bool, out io.Writer) (*deaths, error) {
	p, err := s.pool(fmt.Sprintf("kills-%d", time.Now().UnixNano()))
	if err != nil {
		return nil, err
	}
	sum := newDeaths()
	told := time.Now()
	for i := uint64(0); sum.killed < n && going(); i++ {
		if time.Since(told) > time.Minute {
			told = time.Now()
			fmt.Fprintf(out, "%d of %d deaths, %d failed\n", sum.killed, n, len(sum.failed))
		}
		d, err := runDeath(p, drawPlan(s.seed, first+i))
		if err != nil {
			return sum, errors.Join(err, p.close())
		}
		sum.add(&d.trial)
		if d.ended {
			sum.early++
		} else {
			sum.killed++
			sum.phases[d.last.name]++
		}
		if len(d.notes) > 0 {
			fmt.Fprintf(out, "FAILED run %d\n  again: go run ./tests/faults -seed %d -kills 1 -first %d\n  planned %+v, died in %v\n", first+i, s.seed, first+i, d.plan, d.last)
			for _, text := range append(d.notes, d.said...) {
				fmt.Fprintln(out, "  ", text)
			}
		}
	}
	err = p.close()
	left, unseen := s.sockets.left()
	if len(left) > 0 {
		err = errors.Join(err, fmt.Errorf("sockets of dead processes are left: %v", left))
	}
	return sum, errors.Join(err, unseen)
}

func (d *deaths) print(out io.Writer) {
	fmt.Fprintf(out, "%d runs with %d ranks, %d failed; %d ranks were killed, in:", d.total(), killRanks, len(d.failed), d.killed)
	for _, name := range []string{"init", "compute", "op", "destroy", "exit"} {
		fmt.Fprintf(out, " %s %d", name, d.phases[name])
	}
	fmt.Fprintf(out, "; %d had ended before the signal came\n", d.early)
	d.printTimes(out)
}

// kills runs the command -kills.
func (s *setup) kills(n int, first uint64, out io.Writer) error {
	began := time.Now()
	sum, err := s.runDeaths(n, first, func() bool { return true }, out)
	if sum != nil {
		sum.print(out)
		fmt.Fprintln(out, since(began))
		if len(sum.failed) > 0 {
			err = errors.Join(err, fmt.Errorf("%d of %d runs failed, seed %d", len(sum.failed), sum.total(), s.seed))
		}
	}
	return err
}
