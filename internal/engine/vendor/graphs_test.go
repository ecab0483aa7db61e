package vendor

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/coll"
	"sagecomm/internal/device"
	"sagecomm/internal/engine/staged"
)

// graphLibrary is a library of floats whose calls are noted.
type graphLibrary struct{ GraphLibrary }

func (graphLibrary) Element(coll.DataType) Element { return Element{Bytes: 4} }

func (graphLibrary) Reduction(coll.ReduceOp, coll.DataType) (Reduction, bool) {
	return Reduction{Element: Element{Bytes: 4}}, true
}

func (graphLibrary) Capturer(int) (device.Capturer, error) { return &currentDevice{}, nil }

// currentDevice notes whether captures allow all calls.
type currentDevice struct {
	device.Capturer
	relaxed bool
	refuses error
}

func (d *currentDevice) Current(f func() error) error { return f() }

func (d *currentDevice) Relaxed(f func() error) error {
	if d.refuses != nil {
		return d.refuses
	}
	d.relaxed = true
	defer func() { d.relaxed = false }()
	return f()
}

// The library ends a communicator while captures of other threads allow that, or where the driver does not answer.
func TestTheEndOfACommunicatorBesideACapture(t *testing.T) {
	for _, refuses := range []error{nil, errors.New("refused")} {
		for _, abort := range []bool{false, true} {
			d, calls := &currentDevice{refuses: refuses}, 0
			end := func() { require.Equal(t, refuses == nil, d.relaxed); calls++ }
			m := &graphCaller{caller: caller{Communicator: ending{end: end}}, device: d}
			if abort {
				require.True(t, m.Abort())
			} else {
				m.Destroy()
			}
			require.Equal(t, 1, calls)
			require.False(t, d.relaxed)
		}
	}
}

type ending struct {
	Communicator
	end func()
}

func (e ending) Abort() bool { e.end(); return true }
func (e ending) Destroy()    { e.end() }

// graphs is a communicator whose abort waits until its graphs are gone.
type graphs struct {
	Communicator
	calls     [][]Call
	aborted   chan struct{}
	gone      chan struct{}
	destroyed bool
}

func (g *graphs) Do(calls []Call, _ uintptr) error {
	g.calls = append(g.calls, calls)
	return nil
}

func (g *graphs) Abort() bool {
	close(g.aborted)
	<-g.gone
	return true
}

func (g *graphs) Destroy() { g.destroyed = true }

func graphMember() (*graphCaller, *graphs) {
	g := &graphs{aborted: make(chan struct{}), gone: make(chan struct{})}
	l := graphLibrary{}
	return newGraphCaller(caller{g, l, 0, 3}, 0, l, alone).(*graphCaller), g
}

// What the ranks are not connected for is not captured: a function that all of them call, and each peer of a send or recv.
func TestCapturesOfConnectedRanks(t *testing.T) {
	m, g := graphMember()
	reduced := coll.Op{Kind: coll.AllReduce, Type: coll.Float32, In: 8, Out: 8}
	blocks := func(list ...uint64) coll.Op {
		return coll.Op{Kind: coll.AllToAll, Type: coll.Float32, In: list[0] + list[1] + list[2], Out: list[0] + list[1] + list[2], InBlocks: list, OutBlocks: list}
	}
	refused := func(op coll.Op) {
		t.Helper()
		queued := len(g.calls)
		begun, err := m.Capture(op, Buffers{}, device.Stream{}, 1)
		require.ErrorIs(t, err, errNotConnected)
		require.False(t, begun)
		require.Len(t, g.calls, queued)
	}
	captured := func(op coll.Op) {
		t.Helper()
		begun, err := m.Capture(op, Buffers{}, device.Stream{}, 1)
		require.NoError(t, err)
		require.True(t, begun)
		require.True(t, m.any.Load())
	}
	refused(reduced)
	require.False(t, m.any.Load())
	require.NoError(t, m.Do(reduced, Buffers{}, 0))
	captured(reduced)
	refused(blocks(0, 4, 0))
	require.NoError(t, m.Do(blocks(0, 4, 0), Buffers{}, 0))
	captured(blocks(0, 8, 0))
	refused(blocks(0, 4, 4))
	captured(coll.Op{Kind: coll.AllReduce, Type: coll.Float32}) // nothing to do
}

// notes are what is queued in captures.
type notes struct {
	device.Capturer
	number uint64 // of the capture
	list   []string
}

func (n *notes) CaptureOf(device.Stream) (uint64, error) { return n.number, nil }
func (n *notes) NewMark() (device.Mark, error)           { return n, nil }

func (n *notes) Set(device.Stream) error    { n.list = append(n.list, "mark"); return nil }
func (n *notes) Follow(device.Stream) error { n.list = append(n.list, "follow"); return nil }

// Operations of one capture come one after the other. The first one of a capture follows nothing, also if the capture before was given up
// or its last operation was refused.
func TestOperationsOfACaptureAreInOrder(t *testing.T) {
	var n notes
	var c communicator
	put := func(err error) error {
		_, failed := c.inOrder(&n, device.Stream{}, func(number uint64) (bool, error) {
			require.Equal(t, n.number, number)
			n.list = append(n.list, "operation")
			return true, err
		})
		return failed
	}
	require.ErrorContains(t, put(nil), "the device has given the capture up")
	for _, n.number = range []uint64{7, 8} {
		n.list = nil
		require.ErrorIs(t, put(errNotConnected), errNotConnected)
		require.NoError(t, put(nil))
		require.NoError(t, put(nil))
		require.Equal(t, []string{"operation", "operation", "mark", "follow", "operation", "mark"}, n.list)
	}
}

// graphsOf counts graphs, unless the driver does not tell of their end.
type graphsOf struct {
	device.Capturer
	untold error
	live   atomic.Int64
	number uint64 // of the capture when it is asked for
}

func (g *graphsOf) NewGraphCount() device.GraphCount { return g }
func (g *graphsOf) Live() int                        { return int(g.live.Load()) }

func (g *graphsOf) CaptureOf(device.Stream) (uint64, error) { return g.number, nil }

func (g *graphsOf) Add(device.Stream) error {
	if g.untold == nil {
		g.live.Add(1)
	}
	return g.untold
}

// A graph has operations of the engine until it is destroyed.
func TestGraphsThatAreDestroyed(t *testing.T) {
	e, other := &Engine{}, &Engine{}
	e.without = other
	first, second := &communicator{engine: e}, &communicator{engine: e}
	var one, two graphsOf
	require.Equal(t, Graphs{}, e.Graphs())
	nothing := func() (bool, error) { return true, nil }
	for _, on := range []struct {
		c      *communicator
		graphs *graphsOf
	}{{first, &one}, {first, &one}, {second, &two}} {
		begun, err := on.c.counting(on.graphs, device.Stream{}, 7, nothing)
		require.True(t, begun)
		require.NoError(t, err)
	}
	for _, left := range [][2]int{{2, 0}, {0, 1}, {0, 0}} {
		one.live.Store(int64(left[0]))
		two.live.Store(int64(left[1]))
		require.Equal(t, Graphs{Live: left[0] + left[1]}, e.Graphs())
		require.Equal(t, left[0] > 0, first.hasGraphs(), "those of another communicator are none of it")
		require.Equal(t, left[1] > 0, second.hasGraphs())
	}
	second.graphs.capturing.Add(1)
	require.True(t, second.hasGraphs(), "it may not be counted yet")
	require.False(t, first.hasGraphs())
}

// A graph whose end the driver does not tell has operations for ever, if one has begun, and none if the capture was given up.
func TestGraphsWhoseEndIsNotTold(t *testing.T) {
	untold := errors.New("not told")
	for _, c := range []struct {
		number   uint64
		begins   bool
		err      error
		want     error
		uncounts bool
	}{
		{7, true, nil, nil, true},
		{7, true, untold, untold, true},
		{7, false, errNotConnected, errNotConnected, false},
		{0, true, nil, errGivenUp, false},
	} {
		e := &Engine{}
		of := &communicator{engine: e}
		_, err := of.counting(&graphsOf{untold: untold, number: c.number}, device.Stream{}, 7, func() (bool, error) { return c.begins, c.err })
		require.ErrorIs(t, err, c.want)
		require.Equal(t, Graphs{Uncounted: c.uncounts}, e.Graphs())
		require.Equal(t, c.uncounts, of.hasGraphs())
		require.False(t, (&communicator{engine: e}).hasGraphs())
		require.Equal(t, e.Graphs(), (&Engine{without: e}).Graphs())
	}
}

// A communicator that graphs use is not destroyed, and its abort does not wait for their end for ever.
func TestTheEndOfACommunicatorWithGraphs(t *testing.T) {
	m, g := graphMember()
	m.any.Store(true)
	require.False(t, m.Abort())
	<-g.aborted
	close(g.gone)

	m, g = graphMember()
	close(g.gone)
	require.True(t, m.Abort())
	m.Destroy()
	require.True(t, g.destroyed)
}

// A communicator whose graphs are gone ends in peace.
func TestTheEndOfACommunicatorWhoseGraphsAreGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, g := graphMember()
		m.any.Store(true)
		began := time.Now()
		m.group.hasGraphs = func() bool { return time.Since(began) < graphsLinger/5 }
		m.group.exits = func() bool { return false }
		m.Destroy()
		require.True(t, g.destroyed)
		require.InDelta(t, graphsLinger/5, time.Since(began), float64(graphsLinger)/20)

		m, g = graphMember()
		m.any.Store(true)
		m.group.hasGraphs = func() bool { return false }
		close(g.gone)
		require.True(t, m.Abort())
	})
}

// A communicator with graphs ends after a bound, since graphs of this rank may be running. The end of the process does not wait for those, but
// for peers that have not left: their graphs may need what this process does for them. Nobody waits for objects of graphs.
func TestAProcessLingersForGraphsOfPeers(t *testing.T) {
	for name, c := range map[string]struct{ left, exits, want time.Duration }{
		"peers leave":                      {graphsLinger / 2, 0, graphsLinger / 2},
		"peers have left":                  {0, 0, 0},
		"peers stay":                       {time.Hour, 0, graphsLinger},
		"the process goes on":              {0, time.Hour, graphsLinger},
		"the process goes on for a moment": {0, graphsLinger / 2, graphsLinger / 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				group := alone
				group.Left = func() bool { return time.Since(began) >= c.left }
				p := NewPool()
				others := staged.New(nil, nil, 0, 2, staged.NewPool(), nil)
				e := New(Calls(nil), group, others, others, p, nil)
				m, g := graphMember()
				defer close(g.gone) // the graphs outlive it
				m.group = e.group
				m.group.hasGraphs = func() bool { return true }
				m.any.Store(true)
				of := &communicator{engine: e, joined: m, ended: make(chan struct{}), stop: make(chan struct{}), current: func(f func() error) error { return f() }}
				of.down()
				var process sync.WaitGroup
				process.Go(func() {
					time.Sleep(c.exits)
					p.Wait()
					require.InDelta(t, max(c.want, c.exits), time.Since(began), float64(graphsLinger)/10)
				})
				<-g.aborted
				require.InDelta(t, c.want, time.Since(began), float64(graphsLinger)/10)
				<-of.ended
				require.False(t, g.destroyed)
				process.Wait()
			})
		})
	}
}
