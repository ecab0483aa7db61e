package pgbackend

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/bootstrap"
	"sagecomm/internal/coll"
)

var wireSeed = flag.Uint64("wire.seed", 0, "of TestWire: what is random follows from it; 0: another one each time")

const (
	wireHosts   = "012"
	wireWorkers = 12 // cells at the same time: most of their time they wait
	quickCells  = 40
	unheardFor  = 2 * time.Second // timeout of operations that may not go on
	makingFor   = 4 * time.Second // of a group whose links may not be made
)

// Faults of links: in no cell does a rank hang, get wrong data, or a cause that others do not have, and nothing is left behind. With -short a few cells
// are drawn. One alone: -run 'TestWire/p2p/8/reset/running/tls$' -wire.seed=...
func TestWire(t *testing.T) {
	seed := *wireSeed
	if seed == 0 {
		seed = rand.Uint64()>>1 + 1
	}
	t.Logf("-wire.seed=%d", seed)
	realName, realRest := networkName, networkRest
	networkName = func(g *Group) string { return fmt.Sprint(g.name, " ", g.rank) }
	networkRest = time.Millisecond
	defer func() { networkName, networkRest = realName, realRest }()
	list, _ := wireCells()
	rand.New(rand.NewPCG(seed, 0)).Shuffle(len(list), func(i, k int) { list[i], list[k] = list[k], list[i] })
	if testing.Short() && !strings.Contains(flag.Lookup("test.run").Value.String(), "/") {
		list = list[:quickCells]
	}
	authority := newCertificates(t)
	secure := make([]options, len(wireHosts))
	for rank := range secure {
		secure[rank] = authority.options(t, time.Now().Add(time.Hour))
	}
	shared := filesOfSharedMemory(t)
	before := goroutinesAndDescriptors(t)
	var next atomic.Int64
	var workers sync.WaitGroup
	for range wireWorkers {
		workers.Go(func() {
			for {
				n := int(next.Add(1)) - 1
				if n >= len(list) {
					return
				}
				c := list[n]
				t.Run(c.String(), func(t *testing.T) { runWireCell(t, c, seed, secure) })
			}
		})
	}
	workers.Wait()
	require.Equal(t, shared, filesOfSharedMemory(t), "files of shared memory")
	var after [2]int
	for began := time.Now(); time.Since(began) < opTimeout/2; time.Sleep(10 * time.Millisecond) {
		if after = goroutinesAndDescriptors(t); after[0] <= before[0]+3 && after[1] <= before[1]+5 { // the arena, the progress engine, and the sockets of both are kept
			return
		}
	}
	stacks := make([]byte, 1<<20)
	t.Errorf("goroutines and descriptors: %v before, %v after: %v\n%s", before, after, descriptors(t), stacks[:runtime.Stack(stacks, true)])
}

// Each fault, moment, operation and size has cells.
func TestWireIsWhole(t *testing.T) {
	list, left := wireCells()
	n := len(list)
	for _, cells := range left {
		n += cells
	}
	require.Equal(t, len(wireOps())*len(wireSizes)*len(wireFaults)*len(wireMoments)*2, n)
	require.GreaterOrEqual(t, len(list), 1000)
	t.Logf("%d cells", len(list))
	some := func(what string, is func(wireCell) bool) { require.True(t, slices.ContainsFunc(list, is), what) }
	for _, f := range wireFaults {
		some(f.name, func(c wireCell) bool { return c.fault == f.name && !c.tls })
		some(f.name, func(c wireCell) bool { return c.fault == f.name && c.tls })
	}
	for _, op := range wireOps() {
		some(op, func(c wireCell) bool { return c.op == op })
	}
	for _, moment := range wireMoments {
		some(moment, func(c wireCell) bool { return c.moment == moment })
	}
}

func filesOfSharedMemory(t *testing.T) []string {
	t.Helper()
	list, err := filepath.Glob("/dev/shm/sagecomm*")
	require.NoError(t, err)
	return list
}

func goroutinesAndDescriptors(t *testing.T) [2]int {
	t.Helper()
	return [2]int{runtime.NumGoroutine(), len(descriptors(t))}
}

func descriptors(t *testing.T) (list []string) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, e := range entries {
		to, _ := os.Readlink("/proc/self/fd/" + e.Name()) // that of ReadDir is closed
		list = append(list, to)
	}
	return list
}

// wireTrial is one run of a cell.
type wireTrial struct {
	wireCell
	wire    *wire
	t       *testing.T
	random  *rand.Rand
	secure  []options
	secret  string
	world   *world
	names   []string      // of the groups
	limit   time.Duration // of a control exchange
	stopped chan struct{} // closed when strangers are to stop
	visits  sync.WaitGroup
}

func runWireCell(t *testing.T, c wireCell, seed uint64, secure []options) {
	x := &wireTrial{wireCell: c, t: t, random: c.random(seed), secure: secure, limit: opTimeout, stopped: make(chan struct{})}
	order := x.random.Perm(len(wireHosts))
	x.wire = newWire(t, order[0], order[1], c.tls)
	x.secret = writeSecret(t, "the secret of "+c.String())
	ended := make(chan struct{})
	watch := time.AfterFunc(hangAfter, func() {
		select {
		case <-ended:
		default:
			stacks := make([]byte, 8<<20)
			panic(fmt.Sprintf("%v hangs\n%s", c, stacks[:runtime.Stack(stacks, true)]))
		}
	})
	defer watch.Stop()
	defer close(ended)
	defer x.end()
	switch c.moment {
	case "making":
		x.playMaking()
	case "leaving":
		x.playLeaving()
	default:
		x.playOperations()
	}
}

// make makes a group on the store of a trial, through wire or beside it.
func (x *wireTrial) make(name string, timeout time.Duration, through bool) []error {
	x.world = &world{x.t, make([]*Group, len(wireHosts))}
	x.names = append(x.names, name)
	errs := make([]error, len(wireHosts))
	store := bootstrap.NewMemStore()
	ranksOf(x.t, len(wireHosts), func(rank int) error {
		o := onHosts(wireHosts)(rank)
		o["secret_file"] = x.secret
		if x.tls {
			for name, value := range x.secure[rank] {
				o[name] = value
			}
		}
		config := Config{Rank: rank, Size: len(wireHosts), Name: name, Timeout: timeout, Store: store, Lasting: store, Options: o}
		if through {
			config.Store = wiredStore{store, x.wire, rank}
		}
		x.world.groups[rank], errs[rank] = Get().Create(config)
		return nil
	})
	return errs
}

// end ends what the trial has begun, and expects that nothing of its groups is left.
func (x *wireTrial) end() {
	close(x.stopped)
	x.wire.close()
	x.visits.Wait()
	if x.world != nil {
		x.world.destroy()
	}
	left := ""
	for began := time.Now(); time.Since(began) < opTimeout/2; time.Sleep(5 * time.Millisecond) {
		Get().sweep()
		if left = x.left(); left == "" {
			return
		}
	}
	x.t.Errorf("left: %s", left)
}

func (x *wireTrial) left() (left string) {
	if x.world != nil {
		for rank, g := range x.world.groups {
			if g != nil && g.life.now() != freed {
				left += fmt.Sprintf("the memory of rank %d; ", rank)
			}
		}
	}
	p := Get()
	p.networks.mu.Lock()
	defer p.networks.mu.Unlock()
	mine := func(n *network) bool {
		return slices.ContainsFunc(x.names, func(name string) bool { return strings.HasPrefix(n.key.host, name+" ") })
	}
	for n := range p.networks.all {
		if mine(n) {
			left += n.key.host + "; "
		}
	}
	for n := range p.networks.ending {
		if mine(n) {
			left += n.key.host + ", which ends; "
		}
	}
	return left
}

// strike begins the fault. It is over, or about to come, when strike returns.
func (x *wireTrial) strike() {
	switch {
	case isStranger(x.fault):
		x.visit()
		x.wire.strikes()
	default:
		x.wire.arm(x.wireCell.draw(x.random, x.wire.ends))
	}
}

func (x *wireTrial) hasStruck() bool {
	select {
	case <-x.wire.struck:
		return true
	default:
		return false
	}
}

// playOperations runs operations until the fault has happened, and then until all ranks have failed, or three times more.
func (x *wireTrial) playOperations() {
	require.NoError(x.t, errors.Join(x.make(x.String(), opTimeout, true)...))
	g := x.world.groups
	want := x.expected()
	round := 0
	next := func() (failed []*coll.Failure) {
		failed = make([]*coll.Failure, len(g))
		n := round
		round++
		ranksOf(x.t, len(g), func(rank int) error {
			err := x.operate(g[rank], n)
			if errors.As(err, &failed[rank]) {
				return nil
			}
			return err
		})
		return failed
	}
	for _, f := range next() {
		require.Nil(x.t, f, "before the fault")
	}
	if want == unheard {
		x.limit = unheardFor
		for _, one := range g {
			require.NoError(x.t, one.SetTimeout(unheardFor))
		}
	}
	x.strike()
	if x.moment == "idle" {
		select {
		case <-x.wire.struck: // by a heartbeat
		case <-time.After(opTimeout):
			x.t.Fatal("the fault did not happen")
		}
	}
	began := time.Now()
	for after, before := 0, 0; ; {
		struck := x.hasStruck()
		if before++; !struck && before == 3 { // what the operation sends does not come by, or there is too little of it
			x.wire.relax()
		}
		failed := next()
		if all := !slices.Contains(failed, nil); all {
			if !struck && !x.hasStruck() {
				x.t.Fatalf("it did not happen, and yet: %v", failed[0])
			}
			if want == harmless {
				x.t.Fatalf("it has done harm: %v", failed[0])
			}
			x.oneCause(want)
			return
		}
		if struck {
			after++
		}
		if want == harmless && after >= 3 {
			return
		}
		if time.Since(began) > opTimeout/2 {
			x.t.Fatalf("after %v and %d operations: struck: %t, failed: %v", time.Since(began), round, struck, failed)
		}
	}
}

// oneCause expects that all ranks have one cause, which names an end of the link.
func (x *wireTrial) oneCause(want outcome) {
	groups := x.world.groups
	causes := func() (list []string) {
		for _, g := range groups {
			if f := g.Cause(); f != nil {
				list = append(list, f.Message)
			} else {
				list = append(list, "")
			}
		}
		return list
	}
	one := func() bool {
		list := causes()
		return list[0] != "" && len(slices.Compact(list)) == 1
	}
	for began := time.Now(); !one() && time.Since(began) < 10*time.Second; time.Sleep(time.Millisecond) {
	}
	if !one() {
		x.t.Fatalf("causes differ: %q", causes())
	}
	f := groups[0].Cause()
	bound := 3 * time.Second
	if want == unheard {
		bound = unheardFor + time.Second + 3*time.Second // a death is noticed, or the timeout comes
	}
	measure(x.t, x.fault, time.Since(x.wire.when()), bound)
	if f.Status != coll.PeerFailure && (want == lost || f.Status != coll.Timeout) {
		x.t.Errorf("%v: %s", f.Status, f.Message)
	}
	named := slices.ContainsFunc(x.wire.ends[:], func(rank int) bool { return f.Rank == rank || strings.Contains(f.Message, fmt.Sprint("rank ", rank)) })
	if !named {
		x.t.Errorf("rank %d, which is not of %v: %s", f.Rank, x.wire.ends, f.Message)
	}
	for _, g := range groups { // and again
		if again := sum(g, 1); again == nil || again.Message != f.Message {
			x.t.Errorf("a later operation gives %v, and the cause is %v", again, f)
		}
	}
}

// operate makes one operation, whose result it compares.
func (x *wireTrial) operate(g *Group, round int) error {
	size := g.size
	switch x.op {
	case exchangeOp:
		mine := pattern(g.rank, round, 3000)
		all, f := g.exchange(topicFusion, "wire", mine, x.limit)
		if f != nil {
			return f
		}
		for rank, theirs := range all {
			if !bytes.Equal(theirs, pattern(rank, round, 3000)) {
				return fmt.Errorf("the entry of rank %d is wrong", rank)
			}
		}
		return nil
	case wireP2P:
		to, from := (g.rank+1+round%2)%size, (g.rank+size-1-round%2)%size
		send, f := sendTo(g, to, round, pattern(g.rank, round, x.size))
		if f != nil {
			return f
		}
		got := make([]byte, x.size)
		recv, f := recvFrom(g, from, round, got)
		if f == nil {
			f = finish(recv)
			recv.Release()
		}
		if sent := finish(send); f == nil {
			f = sent
		}
		send.Release()
		if f == nil && !bytes.Equal(got, pattern(from, round, x.size)) {
			return errors.New("wrong bytes have come")
		}
		return asError(f)
	}
	for kind := range coll.KindCount {
		if kind.String() == x.op {
			return g.try(transfer{kind, round % size, round, equalLength(x.size)}, coll.Op{})
		}
	}
	return errors.New("no such operation: " + x.op)
}

// playMaking expects that all ranks make the group, or none does, and that they can make it afterwards.
func (x *wireTrial) playMaking() {
	timeout := opTimeout
	if !isStranger(x.fault) && x.expected() != harmless { // what is damaged or missing may be waited for
		timeout = makingFor
	}
	x.strike()
	began := time.Now()
	errs := x.make(x.String(), timeout, true)
	measure(x.t, "making the group", time.Since(began), timeout+3*time.Second)
	failed := slices.IndexFunc(errs, func(err error) bool { return err != nil })
	if failed >= 0 && x.expected() == harmless {
		x.t.Fatal(errs[failed])
	}
	for rank, err := range errs {
		if (err == nil) != (failed < 0) {
			x.t.Fatalf("some have the group: %v", errs)
		}
		missing := (*bootstrap.TimeoutError)(nil)
		if err != nil && !slices.ContainsFunc(x.wire.ends[:], func(end int) bool {
			return strings.Contains(err.Error(), fmt.Sprint("rank ", end)) || errors.As(err, &missing) && slices.Contains(missing.Missing, end)
		}) {
			x.t.Errorf("rank %d: %v", rank, err)
		}
	}
	if failed < 0 {
		x.sums()
		return
	}
	require.NoError(x.t, errors.Join(x.make(x.String()+" again", opTimeout, false)...))
	x.sums()
}

// playLeaving expects that a fault of the last bytes keeps no rank from destroying the group.
func (x *wireTrial) playLeaving() {
	require.NoError(x.t, errors.Join(x.make(x.String(), opTimeout, true)...))
	x.sums()
	x.strike()
	began := time.Now()
	x.world.each(func(g *Group) error { return g.Destroy() })
	measure(x.t, "destroying the group", time.Since(began), 2*time.Second)
}

func (x *wireTrial) sums() {
	x.world.each(func(g *Group) error {
		return g.try(transfer{coll.AllReduce, 0, 1, equalLength(100_000)}, coll.Op{})
	})
}
