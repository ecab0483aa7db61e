package bootstrap

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestEpochsCountTheGroupsOfARank(t *testing.T) {
	onStores(t, func(t *testing.T, s Store) {
		for want := 1; want <= 3; want++ {
			for rank := range 2 {
				if got, _, err := (Epochs{s, "p", rank, "me"}).Next(0); err != nil || got != want {
					t.Fatalf("rank %d: %d, %v, want %d", rank, got, err, want)
				}
			}
		}
		if got, _, err := (Epochs{s, "q", 0, "me"}).Next(1); err != nil || got != 1 {
			t.Errorf("another prefix: %d, %v", got, err)
		}
		if got, _, err := (Epochs{s, "p", 1, "me"}).Next(7); err != nil || got != 7 {
			t.Errorf("%d, %v, want 7", got, err)
		}
		mine := Epochs{s, "p", 0, "me"}
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

// Two processes that are one rank find each other: the later one overtakes the earlier one.
func TestRankThatWasStartedTwice(t *testing.T) {
	s := NewMemStore()
	one, two := Epochs{s, "p", 0, "host a, pid 1"}, Epochs{s, "p", 0, "host b, pid 2"}
	first, other, err := one.Next(0)
	if err != nil || other != "" || one.Twice(first) != nil {
		t.Fatal(other, err)
	}
	second, other, err := two.Next(0)
	if err != nil || other != "host a, pid 1" || two.Twice(second) != nil {
		t.Error(other, err)
	}
	var twice *TwiceError
	if err := one.Twice(first); !errors.As(err, &twice) || !strings.Contains(err.Error(), "rank 0 was started twice: by host a, pid 1 and by host b, pid 2") {
		t.Error(err)
	}
	if _, other, err := two.Next(0); err != nil || other != "" {
		t.Error(other, err)
	}
}

// Both have looked before either wrote, so they are in one epoch: the one whose entry was replaced finds it.
func TestRankThatWasStartedTwiceAtOnce(t *testing.T) {
	s := NewMemStore()
	one := Epochs{s, "p", 0, "host a, pid 1"}
	first, _, err := one.Next(0)
	require.NoError(t, err)
	require.NoError(t, s.Set("p/0", []byte("1 host b, pid 2")))
	require.ErrorContains(t, one.Twice(first), "rank 0 was started twice: by host a, pid 1 and by host b, pid 2")
	require.NoError(t, one.Twice(first+1), "an earlier epoch")
}

func TestEpochOfABadStore(t *testing.T) {
	for _, foreign := range []string{"", "0", "-3", "x"} {
		s := NewMemStore()
		s.Set("p/1", []byte(foreign))
		if _, _, err := (Epochs{s, "p", 1, "me"}).Next(0); err == nil || !strings.Contains(err.Error(), "fresh store or prefix") {
			t.Errorf("%q: %v", foreign, err)
		}
	}
	broken := Epochs{&brokenStore{}, "p", 0, "me"}
	if _, _, err := broken.Next(0); err == nil || !strings.Contains(err.Error(), "cannot read from the store (key p/0): connection reset") {
		t.Error(err)
	}
	if err := broken.Overtaken(1, 1); err == nil || !strings.Contains(err.Error(), "cannot read from the store (key p/1): connection reset") {
		t.Error(err)
	}
	if _, _, err := (Epochs{readOnlyStore{NewMemStore()}, "p", 0, "me"}).Next(0); err == nil || !strings.Contains(err.Error(), "cannot write to the store (key p/0): read only") {
		t.Error(err)
	}
}

type readOnlyStore struct{ *MemStore }

func (s readOnlyStore) Set(string, []byte) error { return errors.New("read only") }

func (s readOnlyStore) Get(key string, timeout time.Duration) ([]byte, error) {
	return s.MemStore.Get(key, timeout)
}
