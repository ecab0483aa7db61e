// Package bootstrap lets ranks that know only a common [Store] learn from each other: an all-gather of small values
// ([Exchange]), a common verdict on whether all ranks succeeded ([Agree]), and numbers that tell groups on the same
// keys apart ([Epochs]). It owns nothing: keys and values belong to the caller's store.
//
// A [Store] is used while a group is made and never afterwards. Keys are "<prefix>/<rank>", and
// "<prefix>/roster/<rank>" of large groups; a prefix is used for one call, so the caller puts group name, epoch and
// phase into it. Values stay in the store. What a group needs later is a [Claimer], see lasting.go.
//
// Any goroutine may call it. Start reading at exchange.go, then roster.go, which has large groups, then epoch.go.
package bootstrap

import (
	"errors"
	"time"
)

// Store is the key-value store that the ranks meet in. Its methods may be called from any goroutine.
type Store interface {
	// Set makes value visible to all ranks under key, whole.
	Set(key string, value []byte) error
	// Get waits until key exists and returns its value; it gives up after timeout. With a timeout of 0 it looks once.
	// The error wraps ErrTimeout if and only if the key did not appear in time: every other one ends the rendezvous.
	Get(key string, timeout time.Duration) ([]byte, error)
}

// ManyGetter is a [Store] that can ask for several keys at once. That saves round trips to the store's server.
type ManyGetter interface {
	Store
	// GetMany is Get for several keys: it waits until all of them exist and returns their values in the order of keys.
	GetMany(keys []string, timeout time.Duration) ([][]byte, error)
}

// ErrTimeout is what a [Store] returns when a key does not appear in time.
var ErrTimeout = errors.New("the key did not appear in time")
