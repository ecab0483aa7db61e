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
				if got, err := (Epochs{s, "p", rank}).Next(0); err != nil || got != want {
					t.Fatalf("rank %d: %d, %v, want %d", rank, got, err, want)
				}
			}
		}
		if got, err := (Epochs{s, "q", 0}).Next(1); err != nil || got != 1 {
			t.Errorf("another prefix: %d, %v", got, err)
		}
		if got, err := (Epochs{s, "p", 1}).Next(7); err != nil || got != 7 {
			t.Errorf("%d, %v, want 7", got, err)
		}
		mine := Epochs{s, "p", 0}
		var over *OvertakenError
		if err := mine.Overtaken(1, 3); !errors.As(err, &over) || *over != (OvertakenError{1, 7}) {
			t.Error(err)
		}
		for rank, epoch := range []int{3, 7, 1} { // rank 2 has not begun
			if err := mine.Overtaken(rank, epoch); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestEpochOfABadStore(t *testing.T) {
	for _, foreign := range []string{"", "0", "-3", "x"} {
		s := NewMemStore()
		s.Set("p/1", []byte(foreign))
		if _, err := (Epochs{s, "p", 1}).Next(0); err == nil || !strings.Contains(err.Error(), "fresh store or prefix") {
			t.Errorf("%q: %v", foreign, err)
		}
	}
	broken := Epochs{&brokenStore{}, "p", 0}
	if _, err := broken.Next(0); err == nil || !strings.Contains(err.Error(), "cannot read from the store (key p/0): connection reset") {
		t.Error(err)
	}
	if err := broken.Overtaken(1, 1); err == nil || !strings.Contains(err.Error(), "cannot read from the store (key p/1): connection reset") {
		t.Error(err)
	}
	if _, err := (Epochs{readOnlyStore{NewMemStore()}, "p", 0}).Next(0); err == nil || !strings.Contains(err.Error(), "cannot write to the store (key p/0): read only") {
		t.Error(err)
	}
}

type readOnlyStore struct{ *MemStore }

func (s readOnlyStore) Set(string, []byte) error { return errors.New("read only") }

func (s readOnlyStore) Get(key string, timeout time.Duration) ([]byte, error) {
	return s.MemStore.Get(key, timeout)
}
