package bootstrap

import (
	"errors"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sagecomm/tests/quick"
)

// A rank that has ended is not waited for; what it and others had written counts; and those that are missing are named
// on the spot.
func TestWatchfulStoreDoesNotWaitForTheDead(t *testing.T) {
	onStores(t, func(t *testing.T, s Store) {
		var dead atomic.Bool
		come(t, s, "p", 1, 3) // 2 and 4 have not come; 3 has ended since it came
		began := time.Now()
		time.AfterFunc(50*time.Millisecond, func() { dead.Store(true) })
		err := Agree(Watchful(s, 5, lostOnce(&dead), nobodyAhead), "p", 0, 5, ample, nil)
		var late *TimeoutError
		if !errors.As(err, &late) || !reflect.DeepEqual(late.Missing, []int{2, 4}) {
			t.Fatal(err)
		}
		if took := time.Since(began); took > ample/2 {
			t.Errorf("it took %v", took)
		}
	})
}

func nobodyAhead(int) error { return nil }

func nobodyLost() error { return nil }

// lostOnce returns why a rank is lost once it is dead.
func lostOnce(dead *atomic.Bool) func() error {
	return func() error {
		if dead.Load() {
			return errLost
		}
		return nil
	}
}

var errLost = errors.New("rank 5 has died")

// What a rank will never write, because it is further on, is not waited for.
func TestWatchfulStoreDoesNotWaitForThoseAhead(t *testing.T) {
	onStores(t, func(t *testing.T, s Store) {
		for rank, epoch := range []int{1, 1, 2} {
			if _, _, err := (Epochs{s, "epoch", rank, "me"}).Next(epoch); err != nil {
				t.Fatal(err)
			}
		}
		come(t, s, "p", 1)
		began := time.Now()
		ahead := func(rank int) error { return Epochs{s, "epoch", 0, "me"}.Overtaken(rank, 1) }
		_, err := Exchange(Watchful(s, 3, nobodyLost, ahead), "p", 0, 3, ample, nil, anyValue)
		var over *OvertakenError
		if !errors.As(err, &over) || over.Rank != 2 || over.Epoch != 2 {
			t.Error(err)
		}
		if took := time.Since(began); took > ample/2 {
			t.Errorf("it took %v", took)
		}
	})
}

func TestWatchfulStoreWaitsForTheLiving(t *testing.T) {
	onStores(t, func(t *testing.T, s Store) {
		if _, plain := s.(*MemStore); !plain {
			quick.Skip(t, "each store takes a second")
		}
		store := Watchful(s, 2, nobodyLost, nobodyAhead)
		time.AfterFunc(2*watchSlice+watchSlice/2, func() { _ = s.Set("k", []byte("late")) })
		if value, err := store.Get("k", ample); err != nil || string(value) != "late" {
			t.Errorf("%q, %v", value, err)
		}
		if _, err := store.Get("none", watchSlice*3/2); !errors.Is(err, ErrTimeout) {
			t.Error(err)
		}
	})
	if _, err := Watchful(&brokenStore{}, 2, nobodyLost, nobodyAhead).Get("k", ample); err == nil || !strings.Contains(err.Error(), "reset") {
		t.Error(err)
	}
}

// interruptedStore fails when a wait is nearly over, as a store does in which a signal arrives.
type interruptedStore struct{ *MemStore }

func (s interruptedStore) Get(_ string, timeout time.Duration) ([]byte, error) {
	time.Sleep(timeout)
	return nil, errors.New("interrupted")
}

// However late in a slice: an error that is no timeout is not waited on.
func TestWatchfulStoreEndsWithItsStore(t *testing.T) {
	began := time.Now()
	_, err := Exchange(Watchful(interruptedStore{NewMemStore()}, 2, nobodyLost, nobodyAhead), "p", 0, 2, ample, nil, anyValue)
	if err == nil || errors.Is(err, ErrTimeout) || !strings.Contains(err.Error(), "cannot read from the store (key p/1): interrupted") {
		t.Error(err)
	}
	if took := time.Since(began); took > ample/2 {
		t.Errorf("it took %v", took)
	}
}
