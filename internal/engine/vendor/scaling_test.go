package vendor

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/coll"
	"sagecomm/internal/device"
	"sagecomm/internal/runner"
)

// sums is a method that has SUM of float types, and nothing else.
type sums struct{ Method }

func (sums) Name() string { return "sums" }
func (sums) Supports(op coll.Op) bool {
	return !op.Kind.Reduces() || op.Reduce == coll.Sum && op.Type != coll.Float64
}

// scaler is a device whose framework multiplies and divides, unless it is an older one.
type scaler struct {
	*commands
	older bool
}

func (s *scaler) Scales() bool { return !s.older }
func (s *scaler) Multiply(on device.Stream, t coll.DataType, pieces []device.Piece, factor float64) (uintptr, error) {
	return 500, s.add("%v of %v times %v in %d", pieces, t, factor, on.Handle)
}
func (s *scaler) Divide(on device.Stream, t coll.DataType, pieces []device.Piece, divisor float64) error {
	return s.add("%v of %v by %v in %d", pieces, t, divisor, on.Handle)
}

func scalingCommunicator(t *testing.T, rank, size int) *communicator {
	c, _ := communicatorOn(t, NewPool(), nil)
	c.engine.method, c.scales = sums{}, true
	c.engine.group.Rank, c.engine.group.Size = rank, size
	return c
}

// Averages of integers and of booleans, types without a SUM, and reductions of another kind stay with the staged engine. So do all where the
// framework of a rank has no kernels.
func TestWhatIsScaled(t *testing.T) {
	c := scalingCommunicator(t, 0, 3)
	for d := range coll.DataTypeCount {
		for how := range coll.ReduceOpCount {
			op := coll.Op{Kind: coll.AllReduce, Type: d, Reduce: how}
			float := d == coll.Float16 || d == coll.BFloat16 || d == coll.Float32 || d == coll.Complex64 || d == coll.Complex128
			scaled := float && (how == coll.Avg || how == coll.PremulSum)
			require.Equal(t, scaled || how == coll.Sum && d != coll.Float64, c.carries(op), "%v of %v", how, d)
			require.Equal(t, scaled, c.isScaled(op), "%v of %v", how, d)
		}
	}
	c.scales = false
	require.False(t, c.carries(coll.Op{Kind: coll.AllReduce, Type: coll.Float32, Reduce: coll.Avg}))
	require.True(t, c.carries(coll.Op{Kind: coll.Broadcast, Type: coll.Float32, Reduce: coll.Avg}))
}

// A factor multiplies the input in front of the method's commands, and the number of ranks divides the output behind them, where there is
// one: segments without bytes are left out. Other operations have no kernels of the framework.
func TestKernelsBesideASum(t *testing.T) {
	in := []runner.Segment{{Data: 100, Bytes: 8}, {Data: 0, Bytes: 0}, {Data: 200, Bytes: 16}}
	out := []runner.Segment{{Data: 300, Bytes: 24}}
	product := []runner.Segment{{Data: 500, Bytes: 24}}
	on := device.Stream{Handle: 7}
	for name, of := range map[string]struct {
		op      coll.Op
		rank    int
		read    []runner.Segment
		out     []runner.Segment
		kernels []string
	}{
		"average":         {coll.Op{Kind: coll.AllReduce, Type: coll.BFloat16, Reduce: coll.Avg}, 1, in, out, []string{"[{300 24}] of bfloat16 by 3 in 7"}},
		"complex":         {coll.Op{Kind: coll.AllReduce, Type: coll.Complex64, Reduce: coll.Avg}, 1, in, out, []string{"[{300 24}] of float32 by 3 in 7"}},
		"factor":          {coll.Op{Kind: coll.ReduceScatter, Type: coll.Float32, Reduce: coll.PremulSum, Factor: 0.3}, 0, product, out, []string{"[{100 8} {200 16}] of float32 times 0.3 in 7"}},
		"factor 1":        {coll.Op{Kind: coll.AllReduce, Type: coll.Float32, Reduce: coll.PremulSum, Factor: 1}, 0, in, out, nil},
		"root":            {coll.Op{Kind: coll.Reduce, Type: coll.Float32, Reduce: coll.Avg, Root: 2}, 2, in, out, []string{"[{300 24}] of float32 by 3 in 7"}},
		"another root":    {coll.Op{Kind: coll.Reduce, Type: coll.Float32, Reduce: coll.Avg, Root: 2}, 1, in, out, nil},
		"factor of peers": {coll.Op{Kind: coll.Reduce, Type: coll.Float32, Reduce: coll.PremulSum, Factor: 2, Root: 2}, 1, product, nil, []string{"[{100 8} {200 16}] of float32 times 2 in 7"}},
		"no output":       {coll.Op{Kind: coll.AllReduce, Type: coll.Float32, Reduce: coll.Avg}, 0, in, nil, nil},
		"sum":             {coll.Op{Kind: coll.AllReduce, Type: coll.Float32, Reduce: coll.Sum}, 0, in, out, nil},
	} {
		t.Run(name, func(t *testing.T) {
			c, rt := scalingCommunicator(t, of.rank, 3), &scaler{commands: &commands{}}
			require.NoError(t, c.lacksScaler(of.op, rt))
			s := c.scalingOf(of.op, rt)
			require.Equal(t, coll.Sum, s.op.Reduce)
			read, err := s.before(on, in)
			require.NoError(t, err)
			require.Equal(t, of.read, read)
			require.NoError(t, s.behind(on, of.out))
			require.Equal(t, of.kernels, rt.list)
		})
	}
}

// A framework that refuses a kernel is an error, in front of the method's commands and behind them.
func TestAFrameworkThatLacksAKernel(t *testing.T) {
	segments := []runner.Segment{{Data: 100, Bytes: 8}}
	for _, op := range []coll.Op{
		{Kind: coll.AllReduce, Type: coll.Float32, Reduce: coll.Avg},
		{Kind: coll.AllReduce, Type: coll.Float32, Reduce: coll.PremulSum, Factor: 2},
	} {
		c, rt := scalingCommunicator(t, 0, 3), &scaler{commands: &commands{fails: 1}}
		s := c.scalingOf(op, rt)
		_, before := s.before(device.Stream{}, segments)
		behind := s.behind(device.Stream{}, segments)
		require.Equal(t, op.Reduce == coll.PremulSum, before != nil)
		require.Equal(t, op.Reduce == coll.Avg, behind != nil)
	}
}

// A rank whose caller has no kernels may not issue what all ranks have found out to scale.
func TestACallWithoutKernels(t *testing.T) {
	c := scalingCommunicator(t, 0, 3)
	average := coll.Op{Kind: coll.AllReduce, Type: coll.Float32, Reduce: coll.Avg}
	for _, rt := range []device.Launcher{&commands{}, &scaler{commands: &commands{}, older: true}} {
		require.ErrorContains(t, c.lacksScaler(average, rt), "a framework without kernels")
		require.NoError(t, c.lacksScaler(coll.Op{Kind: coll.AllReduce, Type: coll.Float32}, rt))
	}
}

// The user is told once for each kind of reduction that it goes through host memory, and why.
func TestWhatGoesThroughHostMemoryIsTold(t *testing.T) {
	const all = " goes through host memory and not through sums: "
	for want, of := range map[string]struct {
		op     coll.Op
		scales bool
	}{
		"all_reduce with AVG of int32" + all + "averages of integers are truncated on the host":                                                      {coll.Op{Kind: coll.AllReduce, Type: coll.Int32, Reduce: coll.Avg}, true},
		"reduce with MAX of float32" + all + "it has no such reduction":                                                                              {coll.Op{Kind: coll.Reduce, Type: coll.Float32, Reduce: coll.Max}, true},
		"all_reduce with AVG of float64" + all + "it has no such reduction":                                                                          {coll.Op{Kind: coll.AllReduce, Type: coll.Float64, Reduce: coll.Avg}, true},
		"reduce_scatter with AVG of float32" + all + "it has no such reduction, and the framework of a rank has no kernels that multiply and divide": {coll.Op{Kind: coll.ReduceScatter, Type: coll.Float32, Reduce: coll.Avg}, false},
	} {
		c := scalingCommunicator(t, 0, 3)
		c.scales = of.scales
		var told []string
		c.engine.group.Info = func(text string) { told = append(told, text) }
		require.False(t, c.carries(of.op))
		for range 3 {
			c.tellOfHost(of.op)
			c.tellOfHost(coll.Op{Kind: coll.AllGather})
		}
		require.Len(t, told, 1)
		require.Contains(t, told[0], want)
	}
}

// The ranks scale if all of them have kernels.
func TestAllRanksScaleOrNone(t *testing.T) {
	for _, other := range []bool{true, false} {
		c, _ := communicatorOn(t, NewPool(), nil)
		c.engine.method = &slowJoin{joins: joins{member: &noted{}}, goOn: closed()}
		c.engine.group.Timeout = func() time.Duration { return time.Minute }
		c.engine.group.Exchange = func(purpose string, mine []byte) ([][]byte, error) {
			if purpose == "devices for joins" {
				return [][]byte{mine, []byte(fmt.Sprintf(`{"scales": %v}`, other))}, nil
			}
			return [][]byte{mine, mine}, nil
		}
		_, _, err := c.engine.join(c, Seat{Scales: true}, false)
		require.NoError(t, err)
		require.Equal(t, other, c.scales)
	}
}

func closed() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}
