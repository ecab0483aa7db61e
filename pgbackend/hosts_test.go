package pgbackend

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/algo"
	"sagecomm/internal/bootstrap"
	"sagecomm/internal/coll"
	"sagecomm/internal/env"
	"sagecomm/internal/runner"
	"sagecomm/internal/transport/tcp"
	"sagecomm/tests/quick"
)

// In these tests SAGECOMM_HOSTID puts the ranks of a group on several hosts, and each rank is a process as far as links
// know.

// eachAProcess lets each rank have links of its own.
func eachAProcess(t testing.TB) {
	t.Helper()
	real := networkName
	networkName = func(g *Group) string { return fmt.Sprint(real(g), " ", g.rank) }
	t.Cleanup(func() { networkName = real })
}

// onHosts returns options that put ranks on hosts, by rank: "0011" is two hosts with two ranks each. Payloads have
// checksums, which find buffers that are used too early or too long.
func onHosts(hosts string) func(rank int) options {
	return func(rank int) options { return options{"hostid": "host " + hosts[rank:rank+1], "checksums": "always"} }
}

// newHostsWorld makes a group over several hosts. Where wires stand between some of its ranks, it has links of its own.
func newHostsWorld(t *testing.T, hosts string, wires ...*wire) *world {
	t.Helper()
	eachAProcess(t)
	if len(wires) > 0 {
		real, number := networkName, wiredWorlds.Add(1)
		networkName = func(g *Group) string { return fmt.Sprint(real(g), " wired ", number) }
	}
	w, errs := tryWorld(t, len(hosts), opTimeout, onHosts(hosts), wires...)
	for rank, err := range errs {
		require.NoError(t, err, rank)
	}
	require.True(t, w.groups[0].shape().Apart)
	return w
}

// wiredWorlds counts those whose links go through wires.
var wiredWorlds atomic.Int64

var manyHosts = []string{"01", "0011", "0123", "001", "0101", "011"}

func TestCollectivesOverHosts(t *testing.T) {
	for _, hosts := range manyHosts {
		t.Run(hosts, func(t *testing.T) {
			w := newHostsWorld(t, hosts)
			for kind := range coll.KindCount {
				if !kind.Collective() {
					continue
				}
				for i, length := range []int{0, 1, 1000, 100_000} {
					x := transfer{kind, i % len(hosts), i, equalLength(length)}
					w.each(func(g *Group) error { return g.try(x, coll.Op{}) })
				}
			}
		})
	}
}

// Groups on the same links, made one after the other and destroyed in another order.
func TestGroupsShareLinks(t *testing.T) {
	w := newHostsWorld(t, "01")
	first := w.groups[0].links.network
	again, errs := tryWorld(t, 2, opTimeout, onHosts("01"))
	require.NoError(t, errs[0])
	require.NoError(t, errs[1])
	require.Same(t, first, again.groups[0].links.network)
	w.each(func(g *Group) error { return asError(sum(g, 1000)) })
	w.each(func(g *Group) error { return g.Destroy() })
	again.each(func(g *Group) error { return asError(sum(g, 1000)) })
}

// A process that ends its links when its last group has ended costs those that it was linked to no new links for the
// groups that they make later. One that goes away before it has said goodbye does.
func TestOrderlyEndWearsNoLinks(t *testing.T) {
	quick.Skip(t, "it waits for the ends of networks, and links are as good if they are made anew")
	real := networkRest.Swap(int64(time.Millisecond))
	defer networkRest.Store(real)
	lasting := newHostsWorld(t, "01")
	own := lasting.groups[0].links.network
	for range 2 {
		w, errs := tryWorld(t, 2, opTimeout, onHosts("02"))
		require.NoError(t, errors.Join(errs...))
		require.Same(t, own, w.groups[0].links.network)
		other := w.groups[1].links.network
		w.each(func(g *Group) error { return asError(sum(g, 1000)) })
		link := w.groups[0].links.pairs[1].Link
		w.each(func(g *Group) error { return g.Destroy() })
		require.Eventually(t, func() bool { return link.Err() != nil && !hasNetwork(other) }, opTimeout, time.Millisecond)
		require.Eventually(t, func() bool { return own.node.Await(t.Context(), link.Peer(), 0) == nil }, opTimeout, time.Millisecond, "it is not forgotten")
		require.False(t, own.worn.Load())
	}
	lasting.each(func(g *Group) error { return asError(sum(g, 1000)) })
	w, errs := tryWorld(t, 2, opTimeout, onHosts("02"))
	require.NoError(t, errors.Join(errs...))
	cutOff(w, 1)
	require.Eventually(t, own.worn.Load, opTimeout, time.Millisecond)
	w.destroy()
	lasting.each(func(g *Group) error { return g.Destroy() })
	requireNoNetworks(t)
}

func hasNetwork(n *network) bool {
	p := Get()
	p.networks.mu.Lock()
	defer p.networks.mu.Unlock()
	return p.networks.all[n] || p.networks.ending[n] != nil
}

// A rank that leaves is known to have left, and memory is given back.
func TestGoodbyeOverHosts(t *testing.T) {
	w := newHostsWorld(t, "01")
	w.each(func(g *Group) error { return asError(sum(g, 100_000)) })
	require.NoError(t, w.groups[0].Destroy())
	require.NoError(t, expect(sum(w.groups[1], 10), coll.PeerFailure, "rank 0", "has left the group after collective #1"))
	require.NoError(t, w.groups[1].Destroy())
	require.Eventually(t, func() bool {
		Get().sweep()
		return w.groups[0].life.now() == freed && w.groups[1].life.now() == freed
	}, opTimeout, time.Millisecond)
}

// cutOff ends all links of a rank, as its death does. A process that makes groups again has others.
func cutOff(w *world, rank int) {
	die(w.groups[rank].links.network)
}

// die ends links as a death does. The network, which its groups cannot leave any more, does not count as one that is
// left.
func die(n *network) {
	n.worn.Store(true)
	n.node.Close()
	p := Get()
	p.networks.mu.Lock()
	defer p.networks.mu.Unlock()
	delete(p.networks.all, n)
}

// cutLast cuts the last rank off while the others are in a collective of n elements, and returns when they have one
// cause, which names it.
func cutLast(t *testing.T, w *world, n int) {
	t.Helper()
	before := w.groups[0].run.Sequence()
	w.each(func(g *Group) error { return asError(sum(g, 1000)) })
	last := len(w.groups) - 1
	survivors := w.groups[:last]
	causes := make(chan *coll.Failure, last)
	for _, g := range survivors {
		go func() { causes <- sum(g, n) }()
	}
	cutOff(w, last)
	for range survivors {
		f := <-causes
		require.NoError(t, expect(f, coll.PeerFailure, fmt.Sprintf("rank %d", last), "Connection closed by peer"))
		require.Equal(t, "all_reduce", f.Op, f.Message)
		require.Contains(t, []uint64{before + 1, before + 2}, f.Sequence, f.Message)
	}
	require.Eventually(t, func() bool {
		for _, g := range survivors {
			if f := g.Cause(); f == nil || f.Message != survivors[0].Cause().Message {
				return false
			}
		}
		return true
	}, opTimeout, time.Millisecond)
}

// The failure by the loss of a rank on another host names what the survivor is in, or what it called last: it has never
// asked that rank.
func TestLostRankAndOwnCall(t *testing.T) {
	for _, c := range []struct {
		name, op string
		sequence uint64
		before   bool                                        // a collective of both ranks
		call     func(g *Group) (runner.Work, *coll.Failure) // of the survivor
	}{
		{"is in a collective", "all_reduce", 2, true, func(g *Group) (runner.Work, *coll.Failure) { return sumAsync(g, 1000) }},
		{"is in a recv", "recv", 0, true, func(g *Group) (runner.Work, *coll.Failure) {
			return g.Issue(coll.Op{Kind: coll.Recv, Type: coll.Float32, Root: 1, Tag: 7, Async: true}, nil, one(make([]byte, 40)))
		}},
		{"is in no call", "all_reduce", 1, true, nil},
		{"has called nothing", "", 0, false, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newHostsWorld(t, "01")
			if c.before {
				w.each(func(g *Group) error { return asError(sum(g, 10)) })
			}
			g := w.groups[0]
			if c.call != nil {
				work, f := c.call(g)
				require.Nil(t, f)
				defer work.Release()
			}
			cutOff(w, 1)
			require.Eventually(t, func() bool { return g.Cause() != nil }, opTimeout, time.Millisecond)
			f := g.Cause()
			require.Equal(t, c.op, f.Op, f.Message)
			require.Equal(t, c.sequence, f.Sequence, f.Message)
			expectScenario(t, "peer", "a process of another host that dies, and this rank "+c.name, []*coll.Failure{f})
		})
	}
}

// All survivors have one cause, which names the rank that was lost, and a group that they make again works.
func TestLostLinksOverHosts(t *testing.T) {
	w := newHostsWorld(t, "0012")
	cutLast(t, w, 1000)
	w.destroy()
	for rank := range 3 { // behind the loss nobody looks for memory to free but what has noticed the loss
		require.Eventually(t, func() bool { return w.groups[rank].life.now() == freed }, opTimeout, time.Millisecond)
	}
	for range 2 {
		again, errs := tryWorld(t, 4, opTimeout, onHosts("0012"))
		for rank, err := range errs {
			require.NoError(t, err, rank)
		}
		again.each(func(g *Group) error { return asError(sum(g, 1000)) })
		again.each(func(g *Group) error { return g.Destroy() })
	}
}

// An abort reaches all ranks, which have one cause.
func TestAbortOverHosts(t *testing.T) {
	w := newHostsWorld(t, "0011")
	causes := make(chan *coll.Failure, 3)
	for rank := range 3 {
		go func() { causes <- sum(w.groups[rank], 1000) }()
	}
	w.groups[3].Abort("enough")
	for range 3 {
		require.NoError(t, expect(<-causes, coll.Aborted, "rank 3", "enough"))
	}
}

// What ranks disagree about is named with both calls, though records cross only when they are asked for.
func TestMismatchOverHosts(t *testing.T) {
	w := newHostsWorld(t, "01")
	w.each(func(g *Group) error { return asError(sum(g, 10)) })
	list := w.eachFailure(func(g *Group) *coll.Failure { return sum(g, 1000+g.rank) })
	expectAll(t, list, coll.Mismatch, "collective #2", "1000 elements", "1001 elements")
}

// So is it where no data moves between the two: each waits for the other one.
func TestMismatchWithoutDataOverHosts(t *testing.T) {
	w := newHostsWorld(t, "01")
	list := w.eachFailure(func(g *Group) *coll.Failure {
		b := make([]byte, 400)
		_, f := g.Issue(coll.Op{Kind: coll.Broadcast, Type: coll.Float32, Root: 1 - g.rank}, one(b), one(b))
		return f
	})
	expectAll(t, list, coll.Mismatch, "collective #1", "root 0", "root 1")
}

// So is it where the data of one of two calls fits into channels: the rank that has sent it waits for another one
// later.
func TestMismatchBehindDataOverHosts(t *testing.T) {
	quick.Skip(t, "ranks compare their calls once a second")
	w := newHostsWorld(t, "012")
	w.each(func(g *Group) error { return asError(sum(g, 10)) })
	list := w.eachFailure(func(g *Group) (f *coll.Failure) {
		if g.rank == 2 {
			return sum(g, 3)
		}
		for range 30 {
			var in [][]byte
			if g.rank == 1 {
				in = one(make([]byte, 3*40_000))
			}
			if _, f = g.Issue(coll.Op{Kind: coll.Scatter, Type: coll.Uint8, Root: 1}, in, one(make([]byte, 40_000))); f != nil {
				break
			}
		}
		return f
	})
	expectAll(t, list, coll.Mismatch, "collective #2", "scatter", "all_reduce")
	w.destroy()
	requireNoNetworks(t)
}

// Calls that agree are compared at any moment without harm.
func TestComparisonOfCallsOverHosts(t *testing.T) {
	real := compareEvery
	compareEvery = 100 * time.Microsecond
	defer func() { compareEvery = real }()
	eachAProcess(t)
	for _, fusion := range []string{"off", "static"} {
		w, errs := tryWorld(t, 3, opTimeout, func(rank int) options {
			o := onHosts("011")(rank)
			o["fusion"] = fusion
			return o
		})
		for _, err := range errs {
			require.NoError(t, err)
		}
		for round := range 3 {
			w.each(func(g *Group) error {
				var works []runner.Work
				for range 20 {
					work, f := sumAsync(g, 1000)
					if f != nil {
						return f
					}
					works = append(works, work)
				}
				for _, work := range works {
					if f := finish(work); f != nil {
						return f
					}
				}
				return nil
			})
			for kind := range coll.KindCount {
				if kind.Collective() {
					w.each(func(g *Group) error { return g.try(transfer{kind, round, round, equalLength(20_000)}, coll.Op{}) })
				}
			}
		}
		w.destroy() // behind it nothing reads compareEvery
	}
}

// A timeout names the rank that did not come, and its last call.
func TestTimeoutOverHosts(t *testing.T) {
	patient(t, time.Second)
	w := newHostsWorld(t, "01")
	w.each(func(g *Group) error { return asError(sum(g, 10)) })
	require.NoError(t, w.groups[0].SetTimeout(300*time.Millisecond))
	require.NoError(t, expect(sum(w.groups[0], 1000), coll.Timeout, "rank 1", "last called all_reduce #1"))
}

// A group over hosts has no slots, in whatever way they are wanted.
func TestSlotsAreRefusedOverHosts(t *testing.T) {
	eachAProcess(t)
	_, errs := tryWorld(t, 2, opTimeout, func(rank int) options {
		return options{"hostid": fmt.Sprint("host ", rank), "tune": "all_reduce:one_shot"}
	})
	for _, err := range errs {
		require.ErrorContains(t, err, "they are on 2 hosts")
	}
}

// A secret file that only one rank has, or that differs, is an error on all.
func TestSecretsOverHosts(t *testing.T) {
	eachAProcess(t)
	file := func(rank int) string { return writeSecret(t, strings.Repeat(fmt.Sprint(rank), 20)) }
	_, errs := tryWorld(t, 2, opTimeout, func(rank int) options {
		o := onHosts("01")(rank)
		if rank == 1 {
			o["secret_file"] = file(1)
		}
		return o
	})
	for _, err := range errs {
		require.ErrorContains(t, err, "SAGECOMM_SECRET_FILE or SAGECOMM_SECRET is set on rank 1 and not on rank 0")
	}
	_, errs = tryWorld(t, 2, opTimeout, func(rank int) options {
		o := onHosts("01")(rank)
		o["secret_file"] = file(rank)
		return o
	})
	for _, err := range errs {
		require.ErrorContains(t, err, "set SAGECOMM_SECRET_FILE or SAGECOMM_SECRET to the same secret")
	}
	w, errs := tryWorld(t, 2, opTimeout, func(rank int) options {
		o := onHosts("01")(rank)
		if rank == 0 {
			o["secret_file"] = file(1)
		} else {
			o["secret"] = strings.Repeat("1", 20)
		}
		return o
	})
	for _, err := range errs {
		require.NoError(t, err)
	}
	w.each(func(g *Group) error { return asError(sum(g, 1000)) })
}

// mortalStore is a store whose server ends.
type mortalStore struct {
	bootstrap.Store
	ended *atomic.Bool
}

func (s mortalStore) Set(key string, value []byte) error {
	if s.ended.Load() {
		return errors.New("Broken pipe")
	}
	return s.Store.Set(key, value)
}

func (s mortalStore) Get(key string, timeout time.Duration) ([]byte, error) {
	if s.ended.Load() {
		return nil, errors.New("Connection reset by peer")
	}
	return s.Store.Get(key, timeout)
}

// The process of the rank that is done first serves the store, and ends. The other rank gets the reason all the same.
func TestSecretsThatDifferWhereTheStoreEnds(t *testing.T) {
	eachAProcess(t)
	store, ended := bootstrap.NewMemStore(), new(atomic.Bool)
	errs := make([]error, 2)
	ranksOf(t, 2, func(rank int) error {
		_, errs[rank] = Get().Create(Config{Rank: rank, Size: 2, Name: t.Name(), Timeout: opTimeout, Store: mortalStore{store, ended},
			Lasting: store, Options: options{"hostid": fmt.Sprint(rank), "secret": strings.Repeat(fmt.Sprint(rank), 20)}})
		ended.Store(true)
		return nil
	})
	for rank, err := range errs {
		require.ErrorContains(t, err, "set SAGECOMM_SECRET_FILE or SAGECOMM_SECRET to the same secret", "rank %d", rank)
	}
}

// All operations, and the end of groups in order and by a death, where links have several data connections.
func TestDataConnections(t *testing.T) {
	for _, secure := range []bool{false, true} {
		if secure && quick.Only() {
			break // all operations again
		}
		var certified []options
		if secure {
			certified = wireSettings(t)
		}
		eachAProcess(t)
		w, errs := tryWorld(t, 3, opTimeout, func(rank int) options {
			o := onHosts("012")(rank)
			if secure {
				maps.Copy(o, certified[rank])
			}
			o["data_connections"] = "3"
			return o
		})
		require.NoError(t, errors.Join(errs...))
		require.Equal(t, 3, w.groups[0].links.pairs[1].Link.Data())
		for kind := range coll.KindCount {
			if kind.Collective() {
				for i, length := range []int{0, 1, 1000, 100_000} {
					w.each(func(g *Group) error { return g.try(transfer{kind, i % 3, i, equalLength(length)}, coll.Op{}) })
				}
			}
		}
		cutLast(t, w, 1000)
		w.destroy()
	}
	requireNoNetworks(t)
}

// Processes that are dialed elsewhere than where they listen.
func TestAdvertisedAddresses(t *testing.T) {
	eachAProcess(t)
	real := advertisedTo
	defer func() { advertisedTo = real }()
	ports := []string{freePort(t), freePort(t)}
	var passed atomic.Int64
	at := make([]string, 2)
	for rank, port := range ports {
		at[rank] = passOn(t, "127.0.0.1:"+port, &passed)
	}
	world := func(advertise func(rank int) string, portRange func(rank int) string) (*world, []error) {
		return tryWorld(t, 2, opTimeout, func(rank int) options {
			o := onHosts("01")(rank)
			o["advertise"], o["port_range"] = advertise(rank), portRange(rank)
			return o
		})
	}
	own := func(rank int) string { return ports[rank] }
	w, errs := world(func(rank int) string { return at[rank] }, own)
	require.NoError(t, errors.Join(errs...))
	require.Equal(t, "127.0.0.1:"+ports[0], w.groups[0].links.network.told[0].String(), "all ranks are on one machine")
	require.Zero(t, passed.Load())
	w.destroy()
	advertisedTo = func(*member, *member) bool { return true }
	ports[0], ports[1] = freePort(t), freePort(t)
	at[0], at[1] = passOn(t, "127.0.0.1:"+ports[0], &passed), passOn(t, "127.0.0.1:"+ports[1], &passed)
	w, errs = world(func(rank int) string { return at[rank] }, own)
	require.NoError(t, errors.Join(errs...))
	require.Equal(t, at[0], w.groups[0].links.network.told[0].String())
	w.each(func(g *Group) error { return asError(sum(g, 100_000)) })
	require.GreaterOrEqual(t, passed.Load(), int64(2), "connections of the link, and of attempts that crossed")
	w.destroy()
	passed.Store(0)
	ports[0], ports[1] = freePort(t), freePort(t)
	w, errs = world(func(int) string { return "127.0.0.1" }, own)
	require.NoError(t, errors.Join(errs...))
	require.Equal(t, "127.0.0.1:"+ports[1], w.groups[1].links.network.told[0].String())
	require.Zero(t, passed.Load())
	ports, at = nil, nil
	for range 3 {
		ports = append(ports, freePort(t))
		at = append(at, passOn(t, "127.0.0.1:"+ports[len(at)], &passed))
	}
	// Ranks of one machine dial each other where they listen.
	advertisedTo = func(a, b *member) bool { return (a.HostSetting == "host 2") != (b.HostSetting == "host 2") }
	w, errs = tryWorld(t, 3, opTimeout, func(rank int) options {
		o := onHosts("012")(rank)
		o["advertise"], o["port_range"] = at[rank], ports[rank]
		return o
	})
	require.NoError(t, errors.Join(errs...))
	dialed := func(rank, to int) string { return fmt.Sprint(w.groups[rank].links.processes[to].at.At) }
	require.Equal(t, "[127.0.0.1:"+ports[1]+"]", dialed(0, 1))
	require.Equal(t, "["+at[1]+"]", dialed(2, 1))
	require.Equal(t, "["+at[2]+"]", dialed(1, 2))
	w.each(func(g *Group) error { return asError(sum(g, 100_000)) })
	w.destroy()
	advertisedTo = func(*member, *member) bool { return true }
	for ports, told := range map[string]string{"29600-29700": "29600-29700", "auto": "not set"} {
		_, errs = world(func(rank int) string { return at[rank] }, func(int) string { return ports })
		for _, err := range errs {
			require.ErrorContains(t, err, "and SAGECOMM_PORT_RANGE is "+told+": set that to the one port")
		}
	}
	_, errs = world(func(int) string { return "host0" }, own)
	for _, err := range errs {
		require.ErrorContains(t, err, `option advertise="host0" is not accepted: expected address such as 10.0.0.2`)
	}
}

// Rank 0 warns of links that leave the host in plain text, and of a secret that it has made itself: from whom that
// protects, and from whom not.
func TestWarningOfPlainLinks(t *testing.T) {
	eachAProcess(t)
	realAdvertised, realWarn := advertisedTo, warnOfPlainLinks
	var warned []string
	warnOfPlainLinks = func(text string) { warned = append(warned, text) }
	t.Cleanup(func() { advertisedTo, warnOfPlainLinks = realAdvertised, realWarn })
	warnings := func(more options) []string {
		warned = nil
		Get().networks.warned = sync.Once{}
		w, errs := tryWorld(t, 2, opTimeout, func(rank int) options {
			o := onHosts("01")(rank)
			maps.Copy(o, more)
			return o
		})
		require.NoError(t, errors.Join(errs...))
		w.destroy()
		return warned
	}
	require.Empty(t, warnings(nil), "over loopback")
	advertisedTo = func(a, b *member) bool { return a.HostSetting == b.HostSetting } // ranks advertise an address, and dial each other over loopback
	at := options{"advertise": "10.77.0.1"}
	list := warnings(at)
	require.Len(t, list, 1)
	require.Contains(t, list[0], "links between hosts (here at 10.77.0.1) are not encrypted")
	require.Contains(t, list[0], "it keeps out strangers who cannot read the store, and whoever can read it can join the job")
	at["secret"] = "0123456789abcdef"
	list = warnings(at)
	require.Len(t, list, 1)
	require.Contains(t, list[0], "are not encrypted")
	require.NotContains(t, list[0], "secret")
	maps.Copy(at, newCertificates(t).options(t, time.Now().Add(time.Hour)))
	require.Empty(t, warnings(at), "TLS")
}

// passOn returns an address whose connections are passed on, and counts them.
func passOn(t *testing.T, to string, passed *atomic.Int64) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	join := func(one, other net.Conn) {
		var both sync.WaitGroup
		for _, way := range [][2]net.Conn{{one, other}, {other, one}} {
			both.Go(func() {
				_, _ = io.Copy(way[0], way[1])
				_ = way[0].(*net.TCPConn).CloseWrite()
			})
		}
		both.Wait()
		_, _ = one.Close(), other.Close()
	}
	go func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return
			}
			there, err := net.Dial("tcp", to)
			if err != nil {
				_ = from.Close()
				continue
			}
			passed.Add(1)
			go join(there, from)
		}
	}()
	return listener.Addr().String()
}

// Ranks may differ in what payloads have checksums.
func TestChecksumSettings(t *testing.T) {
	eachAProcess(t)
	w, errs := tryWorld(t, 3, opTimeout, func(rank int) options {
		o := onHosts("012")(rank)
		o["checksums"] = []string{"never", "auto", "always"}[rank]
		return o
	})
	for _, err := range errs {
		require.NoError(t, err)
	}
	for kind := range coll.KindCount {
		if kind.Collective() {
			w.each(func(g *Group) error { return g.try(transfer{kind, 1, 1, equalLength(100_000)}, coll.Op{}) })
		}
	}
	id := machineID()
	require.NotEqual(t, tcp.Machine{}, id)
	require.Equal(t, id, machineID(), "the boot id is the same")
}

// Groups that differ in where they listen, or in when a link counts as lost, share no links. A setting that cannot be
// kept is an error for a later group too.
func TestSettingsOfLinks(t *testing.T) {
	eachAProcess(t)
	first, second := freePort(t), freePort(t)
	var seen []*network
	for _, c := range []options{{}, {"port_range": first}, {"port_range": second}, {"socket_ifname": "127.0.0.1"}, {"link_timeout": "3"}} {
		w, errs := tryWorld(t, 2, opTimeout, func(rank int) options {
			o := onHosts("01")(rank)
			if rank == 0 || c["port_range"] == "" { // ranks of one machine cannot have one port
				for name, value := range c {
					o[name] = value
				}
			}
			return o
		})
		require.NoError(t, errors.Join(errs...))
		n := w.groups[0].links.network
		require.NotContains(t, seen, n, "%v", c)
		seen = append(seen, n)
		if port := c["port_range"]; port != "" {
			require.Equal(t, port, fmt.Sprint(n.at[0].Port()))
		}
		w.each(func(g *Group) error { return asError(sum(g, 1000)) })
	}
	_, errs := tryWorld(t, 2, opTimeout, func(rank int) options {
		o := onHosts("01")(rank)
		o["socket_ifname"] = "=no_such_interface"
		return o
	})
	for _, err := range errs {
		require.ErrorContains(t, err, "no network interface of this host is chosen by SAGECOMM_SOCKET_IFNAME")
	}
}

// freePort returns a port that nobody listens at, and that the system gives to no connection meanwhile. Each call
// returns another one.
func freePort(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	require.NoError(t, err)
	var first, last int
	_, err = fmt.Sscan(string(text), &first, &last)
	require.NoError(t, err)
	require.Greater(t, first, 2048, "ports that the system gives to no connection, and everybody may use")
	for range first {
		port := fmt.Sprint(first - 1 - int(freePorts.Add(1)+uint32(os.Getpid()))%(first/2))
		if l, err := net.Listen("tcp", "127.0.0.1:"+port); err == nil {
			require.NoError(t, l.Close())
			return port
		}
	}
	t.Fatal("no port is free")
	return ""
}

// freePorts counts the ports that were tried. Test binaries beside this one begin elsewhere.
var freePorts atomic.Uint32

// Two processes cannot have one identity, and addresses that nobody can dial are refused.
func TestIdentitiesOfProcesses(t *testing.T) {
	told := func(id byte, at ...string) []byte {
		d := networkDescription{ID: make([]byte, len(tcp.Identity{}))}
		d.ID[0] = id
		for _, each := range at {
			d.At = append(d.At, netip.MustParseAddrPort(each))
		}
		text, err := json.Marshal(d)
		require.NoError(t, err)
		return text
	}
	const at = "10.0.0.2:5"
	members := []member{{HostSetting: "a", PID: 1}, {HostSetting: "a", PID: 1}, {HostSetting: "a", PID: 2}, {HostSetting: "b", PID: 1}}
	read := func(all ...[]byte) error {
		return (&groupLinks{}).readAddresses(all, 0, members)
	}
	require.NoError(t, read(told(1, at), told(1, at), told(2, at), told(3, at)))
	require.ErrorContains(t, read(told(1, at), told(1, at), told(1, at), told(3, at)), "rank 2 wrote the identity of rank 0's process into the store")
	require.ErrorContains(t, read(told(1, at), told(1, at), told(2, at), told(1, at)), "rank 3 wrote the identity of rank 0's process into the store")
	many := slices.Repeat([]string{at}, mostAddresses+1)
	for _, wrong := range [][]string{nil, {"0.0.0.0:5"}, {at, "[::]:5"}, {"10.0.0.2:0"}, {"224.0.0.1:5"}, many} {
		require.ErrorContains(t, read(told(1, at), told(2, wrong...)), "rank 1 wrote an invalid address", "%v", wrong)
	}
	near, err := json.Marshal(networkDescription{ID: make([]byte, len(tcp.Identity{})), At: []netip.AddrPort{netip.MustParseAddrPort(at)}, Near: []netip.AddrPort{{}}})
	require.NoError(t, err)
	require.ErrorContains(t, read(told(1, at), near), "rank 1 wrote an invalid address")
}

// The engine cuda is for ranks of one host. Where no rank has a vendor's library either, tensors of devices go through
// the host.
func TestEnginesOverHosts(t *testing.T) {
	w := newHostsWorld(t, "01")
	c, found := w.groups[0].deviceEngine.Candidate(cudaEngine)
	require.True(t, found)
	require.Len(t, c.Lacking, 2)
	require.Equal(t, stagedEngine, w.groups[0].deviceEngine.Engine)
	require.Equal(t, algo.DeviceLink{Class: algo.Network}, w.groups[0].deviceLink(0, 1))
}

// writeSecret returns the path of a file with a secret of a job.
func writeSecret(t *testing.T, secret string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(path, []byte(secret), 0o600))
	return path
}

// dyingStore is the store of a rank that dies when it writes in a round: nothing of it comes any more, and its links
// are closed.
type dyingStore struct {
	*bootstrap.MemStore
	round string
	die   func()
	dead  atomic.Bool
}

var errDead = errors.New("this process is dead")

func (s *dyingStore) Set(key string, value []byte) error {
	if strings.Contains(key, s.round) && !s.dead.Swap(true) {
		s.die()
	}
	if s.dead.Load() {
		return errDead
	}
	return s.MemStore.Set(key, value)
}

func (s *dyingStore) Get(key string, timeout time.Duration) ([]byte, error) {
	if s.dead.Load() {
		return nil, errDead
	}
	return s.MemStore.Get(key, timeout)
}

// rankDies lets ranks on hosts make a group, of which one has this store, and returns what each got.
func (s *dyingStore) rankDies(t *testing.T, hosts string, dying int) []error {
	t.Helper()
	errs := make([]error, len(hosts))
	began := time.Now()
	ranksOf(t, len(hosts), func(rank int) error {
		config := Config{Rank: rank, Size: len(hosts), Name: t.Name(), Timeout: opTimeout,
			Store: s.MemStore, Lasting: s.MemStore, Options: onHosts(hosts)(rank)}
		if rank == dying {
			config.Store = s
		}
		_, errs[rank] = Get().Create(config)
		return nil
	})
	measure(t, "the end of the rendezvous", time.Since(began), 5*time.Second)
	return errs
}

// A process that dies in any round of the rendezvous costs the others a moment.
func TestDeathsWhileHostsMeet(t *testing.T) {
	real := addressLimit
	addressLimit = time.Second
	defer func() { addressLimit = real }()
	eachAProcess(t)
	for _, c := range []struct {
		round  string
		status coll.Status
		text   string
	}{
		{addressRound, coll.Timeout, "rank 2 (host"},
		{attachedRound, coll.PeerFailure, "rank 2 (host"},
		{linkedRound, coll.PeerFailure, "rank 2 (host"},
		{joinedRound, coll.PeerFailure, "rank 2 (host"},
	} {
		t.Run(c.round, func(t *testing.T) {
			if c.round != linkedRound {
				quick.Skip(t, "each round takes seconds")
			}
			store := bootstrap.NewMemStore()
			dying := &dyingStore{MemStore: store, round: c.round, die: func() { closeNodes(" 2") }}
			errs := dying.rankDies(t, "001", 2)
			for rank := range 2 {
				f := CreateFailure("g", errs[rank])
				require.NoError(t, expect(f, c.status, c.text), rank)
				require.Equal(t, 2, f.Rank)
				if c.round == attachedRound || c.round == linkedRound { // a rank that comes later is told no less
					told := readTold(abandonedIn(t, store, joinedRound, rank).Detail)
					require.Equal(t, &toldFailure{f.Status, f.Rank, f.PID, f.Host}, told)
				}
			}
			require.ErrorContains(t, errs[2], errDead.Error())
			requireNoNetworks(t)
		})
	}
}

// abandonedIn returns why a rank has given up before a round of the first try.
func abandonedIn(t *testing.T, store bootstrap.Store, round string, rank int) *bootstrap.RankFailure {
	t.Helper()
	for epoch := range 10 {
		if told := bootstrap.Abandoned(store, fmt.Sprintf("%s/%d%s%s", keys, epoch, firstTry, round), rank); told != nil {
			return told
		}
	}
	require.Fail(t, "nothing is told", "rank %d, %s", rank, round)
	return nil
}

// closeNodes closes the links of processes whose network's name ends so.
func closeNodes(suffix string) {
	p := Get()
	var dying []*network
	p.networks.mu.Lock()
	for n := range p.networks.all {
		if strings.HasSuffix(n.key.host, suffix) {
			dying = append(dying, n)
		}
	}
	p.networks.mu.Unlock()
	for _, n := range dying {
		die(n)
	}
}

// requireNoNetworks waits until no network is open any more. Those of other tests end, too. The quick tests do not wait
// for networkRest.
func requireNoNetworks(t *testing.T) {
	t.Helper()
	p, left := Get(), ""
	for until := time.Now().Add(10 * time.Second); time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
		left = ""
		p.networks.mu.Lock()
		for n := range p.networks.all {
			if quick.Only() && n.users == 0 {
				p.endNetwork(n)
				continue
			}
			left += fmt.Sprintf(" %s (%d groups)", n.key.host, n.users)
		}
		p.networks.mu.Unlock()
		if left == "" {
			return
		}
	}
	t.Fatalf("networks are left:%s", left)
}

// Several ranks of one process have one network and one arbiter.
func TestRanksOfOneProcessOverHosts(t *testing.T) {
	w, errs := tryWorld(t, 4, opTimeout, onHosts("0011"))
	for _, err := range errs {
		require.NoError(t, err)
	}
	require.Same(t, w.groups[0].arbiter, w.groups[1].arbiter)
	require.NotSame(t, w.groups[0].arbiter, w.groups[2].arbiter)
	require.Len(t, w.groups[0].links.processes, 2)
	w.each(func(g *Group) error { return asError(sum(g, 1000)) })
	require.NoError(t, w.groups[0].Destroy())
	w.groups[1].Abort("enough")
	for _, rank := range []int{2, 3} {
		require.NoError(t, expect(sum(w.groups[rank], 10), coll.Aborted, "rank 1", "enough"))
	}
	w.destroy()
	requireNoNetworks(t)
}

// Where a memfd cannot be mapped, ranks of several hosts use files, too.
func TestSecondTryOverHosts(t *testing.T) {
	eachAProcess(t)
	w, errs := tryWorld(t, 4, opTimeout, func(rank int) options {
		o := onHosts("0011")(rank)
		o["shm_attach"] = "tmpfs"
		return o
	})
	for _, err := range errs {
		require.NoError(t, err)
	}
	w.each(func(g *Group) error { return asError(sum(g, 1000)) })
}

// A group is destroyed right behind its making, and nothing of it is left.
func TestDestroyAtOnceOverHosts(t *testing.T) {
	eachAProcess(t)
	rounds := 20
	if quick.Only() {
		rounds = 5
	}
	for range rounds {
		w, errs := tryWorld(t, 2, opTimeout, onHosts("01"))
		for _, err := range errs {
			require.NoError(t, err)
		}
		w.destroy()
	}
	requireNoNetworks(t)
}

// Links between machines do not listen on loopback, and names of interfaces that join no machines are left out.
func TestLinksBetweenMachines(t *testing.T) {
	g := &Group{size: 2, members: make([]member, 2)}
	require.False(t, g.machines())
	g.members[1].Network = 5
	require.True(t, g.machines(), "containers of one machine")
	g.members[1].Network, g.members[1].Arena.BootID = 0, "other"
	require.True(t, g.machines())
	settings, err := env.Resolve(nil, nil)
	require.NoError(t, err)
	at, err := Get().linkEndpoint(settings, false, nil)
	require.NoError(t, err)
	require.Equal(t, bootstrap.Loopback, at.Addresses)
	require.Nil(t, at.Find)
	var warned []string
	realInterfaces, realWarn := interfacesOf, warnOfInterfaces
	defer func() { interfacesOf, warnOfInterfaces = realInterfaces, realWarn }()
	warnOfInterfaces = func(text string) { warned = append(warned, text) }
	address := func(last byte) []netip.Addr { return []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, last})} }
	here := []bootstrap.Interface{{Name: "docker0", Addresses: address(1)}, {Name: "wg0", Addresses: address(2)}, {Name: "eno1", Addresses: address(3)}, {Name: "ib0", Addresses: address(4)}}
	interfacesOf = func(c env.Interfaces) ([]bootstrap.Interface, error) {
		return slices.DeleteFunc(slices.Clone(here), func(i bootstrap.Interface) bool { return !c.Takes(i.Name, i.Addresses[0]) }), nil
	}
	require.Equal(t, address(3), Get().betweenMachines())
	require.Len(t, warned, 1)
	require.Contains(t, warned[0], "the network interface eno1, the first of eno1 (10.0.0.3), ib0 (10.0.0.4), since")
	here = here[:2]
	require.Equal(t, address(2), Get().betweenMachines(), "the only one")
	here = here[:1]
	require.Empty(t, Get().betweenMachines())
	require.Len(t, warned, 1)
	settings, err = env.Resolve(nil, map[string]string{"socket_ifname": "lo"})
	require.NoError(t, err)
	_, err = Get().network(networkKey{host: "test", machines: true, data: 1}, 2, nil, settings, nil, nil)
	require.ErrorContains(t, err, "set SAGECOMM_SOCKET_IFNAME to a network that joins them")
}
