package pgbackend

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/coll"
	"sagecomm/internal/device"
	"sagecomm/internal/engine"
	"sagecomm/internal/engine/vendor"
	"sagecomm/internal/runner"
)

// Wherever the calls of hosts differ, and in whatever order ranks make them, a rank that compares its calls with those
// of its neighbors, once behind each, finds it, and asks two ranks at most.
func TestNeighborsFindWhatDiffers(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 3000 {
		g := &Group{}
		var call []int // of each rank; ranks of one host make the same one
		kinds := 1 + random.IntN(3)
		differ := false
		for host := range 2 + random.IntN(6) {
			g.hosts = append(g.hosts, nil)
			kind := random.IntN(kinds)
			for range 1 + random.IntN(3) {
				g.hosts[host] = append(g.hosts[host], len(call))
				g.hostOf = append(g.hostOf, host)
				differ = differ || len(call) > 0 && call[0] != kind
				call = append(call, kind)
			}
		}
		found := false
		called := make([]bool, len(call))
		for _, rank := range random.Perm(len(call)) {
			called[rank] = true
			g.rank = rank
			list := g.neighbors()
			require.NotEmpty(t, list)
			require.LessOrEqual(t, len(list), 2)
			for _, other := range list {
				require.True(t, g.isRemote(other))
				found = found || called[other] && call[other] != call[rank]
			}
		}
		require.Equal(t, differ, found, "%v %v", g.hosts, call)
	}
}

// libraryWorld is externalWorld over hosts, with an engine that counts as a vendor's library. Ranks ask each other
// nothing by themselves but the calls of the library.
func libraryWorld(t *testing.T, hosts string, wires ...*wire) (*world, func(g *Group) *externalEngine) {
	t.Helper()
	setCompareEvery(t, time.Hour)
	staged := deviceEngines[stagedEngine]
	t.Cleanup(func() { deviceEngines[stagedEngine] = staged })
	deviceEngines[stagedEngine] = registeredEngine{library: true, absent: staged.absent, open: func(_ *Group, run *runner.Group) (engine.Engine, error) {
		return newExternalEngine(run)
	}}
	return newHostsWorld(t, hosts, wires...), func(g *Group) *externalEngine { return g.device.Load().engine.(*externalEngine) }
}

// Calls that differ and that a library carries out all the same are found although operations go on, and although
// nothing goes on for long: the comparison has a time of its own, and waits for no operation of the host lane.
func TestCallsOfALibraryThatDiffer(t *testing.T) {
	patient(t, 2*hangAfter) // where nobody answers
	w, of := libraryWorld(t, "00123")
	w.each(func(g *Group) error {
		op := coll.Op{Kind: coll.AllReduce, Type: coll.Float32, Async: true, Device: aDevice}
		if g.rank == 4 {
			op.Reduce = coll.Max
		}
		b := one(make([]byte, 64))
		work, f := g.Issue(op, b, b)
		if f != nil {
			return f
		}
		of(g).carryOut(0)
		if f := end(work); f != nil && f.Status != coll.Mismatch {
			return f
		}
		for until := time.Now().Add(opTimeout); g.Cause() == nil && time.Now().Before(until); {
			time.Sleep(time.Millisecond)
		}
		return expect(g.Cause(), coll.Mismatch, "ranks disagree in collective #1: ", "rank 4 called all_reduce (float32, MAX", " called all_reduce (float32, SUM")
	})
}

// A neighbor that has not answered is asked again.
func TestNeighborThatDoesNotAnswer(t *testing.T) {
	between := newWire(t, 0, 1, false)
	w, of := libraryWorld(t, "01", between)
	w.each(func(g *Group) error {
		work, f := deviceSumAsync(g, 16)
		if f != nil {
			return f
		}
		of(g).carryOut(0)
		return asError(end(work))
	})
	between.stop(0)
	require.Eventually(t, func() bool { return !w.groups[0].compareStreams(&blockLooks{}) }, opTimeout, time.Millisecond) // an answer may have been on the way
	between.goOn()
	require.Eventually(t, func() bool { return w.groups[0].compareStreams(&blockLooks{}) }, opTimeout, time.Millisecond)
}

// The answer to a question that was asked before may be older than what the rank has called since, so it is asked once
// more.
func TestQuestionThatWasAskedBefore(t *testing.T) {
	setCompareEvery(t, time.Hour)
	between := newWire(t, 0, 1, false)
	w := newHostsWorld(t, "01", between)
	g := w.groups[0]
	before := g.remotes[1].states.Load()
	between.stop(0)
	g.question(1)
	open := g.question(1)
	between.goOn()
	require.Empty(t, g.collect(open, opTimeout))
	require.Equal(t, before+2, g.remotes[1].states.Load())
	require.Empty(t, g.collect(g.question(1), opTimeout))
	require.Equal(t, before+3, g.remotes[1].states.Load())
}

// A rank that leaves is missed in what it has not called, and in nothing else: its last state has what it has called on
// devices.
func TestRankThatLeavesALibrary(t *testing.T) {
	w, of := libraryWorld(t, "01")
	call := func(g *Group) runner.Work {
		work, f := deviceSumAsync(g, 16)
		require.Nil(t, f)
		return work
	}
	g, leaves := w.groups[0], w.groups[1]
	theirs := call(leaves)
	mine := call(g)
	w.each(func(g *Group) error { return asError(sum(g, 10)) })
	w.each(func(g *Group) error { return asError(sum(g, 10)) })
	of(leaves).carryOut(0)
	require.Nil(t, end(theirs))
	require.NoError(t, leaves.Destroy())
	require.Eventually(t, func() bool { _, left := g.run.LastCall(1); return left }, opTimeout, time.Millisecond)
	done, f := mine.Wait(20 * time.Millisecond) // the engine looks at it meanwhile
	require.Nil(t, f)
	require.False(t, done)
	of(g).carryOut(0)
	require.Nil(t, end(mine))
	require.Contains(t, diagnosis{g, g.run}.hasLeft(1, "all"), "has left the group after collective #2, ")
	require.NoError(t, expect(end(call(g)), coll.PeerFailure, "Connection closed by peer: rank 1 (", "has left the group after collective #1, ", "needs it in all_reduce #2"))
}

// joiningLibrary is a vendor's library whose communicators wait for ever for ranks to join.
type joiningLibrary struct{ namedLibrary }

func (joiningLibrary) Vendor() string         { return "cuda" }
func (joiningLibrary) NewID() ([]byte, error) { return []byte("an id"), nil }
func (joiningLibrary) Join([]byte, int, int, vendor.Group) (vendor.Communicator, error) {
	return joiningCommunicator{}, nil
}

type joiningCommunicator struct{ vendor.Communicator }

func (joiningCommunicator) State() (queued bool, err error) { return false, nil }
func (joiningCommunicator) Abort() bool                     { return true }
func (joiningCommunicator) Settled() bool                   { return true }

// A process of another host that dies while all join a communicator is a failure of the group, which all survivors
// raise, and the communicators are ended.
func TestRemoteProcessDiesInAJoin(t *testing.T) {
	testEngines(t, nil)
	deviceEngines["nccl"] = registeredEngine{
		library: true,
		absent:  func(*Group) error { return nil },
		open: func(g *Group, run *runner.Group) (engine.Engine, error) {
			others := g.stagedEngine(run)
			return g.vendorEngine(vendor.Calls(joiningLibrary{}), run, others, others), nil
		},
	}
	real := openAccess
	t.Cleanup(func() { openAccess = real })
	openAccess = func(_ runner.Call, op coll.Op) (device.Access, error) { return launching{rank: op.Device.Index}, nil }
	for _, hosts := range []string{"01", "001"} {
		w := newHostsWorld(t, hosts)
		last := len(hosts) - 1
		failed := make([]chan *coll.Failure, len(hosts))
		for rank, g := range w.groups {
			failed[rank] = make(chan *coll.Failure, 1)
			go func() {
				b := one(make([]byte, 64))
				_, f := g.Issue(coll.Op{Kind: coll.AllReduce, Type: coll.Float32, Device: coll.Device{Type: coll.CUDA, Index: rank}}, b, b)
				failed[rank] <- f
			}()
		}
		for rank := range last { // all have joined the exchanges of the join
			require.Eventually(t, func() bool { return topicEngine.entry(w.groups[rank], last).taken.Load() >= 2 }, opTimeout, time.Millisecond)
		}
		cutOff(w, last)
		for rank := range last {
			require.NoError(t, expect(<-failed[rank], coll.PeerFailure, fmt.Sprintf("rank %d (", last), "Connection closed by peer"))
		}
		w.destroy()
		<-failed[last]
	}
}
