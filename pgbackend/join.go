package pgbackend

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"sagecomm/internal/bootstrap"
	"sagecomm/internal/coll"
	"sagecomm/internal/env"
	"sagecomm/internal/observe"
	"sagecomm/internal/procwatch"
	"sagecomm/internal/runner"
)

// This file makes groups by unique ids, for callers without a store. The process that makes an id serves the store of
// the id over TCP: until all ranks have met, and to members of the verdict on a group over several hosts as long as they
// want it. docs/security.md has what a stranger may do there.

// Join describes one rank of a group that meets at a unique id.
type Join struct {
	ID         []byte // of UniqueID, the same on all ranks
	Rank, Size int
	Name       string
	Timeout    time.Duration // of the rendezvous and of operations; SAGECOMM_TIMEOUT takes the place of both timeouts
	Operations time.Duration // of operations; 0: Timeout
	Options    map[string]string
	Context    context.Context // its end ends the join, unless the group is made; nil: nothing does
}

// birth is what a group that met at an id keeps of it, for groups that its ranks make later.
type birth struct {
	id  bootstrap.ID
	job []byte // the secret of the job, nil without one
	// Where the server of this process listens, until the group is destroyed.
	here listener
	// Set once another thread of this process has tried to join as the same rank.
	disputed atomic.Bool
}

// seat is a rank of a unique id.
type seat struct {
	id   [len(bootstrap.ID{}.Space)]byte
	rank int
}

// sit takes a rank of the id for a group, until leaveSeat. An id is for one group, so a thread that takes a rank which
// another thread has is refused. If the other one waits for its peers still, it gives up as well: one of the two was
// meant to be another rank, which will not come.
func (p *Process) sit(b *birth, rank int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if before := p.seats[seat{b.id.Space, rank}]; before != nil {
		before.disputed.Store(true)
		return twiceHere(rank)
	}
	p.seats[seat{b.id.Space, rank}] = b
	return nil
}

func (p *Process) leaveSeat(b *birth, rank int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if at := (seat{b.id.Space, rank}); p.seats[at] == b {
		delete(p.seats, at)
	}
}

// twice returns an error if another thread has tried to join as this rank. A group over a store of the caller has no
// birth.
func (b *birth) twice(rank int) error {
	if b == nil || !b.disputed.Load() {
		return nil
	}
	return twiceHere(rank)
}

func twiceHere(rank int) error {
	return &bootstrap.TwiceError{Rank: rank, One: thisProcess(), Two: thisProcess()}
}

// listener is where the server of a rank's process listens.
type listener struct {
	Addresses []netip.Addr `json:"addresses"`
	Port      uint16       `json:"port"`
}

// UniqueID returns a new id, whose store this process serves. No rank has to be in this process.
func (p *Process) UniqueID() (out [bootstrap.IDBytes]byte, err error) {
	id, err := p.newID(nil, nil)
	if err != nil {
		return out, err
	}
	return id.Encode(), nil
}

// newID returns a new id. elsewhere are addresses at which its ranks are; nil: they are not known.
func (p *Process) newID(options map[string]string, elsewhere []netip.Addr) (id bootstrap.ID, err error) {
	settings, err := env.Resolve(runner.Environ(), options)
	if err != nil {
		return id, err
	}
	job, err := jobSecret(settings)
	if err != nil {
		return id, err
	}
	at, err := p.endpoint(settings, elsewhere)
	if err != nil {
		return id, err
	}
	if id, err = p.server.NewID(at, job); err == nil {
		id.Home = homeOf()
	}
	return id, err
}

// homeOf names the machine and the network namespace of this process: processes with one name reach each other over
// loopback. It is zero where the system does not tell. Tests replace it.
var homeOf = func() (name [len(bootstrap.ID{}.Home)]byte) {
	boot, err := procwatch.BootID()
	network, noNetwork := procwatch.NetworkNamespace()
	if err == nil && noNetwork == nil {
		sum := sha256.Sum256(binary.BigEndian.AppendUint64([]byte(boot), network))
		copy(name[:], sum[:])
	}
	return name
}

// noLoopback is behind a hint to set MASTER_ADDR, which may be set.
const noLoopback = "MASTER_ADDR does not help where that machine resolves it to a loopback address, as a line 127.0.1.1 in /etc/hosts makes it"

// checkReach refuses an id whose server listens on loopback of another machine, or of another network namespace.
func checkReach(id bootstrap.ID) error {
	here := homeOf()
	unknown := here == [len(here)]byte{} || id.Home == [len(here)]byte{}
	if unknown || id.Home == here || !bootstrap.AllLoopback(id.Addresses) {
		return nil
	}
	return errors.New("the unique id was made on another machine, or in another network namespace, by a process that listens on loopback only: set SAGECOMM_SOCKET_IFNAME or MASTER_ADDR for that process, so that it listens at an address that leads to it from all ranks; " + noLoopback)
}

// endpoint returns where the server of this process is to listen: where a setting says, else at the address that leads
// to MASTER_ADDR, else at that which leads to a process of the group elsewhere, else at loopback. Who makes an id knows
// of none, and opens no port to other hosts unasked. elsewhere are addresses of such a process, as of the server of the
// id at which this one joins.
func (p *Process) endpoint(settings *env.Settings, elsewhere []netip.Addr) (e bootstrap.Endpoint, err error) {
	e.Of, e.Beyond = "the ranks of a unique id", elsewhere == nil || !bootstrap.AllLoopback(elsewhere)
	if ports := env.PortRange.Get(settings); ports.Given {
		e.First, e.Last = ports.Value.First, ports.Value.Last
	}
	if chosen := env.SocketIfname.Get(settings); chosen.Given {
		e.Addresses, err = bootstrap.AddressesOf(chosen.Value)
		return e, err
	}
	e.Find = func() []netip.Addr { return p.towards(elsewhere) }
	return e, nil
}

// towards asks the name server. Tests replace it.
var towards = bootstrap.Towards

// towardsMaster returns the address of this host that leads to MASTER_ADDR, otherwise loopback. It may ask a name
// server.
func (p *Process) towardsMaster() []netip.Addr {
	for _, entry := range runner.Environ() {
		master, ok := strings.CutPrefix(entry, "MASTER_ADDR=")
		if !ok || master == "" {
			continue
		}
		a, err := towards(master)
		if err != nil {
			p.unrouted.Do(func() {
				observe.Warn("no interface leads to MASTER_ADDR=%s, so this process listens for unique ids and for links as if it were not set: %v", master, err)
			})
			break
		}
		return []netip.Addr{a}
	}
	return bootstrap.Loopback
}

// towards is towardsMaster, and where that is loopback the address of this host that leads elsewhere.
func (p *Process) towards(elsewhere []netip.Addr) []netip.Addr {
	master := p.towardsMaster()
	if !bootstrap.AllLoopback(master) {
		return master
	}
	for _, a := range elsewhere {
		if own, err := towards(a.String()); err == nil && !own.IsLoopback() {
			return []netip.Addr{own}
		}
	}
	return master
}

// Join makes the groups of ranks of this process, at the same time. If one is not made, none is.
func (p *Process) Join(joins []Join) ([]*Group, error) {
	ids := make([]bootstrap.ID, len(joins))
	for i, j := range joins {
		var err error
		if ids[i], err = bootstrap.ParseID(j.ID); err != nil {
			return nil, err
		}
	}
	return jointly(len(joins), func(i int) (*Group, error) {
		j := joins[i]
		return p.joinWithSecret(contextOf(j.Context), ids[i], Config{Rank: j.Rank, Size: j.Size, Name: j.Name, Timeout: j.Timeout, Operations: j.Operations, Options: j.Options})
	})
}

// joinWithSecret makes a group that meets at an id, with the secret that the settings name.
func (p *Process) joinWithSecret(ctx context.Context, id bootstrap.ID, c Config) (*Group, error) {
	job, err := jobSecretOf(c.Options)
	if err != nil {
		return nil, err
	}
	return p.joinAt(ctx, id, job, nil, c)
}

// jobSecretOf returns the secret of the job that options name, nil without one.
func jobSecretOf(options map[string]string) ([]byte, error) {
	settings, err := env.Resolve(runner.Environ(), options)
	if err != nil {
		return nil, err
	}
	return jobSecret(settings)
}

// elsewhere returns addresses of a process of the group elsewhere: where it has met at an id, those of the server of the
// id, else, of a group over several hosts that is made, those of a process on another host. nil: none is known.
func (g *Group) elsewhere() (list []netip.Addr) {
	if g.birth != nil {
		return g.birth.id.Addresses
	}
	if g.links == nil {
		return nil
	}
	for _, p := range g.links.processes {
		if g.isRemote(p.ranks[0]) {
			for _, at := range p.at.At {
				list = append(list, at.Addr())
			}
			return list
		}
	}
	return nil
}

// joinAt makes a group that meets at an id. job is the secret of the job, nil without one. If a rank serves the id and
// may come to that later than this rank, server names the rank.
func (p *Process) joinAt(ctx context.Context, id bootstrap.ID, job []byte, server fmt.Stringer, c Config) (*Group, error) {
	if err := c.checkPlace(); err != nil { // before thousands of ranks ask the store
		return nil, err
	}
	settings, err := env.Resolve(runner.Environ(), c.Options)
	if err != nil {
		return nil, err
	}
	if err := checkReach(id); err != nil {
		return nil, fmt.Errorf("sagecomm: group %q: rank %d of %d: %w", c.Name, c.Rank, c.Size, err)
	}
	at, err := p.endpoint(settings, id.Addresses)
	if err != nil {
		return nil, err
	}
	c.birth = &birth{id: id, job: job}
	if err := p.sit(c.birth, c.Rank); err != nil {
		return nil, err
	}
	if c.birth.here.Addresses, c.birth.here.Port, err = p.server.Listen(at); err != nil {
		p.leaveSeat(c.birth, c.Rank)
		return nil, err
	}
	g, err := p.meetAt(ctx, server, c, settings)
	if err != nil {
		p.leaveSeat(c.birth, c.Rank)
		p.server.Release()
	}
	return g, err
}

func contextOf(ctx context.Context) context.Context {
	if ctx == nil {
		return context.Background()
	}
	return ctx
}

// meetAt makes the group. All that it waits for comes through the store.
// Requires: the server of this process listens.
func (p *Process) meetAt(ctx context.Context, server fmt.Stringer, c Config, settings *env.Settings) (*Group, error) {
	began, timeout := time.Now(), c.Timeout
	if t := env.Timeout.Get(settings); t.Given {
		timeout = t.Value
	}
	var late func() error
	if server != nil {
		late = func() error { return c.kin.lost(c.Name) }
	}
	store, err := bootstrap.Dial(ctx, c.birth.id, c.birth.job, began.Add(timeout), late, inherited)
	ended := &coll.Failure{Status: coll.Aborted, Rank: c.Rank, Group: c.Name,
		Message: fmt.Sprintf("sagecomm: group %q: rank %d of %d: the group was aborted while its ranks met", c.Name, c.Rank, c.Size)}
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, ended
	case errors.As(err, new(*coll.Failure)):
		return nil, err
	case err != nil && server != nil:
		return nil, &coll.Failure{Status: coll.Timeout, Rank: -1, Group: c.Name,
			Message: fmt.Sprintf("sagecomm: group %q: rank %d waited %v for %v, at whose process the others meet: %v", c.Name, c.Rank, time.Since(began).Round(time.Millisecond), server, err)}
	case err != nil:
		return nil, fmt.Errorf("sagecomm: group %q: rank %d of %d: %w", c.Name, c.Rank, c.Size, err)
	}
	defer store.Close()
	defer context.AfterFunc(ctx, func() { store.End(ended) })()
	c.Store, c.Lasting = store, store
	meeting := p.server.Meeting(c.birth.id)
	g, err := p.Create(c)
	if err != nil && ctx.Err() != nil {
		err = ended
	}
	if err == nil {
		_ = store.Leave(c.Size) // without it the server drops the keys later
	}
	store.Close() // this rank needs it no longer, and seeOff waits for the others alone
	seeOff(ctx, meeting, g, err, began.Add(timeout))
	return g, err
}

// unlisten gives back the server of the process, and the rank of the id.
func (g *Group) unlisten() {
	if g.birth != nil {
		g.process.leaveSeat(g.birth, g.rank)
		g.process.server.Release()
	}
}

// jointly makes n groups at the same time and returns them, or none of them and the first error. nil groups are left
// alone.
func jointly(n int, one func(i int) (*Group, error)) ([]*Group, error) {
	groups, errs := make([]*Group, n), make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			defer func() {
				if r := recover(); r != nil {
					errs[i] = fault(r)
				}
			}()
			groups[i], errs[i] = one(i)
		})
	}
	all.Wait()
	for _, err := range errs {
		if err == nil {
			continue
		}
		for _, g := range groups {
			if g != nil {
				_ = g.Destroy()
			}
		}
		return nil, err
	}
	return groups, nil
}
