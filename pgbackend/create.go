package pgbackend

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"sagecomm/algo"
	"sagecomm/internal/bootstrap"
	"sagecomm/internal/coll"
	"sagecomm/internal/env"
	"sagecomm/internal/runner"
	"sagecomm/internal/shmem"
)

// Config describes a group to Create.
type Config struct {
	Rank, Size int
	Name       string
	Timeout    time.Duration // of the rendezvous and of operations
	Store      bootstrap.Store
	Options    map[string]string // settings by variable name without prefix, in lower case; the environment wins
}

// protocolVersion is the version of docs/protocol.md that this code speaks.
const protocolVersion = 1

// streamBytes is the length from which an output that is not the input is written past the cache: it would push out
// the slots, and nobody reads it soon.
const streamBytes = 4 << 20

// Create joins a group: it returns when all ranks have mapped each other's memory, or an error on all of them.
func (p *Process) Create(c Config) (g *Group, err error) {
	if c.Size < 1 || c.Size > algo.MaxSize || c.Rank < 0 || c.Rank >= c.Size {
		return nil, fmt.Errorf("sagecomm: rank %d of %d: a group has 1 to %d ranks, numbered from 0", c.Rank, c.Size, algo.MaxSize)
	}
	settings, err := env.Resolve(runner.Environ(), c.Options)
	if err != nil {
		return nil, err
	}
	for _, w := range settings.Warnings() {
		p.warn("%s", w)
	}
	if t := env.Timeout.Get(settings); t.Given {
		c.Timeout = t.Value
	}
	if c.Timeout <= 0 {
		return nil, fmt.Errorf("sagecomm: timeout %v is not positive", c.Timeout)
	}
	if name := env.Kernels.Get(settings); name != "auto" {
		if err := runner.ForceKernels(name); err != nil {
			return nil, err
		}
	}
	flights, err := flightCapacity(runner.Environ())
	if err != nil {
		return nil, err
	}
	selector, err := p.selector(c.Size, env.Tune.Get(settings))
	if err != nil {
		return nil, err
	}
	p.sweep()
	deadline := time.Now().Add(c.Timeout)
	epochs := bootstrap.Epochs{Store: c.Store, Prefix: keys + "/epoch", Rank: c.Rank}
	for least := firstEpoch(runner.Environ()); ; {
		epoch, err := epochs.Next(least)
		if err != nil {
			return nil, err
		}
		g = &Group{process: p, name: c.Name, rank: c.Rank, size: c.Size, settings: settings, flights: flights, selector: selector,
			gone: make([]bool, c.Size), keys: fmt.Sprintf("%s/%d", keys, epoch), deadline: deadline}
		attempt := c
		attempt.Store = bootstrap.Watchful(c.Store, c.Size, func() bool { return len(g.dead()) > 0 },
			func(rank int) error { return epochs.Overtaken(rank, epoch) })
		err = g.join(attempt)
		if err == nil {
			break
		}
		ahead := overtaken(epochs, epoch, c.Size, err)
		err = g.giveUp(err)
		if ahead == nil || !time.Now().Before(deadline) {
			return nil, err
		}
		g.info("%v: following it", ahead)
		least = ahead.Epoch
	}
	p.mu.Lock()
	p.groups[g.Handle()] = g
	p.mu.Unlock()
	p.engine.changed(p)
	g.mu.Lock()
	g.joined = true
	g.mu.Unlock()
	for _, rank := range g.dead() {
		g.peerDied(rank)
	}
	g.introduceItself()
	return g, nil
}

// introduceItself prints what was chosen and why.
func (g *Group) introduceItself() {
	if env.Debug.Get(g.settings) < env.Info {
		return
	}
	g.info("%d ranks, %s kernels, tables %016x", g.size, runner.ActiveKernels(), g.selector.Fingerprint())
	ways := map[string][]int{}
	for rank, m := range g.maps {
		ways[m.Way()] = append(ways[m.Way()], rank)
	}
	for _, way := range slices.Sorted(maps.Keys(ways)) {
		g.info("shared memory (%s): ranks %v", way, ways[way])
	}
	for kind := range coll.KindCount {
		if kind.Collective() && g.rank == 0 { // the tables are everybody's
			g.info("%s", g.selector.Describe(kind))
		}
	}
}

// keys is where ranks meet in the store.
const keys = "sagecomm"

// overtaken finds out whether an attempt has failed because others make a later group already.
func overtaken(epochs bootstrap.Epochs, mine, size int, err error) *bootstrap.OvertakenError {
	var ahead *bootstrap.OvertakenError
	for rank := 0; rank < size && !errors.As(err, &ahead); rank++ {
		err = epochs.Overtaken(rank, mine)
	}
	return ahead
}

// firstEpoch is the least epoch of this run of the job. torchrun restarts all ranks on the same store, and some of them may
// not have come to their first group before.
func firstEpoch(environ []string) int {
	for _, entry := range environ {
		if value, ok := strings.CutPrefix(entry, "TORCHELASTIC_RESTART_COUNT="); ok {
			if n, err := strconv.Atoi(value); err == nil && n > 0 {
				return n*epochsOfARun + 1
			}
		}
	}
	return 1
}

// epochsOfARun is more groups than a run makes on the same keys.
const epochsOfARun = 1 << 20

// join does what can fail, or panic, when peers may rely on this rank already.
func (g *Group) join(c Config) (err error) {
	defer func() {
		r := recover()
		if r == nil {
			return
		}
		err = g.fault(r)
		if g.promised {
			return // see giveUp
		}
		for _, k := range []string{firstTry, firstTry + attached, secondTry, secondTry + attached} {
			_ = bootstrap.Abandon(c.Store, g.keys+k, g.rank, err) // else their time runs out
		}
	}()
	if err := g.meet(c); err != nil {
		return err
	}
	return g.open(c)
}

// choice is what the tables of a group follow from.
type choice struct {
	size  int
	rules string
}

// selector makes the tables once for all groups of a size with the same rules: pricing the plans of large groups takes
// tenths of a second.
func (p *Process) selector(size int, rules string) (*algo.Selector, error) {
	key := choice{size, rules}
	p.mu.Lock()
	known := p.selectors[key]
	p.mu.Unlock()
	if known != nil {
		return known, nil
	}
	tune, err := algo.ParseTune(rules)
	if err != nil {
		return nil, err
	}
	made, err := algo.NewSelector(size, algo.DefaultParams(), tune)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.selectors[key] = made
	return made, nil
}

// meet exchanges descriptions through the store and maps the peers' memory, at the second try with a file in the place of
// a memfd. Ranks that go on take the same branches, because what decides is known to all: the list of methods, which is
// part of what they compare first, and the outcome of Agree.
func (g *Group) meet(c Config) error {
	var methods []shmem.Method
	for _, m := range env.ShmAttach.Get(g.settings) {
		methods = append(methods, shmem.Method(m))
	}
	deadline := g.deadline
	if !slices.ContainsFunc(methods, func(m shmem.Method) bool { return m != shmem.File }) {
		return g.exchangeFile(c, firstTry, deadline, methods)
	}
	st, err := g.process.sharedStore(g.settings)
	failed := g.exchange(c, firstTry, deadline, methods, st, err)
	var told *bootstrap.FailedError
	switch {
	case failed == nil:
		return nil
	case g.different || !slices.Contains(methods, shmem.File):
		return failed
	case !errors.As(failed, &told) || len(told.Missing) > 0: // peers may have joined, or have given up
		_ = bootstrap.Abandon(c.Store, g.keys+secondTry, g.rank, failed) // for who comes; else their time runs out
		return failed
	}
	g.info("falling back to a file: %v", failed)
	g.discard()
	if again := g.exchangeFile(c, secondTry, deadline, methods); again != nil {
		return fmt.Errorf("%w; before that, without a file: %w", again, failed)
	}
	return nil
}

// Keys of the two tries, and of how each of them went.
const (
	firstTry  = "/first"
	secondTry = "/second"
	attached  = "/attached"
)

func (g *Group) exchangeFile(c Config, try string, deadline time.Time, methods []shmem.Method) error {
	st, err := g.process.newStore(shmem.Tmpfs, g.settings)
	g.own = st
	return g.exchange(c, try, deadline, methods, st, err)
}

// exchange is one attempt with one kind of arena. storeErr is why this rank has none: it tells the others.
func (g *Group) exchange(c Config, try string, deadline time.Time, methods []shmem.Method, st *store, storeErr error) error {
	left := func() time.Duration { return max(time.Until(deadline), time.Millisecond) }
	me := member{Host: bootstrap.HostName(), HostID: bootstrap.HostID(env.HostID.Get(g.settings)), PID: os.Getpid(),
		Agreed: fmt.Sprintf("protocol %d, %d ranks, algorithm tables %016x, shared memory by %v", protocolVersion, g.size, g.selector.Fingerprint(), methods)}
	if storeErr == nil {
		g.board, storeErr = newBoard(st, g.rank, g.size)
	}
	if storeErr == nil {
		me.Board = g.board.ranges[0].Off
		me.Arena, storeErr = st.arena.Publish(methods)
	}
	if storeErr != nil {
		me.ArenaAbsent = storeErr.Error()
	}
	text, err := json.Marshal(me)
	if err != nil {
		return err
	}
	if g.own != nil {
		// Whatever the outcome, the name goes once everybody has tried.
		defer func() { _ = st.arena.Unlink() }()
	}
	all, err := bootstrap.Exchange(c.Store, g.keys+try, g.rank, g.size, left(), text)
	if err != nil {
		_ = bootstrap.Abandon(c.Store, g.keys+try+attached, g.rank, err) // for who comes; else their time runs out
		return err
	}
	attachErr := g.introduce(all)
	if attachErr == nil {
		g.watchPeers()
		attachErr = g.attach(methods)
	}
	g.promised = attachErr == nil
	err = bootstrap.Agree(c.Store, g.keys+try+attached, g.rank, g.size, left(), attachErr)
	if told := (*bootstrap.FailedError)(nil); errors.As(err, &told) {
		g.promised = false // what a rank has said that failed stays in the store: nobody will join
	}
	return err
}

// introduce reads what the ranks say of themselves.
func (g *Group) introduce(all [][]byte) error {
	members := make([]member, g.size)
	for rank, text := range all {
		m := &members[rank]
		if err := json.Unmarshal(text, m); err != nil {
			return fmt.Errorf("what rank %d wrote into the store is not readable: %w", rank, err)
		}
		if m.ArenaAbsent != "" {
			return fmt.Errorf("rank %d (host %s, pid %d) has no shared memory: %s", rank, m.Host, m.PID, m.ArenaAbsent)
		}
		if err := m.Arena.Check(); err != nil || m.PID != m.Arena.PID {
			return fmt.Errorf("what rank %d (pid %d) wrote into the store cannot be: %w", rank, m.PID, cmp.Or(err, errors.New("its arena is another process's")))
		}
		if mine := members[0].Agreed; m.Agreed != mine {
			g.different = true
			return fmt.Errorf("ranks 0 and %d are set up differently: %q and %q; give all ranks the same sagecomm version, the same SAGECOMM_TUNE and the same SAGECOMM_SHM_ATTACH", rank, mine, m.Agreed)
		}
	}
	g.members = members
	return nil
}

// attach maps the memory of all ranks.
func (g *Group) attach(methods []shmem.Method) error {
	g.peers = make([]runner.Peer, g.size)
	descriptors := make([]shmem.Descriptor, g.size)
	for rank, m := range g.members {
		descriptors[rank] = m.Arena
	}
	maps, err := attachAll(context.Background(), descriptors, methods)
	if err != nil {
		return err
	}
	for rank, m := range maps {
		g.peers[rank] = runner.Peer{Arena: m.Base(), Bytes: m.Size(), Board: g.members[rank].Board}
		if !g.peers[rank].Check(rank, g.size) {
			releaseAll(maps)
			return fmt.Errorf("there is no board of rank %d at offset %d of its shared memory", rank, g.members[rank].Board)
		}
	}
	g.maps = maps
	return nil
}

// openGroup makes a group of the runner's. Tests put a fault in its place.
var openGroup = runner.OpenGroup

// open makes the runner's group of what is mapped.
func (g *Group) open(c Config) error {
	here := len(g.maps)
	run, err := openGroup(runner.Config{Rank: g.rank, Timeout: c.Timeout, Patience: patience(g.settings, here),
		StreamBytes: streamBytes, Flights: g.flights, Trace: env.Debug.Get(g.settings) >= env.Trace, Peers: g.peers})
	if err != nil {
		return err
	}
	g.run = run
	for kind := range coll.KindCount {
		if !kind.Collective() {
			continue
		}
		g.classes[kind] = g.selector.Boundaries(kind)
		var bounds []uint64
		for _, class := range g.classes[kind][:len(g.classes[kind])-1] {
			bounds = append(bounds, class.UpTo+1)
		}
		run.SetClasses(kind, bounds)
	}
	return nil
}

// giveUp ends what Create began, and says why it cannot go on. If this rank has told the others that it is ready, some
// may have heard that of all ranks: they have a group and will look into this rank's board. They find the reason there,
// and it stays until they have left, given up or died, and then a while for those that look late (see sweep). This rank
// writes into none of theirs: those that gave up too may have freed them.
func (g *Group) giveUp(err error) error {
	err = g.bereaved(err)
	if !g.promised {
		g.discard()
		g.unwatchPeers()
		return err
	}
	m := g.members[g.rank]
	runner.GiveUp(g.board.at(), &coll.Failure{Status: coll.PeerFailure, Rank: g.rank, PID: m.PID, Host: m.Host, Group: g.name,
		Message: fmt.Sprintf("sagecomm: group %q: %s gave up while the group was made: %v", g.name, g.who(g.rank), err)})
	g.mu.Lock()
	g.ended = true
	g.mu.Unlock()
	p := g.process
	p.mu.Lock()
	p.leaving = append(p.leaving, g)
	p.mu.Unlock()
	p.sweep()
	return err
}

// discard gives back what a group took that no rank has joined or will join.
func (g *Group) discard() {
	releaseAll(g.maps)
	g.maps = nil
	if g.board != nil {
		_ = g.board.free()
		g.board = nil
	}
	if g.own != nil {
		_ = g.process.closeStore(g.own)
		g.own = nil
	}
}
