package device

import (
	"errors"
	"maps"
	"sync"
	"sync/atomic"
)

// Once makes one value for each key, which the process keeps. Callers with one key wait for the first of them. Nobody waits for another
// key, so a call of one device that waits does not keep operations on other devices. An error is not kept: it is that of the callers who
// have waited, and the next call makes the value again. The zero Once has no value.
type Once[K comparable, V any] struct {
	mu    sync.Mutex
	known atomic.Pointer[map[K]*made[V]] // replaced as a whole, under mu, since operations read it
}

// made is a value that is made, or was.
type made[V any] struct {
	done chan struct{} // closed when what follows is set
	v    V
	err  error
}

var errPanicked = errors.New("internal error: a panic while a value was made; please report this")

// Known returns what Get has made, or begun to make. It allocates nothing.
func (o *Once[K, V]) Known(key K) (v V, ok bool, err error) {
	if known := o.known.Load(); known != nil {
		if m := (*known)[key]; m != nil {
			<-m.done
			return m.v, true, m.err
		}
	}
	return v, false, nil
}

// Get returns the value of a key, or the error of making it. The first call makes it.
func (o *Once[K, V]) Get(key K, value func() (V, error)) (V, error) {
	own := &made[V]{done: make(chan struct{}), err: errPanicked}
	m := o.enter(key, own)
	if m == own {
		o.make(key, m, value)
	}
	<-m.done
	return m.v, m.err
}

// make makes a value. It is over also for those who wait when value panics.
func (o *Once[K, V]) make(key K, m *made[V], value func() (V, error)) {
	defer func() {
		if m.err != nil {
			o.forget(key)
		}
		close(m.done)
	}()
	m.v, m.err = value()
}

// enter returns the entry of a key, which is own if there was none.
func (o *Once[K, V]) enter(key K, own *made[V]) *made[V] {
	o.mu.Lock()
	defer o.mu.Unlock()
	more := map[K]*made[V]{}
	if known := o.known.Load(); known != nil {
		if there := (*known)[key]; there != nil {
			return there
		}
		more = maps.Clone(*known)
	}
	more[key] = own
	o.known.Store(&more)
	return own
}

// forget takes the entry of a key away. Requires: it has one.
func (o *Once[K, V]) forget(key K) {
	o.mu.Lock()
	defer o.mu.Unlock()
	less := maps.Clone(*o.known.Load())
	delete(less, key)
	o.known.Store(&less)
}
