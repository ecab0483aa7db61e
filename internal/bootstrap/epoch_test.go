package bootstrap

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestEpochsCountTheGroupsOfARank(t *testing.T) {
	onStores(t, func(t *testing.T, s Store) {
		for want := 1; want <= 3; want++ {
			for rank := range 2 {
				if got, err := NextEpoch(s, "p", rank); err != nil || got != want {
					t.Fatalf("rank %d: %d, %v, want %d", rank, got, err, want)
				}
			}
		}
		if got, err := NextEpoch(s, "q", 0); err != nil || got != 1 {
			t.Errorf("another prefix: %d, %v", got, err)
		}
	})
}

func TestEpochOfABadStore(t *testing.T) {
	for _, foreign := range []string{"", "0", "-3", "x"} {
		s := NewMemStore()
		s.Set("p/epoch/1", []byte(foreign))
		if _, err := NextEpoch(s, "p", 1); err == nil || !strings.Contains(err.Error(), "fresh store or prefix") {
			t.Errorf("%q: %v", foreign, err)
		}
	}
	if _, err := NextEpoch(&brokenStore{}, "p", 0); err == nil || !strings.Contains(err.Error(), "cannot read from the store (key p/epoch/0): connection reset") {
		t.Error(err)
	}
	if _, err := NextEpoch(readOnlyStore{NewMemStore()}, "p", 0); err == nil || !strings.Contains(err.Error(), "cannot write to the store (key p/epoch/0): read only") {
		t.Error(err)
	}
}

type readOnlyStore struct{ *MemStore }

func (s readOnlyStore) Set(string, []byte) error { return errors.New("read only") }

func (s readOnlyStore) Get(key string, timeout time.Duration) ([]byte, error) {
	return s.MemStore.Get(key, timeout)
}
