package bootstrap

import (
	"errors"
	"path"
	"strconv"
	"time"
)

// watchSlice is the time after which a waiting [Watchful] store asks again whether it should go on waiting.
const watchSlice = 250 * time.Millisecond

// Watchful returns a store whose waits end early: with ErrTimeout once lost returns why one of size ranks is lost, or
// with the error that ahead returns for the rank of the key. A value that was written before is still found. In a large
// group ahead is asked more seldom, since it asks the store: with 1,000 ranks after each 4 s of a wait, so never in a
// shorter one.
func Watchful(store Store, size int, lost func() error, ahead func(rank int) error) Store {
	s := watchful{store, size, lost, ahead}
	if many, ok := store.(ManyGetter); ok {
		return watchfulMany{s, many}
	}
	return s
}

type watchful struct {
	Store
	size  int
	lost  func() error
	ahead func(rank int) error
}

func (s watchful) Get(key string, timeout time.Duration) ([]byte, error) {
	every := 1 + s.size/(mostDirect+1)
	for deadline, slice := time.Now().Add(timeout), 1; ; slice++ {
		wait := max(min(time.Until(deadline), watchSlice), 0)
		lost := s.lost() // asked before the key is read, so that a value that a rank wrote before it ended is found
		if lost != nil {
			wait = min(wait, probeTimeout(s.size))
		}
		value, err := s.Store.Get(key, wait)
		if !errors.Is(err, ErrTimeout) || !time.Now().Before(deadline) {
			return value, err
		}
		if lost != nil {
			return nil, &endedEarly{err, lost}
		}
		if rank, err := strconv.Atoi(path.Base(key)); err == nil && slice%every == 0 {
			if err := s.ahead(rank); err != nil {
				return nil, err
			}
		}
	}
}

// endedEarly is an ErrTimeout before the time was up.
type endedEarly struct {
	error
	why error // a rank is lost
}

func (e *endedEarly) Unwrap() error { return e.error }

// watchfulMany is a Watchful store over a ManyGetter.
type watchfulMany struct {
	watchful
	many ManyGetter
}

// GetMany waits for one slice at most, and less once a rank has ended: then the caller asks for each key by
// [Store.Get].
func (s watchfulMany) GetMany(keys []string, timeout time.Duration) ([][]byte, error) {
	wait := min(timeout, watchSlice)
	if s.lost() != nil {
		wait = min(wait, probeTimeout(s.size))
	}
	return s.many.GetMany(keys, wait)
}
