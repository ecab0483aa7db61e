package pgbackend

import (
	"errors"

	"sagecomm/internal/peerwatch"
)

// peerID names a process for ever: a pid alone may come again.
type peerID struct {
	pid       int
	startTime uint64
}

// peerProcess is one process that is a peer in some groups. It is watched once.
type peerProcess struct {
	watcher *peerwatch.Watcher
	groups  map[*Group][]int // ranks that it has there
	nobody  chan struct{}    // closed when no group has it as a peer any more
	dead    bool
}

// watchPeers begins to watch every other process of the group.
func (g *Group) watchPeers() {
	for rank, m := range g.members {
		id := peerID{m.PID, m.Arena.StartTime}
		if rank == g.rank || id == g.identity() {
			continue
		}
		if g.process.watch(id, g, rank) {
			g.peerDied(rank)
		}
	}
}

func (g *Group) identity() peerID {
	me := g.members[g.rank]
	return peerID{me.PID, me.Arena.StartTime}
}

// watch reports whether the process is dead already.
func (p *Process) watch(id peerID, g *Group, rank int) (dead bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	peer := p.peers[id]
	if peer == nil {
		w, err := peerwatch.Watch(id.pid, id.startTime)
		if err != nil {
			if !errors.Is(err, peerwatch.ErrUnsupported) {
				return true
			}
			go p.warn("the death of a peer will be noticed by timeout only: %v", err)
			return false
		}
		peer = &peerProcess{watcher: w, groups: map[*Group][]int{}, nobody: make(chan struct{})}
		p.peers[id] = peer
		go p.await(id, peer)
	}
	peer.groups[g] = append(peer.groups[g], rank)
	return peer.dead
}

// await ends with the process that it watches, or with the watch.
func (p *Process) await(id peerID, peer *peerProcess) {
	select {
	case <-peer.watcher.Done():
	case <-peer.nobody:
		return
	}
	p.mu.Lock()
	if p.peers[id] != peer { // nobody is interested any more
		p.mu.Unlock()
		return
	}
	peer.dead = true
	groups := make(map[*Group][]int, len(peer.groups))
	for g, ranks := range peer.groups {
		groups[g] = ranks
	}
	p.mu.Unlock()
	for g, ranks := range groups {
		for _, rank := range ranks {
			g.peerDied(rank)
		}
	}
	p.sweep()
}

// unwatchPeers ends this group's interest in its peers.
func (g *Group) unwatchPeers() {
	p := g.process
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range g.members {
		id := peerID{m.PID, m.Arena.StartTime}
		peer := p.peers[id]
		if peer == nil {
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
