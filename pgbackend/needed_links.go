package pgbackend

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"sagecomm/internal/handshake"
	"sagecomm/internal/transport/tcp"
	"sagecomm/internal/verdict"
)

// This file makes links of a group at first need: in a large one a process begins with links to those that it watches,
// and needs few others (docs/protocol.md, section 16, Links at first need).

// wantEvery is the time between two requests to the other process to make the link: one may be lost with a process on
// its way.
const wantEvery = time.Second

// mostDials bounds the connections that a network dials at once for links at first need. Thousands would keep each
// other from being made in time. Tests change it.
var mostDials = 64

// neededWait is how long a process that is refused goes on, and waits for the other one, which perhaps can dial: it may
// be asked late. Tests change it.
var neededWait atomic.Int64

func init() { neededWait.Store(int64(noWayLimit)) }

// neededLinks are the links that a rank makes for a group that it has.
type neededLinks struct {
	mu     sync.Mutex
	making map[int]bool    // by process, of those to which a link is being made: it was needed again meanwhile
	ctx    context.Context // ends when no link is needed any more; nil before one was
	end    context.CancelFunc
	over   bool // the group has failed, or is freed
}

// watched reports whether two processes of the group watch each other.
func (l *groupLinks) watched(i, j int) bool { return verdict.Watched(i, j, len(l.processes), allWatch) }

// makesLinks reports whether the group makes links at first need.
func (g *Group) makesLinks() bool { return g.links != nil && g.links.sparse }

// need begins to make the link to a process, unless it is being made. It is for a rank of the group, and asks by the
// arbiter. Locks of pairs may be held.
func (l *groupLinks) need(process, rank int, a *arbiter) {
	n := &l.needed
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, making := n.making[process]; making {
		n.making[process] = true
		return
	}
	if n.making == nil {
		n.making = map[int]bool{}
		n.ctx, n.end = context.WithCancel(context.Background())
		if n.over {
			n.end()
		}
	}
	n.making[process] = false
	go func() {
		defer recoverFrom("a link of a group")
		for again := true; again; {
			again = l.makeNeeded(n.ctx, process, rank, a)
			n.mu.Lock()
			if again = again || n.making[process]; again {
				n.making[process] = false
			} else {
				delete(n.making, process)
			}
			n.mu.Unlock()
		}
	}()
}

// forgo gives up links that are being made for a rank whose group has failed: nobody needs what has not gone out yet,
// and what a diagnosis has asked.
func (l *groupLinks) forgo(rank int) {
	if l.needed.stop() {
		go func() {
			defer recoverFrom("a link of a group")
			l.network.set.Forgo(l.number, rank)
		}()
	}
}

// stop ends what makes links. It reports whether that is news to something.
func (n *neededLinks) stop() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.over {
		return false
	}
	n.over = true
	if n.end == nil { // no link was needed
		return false
	}
	n.end()
	return true
}

// makeNeeded makes the link to a process. Where that is not refused and takes long, it reports that it is to be tried
// again, if the rank wants the link: the process there may be stopped, which is no failure. A rank that does not want
// it, but is asked for it, asks nobody, and loses nothing if there is no way.
func (l *groupLinks) makeNeeded(needed context.Context, process, rank int, a *arbiter) (again bool) {
	to, set := l.processes[process], l.network.set
	peer := tcp.Identity(to.at.ID)
	waits := func() bool {
		_, waits := set.Wants(l.number, peer, rank)
		return waits
	}
	wanted, _ := set.Wants(l.number, peer, rank)
	left := func() bool {
		wanted, waits := set.Wants(l.number, peer, rank)
		return wanted && !waits
	}
	err := errors.New("internal error: a panic, whose stack is on standard error")
	defer func() {
		switch {
		case needed.Err() != nil:
			set.ForgoOne(l.number, peer, rank)
		case err != nil && !again && wanted:
			set.Unreachable(l.number, peer, rank, err)
		}
	}()
	defer recoverFrom("a link of a group")
	ctx, cancel := context.WithTimeout(needed, linkLimit)
	defer cancel()
	go func() {
		defer recoverFrom("a link of a group")
		askForLink(ctx, func() {
			if waits() {
				a.want(process)
			}
		})
	}()
	var link *tcp.Link
	if link, err = l.linkTo(ctx, to, time.Duration(neededWait.Load()), left); err == nil {
		set.Meet(link, l.number, to.ranks[0])
		err = link.Err() // then it may carry nothing
	}
	return ctx.Err() != nil && needed.Err() == nil && waits()
}

// dialNeeded makes a link to a process, or finds that the other end has made it. It waits until fewer than mostDials
// are dialed.
func (l *groupLinks) dialNeeded(ctx context.Context, to linkedProcess) (*tcp.Link, error) {
	n, id := l.network, tcp.Identity(to.at.ID)
	look := time.NewTicker(otherWay)
	defer look.Stop()
	for {
		if link := n.node.Await(ctx, id, 0); link != nil {
			return link, nil
		}
		select {
		case n.dials <- struct{}{}:
			defer func() { <-n.dials }()
			return n.node.Link(ctx, id, to.at.At, l.space)
		case <-look.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// askForLink asks the other process to make a link, until the context ends: perhaps only that one can dial.
func askForLink(ctx context.Context, ask func()) {
	again := time.NewTicker(wantEvery)
	defer again.Stop()
	for ctx.Err() == nil {
		ask()
		select {
		case <-again.C:
		case <-ctx.Done():
			return
		}
	}
}

// mostKeys bounds the keys of groups that have ended that a network keeps.
const mostKeys = 1024

// keepKey keeps the key of a group that a rank of this process has left: a process that needs the rank is told of its
// farewell over a link.
func (n *network) keepKey(space handshake.Space) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if slices.Contains(n.kept, space) { // another rank of this process has left the same group: its key is counted twice
		n.node.RemoveKey(space)
		return
	}
	if n.kept = append(n.kept, space); len(n.kept) > mostKeys {
		n.node.RemoveKey(n.kept[0])
		n.kept = n.kept[1:]
	}
}

// linkWanted implements servedGroup.
func (g *Group) linkWanted(member int) {
	if !g.life.acquire() { // what this rank has published for the other one asks for a link by itself
		return
	}
	defer g.life.release()
	if !g.links.sparse { // no process of such a group sends that
		return
	}
	g.links.need(member, g.rank, g.arbiter)
}

// want asks a member to make a link to this one. What asks may be lost on its way.
func (a *arbiter) want(member int) { a.push(func() { a.member.Want(member) }) }

// wanted tells groups of this process that members want links to it.
func (a *arbiter) wanted(members []int) {
	if len(members) == 0 {
		return
	}
	a.mu.Lock()
	groups := slices.Clone(a.groups)
	a.mu.Unlock()
	for _, g := range groups {
		for _, member := range members {
			g.linkWanted(member)
		}
	}
}
