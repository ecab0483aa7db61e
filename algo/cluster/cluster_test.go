package cluster

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sagecomm/algo/sendrecv"
	"sagecomm/internal/coll"
)

func TestDescriptionsAreReadWithDefaults(t *testing.T) {
	got, err := Parse([]byte(`{"hosts": 2, "ranks_per_host": 4, "inside": "shared_memory", "between": "tcp_25g"}`))
	require.NoError(t, err)
	if got.NICs != 4 || got.HostsPerSwitch != 2 || got.Oversubscription != 1 || got.Reduce != DefaultReduce ||
		got.Copy != DefaultCopy || got.Capacity != DefaultCapacity || got.Ranks() != 8 {
		t.Errorf("%+v, expected the defaults", got)
	}
	for _, name := range KnownLinks() {
		if err := known[name].check(name); err != nil {
			t.Error(err)
		}
	}
}

// A description written for an earlier version calls channels in shared memory "ring".
func TestEarlierNamesOfLinksAreRead(t *testing.T) {
	got, err := Parse([]byte(`{"hosts": 1, "ranks_per_host": 4, "inside": "ring"}`))
	require.NoError(t, err)
	if link, _ := got.link("inside", got.Inside); link != known["shared_memory"] {
		t.Errorf("%+v, expected the link shared_memory", link)
	}
}

func TestExamplesAreRead(t *testing.T) {
	for _, name := range []string{"512x8", "4x8-tcp"} {
		text, err := os.ReadFile("../../examples/clusters/" + name + ".json")
		require.NoError(t, err)
		if c, err := Parse(text); err != nil || c.Name == "" {
			t.Errorf("%s: %+v, %v", name, c, err)
		}
	}
}

func TestErrorsSayWhatAndWhere(t *testing.T) {
	rest := `"ranks_per_host": 4, "inside": "shared_memory", "between": "tcp_25g"`
	for _, c := range []struct{ text, where, what string }{
		{`{"hosts": 2`, "byte", "unexpected EOF"},
		{`{"hosts": 2,]`, "byte 13", "invalid character"},
		{`{"hosts": "two", ` + rest + `}`, "hosts", "string, expected int"},
		{`{"host": 2, ` + rest + `}`, "byte", `unknown field "host"`},
		{`{"hosts": 2, ` + rest + `} {}`, "byte", "something follows"},
		{`{"hosts": 0, ` + rest + `}`, "hosts", "0, expected 1 to 65536"},
		{`{"hosts": 65536, ` + rest + `}`, "ranks_per_host", "4, expected 1 to 1"},
		{`{"hosts": 2, "nics_per_host": 3, ` + rest + `}`, "nics_per_host",
			"3, expected a divisor of ranks_per_host, which is 4"},
		{`{"hosts": 4, "hosts_per_switch": 3, ` + rest + `}`, "hosts_per_switch",
			"3, expected a divisor of hosts, which is 4"},
		{`{"hosts": 4, "hosts_per_switch": 2, "oversubscription": 0.5, ` + rest + `}`, "oversubscription",
			"0.5, expected at least 1"},
		{`{"hosts": 4, "oversubscription": 2, ` + rest + `}`, "oversubscription", "give hosts_per_switch"},
		{`{"hosts": 4, "channel_messages": -1, ` + rest + `}`, "channel_messages", "-1, expected 1 to"},
		{`{"hosts": 4, "reduce_gb_per_s": -1, ` + rest + `}`, "reduce_gb_per_s", "-1 GB/s"},
		{`{"hosts": 4, "copy_gb_per_s": 1e9, ` + rest + `}`, "copy_gb_per_s", "1e+09 GB/s"},
		{`{"hosts": 1, "ranks_per_host": 4, "inside": "rong"}`, "inside",
			`"rong"; there are nvlink, pcie, rdma_200g, rdma_400g, shared_memory, tcp_100g`},
		{`{"hosts": 2, "ranks_per_host": 4, "inside": "shared_memory"}`, "between", `no link is called ""`},
		{`{"hosts": 2, "links": {"a": {"latency_us": -1, "gb_per_s": 1}}, ` + rest + `}`, "links.a.latency_us", "-1"},
		{`{"hosts": 2, "links": {"a": {"step_us": -1, "gb_per_s": 1}}, ` + rest + `}`, "links.a.step_us", "-1"},
		{`{"hosts": 2, "links": {"a": {}}, ` + rest + `}`, "links.a.gb_per_s", "0 GB/s"},
		{`{"hosts": 2, "links": {"a": {"gb_per_s": 1, "nic_gb_per_s": -1}}, ` + rest + `}`, "links.a.nic_gb_per_s",
			"-1 GB/s"},
	} {
		_, err := Parse([]byte(c.text))
		var e *Error
		if !errors.As(err, &e) || !strings.HasPrefix(e.Where, c.where) || !strings.Contains(err.Error(), c.what) {
			t.Errorf("%s: %v, expected %s: %s", c.text, err, c.where, c.what)
		}
	}
}

// named returns the prediction of an algorithm in a list.
func named(t *testing.T, list []Prediction, name string) Prediction {
	t.Helper()
	i := slices.IndexFunc(list, func(p Prediction) bool { return p.Algorithm == name })
	if i < 0 {
		t.Fatalf("no %s in %+v", name, list)
	}
	return list[i]
}

func TestTheFastestComesFirst(t *testing.T) {
	c := described(t, "nvlink", "rdma_400g", 8, 8)
	for kind := range kinds {
		list := c.Predict(kind, 100_000, Either)
		if len(list) != len(sendrecv.Algorithms(kind)) {
			t.Errorf("%v: %d predictions", kind, len(list))
		}
		for i, p := range list {
			if p.Why != "" || p.Method != Played || i > 0 && p.Seconds < list[i-1].Seconds {
				t.Errorf("%v: %+v", kind, p)
			}
		}
	}
	// For 8 bytes steps count, for many bytes the bytes between hosts.
	if first := c.Predict(coll.AllReduce, 8, Either)[0].Algorithm; first != sendrecv.RecursiveDoubling &&
		first != sendrecv.RecursiveMultiplying {
		t.Errorf("8 bytes: %s", first)
	}
	// Halving begins with the nearest ranks, so on such hosts it does the same as a hierarchical all-reduce.
	for _, p := range c.Predict(coll.AllReduce, 100_000_000, Either)[:2] {
		if p.Algorithm != sendrecv.Hierarchical && p.Algorithm != sendrecv.Rabenseifner {
			t.Errorf("100 MB: %+v", p)
		}
	}
}

// If nothing but the link takes time, the bus bandwidth is the rate of the link.
func TestBusBandwidthIsThatOfTheLink(t *testing.T) {
	c := described(t, "shared_memory", "", 1, 8)
	c.Links = map[string]Link{"fast": {Rate: 10}}
	c.Inside, c.Reduce, c.Copy = "fast", 1e6, 1e6
	for _, kind := range []coll.Kind{coll.AllReduce, coll.AllGather, coll.ReduceScatter} {
		if p := c.One(kind, sendrecv.Ring, 80_000_000, Played); p.Bus < 9.9 || p.Bus > 10.01 {
			t.Errorf("%v: %+v", kind, p)
		}
	}
	if p := c.One(coll.Broadcast, sendrecv.Chain, 80_000_000, Played); p.Bus < 9.5 || p.Bus > 10.01 || p.Chunk == 0 {
		t.Errorf("chain: %+v, expected a bus bandwidth of about 10 GB/s in several chunks", p)
	}
	if p := c.One(coll.Barrier, sendrecv.Dissemination, 8, Played); p.Bus != 0 || p.Bytes != 0 {
		t.Errorf("barrier: %+v, expected no bytes", p)
	}
}

func TestRanksWaitForWhatTheyShare(t *testing.T) {
	seconds := func(numbers ...float64) float64 {
		c := described(t, "nvlink", "rdma_400g", numbers...)
		c.Reduce = 1000
		return c.One(coll.AllReduce, sendrecv.Hierarchical, 100_000_000, Played).Seconds
	}
	own, shared, switched := seconds(16, 8), seconds(16, 8, 1), seconds(16, 8, 8, 4, 8)
	if shared < 3*own || switched < 3*own/2 {
		t.Errorf("%g s with a NIC for each rank, %g s with one for each host, %g s with a switch that passes an eighth",
			own, shared, switched)
	}
}

func TestWhatEachMethodIsFor(t *testing.T) {
	large := described(t, "nvlink", "rdma_400g", 8192, 8)
	if p := large.One(coll.AllReduce, sendrecv.Ring, 100_000_000, Either); p.Method != Closed || p.Messages != 2*65535 ||
		p.Seconds <= 0 {
		t.Errorf("ring on a large cluster: %+v, expected a closed form", p)
	}
	// Without a closed form, short plans are played even on large clusters.
	if p := large.One(coll.Reduce, sendrecv.DoubleTree, 8, Either); p.Method != Played || p.Seconds <= 0 {
		t.Errorf("double tree on a large cluster: %+v, expected a play", p)
	}
	p := large.One(coll.AllToAll, sendrecv.Pairwise, 8, Played)
	if p.Why == "" || !strings.Contains(p.Why, "steps in all chunks") || p.Seconds != 0 || p.Method != Either {
		t.Errorf("too many steps: %+v, expected a reason and no time", p)
	}
	long := described(t, "shared_memory", "tcp_25g", 1500, 2)
	p = long.One(coll.Broadcast, sendrecv.ScatterAllGather, 8, Played)
	if !strings.Contains(p.Why, "too long to be built") {
		t.Errorf("too long plans: %+v, expected a reason", p)
	}
	both := described(t, "shared_memory", "tcp_100g", 8192, 8, 1).One(coll.AllToAll, sendrecv.Pairwise, 8, Either)
	if !strings.Contains(both.Why, "no closed form") || !strings.Contains(both.Why, "; ") {
		t.Errorf("neither method holds: %+v, expected both reasons", both)
	}
	if p := large.One(coll.AllReduce, sendrecv.Ring, 1<<62, Either); !strings.Contains(p.Why, "bytes, expected at most") {
		t.Errorf("too many bytes: %+v, expected a reason", p)
	}
	if p := large.One(coll.AllReduce, "no such", 8, Either); !strings.Contains(p.Why, "unknown algorithm") ||
		!strings.Contains(p.Why, "none is implemented") {
		t.Errorf("unknown algorithm: %+v, expected a reason", p)
	}
	list := large.Predict(coll.AllReduce, 100_000_000, Closed)
	if last := list[len(list)-1]; last.Why == "" || named(t, list, sendrecv.Hierarchical).Method != Closed {
		t.Errorf("%+v: expected a closed form of hierarchical, and algorithms without one last", list)
	}
}

// Closed forms refuse clusters and algorithms for which they do not hold, with a reason.
func TestClosedFormsSayWhereTheyDoNotHold(t *testing.T) {
	for _, c := range []struct {
		of        *Cluster
		kind      coll.Kind
		algorithm string
		what      string
	}{
		{described(t, "shared_memory", "tcp_25g", 4, 3), coll.AllReduce, sendrecv.Binomial, "hosts have a power of two"},
		{described(t, "shared_memory", "tcp_25g", 3, 4), coll.AllReduce, sendrecv.RecursiveDoubling, "paired with neighbours"},
		{described(t, "shared_memory", "", 1, 5), coll.AllReduce, sendrecv.RecursiveMultiplying, "come late"},
		{described(t, "shared_memory", "tcp_25g", 4, 4), coll.AllReduce, sendrecv.RecursiveMultiplying, "inside hosts and between"},
		{described(t, "shared_memory", "tcp_25g", 4, 4), coll.AllReduce, sendrecv.Ring, "a ring through 4 hosts"},
		{described(t, "shared_memory", "tcp_25g", 4, 4), coll.AllReduce, sendrecv.Torus, "rings through 1 host"},
		{described(t, "shared_memory", "tcp_25g", 9, 16), coll.AllReduce, sendrecv.Torus, "rings through"},
		{described(t, "shared_memory", "tcp_25g", 64, 2, 2, 4, 2), coll.AllReduce, sendrecv.Torus, ""},
		{described(t, "shared_memory", "tcp_25g", 90, 1), coll.AllReduce, sendrecv.Torus, ""},
		{described(t, "shared_memory", "tcp_25g", 12, 1, 1, 3, 2), coll.AllReduce, sendrecv.Torus, "behind switches"},
		{described(t, "shared_memory", "tcp_25g", 576, 7), coll.AllReduce, sendrecv.Torus, "inside hosts"},
		{described(t, "shared_memory", "tcp_25g", 12, 4, 4, 4, 2), coll.AllReduce, sendrecv.Hierarchical, "behind other switches"},
		{described(t, "shared_memory", "tcp_25g", 12, 4, 4, 6, 2), coll.AllReduce, sendrecv.Hierarchical, "switches of powers of two"},
		{described(t, "shared_memory", "tcp_25g", 16, 4, 4, 4, 2), coll.AllGather, sendrecv.Bruck, "go to several at once"},
		{described(t, "shared_memory", "tcp_25g", 4, 4), coll.AllGather, sendrecv.Bruck, "a circle through"},
		{described(t, "shared_memory", "tcp_25g", 16, 4, 2), coll.AllGather, sendrecv.Bruck, "by the same NIC"},
		{described(t, "shared_memory", "tcp_25g", 16, 4, 4, 4, 2), coll.AllGather, sendrecv.RecursiveDoubling,
			"grow from round to round"},
		{described(t, "shared_memory", "tcp_25g", 16, 4, 4, 4, 5), coll.AllGather, sendrecv.Hierarchical, "one host alone"},
		{described(t, "shared_memory", "tcp_25g", 4, 4), coll.AllGather, sendrecv.Ring, "a ring through"},
		{described(t, "shared_memory", "tcp_25g", 4, 4), coll.ReduceScatter, sendrecv.Ring, "a ring through"},
		{described(t, "shared_memory", "tcp_25g", 4, 4), coll.AllToAll, sendrecv.Pairwise, "some of them inside"},
		{described(t, "shared_memory", "tcp_25g", 64, 4, 2), coll.AllToAll, sendrecv.Pairwise, "wait for different numbers"},
		{described(t, "shared_memory", "tcp_25g", 4, 4), coll.AllToAll, sendrecv.Direct, "one after the other"},
		{described(t, "shared_memory", "tcp_25g", 16, 4, 4, 4, 2), coll.AllToAll, sendrecv.Hierarchical, "go to several at once"},
		{described(t, "shared_memory", "tcp_25g", 4, 4), coll.Reduce, sendrecv.ScatterGather, "a ring through"},
		{described(t, "shared_memory", "tcp_25g", 16, 4, 4, 4, 2), coll.Gather, sendrecv.Direct, "in another order"},
		{described(t, "shared_memory", "tcp_25g", 16, 4), coll.AllReduce, sendrecv.DoubleTree, "two trees"},
	} {
		p := c.of.one(c.of.plans(c.kind, c.algorithm), 1000, wholeChunk(1000), Closed)
		if c.what == "" && p.Why != "" || !strings.Contains(p.Why, c.what) {
			t.Errorf("%v %s of %+v: %+v, expected %s", c.kind, c.algorithm, *c.of, p, c.what)
		}
	}
	chain := func(hosts float64, bytes uint64, chunk int) string {
		c := described(t, "shared_memory", "tcp_25g", hosts, 4)
		return c.one(c.plans(coll.Broadcast, sendrecv.Chain), bytes, chunk, Closed).Why
	}
	if why := chain(16, 300, 128); !strings.Contains(why, "3 chunks are no pipeline") {
		t.Error(why)
	}
	if why := chain(4, 1000, 64); !strings.Contains(why, "a chain through 4 hosts") {
		t.Error(why)
	}
}

func TestQuestionsAreAnswered(t *testing.T) {
	description := `"{\"hosts\": 8, \"ranks_per_host\": 2, \"inside\": \"ring\", \"between\": \"tcp_25g\", ` +
		`\"hosts_per_switch\": 4, \"oversubscription\": 2}"`
	for _, c := range []struct{ text, what string }{
		{`{"cluster": ` + description + `, "op": "all_reduce", "bytes": 8}`, `"ranks":16,"predictions":[{"algorithm":"`},
		{`{"cluster": ` + description + `, "op": "all_reduce", "bytes": 8, "hosts": 2}`,
			`"ranks":4,"predictions":[{"algorithm":"`},
		{`{"cluster": ` + description + `, "op": "barrier", "method": "closed form"}`, `"method":"closed form"`},
		{`{"cluster": ` + description + `, "op": "send"}`,
			`{"bytes":0,"error":"op: send: expected one of all_reduce, broadcast,`},
		{`{"cluster": ` + description + `, "op": "barrier", "method": "guess"}`, `"error":"method: guess: expected`},
		{`{"cluster": ` + description + `, "op": "barrier", "hosts": -1}`, `"error":"cluster: hosts: -1, expected`},
		{`{"cluster": "{", "op": "barrier"}`, `"error":"cluster: byte`},
		{`{"cluster": 5}`, `"error":"json: cannot unmarshal`},
	} {
		if got, err := Answer([]byte(c.text)); err != nil || !strings.Contains(string(got), c.what) {
			t.Errorf("%s: %s (%v), expected %s", c.text, got, err, c.what)
		}
	}
}
