package pgbackend

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/coll"
	"sagecomm/internal/engine"
	"sagecomm/internal/runner"
)

// External runs: the streams of a device carry the operation out, as those of a vendor library do. Protocol:
// docs/protocol.md, section 12.

// externalEngine leaves all operations to streams, which the test moves.
type externalEngine struct {
	run    *runner.Group
	mu     sync.Mutex
	memory []byte
	words  []*runner.GateWords // by order of issue
	early  bool                // streams end operations before they are issued

	aborting func() // called in Abort; nil: nothing
}

const (
	externals = 100 // operations of a rank; the runner still records what differs when all are issued
	voidBytes = 4   // a word behind those of the gates, which no peer writes
)

func newExternalEngine(run *runner.Group) (*externalEngine, error) {
	memory, err := syscall.Mmap(-1, 0, externals*runner.GateBytes+voidBytes, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	return &externalEngine{run: run, memory: memory}, err
}

func (e *externalEngine) Name() string { return "external" }

func (e *externalEngine) Prepare(_ runner.Call, op coll.Op) (engine.Prepared, error) {
	p, err := runner.NewExternal(op.Kind, op.Type, "external")
	return engine.Prepared{Program: p}, err
}

func (e *externalEngine) Issue(call runner.Call, op coll.Op, p engine.Prepared) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	words := (*runner.GateWords)(unsafe.Pointer(&e.memory[len(e.words)*runner.GateBytes]))
	if e.early {
		atomic.StoreUint32(words.InputReady(), 1)
		atomic.StoreUint32(words.OutputTaken(), 1)
	}
	err := e.run.SubmitAtGate(call, op.Bytes(), p.Program, true, runner.Gate{Words: words, Inputs: 1, Outputs: 1, External: true,
		Void: (*uint32)(unsafe.Pointer(&e.memory[externals*runner.GateBytes])), In: call.In(), Out: call.Out()})
	if err != nil {
		p.Program.Free()
		return err
	}
	e.words = append(e.words, words)
	return nil
}

func (e *externalEngine) Abort() {
	if e.aborting != nil {
		e.aborting()
	}
}

func (e *externalEngine) Close() {
	if err := syscall.Munmap(e.memory); err != nil {
		panic(err)
	}
}

// reach lets the stream of an operation come to it.
func (e *externalEngine) reach(i int) { atomic.StoreUint32(e.word(i).InputReady(), 1) }

// carryOut lets the stream of an operation end it.
func (e *externalEngine) carryOut(i int) {
	e.reach(i)
	atomic.StoreUint32(e.word(i).OutputTaken(), 1)
}

func (e *externalEngine) word(i int) *runner.GateWords {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.words[i]
}

// externalWorld returns a group whose operations on devices are external, and the engine of each rank, which is there
// after its first such operation.
func externalWorld(t *testing.T, n int, timeout time.Duration) (*world, func(g *Group) *externalEngine) {
	staged := deviceEngines["staged"]
	t.Cleanup(func() { deviceEngines["staged"] = staged })
	deviceEngines["staged"] = registeredEngine{absent: staged.absent, open: func(_ *Group, run *runner.Group) (engine.Engine, error) {
		return newExternalEngine(run)
	}}
	w := newWorld(t, n)
	w.each(func(g *Group) error { return g.SetTimeout(timeout) })
	return w, func(g *Group) *externalEngine { return g.device.Load().engine.(*externalEngine) }
}

// Each operation completes when its stream does, in any order, and waits for no peer.
func TestExternalRuns(t *testing.T) {
	w, of := externalWorld(t, 3, opTimeout)
	w.each(func(g *Group) error {
		works := make([]runner.Work, externals)
		for i := range works {
			var f *coll.Failure
			if works[i], f = deviceSumAsync(g, 16); f != nil {
				return f
			}
		}
		if f := sum(g, 10); f != nil { // a late stream holds up no operation on host memory
			return f
		}
		for _, i := range rand.New(rand.NewPCG(1, uint64(g.rank))).Perm(externals) {
			if done, _ := works[i].Wait(0); done {
				return fmt.Errorf("operation %d is complete before its stream is", i)
			}
			of(g).carryOut(i)
			if f := end(works[i]); f != nil {
				return f
			}
		}
		stats, err := g.Stats()
		if err != nil {
			return err
		}
		for _, row := range stats.Rows {
			if row.Algorithm == "external" && row.Count == externals {
				return nil
			}
		}
		return fmt.Errorf("no row counts %d external operations: %+v", externals, stats.Rows)
	})
}

// Every rank learns both calls, although no data moves between them and no stream ends.
func TestMismatchOfExternalRuns(t *testing.T) {
	w, _ := externalWorld(t, 3, opTimeout)
	list := w.eachFailure(func(g *Group) (failure *coll.Failure) {
		var works []runner.Work
		for i := range externals {
			op := coll.Op{Kind: coll.AllReduce, Type: coll.Float32, Async: true, Device: aDevice}
			if g.rank == 2 && i == 40 {
				op.Type = coll.Int32
			}
			b := one(make([]byte, 64))
			work, f := g.Issue(op, b, b)
			if f != nil { // the group has failed already
				failure = f
				break
			}
			works = append(works, work)
		}
		for _, work := range works {
			failure = end(work)
		}
		return failure
	})
	expectAll(t, list, coll.Mismatch, "ranks disagree in collective #41: ", " called all_reduce (float32, ", "rank 2 called all_reduce (int32, ")
}

// A stream that is done completes no operation that a peer has called otherwise.
func TestMismatchOfAnExternalRunThatIsDone(t *testing.T) {
	w, of := externalWorld(t, 2, opTimeout)
	w.each(func(g *Group) error {
		work, f := deviceSumAsync(g, 16)
		if f != nil {
			return f
		}
		of(g).carryOut(0)
		return asError(end(work))
	})
	issue := func(rank int, of coll.DataType) (runner.Work, *coll.Failure) {
		b := one(make([]byte, 64))
		return w.groups[rank].Issue(coll.Op{Kind: coll.AllReduce, Type: of, Async: true, Device: aDevice}, b, b)
	}
	failures := make([]*coll.Failure, 2)
	first, f := issue(1, coll.Int32)
	require.NoError(t, asError(f))
	for called := uint64(0); called < 2; runtime.Gosched() { // where the engine was about, it is the one that begins the run
		called, _ = of(w.groups[1]).run.LastCall(1)
	}
	of(w.groups[0]).early = true
	second, f := issue(0, coll.Float32)
	if failures[0] = f; f == nil {
		failures[0] = end(second)
	}
	require.NotNil(t, failures[0], "it is complete")
	failures[1] = end(first)
	expectAll(t, failures, coll.Mismatch, "ranks disagree in collective #2: ", "rank 0 called all_reduce (float32, ", "rank 1 called all_reduce (int32, ")
}

// Behind the abort of a peer, a rank whose stream has ended its operations has lost nothing, whether the host has seen
// the end or not.
func TestFinishOfWhatAStreamHasEnded(t *testing.T) {
	for range 20 {
		w, of := externalWorld(t, 2, opTimeout)
		works := make([]runner.Work, 2)
		w.each(func(g *Group) error {
			work, f := deviceSumAsync(g, 16)
			works[g.rank] = work
			return asError(f)
		})
		of(w.groups[1]).carryOut(0)
		w.groups[0].Abort("the test")
		require.NoError(t, asError(w.groups[1].Finish()))
		require.NoError(t, asError(end(works[1])))
		f := end(works[0]) // its stream is late
		require.NotNil(t, f)
		require.Equal(t, coll.Aborted, f.Status)
		w.destroy()
	}
}

// The timeout begins when the stream has reached the operation, and its error says that the stream does not end it.
func TestTimeoutOfAnExternalRun(t *testing.T) {
	w, of := externalWorld(t, 2, 300*time.Millisecond)
	list := w.eachFailure(func(g *Group) *coll.Failure {
		work, f := deviceSumAsync(g, 16)
		if f != nil {
			return f
		}
		if done, f := work.Wait(900 * time.Millisecond); done {
			return &coll.Failure{Message: fmt.Sprintf("complete before its stream has reached it: %v", f)}
		}
		of(g).reach(0)
		return end(work)
	})
	for rank, f := range list {
		if err := expect(f, coll.Timeout, "all_reduce", "timed out after its timeout of 300ms", "reached it, but that of rank", "does not end it"); err != nil {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}
