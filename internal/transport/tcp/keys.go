package tcp

import (
	"errors"
	"sync"

	"sagecomm/internal/handshake"
)

// keys are those by which other processes may prove that they belong to a job of this process, by their names.
type keys struct {
	mu   sync.Mutex
	list map[handshake.Space]*usedKey
}

type usedKey struct {
	key  handshake.Key
	uses int
}

var errOtherKey = errors.New("internal error: two keys of one name")

// AddKey lets processes that have the key make links, until RemoveKey was called as often. A link stays when its key is removed.
func (n *Node) AddKey(name handshake.Space, key handshake.Key) error {
	n.keys.mu.Lock()
	defer n.keys.mu.Unlock()
	k := n.keys.list[name]
	if k == nil {
		k = &usedKey{key: key}
		n.keys.list[name] = k
	}
	if k.key != key {
		return errOtherKey
	}
	k.uses++
	return nil
}

// RemoveKey ends what AddKey began.
func (n *Node) RemoveKey(name handshake.Space) {
	n.keys.mu.Lock()
	defer n.keys.mu.Unlock()
	if k := n.keys.list[name]; k != nil {
		if k.uses--; k.uses == 0 {
			delete(n.keys.list, name)
		}
	}
}

// of returns a key.
func (k *keys) of(name handshake.Space) (key handshake.Key, known bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if u := k.list[name]; u != nil {
		return u.key, true
	}
	return key, false
}
