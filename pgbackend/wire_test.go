package pgbackend

import (
	"context"
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
	"sagecomm/internal/handshake"
	"sagecomm/internal/transport/tcp"
	"sagecomm/tests/quick"
)

var wireSeed = flag.Uint64("wire.seed", 0, "of TestWire: what is random follows from it; 0: another one each time")

const (
	wireHosts   = "012"
	wireWorkers = 12 // cells at the same time, at most: most of their time they wait
	quickCells  = 40
	unheardFor  = 2 * time.Second // timeout of operations that may not go on
	makingFor   = 4 * time.Second // of a group whose links may not be made
)

// Faults of links: in no cell does a rank hang, get wrong data, or a cause that others do not have, and nothing is left
// behind. With -short a few cells are drawn. One alone: -run 'TestWire/p2p/8/reset/running/tls$' -wire.seed=...
func TestWire(t *testing.T) {
	seed := *wireSeed
	if seed == 0 {
		seed = rand.Uint64()>>1 + 1
	}
	t.Logf("-wire.seed=%d", seed)
	secure := wireSettings(t)
	triedToMake.Store(0)
	made.Store(0)
	list, _ := wireCells()
	rand.New(rand.NewPCG(seed, 0)).Shuffle(len(list), func(i, k int) { list[i], list[k] = list[k], list[i] })
	if testing.Short() && !strings.Contains(flag.Lookup("test.run").Value.String(), "/") {
		list = list[:quickCells]
	}
	shared := filesOfSharedMemory(t)
	before := goroutinesAndDescriptors(t)
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(wireWorkers, 4*runtime.GOMAXPROCS(0)) {
		workers.Go(func() {
			for {
				n := int(next.Add(1)) - 1
				if n >= len(list) {
					return
				}
				c := list[n]
				t.Run(c.String(), func(t *testing.T) { newWireTrial(t, c, seed, secure).run() })
			}
		})
	}
	workers.Wait()
	t.Logf("%d of %d groups were made although a link was harmed meanwhile", made.Load(), triedToMake.Load())
	if tried := triedToMake.Load(); tried >= 10 { // all of them, in four of which what one rank or both say is lost; as to the others see TestWireGroupsThatAreMade
		require.Less(t, made.Load(), tried, "no link was harmed")
	}
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

// Faults of a link while it is measured are faults of a link: all ranks make the group, or none does. The fault comes
// behind the handshake. The link is measured until the fault has happened, and until the link is lost if it is to be,
// however long that takes.
func TestWireWhileLinksAreProbed(t *testing.T) {
	var trial atomic.Pointer[wireTrial]
	probing(t, func(l *tcp.Link, ctx context.Context, limit time.Duration) (c tcp.Costs) {
		x := trial.Load()
		if x.hasStruck() || l.Peer() != x.wire.probed(len(wireHosts)) || len(x.names) > 1 {
			return l.Probe(ctx, limit)
		}
		x.strike()
		for l.Err() == nil && ctx.Err() == nil && (!x.hasStruck() || x.expected() != harmless) {
			c = l.Probe(ctx, limit)
			_, _ = l.Push(1, &tcp.Header{Kind: tcp.Probe}, make([]byte, 64<<10)) // what is missing where a length was damaged
		}
		return c
	})
	secure := wireSettings(t)
	withLimits(t, time.Second, opTimeout)
	faults := []string{"reset", "truncate", "stall", "fragments", "damaged_header", "replay"}
	if testing.Short() {
		faults = faults[:4] // the others may take seconds
	}
	if quick.Only() {
		faults = faults[:2]
	}
	for _, fault := range faults {
		for _, tls := range []bool{false, true} {
			c := wireCell{noOperation, wireSizes[0], fault, probingMoment, tls}
			t.Run(c.String(), func(t *testing.T) {
				x := newWireTrial(t, c, rand.Uint64(), secure)
				trial.Store(x)
				x.run()
			})
			forgetLinks()
		}
	}
}

// A link that is harmed before anything was proved over it is made by another attempt, and with it the group.
func TestWireGroupsThatAreMade(t *testing.T) {
	secure := wireSettings(t)
	for _, fault := range []string{"reset", "truncate"} {
		for _, tls := range []bool{false, true} {
			c := wireCell{noOperation, wireSizes[0], fault, "making", tls}
			t.Run(c.String(), func(t *testing.T) {
				x := newWireTrial(t, c, rand.Uint64(), secure)
				x.early, x.within = true, opTimeout
				before := made.Load()
				x.run()
				require.Equal(t, before+1, made.Load(), "the group was not made")
			})
		}
	}
}

// wireSettings lets each rank have links of its own, which end with its groups, until the test ends. It returns what
// ranks set for encryption.
func wireSettings(t *testing.T) []options {
	t.Helper()
	realName, realRest := networkName, networkRest.Swap(int64(time.Millisecond))
	networkName = func(g *Group) string { return fmt.Sprint(g.name, " ", g.rank) }
	t.Cleanup(func() { networkName = realName; networkRest.Store(realRest) })
	authority := newCertificates(t)
	secure := make([]options, len(wireHosts))
	for rank := range secure {
		secure[rank] = authority.options(t, time.Now().Add(time.Hour))
	}
	return secure
}

// Each fault, moment, operation and size has cells, and no more are left out than are known to have no meaning.
func TestWireIsWhole(t *testing.T) {
	list, left := wireCells()
	byFault := map[string]int{}
	for _, c := range list {
		byFault[c.fault]++
	}
	require.Equal(t, map[string]int{
		"reset": 156, "truncate": 156, "damaged_header": 156, "damaged_payload": 74, "replay": 76, "hole": 84, "holes": 84, "drop": 82, "drops": 82,
		"stall": 156, "fragments": 156, "mute": 84, "garbage": 84, "half": 84, "stranger": 84, "recorded": 84, "twice": 82, "flood": 84,
	}, byFault)
	require.Len(t, left, 7, "each reason is one of some")
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
	list, err := filepath.Glob(fmt.Sprintf("/dev/shm/sagecomm*-%d-*", os.Getpid()))
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

// Groups that were tried to be made while a link is harmed, and those of them that were made.
var triedToMake, made atomic.Int64

// wireTrial is one run of a cell.
type wireTrial struct {
	wireCell
	wire    *wire
	data    int // connections for data of each link
	t       *testing.T
	random  *rand.Rand
	secure  []options
	secret  string
	world   *world
	names   []string      // of the groups
	limit   time.Duration // of a control exchange
	within  time.Duration // of a group that is made while the link is harmed
	early   bool          // the link is harmed by its first bytes
	stopped chan struct{} // closed when strangers are to stop
	visits  sync.WaitGroup
}

func newWireTrial(t *testing.T, c wireCell, seed uint64, secure []options) *wireTrial {
	x := &wireTrial{wireCell: c, t: t, random: c.random(seed), secure: secure, limit: opTimeout, within: opTimeout, stopped: make(chan struct{})}
	if c.moment == "making" && !isStranger(c.fault) && c.expected() != harmless { // what is damaged or missing may be waited for
		x.within = makingFor
	}
	x.data = 1 + 2*x.random.IntN(2)
	order := x.random.Perm(len(wireHosts))
	x.wire = newWire(t, order[0], order[1], c.tls)
	x.secret = writeSecret(t, "the secret of "+c.String())
	return x
}

func (x *wireTrial) run() {
	ended := make(chan struct{})
	watch := time.AfterFunc(hangAfter, func() {
		select {
		case <-ended:
		default:
			stacks := make([]byte, 8<<20)
			panic(fmt.Sprintf("%v hangs\n%s", x, stacks[:runtime.Stack(stacks, true)]))
		}
	})
	defer watch.Stop()
	defer close(ended)
	defer x.end()
	switch x.moment {
	case "making", probingMoment:
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
		o["secret_file"], o["data_connections"] = x.secret, fmt.Sprint(x.data)
		if x.tls {
			for name, value := range x.secure[rank] {
				o[name] = value
			}
		}
		config := Config{Rank: rank, Size: len(wireHosts), Name: name, Timeout: timeout, Store: store, Lasting: store, Options: o}
		if through {
			config.Store = wiredStore{store, []*wire{x.wire}, rank}
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
		f := x.draw(x.random, x.wire.ends, x.data)
		if x.early {
			f.from, f.index, f.skip = -1, -1, x.random.IntN(handshake.HelloBytes+handshake.ProofBytes)
		}
		x.wire.arm(f)
	}
}

// awaitStrike expects that the fault happens, or has happened: what goes through wire has bytes enough.
func (x *wireTrial) awaitStrike() {
	select {
	case <-x.wire.struck:
	case <-time.After(opTimeout / 4):
		x.t.Error("the fault did not happen")
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
