package pgbackend

import (
	"cmp"
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
	"sagecomm/internal/kernels"
	"sagecomm/internal/observe"
	"sagecomm/internal/runner"
)

// Config describes a group to Create.
type Config struct {
	Rank, Size  int
	GlobalRanks []int // global rank of each rank; nil: equal to the group rank
	Name        string
	Timeout     time.Duration // bounds the rendezvous and each operation
	Operations  time.Duration // bounds each operation in the place of Timeout; 0: Timeout does
	Store       bootstrap.Store
	Lasting     bootstrap.Lasting // makes Store last, for the verdict on a group over several hosts; nil: Store cannot last
	Options     map[string]string // settings by variable name in lower case, without SAGECOMM_; the environment takes precedence

	birth *birth // of a group that meets at a unique id
	kin   *kin   // of a group that is made of ranks of another one
}

// checkPlace returns an error unless a group can have such a rank.
func (c Config) checkPlace() error {
	if c.Size < 1 || c.Size > algo.MaxSize || c.Rank < 0 || c.Rank >= c.Size {
		return fmt.Errorf("sagecomm: rank %d of %d: a group has 1 to %d ranks, numbered from 0", c.Rank, c.Size, algo.MaxSize)
	}
	return nil
}

// protocolVersion is the version of docs/protocol.md that this code speaks.
const protocolVersion = 13

// Create makes this rank's side of a group. It returns when all ranks have mapped each other's memory. If one rank
// fails, Create returns an error on all ranks.
func (p *Process) Create(c Config) (g *Group, err error) {
	if err := c.checkPlace(); err != nil {
		return nil, err
	}
	if c.GlobalRanks != nil && len(c.GlobalRanks) != c.Size {
		return nil, fmt.Errorf("sagecomm: a group of %d has %s", c.Size, coll.Count(len(c.GlobalRanks), "global rank"))
	}
	settings, tuning, flights, err := c.readSettings()
	if err != nil {
		return nil, p.refuse(c, err)
	}
	p.sweep()
	deadline := time.Now().Add(c.Timeout)
	epochs := c.epochs()
	for least := firstEpoch(runner.Environ()); ; {
		epoch, other, err := epochs.Next(least)
		if err != nil {
			return nil, err
		}
		g = &Group{process: p, birth: c.birth, kin: c.kin, options: c.Options, born: time.Now(), name: c.Name, rank: c.Rank, size: c.Size, global: c.GlobalRanks,
			settings: settings, tuningSettings: tuning, flights: flights, timeline: env.TraceFile.Get(settings) != "",
			life: lifetime{gone: make([]bool, c.Size)}, announced: make(chan struct{}), keys: keysOf(epoch), deadline: deadline}
		attempt := c
		attempt.Store = bootstrap.Watchful(c.Store, c.Size, func() error { return g.endOfWaits(c.Store) },
			func(rank int) error {
				return errors.Join(c.birth.twice(c.Rank), epochs.Twice(epoch), epochs.Overtaken(rank, epoch))
			})
		err = g.join(attempt)
		if err == nil {
			break
		}
		if twice := (*bootstrap.TwiceError)(nil); errors.As(err, &twice) {
			return nil, g.giveUp(twice)
		}
		var ahead *bootstrap.OvertakenError
		if !errors.As(err, &ahead) {
			ahead = epochs.Ahead(epoch, c.Size)
		}
		if late := (*bootstrap.TimeoutError)(nil); other != "" && errors.As(err, &late) {
			err = fmt.Errorf("%w; another process, %s, has met the others as rank %d before: if it still runs, rank %d was started twice", err, other, c.Rank, c.Rank)
		}
		err = g.giveUp(err)
		if ahead == nil || !time.Now().Before(deadline) {
			return nil, err
		}
		g.info("%v: following it", ahead)
		least = ahead.Epoch
	}
	g.kin = nil // the group itself hears of deaths now
	p.publish(g)
	defer g.life.release()
	g.list()
	p.engine.changed(p)
	for _, rank := range g.life.dead() {
		g.peerDied(rank)
	}
	if g.apart() {
		g.warnOfLinks()
		go g.followRemotes(compareEvery, streamsEvery)
	}
	g.introduceItself()
	return g, nil
}

// readSettings reads what the environment and the options set, and lets it take effect in c and in this process.
func (c *Config) readSettings() (settings *env.Settings, tuning tuningSettings, flights int, err error) {
	if settings, err = env.Resolve(runner.Environ(), c.Options); err != nil {
		return nil, tuning, 0, err
	}
	for _, w := range settings.Warnings() {
		observe.Warn("%s", w)
	}
	if t := env.Timeout.Get(settings); t.Given {
		c.Timeout, c.Operations = t.Value, t.Value
	}
	if least := min(c.Timeout, cmp.Or(c.Operations, c.Timeout)); least <= 0 {
		return nil, tuning, 0, fmt.Errorf("sagecomm: timeout %v is not positive", least)
	}
	if name := env.Kernels.Get(settings); name != "auto" {
		if err := kernels.Force(name); err != nil {
			return nil, tuning, 0, err
		}
	}
	if tuning, err = readTuningSettings(settings); err != nil {
		return nil, tuning, 0, err
	}
	flights, err = observe.FlightCapacity(runner.Environ())
	return settings, tuning, flights, err
}

// epochs counts the groups that are made on the keys of c.
func (c *Config) epochs() bootstrap.Epochs {
	return bootstrap.Epochs{Store: c.Store, Prefix: keys + "/epoch", Rank: c.Rank, Owner: thisProcess()}
}

// refuse tells the other ranks why this one, whose settings are wrong, does not meet them. It returns why.
func (p *Process) refuse(c Config, why error) error {
	epochs, restarted := c.epochs(), false
	for least := firstEpoch(runner.Environ()); ; {
		epoch, other, err := epochs.Next(least)
		if err != nil {
			return why // the store is gone
		}
		restarted = restarted || other != ""
		g := &Group{process: p, birth: c.birth, rank: c.Rank, size: c.Size, keys: keysOf(epoch)}
		g.abandon(c.Store, why)
		ahead := epochs.Ahead(epoch, c.Size)
		if ahead == nil || !restarted { // else others that were told go on to another group
			if g.mayServeStore() {
				g.awaitReaders(c.Store, g.keys+firstTry, nil, beginGrace)
			}
			return why
		}
		least = ahead.Epoch
	}
}

// thisProcess describes this process in errors of the rendezvous.
func thisProcess() string {
	return fmt.Sprintf("host %s, pid %d", bootstrap.HostName(), os.Getpid())
}

// publish makes the group visible to the rest of the process, which may destroy it from then on. The caller has
// acquired the group when publish returns.
func (p *Process) publish(g *Group) {
	p.mu.Lock()
	p.created++
	g.id = p.created
	p.mu.Unlock()
	p.observers.Add(view{g})
	p.mu.Lock()
	defer p.mu.Unlock()
	g.life.publish()
	if g.arbiter != nil { // nobody can destroy the group yet
		g.arbiter.serve(g)
	}
	p.groups[g.Handle()] = g
}

// introduceItself logs the group's settings and its choice of algorithms.
func (g *Group) introduceItself() {
	if env.Debug.Get(g.settings) < env.Info {
		return
	}
	g.info("made with %s, %s kernels; choices have the hash %016x", coll.Count(g.size, "rank"), kernels.Active(), g.choicesHash())
	ways := map[string][]int{}
	for rank, m := range g.maps {
		if m != nil {
			ways[m.Way()] = append(ways[m.Way()], rank)
		}
	}
	for _, way := range slices.Sorted(maps.Keys(ways)) {
		g.info("shared memory (%s): ranks %v", way, ways[way])
	}
	if g.apart() {
		g.info("%s", g.describedLinks())
		if g.rank == 0 {
			g.info("%s", g.describeProbe())
		}
	}
	if text := g.untuned(); text != "" && g.rank == 0 {
		g.info("%s", text)
	}
	if g.rank == 0 {
		g.logEngine(g.deviceEngine)
	}
	if g.buckets != nil && g.rank == 0 {
		g.info("fusion: %s", g.fusionLimits())
	}
	for kind := range coll.KindCount {
		if kind.Collective() && g.rank == 0 { // all ranks have the same tables
			g.info("%s", g.selector.Describe(kind))
		}
	}
}

// keys is the prefix of the keys at which the ranks of a group meet in the store.
const keys = "sagecomm"

// keysOf is the prefix of the keys of an epoch.
func keysOf(epoch int) string { return fmt.Sprintf("%s/%d", keys, epoch) }

// firstEpoch is the least epoch of this run of the job. torchrun restarts all ranks on the same store, and some of them
// may not have reached their first group before the restart.
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

// epochsOfARun exceeds the number of groups that one run of a job makes on the same keys.
const epochsOfARun = 1 << 20

// join carries out the part of Create in which peers may rely on this rank, so an error or a panic must reach them.
func (g *Group) join(c Config) (err error) {
	defer func() {
		r := recover()
		if r == nil {
			return
		}
		err = g.fault(r)
		if g.life.now() == meeting { // in later states giveUp tells the peers
			g.abandon(c.Store, err)
		}
	}()
	if err := g.meet(c); err != nil {
		return err
	}
	operations := cmp.Or(c.Operations, c.Timeout)
	if g.run, err = g.open(runner.HostLane, operations); err != nil {
		return err
	}
	g.showMet(g.run)
	g.engine = g.hostEngine(g.run)
	g.operationTimeout.Store(int64(operations))
	g.stacks.AddLane(g.run.PutStack)
	return nil
}

// abandon tells the other ranks why this rank does not meet them, so that they do not wait for their timeout.
func (g *Group) abandon(store bootstrap.Store, why error) {
	for _, try := range []string{firstTry, secondTry} {
		g.abandonTry(store, try, append(slices.Clone(rounds), endedKey), why)
	}
}
