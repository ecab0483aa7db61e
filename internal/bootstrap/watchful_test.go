package bootstrap

import (
	"errors"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// A rank that has ended is not waited for; what it and others had written counts; and those that are missing are named
// on the spot.
func TestWatchfulStoreDoesNotWaitForTheDead(t *testing.T) {
	onStores(t, func(t *testing.T, s Store) {
		for _, store := range []Store{s, muteStore{NewMemStore()}} {
			var dead atomic.Bool
			for _, rank := range []int{1, 3} { // 2 and 4 have not come; 3 has ended since it came
				if err := store.Set(key("p", rank), []byte{markValue}); err != nil {
					t.Fatal(err)
				}
			}
			began := time.Now()
			time.AfterFunc(50*time.Millisecond, func() { dead.Store(true) })
			err := Agree(Watchful(store, 5, dead.Load), "p", 0, 5, ample, nil)
			var late *TimeoutError
			if !errors.As(err, &late) || !reflect.DeepEqual(late.Missing, []int{2, 4}) {
				t.Fatal(err)
			}
			if took := time.Since(began); took > time.Second {
				t.Errorf("it took %v", took)
			}
		}
	})
}

func TestWatchfulStoreWaitsForTheLiving(t *testing.T) {
	onStores(t, func(t *testing.T, s Store) {
		store := Watchful(s, 2, func() bool { return false })
		time.AfterFunc(2*watchSlice+watchSlice/2, func() { _ = s.Set("k", []byte("late")) })
		if value, err := store.Get("k", ample); err != nil || string(value) != "late" {
			t.Errorf("%q, %v", value, err)
		}
		if _, err := store.Get("none", watchSlice*3/2); !errors.Is(err, ErrTimeout) {
			t.Error(err)
		}
	})
	if _, err := Watchful(&brokenStore{}, 2, func() bool { return false }).Get("k", ample); err == nil || !strings.Contains(err.Error(), "reset") {
		t.Error(err)
	}
}
