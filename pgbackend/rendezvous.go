package pgbackend

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"sagecomm/internal/bootstrap"
	"sagecomm/internal/coll"
	"sagecomm/internal/env"
	"sagecomm/internal/handshake"
	"sagecomm/internal/observe"
	"sagecomm/internal/procwatch"
	"sagecomm/internal/runner"
	"sagecomm/internal/shmem"
)

// Keys of the two tries, and of the rounds of a try behind the first one, in their order. A group on one host has
// neither addresses nor links, and has joined when all have attached.
const (
	firstTry  = "/first"
	secondTry = "/second"

	addressRound  = "/addresses"
	attachedRound = "/attached"
	linkedRound   = "/linked"
	joinedRound   = "/joined"
	// Behind the rounds of a try a rank tells that it reads nothing more in the store.
	endedKey = "/ended"
)

var rounds = []string{"", addressRound, attachedRound, linkedRound, joinedRound}

// abandonTry tells the other ranks in some rounds of a try why this rank does not come, which spares them their
// timeout.
func (g *Group) abandonTry(store bootstrap.Store, try string, in []string, why error) {
	for _, round := range in {
		if bootstrap.Abandon(store, g.keys+try+round, g.rank, g.size, telling(why)) != nil {
			return // the store is gone
		}
	}
}

// behind returns the rounds of the group behind one.
func (g *Group) behind(round string) []string {
	if len(g.hosts) == 1 {
		return slices.DeleteFunc([]string{attachedRound}, func(r string) bool { return r == round })
	}
	return slices.Clone(rounds[slices.Index(rounds, round)+1:])
}

// meet exchanges descriptions through the store and maps the peers' memory, at the second try with a file in the place
// of a memfd. All ranks that go on take the same branches, because each branch depends only on data that all ranks
// share: the list of methods, which is part of setup, and the outcome of Agree.
func (g *Group) meet(c Config) error {
	err := g.tryToMeet(c)
	g.leaveStore(c.Store, err)
	return err
}

func (g *Group) tryToMeet(c Config) error {
	var methods []shmem.Method
	for _, m := range env.ShmAttach.Get(g.settings) {
		methods = append(methods, shmem.Method(m))
	}
	deadline := g.deadline
	if !slices.ContainsFunc(methods, func(m shmem.Method) bool { return m != shmem.File }) {
		return g.attemptFile(c, firstTry, deadline, methods)
	}
	arena, err := g.process.sharedArena(g.settings)
	failed := g.attempt(c, firstTry, deadline, methods, arena, err)
	var told *bootstrap.FailedError
	switch {
	case failed == nil:
		return nil
	case !slices.Contains(methods, shmem.File):
		return failed
	case g.final || !errors.As(failed, &told) || len(told.Missing)+told.Unknown > 0:
		// peers may have joined, or have given up, or go on to the second try
		g.abandonTry(c.Store, secondTry, rounds[:1], failed)
		return failed
	}
	g.info("falling back to a file: %v", failed)
	g.discard()
	if again := g.attemptFile(c, secondTry, deadline, methods); again != nil {
		err := fmt.Errorf("%w; before that, without a file: %w", again, failed)
		if strings.Contains(err.Error(), "namespace") { // the reasons come from other ranks, as text
			err = fmt.Errorf("sagecomm: the ranks cannot share memory: give their containers a common pid or network namespace, or a common directory as SAGECOMM_SHM_DIR; or give each container a SAGECOMM_HOSTID of its own, so that they use TCP; details: %w", err)
		}
		return err
	}
	g.process.fellBack(g, failed)
	return nil
}

func (g *Group) attemptFile(c Config, try string, deadline time.Time, methods []shmem.Method) error {
	arena, err := g.process.newArena(shmem.Tmpfs, g.settings)
	g.own = arena
	return g.attempt(c, try, deadline, methods, arena, err)
}

// attempt makes one attempt with one kind of arena. arenaErr is the reason why this rank has no arena; attempt passes
// it to the other ranks.
func (g *Group) attempt(c Config, try string, deadline time.Time, methods []shmem.Method, arena *processArena, arenaErr error) (failed error) {
	left := func() time.Duration { return max(time.Until(deadline), time.Millisecond) }
	me := member{Machine: g.tuningSettings.machine, Host: bootstrap.HostName(), HostSetting: env.HostID.Get(g.settings), PID: os.Getpid(), Processors: processors(),
		Setup: g.setup(methods), Engines: g.engineOffers(), Place: placeOf(g)}
	me.draw(g)
	if g.birth != nil {
		me.Listener = &g.birth.here
	}
	if g.tuningSettings.probe && g.size > 1 {
		me.Probe = g.process.probe(g.size)
	}
	if arenaErr == nil {
		g.memory, arenaErr = newGroupMemory(arena, g.rank, g.size)
	}
	if arenaErr == nil {
		for lane := range me.Shared {
			me.Shared[lane] = g.memory.ranges[lane].Off
		}
		me.Control = g.memory.control.Off
		for lane := range me.FlightLog {
			if me.FlightLog[lane] = g.memory.flightLog(g.flights, g.RecordsStacks()); me.FlightLog[lane] != 0 {
				me.Flights, me.Stacks = g.flights, g.RecordsStacks()
			}
		}
		me.Arena, arenaErr = arena.Publish(methods)
	}
	if arenaErr != nil {
		me.ArenaAbsent = arenaErr.Error()
	}
	text, err := json.Marshal(me)
	if err != nil {
		return err
	}
	if g.own != nil {
		// The file loses its name once this rank knows the outcome. All ranks have tried to map it then, whatever that
		// is, unless the failure of rank 0 of a large group has ended the round: then nobody joins, and who finds no
		// file fails with that failure, too.
		defer func() { _ = arena.Unlink() }()
	}
	// Ranks with different group sizes wait for different ranks, so the first difference must end the wait.
	check := func(rank int, value []byte) error {
		var m member
		if json.Unmarshal(value, &m) != nil {
			return nil // introduce reports that
		}
		// Versions may differ in how a large group meets.
		if same := m.Setup.Protocol == protocolVersion; same && m.Setup.Size == g.size || !same && !bootstrap.HasRoster(g.size) {
			return nil // introduce reports the other differences
		}
		g.final = true
		a, b, of, other := g.rank, rank, me.Setup, m.Setup
		if b < a {
			a, b, of, other = b, a, other, of
		}
		return difference(a, b, of, other)
	}
	round := ""
	g.unlinked.Store(nil)
	g.news = lossNews{try: g.keys + try}
	defer func() {
		if failed != nil {
			g.forgetOwnCulprit(failed)
			g.askWhyUnlinked(c.Store)
			g.tellOfLoss(c.Store)
			g.abandonTry(c.Store, try, g.behind(round), g.bereaved(failed))
		}
	}()
	all, err := bootstrap.Exchange(c.Store, g.keys+try, g.rank, g.size, left(), text, check)
	if err != nil {
		g.final = true // no mapping has failed
		return bootstrap.WithOwn(g.keys+try, g.rank, g.size, arenaErr, err)
	}
	attachErr := g.introduce(all)
	if attachErr == nil {
		attachErr = g.choose()
	}
	if attachErr == nil {
		g.watchPeers()
	}
	var links *linking
	if g.apart() {
		round = addressRound
		if err := g.shareAddresses(c.Store, g.keys+try+round, left(), attachErr); err != nil {
			g.final = true
			return err
		}
		links = g.startLinking(deadline)
		defer links.end()
	}
	if attachErr == nil {
		attachErr = g.attach(methods)
	}
	agree := func(in string, failed error) error {
		round = in
		return bootstrap.Agree(c.Store, g.keys+try+round, g.rank, g.size, left(), telling(failed))
	}
	if g.apart() {
		if err := agree(attachedRound, attachErr); err != nil {
			return err
		}
		g.final = true
		linkErr := g.link(c, links, fmt.Sprint(g.keys, try, linkedRound, "/", g.rank))
		round = linkedRound
		var mine []byte
		if linkErr == nil {
			mine = links.told()
		}
		told, err := bootstrap.ExchangeOr(c.Store, g.keys+try+round, g.rank, g.size, left(), mine, telling(linkErr))
		if err != nil {
			return err
		}
		// Only now can every rank hear from this one that it gives up, as one that is ready has to say.
		g.linked()
		attachErr = g.chooseForLinks(told)
	}
	last := attachedRound
	if g.apart() {
		last = joinedRound
	}
	if attachErr == nil {
		g.life.mustMove(ready)
	}
	err = agree(last, attachErr)
	g.secret = nil
	if told := (*bootstrap.FailedError)(nil); errors.As(err, &told) {
		g.life.move(meeting) // the failure of a rank stays in the store, so no rank joins
	}
	return err
}

// draw adds what links between hosts begin with. Only that of rank 0 counts.
func (m *member) draw(g *Group) {
	m.Network, _ = procwatch.NetworkNamespace() // 0 without /proc: then all are taken to be in one
	m.HasSecret = g.hasJobSecret()
	m.Encrypts = wantsEncryption(g.settings)
	if g.rank != 0 || g.size == 1 {
		return
	}
	var number [8]byte
	_, _ = rand.Read(number[:]) // it does not fail
	m.Number = binary.LittleEndian.Uint64(number[:])
	if !m.HasSecret && g.birth == nil {
		m.Secret = make([]byte, len(handshake.Key{}))
		_, _ = rand.Read(m.Secret)
	}
}

// introduce reads the descriptions of all ranks.
func (g *Group) introduce(all [][]byte) error {
	members := make([]member, g.size)
	for rank, text := range all {
		m := &members[rank]
		if err := json.Unmarshal(text, m); err != nil {
			return fmt.Errorf("rank %d wrote an unreadable description into the store: %w", rank, err)
		}
		if m.ArenaAbsent != "" {
			return fmt.Errorf("rank %d (host %s, pid %d) has no shared memory: %s", rank, m.Host, m.PID, m.ArenaAbsent)
		}
		if err := m.Arena.Check(); err != nil || m.PID != m.Arena.PID {
			return fmt.Errorf("rank %d (pid %d) wrote an invalid description into the store: %w", rank, m.PID, cmp.Or(err, errors.New("its arena is another process's")))
		}
		if err := difference(0, rank, members[0].Setup, m.Setup); err != nil {
			g.final = true
			return err
		}
		if g.birth != nil && (m.Listener == nil || !bootstrap.CanServe(m.Listener.Addresses, m.Listener.Port)) {
			return fmt.Errorf("rank %d (pid %d) wrote an invalid description into the store: no server can be where it says", rank, m.PID)
		}
	}
	g.members, g.secret, members[0].Secret = members, members[0].Secret, nil
	if g.birth != nil { // all ranks can make the secret, so it crosses no network
		secret := g.birth.id.LinkSecret(members[0].Number)
		g.secret = secret[:]
	}
	g.findHosts()
	if err := g.checkHosts(); err != nil {
		g.final = true
		return err
	}
	return nil
}

// attach maps the memory of the ranks on this host.
func (g *Group) attach(methods []shmem.Method) error {
	g.peers = make([]runner.Peer, g.size)
	descriptors := make([]*shmem.Descriptor, g.size)
	for rank := range g.members {
		if !g.isRemote(rank) {
			descriptors[rank] = &g.members[rank].Arena
		}
	}
	maps, err := attachAll(context.Background(), descriptors, methods)
	if err != nil {
		return err
	}
	for rank, m := range maps {
		if m == nil {
			continue
		}
		g.peers[rank] = runner.Peer{Arena: m.Base(), Bytes: m.Size(), Shared: g.members[rank].Shared}
		if n := g.members[rank].Flights; n > 0 && n <= observe.MaxFlights {
			g.peers[rank].Flights, g.peers[rank].FlightStacks = n, g.members[rank].Stacks
		}
		if !g.peers[rank].Check(rank, g.size) {
			releaseAll(maps)
			return fmt.Errorf("there are no shared blocks of rank %d at the offsets %d of its shared memory", rank, g.members[rank].Shared)
		}
		if !hasControlArea(m, g.members[rank].Control) {
			releaseAll(maps)
			return fmt.Errorf("there is no control area of rank %d at offset %d of its shared memory", rank, g.members[rank].Control)
		}
	}
	g.maps = maps
	return nil
}

// giveUp ends an attempt of Create and returns the reason why the group was not made. If this rank has told the others
// that it is ready, some of them may have a group already and will read this rank's shared block, so giveUp writes the
// reason there. The block stays until all peers have left, given up or died, and a while longer for peers that read it
// late (see sweep). This rank does not write into a peer's shared block, because a peer that gave up too may have freed
// it.
func (g *Group) giveUp(err error) error {
	err = g.bereaved(err)
	if g.life.now() == meeting {
		g.life.mustMove(freed)
		g.discard()
		g.unwatchPeers()
		return err
	}
	if g.arbiter != nil { // it ends before the peers count this rank as one that has left
		g.arbiter.leave(g)
	}
	m := g.members[g.rank]
	runner.GiveUp(g.memory.at(), &coll.Failure{Status: coll.PeerFailure, Rank: g.rank, PID: m.PID, Host: m.Host, Group: g.name,
		Message: fmt.Sprintf("sagecomm: group %q: %s gave up while the group was made: %v", g.name, g.who(g.rank), err)})
	g.ringPumps()
	g.life.mustMove(leaving)
	p := g.process
	p.mu.Lock()
	p.leaving = append(p.leaving, g)
	p.mu.Unlock()
	p.sweep()
	return err
}

// discard frees the memory of a group.
// Requires: no rank has joined the group or will join it.
func (g *Group) discard() {
	g.discardLinks()
	releaseAll(g.maps)
	g.maps = nil
	if g.memory != nil {
		_ = g.memory.free()
		g.memory = nil
	}
	if g.own != nil {
		_ = g.process.closeArena(g.own)
		g.own = nil
	}
}
