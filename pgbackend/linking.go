package pgbackend

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"sagecomm/internal/bootstrap"
	"sagecomm/internal/coll"
	"sagecomm/internal/transport/tcp"
)

// This file has the part of the rendezvous that links the processes of a group over several hosts (docs/protocol.md,
// section 16, Rendezvous).

// Times of linking.
const (
	linkLimit     = time.Minute            // until all links of a group are there
	firstDial     = 300 * time.Millisecond // how long the process with the higher identity waits for the other one to dial
	noWayLimit    = 10 * time.Second       // how long a process is dialed to which no network leads
	otherWay      = 2 * time.Second        // how long a process that cannot dial waits for the other one, which perhaps can
	refusalPause  = 100 * time.Millisecond // how long a process that has refused waits until it is dialed again: one that has too many strangers may end any connection,
	mostRefusals  = 2                      // and is dialed so often again
	linkingQuiet  = 50 * time.Millisecond  // how long the wait for links, or for a name server, may take before it looks for signals,
	linkingSlices = 100 * time.Millisecond // and how often it does so then
)

// linking makes the links of a group while its ranks attach what memory they share, and notices until the group is made
// that one is lost.
type linking struct {
	g         *Group
	processes []linkedProcess
	cancel    context.CancelFunc
	done      chan struct{} // closed when all links are there and measured, or one is not made
	probed    []probedHost  // what this process has measured; set before done is closed

	mu     sync.Mutex
	links  []*tcp.Link   // by process; nil for this one, and for those that it does not watch
	failed *coll.Failure // why the group cannot be made
	ended  bool
}

// startLinking begins to make the links to the processes of the group that this one watches, those of this host
// included: members of the verdict ask each other. In a group that is not large these are all.
func (g *Group) startLinking(deadline time.Time) *linking {
	if limit := time.Now().Add(linkLimit); limit.Before(deadline) {
		deadline = limit
	}
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	processes := g.links.processes
	l := &linking{g: g, processes: processes, links: make([]*tcp.Link, len(processes)), cancel: cancel, done: make(chan struct{})}
	g.links.network.watch(l)
	var all sync.WaitGroup
	for i, p := range processes {
		if !g.links.watched(g.links.self, i) {
			continue
		}
		all.Go(func() {
			defer recoverFrom("the links of a group")
			err := errors.New("internal error: a panic, whose stack is on standard error")
			defer func() {
				if err != nil {
					l.fail(g.noLink(p, err))
				}
			}()
			var link *tcp.Link
			if link, err = g.links.linkTo(ctx, p, 0, nil); err == nil {
				l.mu.Lock()
				l.links[i] = link
				l.mu.Unlock()
				err = link.Err() // it may be lost since, and nobody knew whose it was
			}
		})
	}
	go func() {
		defer recoverFrom("the links of a group")
		defer close(l.done)
		all.Wait()
		l.probe(ctx)
	}()
	return l
}

// fail notes why the group cannot be made, unless there is another reason already, gives up links that are not there
// yet, and ends the waits of this rank for others in the store: the process at the end of the link may have died.
func (l *linking) fail(f *coll.Failure) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed == nil && !l.ended {
		l.failed = f
		l.g.unlinked.Store(f)
	}
	l.cancel()
}

// lost is called when a link of this process is lost.
func (l *linking) lost(link *tcp.Link, why error) {
	if i := l.process(link); i >= 0 {
		l.fail(l.g.noLink(l.processes[i], why))
	}
}

// process returns which process a link leads to, -1 for none, or if the group is made.
func (l *linking) process(link *tcp.Link) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return -1
	}
	return slices.Index(l.links, link)
}

// await returns when done is closed. While that takes long it looks for losses, and asks the store now and then for a
// key that only this rank writes, later: who interrupts waits for the store ends this one, too, and the store of an
// attempt looks for losses that were told.
func (g *Group) await(done <-chan struct{}, store bootstrap.Store, key string) error {
	for slice := linkingQuiet; ; slice = linkingSlices {
		select {
		case <-done:
			return nil
		case <-time.After(slice):
		}
		if lost := g.lost(); lost != nil {
			return lost
		}
		if _, err := store.Get(key, 0); err != nil && !errors.Is(err, bootstrap.ErrTimeout) {
			return err
		}
	}
}

// wait returns when the links are there, or one is not made. The key is one that await takes.
func (l *linking) wait(store bootstrap.Store, key string) ([]*tcp.Link, error) {
	if err := l.g.await(l.done, store, key); err != nil {
		return nil, err
	}
	l.mu.Lock()
	links, failed := l.links, l.failed
	l.mu.Unlock()
	if failed != nil {
		l.g.askWhyUnlinked(store)
		return nil, l.g.lost()
	}
	return links, nil
}

// end gives up what is not there yet. Links that are lost later are the group's.
func (l *linking) end() {
	l.mu.Lock()
	l.ended = true
	l.mu.Unlock()
	l.cancel()
	<-l.done
	l.g.links.network.unwatch(l)
}

// link waits for the links of the group and puts them to use.
func (g *Group) link(c Config, l *linking, key string) error {
	links, err := l.wait(c.Store, key)
	if err != nil {
		return err
	}
	return g.useLinks(c.Lasting, links)
}
