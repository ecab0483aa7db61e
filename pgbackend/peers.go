package pgbackend

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"sagecomm/internal/coll"
	"sagecomm/internal/observe"
	"sagecomm/internal/procwatch"
	"sagecomm/internal/shmem"
)

func (m member) id() procwatch.ID {
	return procwatch.ID{Namespace: m.Arena.PIDNamespace, PID: m.PID, StartTime: m.Arena.StartTime}
}

// peerProcess is a process that is a peer in some groups. One watch serves all of these groups.
type peerProcess struct {
	watcher *procwatch.Watcher
	groups  map[*Group][]int // the ranks of the process in each group
	nobody  chan struct{}    // closed when the process is no group's peer any more
	dead    bool
}

// watchPeers begins to watch each other process of the group. Later calls do nothing.
func (g *Group) watchPeers() {
	if g.watching {
		return
	}
	g.watching = true
	me := g.members[g.rank]
	for rank, m := range g.members {
		if rank == g.rank || g.isRemote(rank) || m.id() == me.id() { // ids of another machine's processes mean nothing here
			continue
		}
		if g.process.watch(g, rank, me) {
			g.peerDied(rank)
		}
	}
}

// watch begins to watch the process of a rank and reports whether it is dead already. After an error, which proves
// nothing, only timeouts notice its death.
func (p *Process) watch(g *Group, rank int, me member) (dead bool) {
	m := g.members[rank]
	id := m.id()
	interest := func() (known, dead bool) {
		p.mu.Lock()
		defer p.mu.Unlock()
		peer := p.peers[id]
		if peer == nil {
			return false, false
		}
		peer.groups[g] = append(peer.groups[g], rank)
		return true, peer.dead
	}
	if known, dead := interest(); known {
		return dead
	}
	w, err := m.watch(me)
	if err != nil {
		p.unwatched.Do(func() {
			observe.Warn("the death of %s will be noticed by timeout only, and perhaps that of others: %v", g.who(rank), err)
		})
		return false
	}
	p.mu.Lock()
	if p.peers[id] != nil { // another group has begun to watch it meanwhile
		w.Close()
	} else {
		peer := &peerProcess{watcher: w, groups: map[*Group][]int{}, nobody: make(chan struct{})}
		p.peers[id] = peer
		go p.await(id, peer)
	}
	p.mu.Unlock()
	_, dead = interest()
	return dead
}

// watch begins to watch the process. It identifies the process by the socket of its arena where the process is in
// another pid namespace, or where the system refuses a watch by pid (a seccomp filter, /proc with hidepid).
func (m member) watch(me member) (*procwatch.Watcher, error) {
	why := errors.New("it is in another pid namespace")
	if m.Arena.PIDNamespace == me.Arena.PIDNamespace && m.Arena.BootID == me.Arena.BootID {
		w, err := procwatch.Watch(m.PID, m.Arena.StartTime)
		if err == nil {
			return w, nil
		}
		why = err
	}
	pidfd, err := shmem.OwnerFD(context.Background(), m.Arena)
	if err != nil {
		return nil, fmt.Errorf("%w; and by its socket: %w", why, err)
	}
	return procwatch.WatchFD(pidfd)
}

// failedRank returns a failure of the group whose culprit is a rank. The caller adds the message.
func (g *Group) failedRank(status coll.Status, rank int) *coll.Failure {
	m := g.members[rank]
	return &coll.Failure{Status: status, Rank: rank, PID: m.PID, Host: m.Host, Group: g.name}
}

// await returns when the watched process has ended or the watch is given up.
func (p *Process) await(id procwatch.ID, peer *peerProcess) {
	defer recoverFrom("the watch over a process")
	select {
	case <-peer.watcher.Done():
	case <-peer.nobody:
		return
	}
	p.mu.Lock()
	if p.peers[id] != peer { // no group has the process as a peer any more
		p.mu.Unlock()
		return
	}
	peer.dead = true
	groups := make(map[*Group][]int, len(peer.groups))
	for g, ranks := range peer.groups {
		groups[g] = ranks
	}
	p.mu.Unlock()
	// Each group has a goroutine of its own, because failure callbacks may be slow.
	var all sync.WaitGroup
	for g, ranks := range groups {
		all.Go(func() {
			defer recoverFrom("the failure of a group")
			for _, rank := range ranks {
				g.peerDied(rank)
			}
		})
	}
	all.Wait()
	p.sweep()
}

// unwatchPeers removes the group from the watches of its peers. A watch without groups ends.
func (g *Group) unwatchPeers() {
	p := g.process
	p.mu.Lock()
	defer p.mu.Unlock()
	for rank, m := range g.members {
		id := m.id()
		peer := p.peers[id]
		if peer == nil || g.isRemote(rank) {
			continue
		}
		delete(peer.groups, g)
		if len(peer.groups) == 0 {
			delete(p.peers, id)
			close(peer.nobody)
			peer.watcher.Close()
		}
	}
}
