package bootstrap

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const ample = 30 * time.Second

// onStores runs a test on each kind of store.
func onStores(t *testing.T, test func(t *testing.T, s Store)) {
	t.Run("memory", func(t *testing.T) { test(t, NewMemStore()) })
	t.Run("memory, many keys at once", func(t *testing.T) { test(t, manyStore{NewMemStore()}) })
	t.Run("files", func(t *testing.T) { test(t, newFileStore(t)) })
	t.Run("tcp", func(t *testing.T) { test(t, dialed(t, newIDOf(t, newServer(t)))) })
}

// manyStore is a [ManyGetter].
type manyStore struct{ *MemStore }

func (s manyStore) GetMany(keys []string, timeout time.Duration) (values [][]byte, err error) {
	for deadline := time.Now().Add(timeout); len(values) < len(keys) && err == nil; {
		var value []byte
		value, err = s.Get(keys[len(values)], time.Until(deadline))
		values = append(values, value)
	}
	return values, err
}

func newFileStore(t *testing.T) *FileStore {
	t.Helper()
	s, err := NewFileStore(t.TempDir() + "/store")
	require.NoError(t, err)
	return s
}

// onRanks runs f on each rank at once and returns what each gave.
func onRanks[T any](size int, f func(rank int) T) []T {
	out := make([]T, size)
	var wg sync.WaitGroup
	for r := range size {
		wg.Go(func() { out[r] = f(r) })
	}
	wg.Wait()
	return out
}

// come writes what ranks write that have come to a phase: a timeout then does not depend on how soon they run.
func come(t *testing.T, s Store, phase string, ranks ...int) {
	t.Helper()
	for _, rank := range ranks {
		require.NoError(t, s.Set(key(phase, rank), []byte{markValue}))
	}
}

func TestExchangeGivesEverybodyEverything(t *testing.T) {
	onStores(t, func(t *testing.T, s Store) {
		for _, size := range []int{1, 2, 7} {
			want := make([][]byte, size)
			for r := range want {
				want[r] = bytes.Repeat([]byte{byte(r), 0, 'v'}, r) // rank 0 gives nothing, which is a value too
			}
			for rank, got := range onRanks(size, func(rank int) [][]byte {
				got, err := Exchange(s, fmt.Sprintf("g/%d/phase", size), rank, size, ample, want[rank], anyValue)
				if err != nil {
					t.Error(err)
				}
				return got
			}) {
				for peer := range want {
					if len(got) != size || !bytes.Equal(got[peer], want[peer]) {
						t.Fatalf("rank %d of %d got %q, want %q", rank, size, got, want)
					}
				}
			}
		}
	})
}

func TestTimeoutNamesTheRanksThatHaveNotCome(t *testing.T) {
	onStores(t, func(t *testing.T, s Store) {
		const size = 6
		present := []int{0, 3, 5}
		come(t, s, "p", present...)
		for i, err := range onRanks(len(present), func(i int) error {
			_, err := Exchange(s, "p", present[i], size, 50*time.Millisecond, nil, anyValue)
			return err
		}) {
			var late *TimeoutError
			if !errors.As(err, &late) || !errors.Is(err, ErrTimeout) {
				t.Fatalf("rank %d: %v", present[i], err)
			}
			if !reflect.DeepEqual(late.Missing, []int{1, 2, 4}) || !strings.Contains(err.Error(), "3 of 6 ranks") ||
				!strings.Contains(err.Error(), "ranks 1-2, 4;") {
				t.Errorf("rank %d: %v", present[i], err)
			}
			if late.Waited > 10*time.Second {
				t.Errorf("waited %v", late.Waited)
			}
		}
	})
}

func TestAgreeSaysTheSameOnAllRanks(t *testing.T) {
	onStores(t, func(t *testing.T, s Store) {
		const size = 5
		for rank, err := range onRanks(size, func(rank int) error { return Agree(s, "good", rank, size, ample, nil) }) {
			if err != nil {
				t.Errorf("rank %d: %v", rank, err)
			}
		}
		cause := map[int]error{1: errors.New("disk full"), 2: errors.New(""), 4: errors.New("disk full")}
		errs := onRanks(size, func(rank int) error { return Agree(s, "bad", rank, size, ample, cause[rank]) })
		want := "sagecomm: rendezvous bad: 3 of 5 ranks failed; ranks 1, 4: disk full; rank 2: "
		for rank, err := range errs {
			var failed *FailedError
			if !errors.As(err, &failed) || err.Error() != want || len(failed.Failed) != 3 {
				t.Errorf("rank %d: %v", rank, err)
			}
		}
	})
}

func TestAgreeTimesOut(t *testing.T) {
	s := NewMemStore()
	come(t, s, "p", 0, 1)
	for rank, err := range onRanks(2, func(rank int) error { return Agree(s, "p", rank, 3, 20*time.Millisecond, nil) }) {
		var late *TimeoutError
		if !errors.As(err, &late) || !strings.Contains(err.Error(), "rank 2;") {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
	err := Agree(s, "q", 0, 2, 0, errors.New("no memory"))
	if err == nil || !strings.Contains(err.Error(), "rank 0: no memory; rank 1 not arrived") {
		t.Error(err)
	}
}

func TestAbandonReachesTheOthersBeforeTheirTimeout(t *testing.T) {
	onStores(t, func(t *testing.T, s Store) {
		began := time.Now()
		errs := onRanks(3, func(rank int) error {
			if rank == 1 {
				return Abandon(s, "p", 1, 3, errors.New("memfd_create: too many open files"))
			}
			_, err := Exchange(s, "p", rank, 3, ample, []byte("x"), anyValue)
			return err
		})
		if errs[1] != nil {
			t.Error(errs[1])
		}
		for _, rank := range []int{0, 2} {
			var failed *FailedError
			if !errors.As(errs[rank], &failed) || !strings.Contains(errs[rank].Error(), "rank 1: memfd_create: too many open files") {
				t.Errorf("rank %d: %v", rank, errs[rank])
			}
		}
		if took := time.Since(began); took >= ample {
			t.Errorf("it took %v", took)
		}
	})
}

func TestLongFailuresAreCut(t *testing.T) {
	err := Agree(NewMemStore(), "p", 0, 1, ample, errors.New(strings.Repeat("ä", failureText)))
	if n := len(err.Error()); n > failureText+200 || !strings.HasSuffix(err.Error(), "ä ...") {
		t.Errorf("%d bytes", n)
	}
}

func TestBadCallsAndForeignValues(t *testing.T) {
	s := NewMemStore()
	for _, c := range [][2]int{{-1, 2}, {2, 2}, {0, 0}} {
		if _, err := Exchange(s, "p", c[0], c[1], ample, nil, anyValue); err == nil || !strings.Contains(err.Error(), "does not exist") {
			t.Errorf("%v: %v", c, err)
		}
	}
	for _, foreign := range []string{"", "hello"} {
		s.Set("p/1", []byte(foreign))
		if _, err := Exchange(s, "p", 0, 2, ample, nil, anyValue); err == nil || !strings.Contains(err.Error(), "fresh store or prefix") {
			t.Errorf("%q: %v", foreign, err)
		}
	}
}

// brokenStore fails at once, as a store does whose server has gone.
type brokenStore struct {
	MemStore
	set error
}

func (s *brokenStore) Set(string, []byte) error { return s.set }
func (s *brokenStore) Get(string, time.Duration) ([]byte, error) {
	return nil, errors.New("connection reset")
}

type brokenManyStore struct{ Store }

func (brokenManyStore) Set(string, []byte) error                  { return nil }
func (brokenManyStore) Get(string, time.Duration) ([]byte, error) { panic("not asked one by one") }
func (brokenManyStore) GetMany([]string, time.Duration) ([][]byte, error) {
	return nil, errors.New("connection reset")
}

func TestADefectiveStoreIsNoTimeout(t *testing.T) {
	_, err := Exchange(&brokenStore{}, "p", 0, 2, ample, nil, anyValue)
	if err == nil || errors.Is(err, ErrTimeout) || !strings.Contains(err.Error(), "cannot read from the store (key p/1): connection reset") {
		t.Error(err)
	}
	if _, err = Exchange(brokenManyStore{}, "p", 0, 3, ample, nil, anyValue); err == nil || errors.Is(err, ErrTimeout) ||
		!strings.Contains(err.Error(), "cannot read from the store (keys p/0 to p/2): connection reset") {
		t.Error(err)
	}
	bad := &brokenStore{set: errors.New("read only")}
	if _, err = Exchange(bad, "p", 0, 2, ample, nil, anyValue); err == nil || !strings.Contains(err.Error(), "cannot write to the store (key p/0): read only") {
		t.Error(err)
	}
	if err = Abandon(bad, "p", 0, 2, errors.New("x")); err == nil || !strings.Contains(err.Error(), "read only") {
		t.Error(err)
	}
}

func TestStores(t *testing.T) {
	onStores(t, func(t *testing.T, s Store) {
		for _, key := range []string{"a/b/../c", "..", "%2F", "a b\n", strings.Repeat("long/", 100), strings.Repeat("long/", 101)} {
			want := []byte("value of " + key)
			got := make(chan []byte)
			go func() {
				v, err := s.Get(key, ample)
				if err != nil {
					t.Error(err)
				}
				got <- v
			}()
			require.NoError(t, s.Set(key, []byte(want)))
			if v := <-got; !bytes.Equal(v, want) {
				t.Errorf("%q: got %q", key, v)
			}
		}
		if _, err := s.Get("absent", time.Millisecond); !errors.Is(err, ErrTimeout) {
			t.Error(err)
		}
		require.NoError(t, s.Set("..", []byte("new")))
		if v, err := s.Get("..", 0); err != nil || string(v) != "new" {
			t.Errorf("%q, %v", v, err)
		}
	})
}

// A reader that saw a value in the making would find fewer bytes.
func TestFileStoreShowsWholeValues(t *testing.T) {
	s := newFileStore(t)
	want := bytes.Repeat([]byte("0123456789abcdef"), 1<<14)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 50 {
			if err := s.Set("k", want); err != nil {
				t.Error(err)
			}
		}
	}()
	for reading := true; reading; {
		select {
		case <-done:
			reading = false
		default:
		}
		if got, err := s.Get("k", ample); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
	}
	entries, err := os.ReadDir(s.dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("left in the store: %v, %v", entries, err)
	}
}

func TestFileStoreSaysWhenItsDirectoryHasGone(t *testing.T) {
	s := newFileStore(t)
	require.NoError(t, os.RemoveAll(s.dir))
	if _, err := s.Get("k", time.Millisecond); err == nil || errors.Is(err, ErrTimeout) {
		t.Error(err)
	}
	if err := s.Set("k", nil); err == nil {
		t.Error("stored in a directory that is not there")
	}
}

// anyValue takes every value.
func anyValue(int, []byte) error { return nil }

// A value that is refused ends the wait for ranks that will never come.
func TestExchangeEndsAtAValueThatIsRefused(t *testing.T) {
	s := NewMemStore()
	require.NoError(t, s.Set("p/1", []byte("vother")))
	_, err := Exchange(s, "p", 0, 3, time.Hour, nil, func(rank int, value []byte) error {
		return fmt.Errorf("rank %d wrote %s", rank, value)
	})
	var failed *FailedError
	if !errors.As(err, &failed) || !strings.Contains(err.Error(), "rank 0: rank 1 wrote other") {
		t.Error(err)
	}
}
