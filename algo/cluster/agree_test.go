package cluster

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"sagecomm/algo/plan"
	"sagecomm/algo/sendrecv"
	"sagecomm/internal/coll"
)

// described returns a cluster. The numbers are hosts, ranks of a host, NICs, hosts behind a switch and
// oversubscription; 0 means the default.
func described(t testing.TB, inside, between string, numbers ...float64) *Cluster {
	t.Helper()
	n := append(numbers, 0, 0, 0)
	c := Cluster{
		Hosts: int(n[0]), RanksPerHost: int(n[1]), Inside: inside, Between: between,
		NICs: int(n[2]), HostsPerSwitch: int(n[3]), Oversubscription: n[4],
	}
	c.fill()
	require.NoError(t, c.check())
	return &c
}

// clusters returns clusters of one host, of hosts of one rank, and of hosts of several ranks with NICs of their own or
// shared ones, behind one switch or several.
func clusters(t testing.TB) (list []*Cluster) {
	for _, ranks := range []float64{1, 2, 3, 5, 8, 13, 33, 64} {
		list = append(list, described(t, "shared_memory", "", 1, ranks), described(t, "nvlink", "", 1, ranks),
			described(t, "shared_memory", "tcp_25g", ranks, 1))
	}
	for _, hosts := range []float64{2, 3, 4, 8, 16} {
		list = append(list, described(t, "nvlink", "rdma_400g", hosts, 8), described(t, "shared_memory", "tcp_25g", hosts, 4),
			described(t, "nvlink", "rdma_400g", hosts, 8, 2), described(t, "shared_memory", "tcp_100g", hosts, 8, 1))
	}
	return append(list, described(t, "nvlink", "rdma_400g", 8, 8, 4, 4, 2),
		described(t, "nvlink", "rdma_400g", 16, 8, 4, 4, 2),
		described(t, "nvlink", "rdma_400g", 32, 4), described(t, "pcie", "tcp_100g", 32, 4, 2),
		described(t, "pcie", "rdma_200g", 32, 4, 2, 8, 4))
}

// kinds maps each collective to whether it has a block for each rank.
var kinds = map[coll.Kind]bool{
	coll.AllReduce: false, coll.Broadcast: false, coll.Reduce: false, coll.Barrier: false,
	coll.AllGather: true, coll.ReduceScatter: true, coll.AllToAll: true, coll.Gather: true, coll.Scatter: true,
}

const tolerance = 0.05

// apart returns the difference between the closed form and the play, in time and in bytes, or the reason why they cannot be
// compared.
func apart(c *Cluster, of *plans, bytes uint64, chunk int) (got, want Prediction, far string) {
	if got = c.one(of, bytes, chunk, Closed); got.Why != "" {
		return got, want, ""
	}
	want = c.one(of, bytes, chunk, Played)
	off := func(a, b float64) bool { return math.Abs(a-b) > tolerance*b }
	const rounding = 2e-9 // plays are rounded up to nanoseconds
	// Formulas of bytes assume pieces of equal length, so they hold for buffers of many units for each rank.
	exact := kinds[of.kind] || bytes > uint64(100*c.Ranks()*plan.Unit)
	switch {
	case want.Why != "":
	case math.Abs(got.Seconds-want.Seconds) > rounding && off(got.Seconds, want.Seconds):
		far = fmt.Sprintf("%.4g s, played %.4g s", got.Seconds, want.Seconds)
	case got.Messages != want.Messages:
		far = fmt.Sprintf("%d messages, played %d", got.Messages, want.Messages)
	case exact && off(float64(got.Bytes), float64(want.Bytes)):
		far = fmt.Sprintf("%d bytes, played %d", got.Bytes, want.Bytes)
	}
	return got, want, far
}

func TestClosedFormsAgreeWithPlays(t *testing.T) {
	for kind, blocks := range kinds {
		lengths := []uint64{8, 65536, 100_000_000}
		if blocks {
			lengths[2] = 1_000_000
		}
		if kind == coll.Barrier {
			lengths = lengths[:1]
		}
		for _, name := range sendrecv.Algorithms(kind) {
			t.Run(fmt.Sprintf("%v/%s", kind, name), func(t *testing.T) {
				t.Parallel()
				agree(t, kind, name, lengths)
			})
		}
	}
}

// agree compares the closed form of an algorithm with plays, on all clusters.
func agree(t *testing.T, kind coll.Kind, name string, lengths []uint64) {
	t.Helper()
	compared := 0
	known := map[[2]int]*plans{} // of clusters of one shape
	for _, c := range clusters(t) {
		shape := [2]int{c.Hosts, c.RanksPerHost}
		if name != sendrecv.Hierarchical {
			shape = [2]int{c.Ranks()}
		}
		if known[shape] == nil {
			known[shape] = c.plans(kind, name)
		}
		for _, bytes := range lengths {
			chunks := []int{wholeChunk(bytes)}
			for chunk := firstChunk(bytes); pipelined[name] && chunk >= leastChunk && uint64(chunk)*500 > bytes; chunk /= 4 {
				chunks = append(chunks, chunk)
			}
			for _, chunk := range chunks {
				got, want, far := apart(c, known[shape], bytes, chunk)
				if got.Why == "" && want.Why == "" {
					compared++
				}
				if far != "" {
					t.Errorf("%v %s, %d bytes in chunks of %d, %+v: %s", kind, name, bytes, chunk, *c, far)
				}
			}
		}
	}
	if _, has := formulas[kind][name]; has && compared < len(lengths) && name != sendrecv.DoubleTree {
		t.Errorf("%v %s was compared %d times", kind, name, compared)
	}
}

// Closed forms agree with plays on a cluster of 512 hosts of 8 ranks as well.
func TestClosedFormsAgreeWithPlaysOfThousands(t *testing.T) {
	if testing.Short() {
		t.Skip("half a minute under the race detector")
	}
	list := []*Cluster{described(t, "nvlink", "rdma_400g", 512, 8, 4),
		described(t, "nvlink", "rdma_400g", 512, 8, 8, 32, 2)}
	for _, name := range []string{sendrecv.Ring, sendrecv.RecursiveDoubling, sendrecv.Rabenseifner, sendrecv.Binomial,
		sendrecv.Hierarchical} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			of := list[0].plans(coll.AllReduce, name) // both are of one shape
			for _, c := range list {
				for _, bytes := range []uint64{8, 100_000_000} {
					if name == sendrecv.Ring && (bytes == 8 || c.Oversubscription > 1) {
						continue // it would double the time of the test
					}
					got, want, far := apart(c, of, bytes, wholeChunk(bytes))
					if got.Why != "" || want.Why != "" || far != "" {
						t.Errorf("%d bytes: %s%s%s", bytes, far, got.Why, want.Why)
					}
				}
			}
		})
	}
}

// The tolerance is small enough to reject the closed form for a link that is half as slow.
func TestAgreementIsNoticed(t *testing.T) {
	c, half := described(t, "nvlink", "rdma_400g", 8, 8), described(t, "nvlink", "rdma_200g", 8, 8)
	for _, name := range []string{sendrecv.Ring, sendrecv.Hierarchical} {
		of, chunk := c.plans(coll.AllReduce, name), wholeChunk(100_000_000)
		a, b := c.one(of, 100_000_000, chunk, Closed), half.one(of, 100_000_000, chunk, Played)
		if math.Abs(a.Seconds-b.Seconds) <= tolerance*b.Seconds {
			t.Errorf("%s: %g s and %g s", name, a.Seconds, b.Seconds)
		}
	}
}
