package device

import (
	"maps"
	"sync"
	"sync/atomic"
)

// Once makes one value for each key, which the process keeps. Callers with one key wait for the first of them. Nobody waits for another
// key, so a call of one device that waits does not keep operations on other devices. The zero Once has no value.
type Once[K comparable, V any] struct {
	Retries bool // an error is not kept: the next call makes the value again

	mu    sync.Mutex
	known atomic.Pointer[map[K]*made[V]] // replaced as a whole, under mu, since operations read it
}

type made[V any] struct{ get func() (V, error) }

// Known returns what Get has made, or begun to make. It allocates nothing.
func (o *Once[K, V]) Known(key K) (v V, ok bool, err error) {
	if known := o.known.Load(); known != nil {
		if m := (*known)[key]; m != nil {
			v, err = m.get()
			return v, true, err
		}
	}
	return v, false, nil
}

// Get returns the value of a key, or the error of making it. The first call makes it.
func (o *Once[K, V]) Get(key K, value func() (V, error)) (V, error) {
	m := o.change(key, nil, &made[V]{sync.OnceValues(value)})
	v, err := m.get()
	if err != nil && o.Retries {
		o.change(key, m, nil)
	}
	return v, err
}

// change puts another entry in the place of one, nil for none, and returns the entry that is there then.
func (o *Once[K, V]) change(key K, from, to *made[V]) *made[V] {
	o.mu.Lock()
	defer o.mu.Unlock()
	known := o.known.Load()
	if known == nil {
		known = &map[K]*made[V]{}
	}
	if there := (*known)[key]; there != from {
		return there
	}
	more := maps.Clone(*known)
	more[key] = to
	o.known.Store(&more)
	return to
}
