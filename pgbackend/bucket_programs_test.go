package pgbackend

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
	"sagecomm/tests/quick"
)

// Random programs in groups that fuse. All ranks issue the same collectives in the same order; everything else differs
// by rank: which of them are synchronous, where works are waited for or polled and where they are dropped, where a rank
// pauses.

// fusedPrograms is the environment variable with the number of programs.
const fusedPrograms = "TEST_FUSED_PROGRAMS"

// fusedCall is one collective of a program.
type fusedCall struct {
	kind    coll.Kind
	dtype   coll.DataType
	count   int
	again   bool // all_reduces the result of the call before, in the same memory
	members int  // above 0: a coalesced call of so many
}

// fusedProgram returns the calls of a program.
func fusedProgram(random *rand.Rand) []fusedCall {
	calls := make([]fusedCall, 1+random.IntN(30))
	for i := range calls {
		c := fusedCall{kind: coll.AllReduce, dtype: []coll.DataType{coll.Int32, coll.Int32, coll.Int64}[random.IntN(3)], count: 1 + random.IntN(600)}
		switch random.IntN(20) {
		case 0:
			c.kind, c.count = coll.Barrier, 0
		case 1:
			c.kind = coll.Broadcast
		case 2:
			c.kind = coll.AllGather
		case 3:
			c.count = 1000 + random.IntN(60_000)
		case 4:
			c.members = 2 + random.IntN(4)
		case 5, 6:
			c.again = i > 0 && calls[i-1].kind == coll.AllReduce && calls[i-1].members == 0
		}
		calls[i] = c
	}
	return calls
}

// fusedRank is one rank of a program.
type fusedRank struct {
	g       *Group
	random  *rand.Rand
	left    []runner.Work // not waited for
	results []expectation
}

func (r *fusedRank) run(calls []fusedCall) error {
	for i, c := range calls {
		if err := r.issue(i, c); err != nil {
			return fmt.Errorf("call %d, %+v: %w", i, c, err)
		}
		if err := r.pause(); err != nil {
			return fmt.Errorf("behind call %d: %w", i, err)
		}
	}
	for len(r.left) > 0 {
		if err := r.finish(r.random.IntN(len(r.left))); err != nil {
			return fmt.Errorf("at the end: %w", err)
		}
	}
	if f := sum(r.g, 0); f != nil { // behind the dropped works
		return f
	}
	for i, e := range r.results {
		if err := e.check(); err != nil {
			return fmt.Errorf("result %d: %w", i, err)
		}
	}
	return nil
}

func (r *fusedRank) issue(i int, c fusedCall) error {
	g := r.g
	var work runner.Work
	var f *coll.Failure
	async := r.random.IntN(5) > 0
	if c.members > 0 {
		calls := make([]runner.Coalesced, c.members)
		for k := range calls {
			e := operation(c.kind, c.dtype, 100*i+k, c.count, g.rank, g.size)
			e.Op.Async = async
			calls[k] = e.Coalesced
			r.results = append(r.results, e)
		}
		work, f = g.IssueCoalesced(calls)
	} else {
		e := r.expectation(i, c)
		e.Op.Async = async
		r.results = append(r.results, e)
		work, f = g.Issue(e.Op, e.In, e.Out)
	}
	if f != nil {
		return f
	}
	if async && r.random.IntN(10) == 0 {
		work.Release()
	} else {
		r.left = append(r.left, work)
	}
	return nil
}

func (r *fusedRank) expectation(i int, c fusedCall) expectation {
	g := r.g
	if c.kind == coll.Barrier {
		return expectation{Coalesced: runner.Coalesced{Op: coll.Op{Kind: coll.Barrier}}}
	}
	if !c.again {
		return operation(c.kind, c.dtype, i, c.count, g.rank, g.size)
	}
	before := &r.results[len(r.results)-1]
	e := expectation{runner.Coalesced{Op: before.Op, In: before.Out, Out: before.Out}, slices.Clone(before.want)}
	if g.size%2 == 0 {
		clear(e.want) // all ranks have the same number, an even number of times
	}
	before.want = e.want // it lies in the same memory
	return e
}

func (r *fusedRank) pause() error {
	switch r.random.IntN(24) {
	case 0:
		time.Sleep(time.Duration(r.random.IntN(3000)) * time.Microsecond)
	case 1, 2:
		runtime.Gosched()
	case 3, 4:
		if len(r.left) > 0 {
			return r.finish(r.random.IntN(len(r.left)))
		}
	case 5:
		if len(r.left) > 0 {
			return r.poll(r.random.IntN(len(r.left)))
		}
	}
	return nil
}

func (r *fusedRank) take(i int) runner.Work {
	work := r.left[i]
	r.left = slices.Delete(r.left, i, i+1)
	return work
}

func (r *fusedRank) finish(i int) error {
	work := r.take(i)
	defer work.Release()
	return asError(finish(work))
}

// poll looks until the work is complete; it waits in no call.
func (r *fusedRank) poll(i int) error {
	work := r.take(i)
	defer work.Release()
	for {
		if done, f := work.Wait(0); done {
			return asError(f)
		}
		time.Sleep(50 * time.Microsecond)
	}
}

func TestRandomProgramsInGroupsThatFuse(t *testing.T) {
	programs := 40
	if quick.Only() {
		programs = 10
	}
	if text := os.Getenv(fusedPrograms); text != "" {
		var err error
		if programs, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	for n := 2; n <= 8; n++ {
		w := newWorldWith(t, n, opTimeout, fused)
		for seed := uint64(n); seed < uint64(programs)+2; seed += 7 {
			calls := fusedProgram(rand.New(rand.NewPCG(seed, 0)))
			if !t.Run(fmt.Sprintf("%d ranks, seed %d", n, seed), func(t *testing.T) {
				inside := world{t, w.groups}
				inside.each(func(g *Group) error {
					r := fusedRank{g: g, random: rand.New(rand.NewPCG(seed, uint64(1+g.rank)))}
					return r.run(calls)
				})
			}) {
				return
			}
		}
		w.destroy()
	}
}
