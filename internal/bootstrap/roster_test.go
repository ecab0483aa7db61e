package bootstrap

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// In these tests hundreds of ranks meet in a store in memory, in the time of a bubble of synctest, in which what is not
// waited for takes no time.

// countingStore is a store that counts what it is asked.
type countingStore struct {
	set func(key string, value []byte) error // nil: it takes every value
	get func(key string) error               // nil: it has no error

	each time.Duration // that a request takes

	mu       sync.Mutex
	values   map[string][]byte
	waiters  map[string]chan struct{} // closed when the key is there
	requests int
	keys     int // that were asked for
}

func newCountingStore() *countingStore {
	return &countingStore{values: map[string][]byte{}, waiters: map[string]chan struct{}{}}
}

func (s *countingStore) waiter(key string) chan struct{} {
	if s.waiters[key] == nil {
		s.waiters[key] = make(chan struct{})
	}
	return s.waiters[key]
}

func (s *countingStore) Set(key string, value []byte) error {
	if s.set != nil {
		if err := s.set(key, value); err != nil {
			return err
		}
	}
	time.Sleep(s.each)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests++
	if _, known := s.values[key]; !known {
		close(s.waiter(key))
	}
	s.values[key] = bytes.Clone(value)
	return nil
}

func (s *countingStore) Get(key string, timeout time.Duration) ([]byte, error) {
	time.Sleep(s.each)
	s.mu.Lock()
	s.requests++
	s.mu.Unlock()
	over := time.NewTimer(timeout)
	defer over.Stop()
	return s.await(key, over)
}

// await returns the value of a key when it is there.
func (s *countingStore) await(key string, over *time.Timer) ([]byte, error) {
	if s.get != nil {
		if err := s.get(key); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	s.keys++
	there := s.waiter(key)
	s.mu.Unlock()
	select {
	case <-there:
	default:
		select {
		case <-there:
		case <-over.C:
			return nil, fmt.Errorf("%s: %w", key, ErrTimeout)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return bytes.Clone(s.values[key]), nil
}

// countingManyStore is a countingStore that answers for many keys in one request.
type countingManyStore struct{ *countingStore }

func (s countingManyStore) GetMany(keys []string, timeout time.Duration) (values [][]byte, err error) {
	time.Sleep(s.each)
	s.mu.Lock()
	s.requests++
	s.mu.Unlock()
	over := time.NewTimer(timeout)
	defer over.Stop()
	for _, k := range keys {
		value, err := s.await(k, over)
		if err != nil {
			return nil, err
		}
		values = append(values, value)
	}
	return values, nil
}

// onBothStores runs a test in the time of a bubble, with a store that answers for many keys at once and with one that
// does not.
func onBothStores(t *testing.T, test func(t *testing.T, counts *countingStore, s Store)) {
	t.Helper()
	for _, many := range []bool{true, false} {
		t.Run(fmt.Sprintf("many %t", many), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				counts := newCountingStore()
				if many {
					test(t, counts, countingManyStore{counts})
				} else {
					test(t, counts, counts)
				}
			})
		})
	}
}

// errorsOf makes one agreement of all ranks but some, and returns their errors; those of the others are nil.
func errorsOf(s Store, size int, timeout time.Duration, failed map[int]error, absent ...int) []error {
	return onRanks(size, func(rank int) error {
		for _, other := range absent {
			if rank == other {
				return nil
			}
		}
		return Agree(s, "p", rank, size, timeout, failed[rank])
	})
}

const hundreds, thousand = 300, 1000

func TestLargeGroupsReadARoster(t *testing.T) {
	onBothStores(t, func(t *testing.T, counts *countingStore, s Store) {
		for _, got := range onRanks(hundreds, func(rank int) [][]byte {
			mine := bytes.Repeat([]byte{byte(rank)}, rank%3) // no bytes are a value, too
			got, err := Exchange(s, "p", rank, hundreds, ample, mine, anyValue)
			if err != nil {
				t.Errorf("rank %d: %v", rank, err)
			}
			return got
		}) {
			require.Len(t, got, hundreds)
			for peer, value := range got {
				require.Equal(t, bytes.Repeat([]byte{byte(peer)}, peer%3), append([]byte{}, value...))
			}
		}
		require.LessOrEqual(t, counts.requests, 4*hundreds)
		require.LessOrEqual(t, counts.keys, 5*hundreds)
	})
}

// The largest group without a roster asks as it always has.
func TestSmallGroupsHaveNoRoster(t *testing.T) {
	onBothStores(t, func(t *testing.T, counts *countingStore, s Store) {
		for rank, err := range errorsOf(s, mostDirect, ample, nil) {
			require.NoError(t, err, rank)
		}
		require.NotContains(t, counts.values, rosterKey("p", 0))
		require.Equal(t, mostDirect*(mostDirect-1), counts.keys)
		for rank, err := range errorsOf(s, mostDirect+1, ample, nil) {
			require.NoError(t, err, rank)
		}
		require.Contains(t, counts.values, rosterKey("p", 0))
	})
}

// requireMissing requires that the error names the ranks that have not come, and no others.
func requireMissing(t *testing.T, err error, missing ...int) {
	t.Helper()
	var late *TimeoutError
	require.ErrorAs(t, err, &late)
	require.Equal(t, missing, late.Missing)
	require.Zero(t, late.Unknown)
}

// Whoever is missing is named by all others within the time-out and a second, and the store has few requests of each.
func TestAllRanksOfALargeGroupNameTheMissing(t *testing.T) {
	for _, missing := range [][]int{{200}, {0}, {0, 151}, {3, 64, 65, 298}} {
		t.Run(fmt.Sprint(missing), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				counts := newCountingStore()
				began := time.Now()
				for rank, err := range errorsOf(countingManyStore{counts}, hundreds, time.Minute, nil, missing...) {
					if !contains(missing, rank) {
						requireMissing(t, err, missing...)
					}
				}
				require.Less(t, time.Since(began), time.Minute+time.Second)
				require.LessOrEqual(t, counts.requests, 14*hundreds)
			})
		})
	}
}

func contains(list []int, n int) bool {
	for _, m := range list {
		if m == n {
			return true
		}
	}
	return false
}

// Half of a group is missing, as where a job has started on half of its hosts. Every rank names all that are missing in
// time, though each request takes some: rank 0 does so for all, or where it is missing too, or comes later than the
// others, a deputy.
func TestHalfOfALargeGroupIsMissing(t *testing.T) {
	const size = hundreds
	for _, c := range []struct{ from, to int }{{size / 2, size}, {0, size / 2}, {1, size / 2}} {
		onBothStores(t, func(t *testing.T, counts *countingStore, s Store) {
			var missing []int
			for rank := c.from; rank < c.to; rank++ {
				missing = append(missing, rank)
			}
			counts.each = 200 * time.Microsecond
			began := time.Now()
			for rank, err := range onRanks(size, func(rank int) error {
				if rank == 0 && c.from == 1 {
					time.Sleep(2 * time.Second)
				}
				if rank >= c.from && rank < c.to {
					return nil
				}
				err := Agree(s, "p", rank, size, time.Minute, nil)
				if rank > 0 && time.Since(began) > time.Minute+time.Second {
					t.Errorf("rank %d has ended after %v", rank, time.Since(began))
				}
				return err
			}) {
				if rank < c.from || rank >= c.to {
					requireMissing(t, err, missing...)
				}
			}
			require.LessOrEqual(t, counts.requests, 14*size)
		})
	}
}

// Rank 0 is late, three hosts are missing, and two ranks have failed: all name the same.
func TestTheDeputyNamesWhoIsMissingAndWhoFails(t *testing.T) {
	onBothStores(t, func(t *testing.T, counts *countingStore, s Store) {
		const size = 200
		absent := []int{8, 9, 10, 11, 12, 13, 14, 15, 120, 150, 151}
		failed := map[int]error{}
		for _, want := range []string{
			"11 of 200 ranks have not arrived: ranks 8-15, 120, 150-151;",
			"2 of 200 ranks failed; rank 3: no memory; rank 190: disk full; ranks 8-15, 120, 150-151 not arrived",
		} {
			prefix := fmt.Sprint("p", len(failed))
			for rank, err := range onRanks(size, func(rank int) error {
				if contains(absent, rank) {
					return nil
				}
				if rank == 0 {
					time.Sleep(2 * time.Second)
				}
				return Agree(s, prefix, rank, size, 30*time.Second, failed[rank])
			}) {
				if !contains(absent, rank) {
					require.ErrorContains(t, err, want, rank)
				}
			}
			failed[3], failed[190] = errors.New("no memory"), errors.New("disk full")
		}
	})
}

// Where neither rank 0 nor the deputy reads for all, requests are bounded all the same, and the error does not claim to
// be complete. A rank that has come is not named.
func TestLooksForTheMissingAreBounded(t *testing.T) {
	onBothStores(t, func(t *testing.T, counts *countingStore, s Store) {
		ended := append(candidates(hundreds), 0)
		come(t, s, "p", ended...)
		from := mostLooks + 5
		_, many := s.(ManyGetter)
		for rank, err := range onRanks(hundreds, func(rank int) error {
			if contains(ended, rank) || rank >= from && rank%2 == 0 {
				return nil
			}
			return Agree(s, "p", rank, hundreds, time.Second, nil)
		}) {
			if err == nil {
				require.True(t, contains(ended, rank) || rank%2 == 0)
				continue
			}
			var late *TimeoutError
			require.ErrorAs(t, err, &late)
			require.Equal(t, many, len(late.Missing) > 0)
			require.Positive(t, late.Unknown)
			require.Contains(t, err.Error(), fmt.Sprintf("; %d others were not looked for", late.Unknown))
			for _, missing := range late.Missing {
				require.True(t, missing >= from && missing%2 == 0, missing)
			}
			if !many {
				require.Contains(t, err.Error(), "after 1.9s: rank 0 of 300 has not written what it has read of all ranks; ")
			}
		}
		require.LessOrEqual(t, counts.requests, (mostLooks+3*mostCandidates+6)*hundreds)
	})
}

// Rank 0 and its host, and the host of the first deputy, end behind their records, while a rank is missing: the next
// candidate is the deputy, and all name that rank in time.
func TestTheNextCandidateTakesThePlaceOfADeputy(t *testing.T) {
	onBothStores(t, func(t *testing.T, counts *countingStore, s Store) {
		var ended []int
		for i := range 8 {
			ended = append(ended, i, hundreds-1-i)
		}
		require.Contains(t, ended, candidates(hundreds)[0])
		require.NotContains(t, ended, candidates(hundreds)[1])
		come(t, s, "p", ended...)
		counts.each = 200 * time.Microsecond
		began := time.Now()
		for rank, err := range errorsOf(s, hundreds, time.Minute, nil, append(ended, 77)...) {
			if !contains(ended, rank) && rank != 77 {
				requireMissing(t, err, 77)
			}
		}
		require.Less(t, time.Since(began), time.Minute+time.Second)
		require.NotContains(t, counts.values, rosterKey("p", candidates(hundreds)[2]))
	})
}

// Ranks are numbered host by host as a rule: the first candidate is on another host than rank 0 if there is one.
func TestTheFirstCandidateIsFarFromRankZero(t *testing.T) {
	for size := mostDirect + 1; size <= 1024; size++ {
		all := candidates(size)
		require.Equal(t, size-1, all[0])
		require.Len(t, all, mostCandidates)
		for i, rank := range all {
			require.Positive(t, rank)
			require.True(t, i == 0 || all[i-1]-rank >= size/mostCandidates-1, all)
		}
	}
}

// Who reads for all behind the deadline asks for blocks of ranks: one that is missing costs few requests, and many
// that are cost hardly more than if each were asked for.
func TestWhoReadsForAllAsksForBlocksBehindTheDeadline(t *testing.T) {
	for _, c := range []struct{ from, to, most int }{{700, 701, 40}, {1, 2, 40}, {504, 512, 40}, {1, thousand, 1300}} {
		synctest.Test(t, func(t *testing.T) {
			counts := newCountingStore()
			s := countingManyStore{counts}
			var here, missing []int
			for rank := 1; rank < thousand; rank++ {
				if rank >= c.from && rank < c.to {
					missing = append(missing, rank)
				} else {
					here = append(here, rank)
				}
			}
			come(t, s, "p", here...)
			behind := func(rank int) {
				counts.requests, counts.each = 0, time.Microsecond
				requireMissing(t, Agree(s, "p", rank, thousand, 0, nil), missing...)
				require.LessOrEqual(t, counts.requests, c.most)
			}
			behind(0)
			if rank := candidates(thousand)[0]; rank >= c.to {
				delete(counts.values, rosterKey("p", 0))
				counts.waiters[rosterKey("p", 0)] = nil
				behind(rank) // the deputy
			}
		})
	}
}

// Rank 0 has come, and writes no roster: it is dead or stopped. The others have read what all have written by
// themselves, and soon, and the next round names it. One that begins when the time is up has no time of its own.
func TestRankZeroEndsBeforeItsRoster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		counts := newCountingStore()
		s := countingManyStore{counts}
		come(t, s, "p", 0)
		began := time.Now()
		for rank, err := range errorsOf(s, hundreds, time.Hour, nil, 0) {
			require.NoError(t, err, rank)
		}
		require.Equal(t, firstLook+rosterPause, time.Since(began))
		require.LessOrEqual(t, counts.requests, 4*hundreds)
		began = time.Now()
		for _, err := range onRanks(hundreds-1, func(i int) error {
			return Agree(s, "next", i+1, hundreds, time.Millisecond, nil)
		}) {
			requireMissing(t, err, 0)
		}
		require.Less(t, time.Since(began), 10*time.Millisecond)
	})
	synctest.Test(t, func(t *testing.T) { // in a store that is asked for each key the deputy reads them
		s := newCountingStore()
		come(t, s, "p", 0)
		for rank, err := range errorsOf(s, hundreds, time.Second, nil, 0) {
			require.NoError(t, err, rank)
		}
		require.LessOrEqual(t, s.requests, 6*hundreds)
	})
}

// Rank 0 is the last to come, and its roster comes in the time that it has for it: nobody goes on by itself.
func TestRankZeroHasTimeForItsRoster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		counts := newCountingStore()
		s := countingManyStore{counts}
		began := time.Now()
		for rank, err := range onRanks(hundreds, func(rank int) error {
			if rank == 0 {
				time.Sleep(firstLook + rosterPause)
			}
			err := Agree(s, "p", rank, hundreds, time.Hour, nil)
			if took := time.Since(began); took != firstLook+rosterPause {
				t.Errorf("rank %d has ended after %v", rank, took)
			}
			return err
		}) {
			require.NoError(t, err, rank)
		}
		require.LessOrEqual(t, counts.requests, 4*hundreds)
	})
}

// Nobody uses the values of a round in which ranks are missing, or have failed: the roster, which all read at the end
// of the time, is short.
func TestValuesAreLeftOutOfTheRosterOfARoundThatFails(t *testing.T) {
	for _, failed := range []map[int]error{nil, {7: errors.New("no memory")}} {
		synctest.Test(t, func(t *testing.T) {
			counts := newCountingStore()
			s := countingManyStore{counts}
			for rank, err := range onRanks(80, func(rank int) error {
				if rank == 79 && failed == nil {
					return nil
				}
				_, err := ExchangeOr(s, "p", rank, 80, time.Second, make([]byte, 1000), failed[rank])
				return err
			}) {
				require.True(t, err != nil || rank == 79)
			}
			require.Less(t, len(counts.values[rosterKey("p", 0)]), 4*80)
		})
	}
}

// Rank 0 of a small group, in which nobody reads a roster, abandons a round with one request.
func TestAbandonInSmallGroups(t *testing.T) {
	for size, requests := range map[int]int{2: 1, mostDirect: 1, mostDirect + 1: 2} {
		s := newCountingStore()
		require.NoError(t, Abandon(s, "p", 0, size, errors.New("no memory")))
		require.Equal(t, requests, s.requests)
	}
}

// A store that takes no long values costs requests, and no group.
func TestARosterThatIsRefused(t *testing.T) {
	onBothStores(t, func(t *testing.T, counts *countingStore, s Store) {
		counts.set = func(key string, value []byte) error {
			if len(value) > 1000 {
				return errors.New("the value is too long")
			}
			return nil
		}
		for rank, got := range onRanks(hundreds, func(rank int) [][]byte {
			got, err := Exchange(s, "p", rank, hundreds, ample, []byte(fmt.Sprint(rank)), anyValue)
			if err != nil {
				t.Errorf("rank %d: %v", rank, err)
			}
			return got
		}) {
			require.Len(t, got, hundreds, rank)
			require.Equal(t, "299", string(got[299]))
		}
		require.Equal(t, []byte{rosterNone}, counts.values[rosterKey("p", 0)])
	})
	synctest.Test(t, func(t *testing.T) { // also where a rank is missing
		counts := newCountingStore()
		counts.set = func(key string, value []byte) error {
			if strings.Contains(key, "roster") && len(value) > 1 {
				return errors.New("the value is too long")
			}
			return nil
		}
		for rank, err := range errorsOf(countingManyStore{counts}, hundreds, time.Second, nil, 77) {
			if rank != 77 {
				requireMissing(t, err, 77)
			}
		}
		require.LessOrEqual(t, counts.requests, (mostLooks+4)*hundreds)
	})
	synctest.Test(t, func(t *testing.T) { // and one that takes nothing of rank 0 any more ends the group
		counts := newCountingStore()
		counts.set = func(key string, value []byte) error {
			if strings.Contains(key, "roster") {
				return errors.New("the disk is full")
			}
			return nil
		}
		err := errorsOf(countingManyStore{counts}, 80, time.Second, nil)[0]
		require.ErrorContains(t, err, "rank 0 cannot write to the store (key p/roster/0): the disk is full")
	})
}

// A roster longer than torch's TCPStore takes is not written: that would end the connection to the store.
func TestNoRosterIsTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		counts := newCountingStore()
		s := countingManyStore{counts}
		counts.set = func(key string, value []byte) error {
			if len(value) > mostRoster {
				t.Errorf("%d bytes", len(value))
			}
			return nil
		}
		for _, err := range onRanks(mostDirect+1, func(rank int) error {
			_, err := Exchange(s, "p", rank, mostDirect+1, ample, make([]byte, mostRoster/mostDirect), nil)
			return err
		}) {
			require.NoError(t, err)
		}
	})
}

// All ranks have the same error, whichever ranks have failed, and do not wait for it.
func TestFailuresInLargeGroups(t *testing.T) {
	full := errors.New("disk full")
	for _, c := range []struct {
		failed map[int]error
		want   string
	}{
		{map[int]error{5: full, 6: full, 800: errors.New("no memory")}, "3 of 1000 ranks failed; ranks 5-6: disk full; rank 800: no memory"},
		{map[int]error{0: full, 6: full}, "1 of 1000 ranks failed; rank 0: disk full"},
	} {
		onBothStores(t, func(t *testing.T, counts *countingStore, s Store) {
			began := time.Now()
			for rank, err := range errorsOf(s, thousand, time.Hour, c.failed) {
				var failed *FailedError
				require.ErrorAs(t, err, &failed, rank)
				require.EqualError(t, err, "sagecomm: rendezvous p: "+c.want)
			}
			require.Less(t, time.Since(began), time.Second)
		})
	}
}

// A rank that gives up before it comes is named by all, rank 0 as well.
func TestAbandonInLargeGroups(t *testing.T) {
	for _, gone := range []int{0, 1, hundreds - 1} {
		onBothStores(t, func(t *testing.T, counts *countingStore, s Store) {
			began := time.Now()
			for rank, err := range onRanks(hundreds, func(rank int) error {
				if rank == gone {
					return Abandon(s, "p", rank, hundreds, errors.New("no memory"))
				}
				_, err := Exchange(s, "p", rank, hundreds, time.Hour, nil, anyValue)
				return err
			}) {
				if rank != gone {
					require.EqualError(t, err, fmt.Sprintf("sagecomm: rendezvous p: 1 of 300 ranks failed; rank %d: no memory", gone))
				}
			}
			require.Less(t, time.Since(began), time.Second)
		})
	}
}

// A value that does not go with those of the others ends the wait of all ranks at once, whoever has given it, though a
// rank is missing.
func TestADifferenceEndsARoundOfALargeGroup(t *testing.T) {
	for _, other := range []int{0, 1, 70} {
		onBothStores(t, func(t *testing.T, counts *countingStore, s Store) {
			began := time.Now()
			for rank, err := range onRanks(hundreds, func(rank int) error {
				if rank == hundreds-1 {
					return nil
				}
				size, mine := hundreds, "large"
				if rank == other {
					size, mine = other+2, "small"
				}
				_, err := Exchange(s, "p", rank, size, time.Hour, []byte(mine), func(peer int, value []byte) error {
					if string(value) != mine {
						return fmt.Errorf("ranks %d and %d differ", min(rank, peer), max(rank, peer))
					}
					return nil
				})
				return err
			}) {
				if rank == hundreds-1 {
					continue
				}
				var failed *FailedError
				require.ErrorAs(t, err, &failed, rank)
				if rank != other {
					require.Contains(t, err.Error(), fmt.Sprintf("ranks %d and %d differ", min(rank, other), max(rank, other)))
				}
			}
			require.Less(t, time.Since(began), time.Second)
		})
	}
}

// Rank 0 loses the store, or is interrupted, while the others wait: they learn of it at once. It has given a value,
// which others may have read: so it is no rank that failed, whose record proves that nobody goes on.
func TestRankZeroGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		counts := newCountingStore()
		counts.get = func(key string) error {
			if key == "p/79" {
				return errors.New("interrupted")
			}
			return nil
		}
		errs := errorsOf(counts, 80, time.Hour, nil)
		require.ErrorContains(t, errs[0], "rank 0 cannot read from the store (key p/79): interrupted")
		for _, err := range errs[1:] {
			var gone *GaveUpError
			require.ErrorAs(t, err, &gone)
			require.NotErrorAs(t, err, new(*FailedError))
			require.ErrorContains(t, err, "rank 0, which reads for all ranks what each has written, gave up: sagecomm: rank 0 cannot read")
		}
	})
}

// Rank 0 that follows a rank to a later group leaves no error behind: the others follow it.
func TestRankZeroFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		counts := newCountingStore()
		counts.get = func(key string) error {
			if key == "p/79" {
				return &OvertakenError{79, 2}
			}
			return nil
		}
		err := Agree(counts, "p", 0, 80, time.Second, nil)
		require.ErrorAs(t, err, new(*OvertakenError))
		require.NotContains(t, counts.values, rosterKey("p", 0))
	})
}

func TestARankThatComesWhenTheOthersHaveGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := countingManyStore{newCountingStore()}
		requireMissing(t, errorsOf(s, thousand, time.Second, nil, 700)[0], 700)
		err := Agree(s, "p", 700, thousand, time.Second, nil)
		requireMissing(t, err, 700)
		require.ErrorContains(t, err, "this rank came when the others no longer waited for it")
	})
}

func TestForeignRosters(t *testing.T) {
	const size = mostDirect + 1
	whole := []byte{rosterAll}
	for range size {
		whole = appendRecord(whole, []byte{markValue})
	}
	for _, roster := range []string{"", "hello", "a", string(whole[:len(whole)-1]), string(whole) + "x", "a\x01x" + string(whole[3:]), "a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
		"e", "e\x00", "e\xff\x01\x01v", "e\x01\x05v", "e\x01\x01x",
		"g", "gx", "gv", "g\x00", "g\x01v", "g\x01f\x01", "g\x01f\x01\x01v", "g\x01f\x00\x01f", "g\x01f\x41\x01f", "g\x01f\x01\x01fx"} {
		s := newCountingStore()
		require.NoError(t, s.Set(rosterKey("p", 0), []byte(roster)))
		_, err := Exchange(s, "p", 1, size, ample, nil, nil)
		require.ErrorContains(t, err, "fresh store or prefix", "%q", roster)
	}
	s := newCountingStore()
	require.NoError(t, s.Set(rosterKey("p", 0), whole))
	_, err := Exchange(s, "p", 1, size, ample, nil, nil)
	require.NoError(t, err)
}

// However ranks come late, fail, and lose the store: where one has all values, no rank has an error that proves that
// nobody goes on.
func TestNoRankOfALargeGroupFailsWhereOneGoesOn(t *testing.T) {
	outcomes := map[string]int{}
	for seed := range uint64(400) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			const size = mostDirect + 6
			counts := newCountingStore()
			broken := time.Now().Add(time.Duration(random.IntN(3000)) * time.Millisecond)
			if random.IntN(2) == 0 {
				broken = broken.Add(time.Hour)
			}
			delays, failed := make([]time.Duration, size), map[int]error{}
			for rank := range delays {
				delays[rank] = time.Duration(random.IntN(1000)) * time.Millisecond
			}
			for range random.IntN(3) {
				delays[random.IntN(size)] = time.Duration(random.IntN(2500)) * time.Millisecond
			}
			if random.IntN(2) == 0 {
				delays[0] = time.Duration(random.IntN(2500)) * time.Millisecond
			}
			if random.IntN(3) == 0 {
				failed[random.IntN(size)] = errors.New("no memory")
			}
			errs := onRanks(size, func(rank int) error {
				time.Sleep(delays[rank])
				var s Store = countingManyStore{counts}
				if rank == 0 {
					s = brokenLater{counts, broken}
				}
				return Agree(s, "p", rank, size, 1500*time.Millisecond, failed[rank])
			})
			joined, proved := 0, 0
			for _, err := range errs {
				var f *FailedError
				switch {
				case err == nil:
					joined++
				case errors.As(err, &f):
					proved++
				}
			}
			require.True(t, joined == 0 || proved == 0, "seed %d: %d ranks go on, %d failed", seed, joined, proved)
			outcomes[fmt.Sprint(joined == size, joined > 0, proved > 0)]++
		})
	}
	require.Greater(t, outcomes["true true false"], 10, outcomes)
	require.Greater(t, outcomes["false true false"], 10, outcomes)
	require.Greater(t, outcomes["false false true"], 10, outcomes)
}

// brokenLater is a store whose reads fail from a moment on.
type brokenLater struct {
	*countingStore
	from time.Time
}

func (s brokenLater) Get(key string, timeout time.Duration) ([]byte, error) {
	if left := time.Until(s.from); left < timeout {
		if value, err := s.countingStore.Get(key, max(left, 0)); left > 0 && err == nil {
			return value, nil
		}
		return nil, errors.New("interrupted")
	}
	return s.countingStore.Get(key, timeout)
}

// A rank of a large group that looks whether others are ahead asks for few of them, rank 0 among them.
func TestAheadInALargeGroup(t *testing.T) {
	for _, c := range []struct {
		epochs map[int]int // by rank; -1: that of all others
		found  bool
	}{{map[int]int{}, false}, {map[int]int{0: 5}, true}, {map[int]int{-1: 5}, true}, {map[int]int{-1: 4}, false}} {
		s := newCountingStore()
		for rank := range thousand {
			number, known := c.epochs[rank]
			if !known {
				number = c.epochs[-1]
			}
			if number > 0 {
				_, _, err := Epochs{s, "epoch", rank, "me"}.Next(number)
				require.NoError(t, err)
			}
		}
		s.requests = 0
		ahead := Epochs{s, "epoch", 1, "me"}.Ahead(4, thousand)
		if require.Equal(t, c.found, ahead != nil, c.epochs); c.found {
			require.Equal(t, OvertakenError{0, 5}, *ahead)
		}
		require.LessOrEqual(t, s.requests, mostDirect)
	}
}

// Ranks of a large group that wait ask more seldom whether others are ahead than those of a small one.
func TestWatchfulStoreOfALargeGroupAsksSeldom(t *testing.T) {
	for size, most := range map[int]int{mostDirect: 40, thousand: 3} {
		synctest.Test(t, func(t *testing.T) {
			asked := 0
			s := Watchful(newCountingStore(), size, nobodyLost, func(int) error {
				asked++
				return nil
			})
			_, err := s.Get("p/0", 10*time.Second)
			require.ErrorIs(t, err, ErrTimeout)
			require.Positive(t, asked)
			require.LessOrEqual(t, asked, most)
		})
	}
}

// lossError is an error with a detail.
type lossError struct{}

func (lossError) Error() string  { return "rank 5 has died" }
func (lossError) Detail() []byte { return []byte("5") }

// Rank 0 notices that a rank has died while others are slow: all hear at once who has died, those that come later as
// well, and no rank that is alive is named.
func TestALossThatRankZeroNoticesIsTold(t *testing.T) {
	onBothStores(t, func(t *testing.T, counts *countingStore, s Store) {
		const size = 100
		var lost atomic.Pointer[lossError]
		time.AfterFunc(2*time.Second, func() { lost.Store(&lossError{}) })
		began := time.Now()
		for rank, err := range onRanks(size, func(rank int) error {
			own := s
			switch {
			case rank == 0:
				own = Watchful(s, size, func() error {
					if why := lost.Load(); why != nil {
						return why
					}
					return nil
				}, nobodyAhead)
			case rank == 5:
				return nil
			case rank >= 60:
				time.Sleep(4 * time.Second)
			}
			err := Agree(own, "p", rank, size, time.Minute, nil)
			if rank > 0 && rank < 60 && time.Since(began) > 2*time.Second+watchSlice+50*time.Millisecond {
				t.Errorf("rank %d has waited for %v", rank, time.Since(began))
			}
			return err
		}) {
			switch rank {
			case 0:
				var late *TimeoutError
				require.ErrorAs(t, err, &late)
				require.Equal(t, []int{5}, late.Missing)
				want := size - 60
				if _, many := s.(ManyGetter); !many {
					want = size - 6 - mostLooks // it asks for each, and few times, since the others wait
				}
				require.Equal(t, want, late.Unknown)
			case 5:
			default:
				var gaveUp *GaveUpError
				require.ErrorAs(t, err, &gaveUp, rank)
				require.Equal(t, GaveUpError{"p", "rank 5 has died", []byte("5")}, *gaveUp)
			}
		}
		require.Less(t, time.Since(began), 5*time.Second)
	})
}

// Where rank 0 waits no longer, or is interrupted, and the failure of a rank is stored, no rank goes on: all have an
// error that proves it, so none keeps its memory for the others.
func TestAStoredFailureBesideALossIsTold(t *testing.T) {
	for _, interrupted := range []bool{false, true} {
		onBothStores(t, func(t *testing.T, counts *countingStore, s Store) {
			const size, missing = 100, 50
			failing := 60 // which rank 0 looks for behind the loss
			own := Watchful(s, size, func() error { return lossError{} }, nobodyAhead)
			if interrupted {
				failing, own = 40, brokenLater{counts, time.Now().Add(time.Second)}
			}
			for rank, err := range onRanks(size, func(rank int) error {
				switch rank {
				case missing:
					return nil
				case failing:
					return Agree(s, "p", rank, size, time.Hour, errors.New("no memory"))
				case 0:
					synctest.Wait() // until the others have come
					return Agree(own, "p", rank, size, time.Hour, nil)
				}
				return Agree(s, "p", rank, size, time.Hour, nil)
			}) {
				if rank == missing {
					continue
				}
				var failed *FailedError
				require.ErrorAs(t, err, &failed, rank)
				require.Contains(t, failed.Error(), fmt.Sprintf("rank %d: no memory", failing))
				require.Positive(t, len(failed.Missing)+failed.Unknown)
				if rank > 0 && !interrupted {
					require.Equal(t, RankFailure{0, "rank 5 has died", []byte("5")}, failed.Failed[0])
				}
				if interrupted {
					require.ErrorContains(t, err, "interrupted")
				}
			}
		})
	}
}

// Rank 0 loses the store while it looks for a failure behind a loss: one that it has found counts all the same.
func TestAFailureFoundBeforeTheStoreIsLostIsTold(t *testing.T) {
	onBothStores(t, func(t *testing.T, counts *countingStore, s Store) {
		const size, failing = 100, 60
		for rank := 1; rank < size; rank++ {
			if rank != 50 && rank != 52 && rank != failing {
				come(t, s, "p", rank)
			}
		}
		require.NoError(t, s.Set(key("p", failing), failure(errors.New("no memory"))))
		counts.get = func(k string) error {
			if k == "p/70" {
				return errors.New("interrupted")
			}
			return nil
		}
		err := Agree(Watchful(s, size, func() error { return lossError{} }, nobodyAhead), "p", 0, size, time.Hour, nil)
		require.ErrorContains(t, err, "interrupted")
		var failed *FailedError
		require.ErrorAs(t, err, &failed)
		require.ErrorContains(t, failed, "rank 60: no memory")
		counts.get = nil
		require.ErrorAs(t, Agree(s, "p", 1, size, time.Hour, nil), &failed)
		require.ErrorContains(t, failed, "rank 60: no memory")
	})
}

// So it is in a small group.
func TestAStoredFailureBesideAnInterruptionIsKnown(t *testing.T) {
	s := newCountingStore()
	require.NoError(t, s.Set("p/1", failure(errors.New("no memory"))))
	s.get = func(key string) error {
		if key == "p/2" {
			return errors.New("interrupted")
		}
		return nil
	}
	err := Agree(s, "p", 0, 3, time.Second, nil)
	require.ErrorContains(t, err, "interrupted")
	var failed *FailedError
	require.ErrorAs(t, err, &failed)
	require.EqualError(t, failed, "sagecomm: rendezvous p: 1 of 3 ranks failed; rank 1: no memory; 1 others were not looked for")
}

// A rank that is lost behind its record has given what the others need.
func TestALossBehindAllRecordsIsNoFailure(t *testing.T) {
	onBothStores(t, func(t *testing.T, counts *countingStore, s Store) {
		const size = 100
		come(t, s, "p", 5)
		for rank, err := range onRanks(size, func(rank int) error {
			switch rank {
			case 0:
				time.Sleep(time.Second)
				return Agree(Watchful(s, size, func() error { return errLost }, nobodyAhead), "p", 0, size, time.Minute, nil)
			case 5:
				return nil
			}
			return Agree(s, "p", rank, size, time.Minute, nil)
		}) {
			require.NoError(t, err, rank)
		}
	})
}

// A rank 0 that has abandoned a round has no other roster than its reason.
func TestTheFailureOfRankZeroIsItsRoster(t *testing.T) {
	s := newCountingStore()
	require.NoError(t, s.Set("p/0", failure(errors.New("no memory"))))
	_, err := Exchange(s, "p", 1, thousand, time.Hour, nil, anyValue)
	require.EqualError(t, err, "sagecomm: rendezvous p: 1 of 1000 ranks failed; rank 0: no memory")
}

// A rank that could be the deputy has lost a rank, and waits no longer, while others come: it tells nobody that these
// are missing.
func TestWhoseWaitEndsEarlyIsNoDeputy(t *testing.T) {
	onBothStores(t, func(t *testing.T, counts *countingStore, s Store) {
		const size = 100
		come(t, s, "p", 0)
		lost := func() error { return errLost }
		first := candidates(size)[0]
		err := Agree(Watchful(s, size, lost, nobodyAhead), "p", first, size, time.Minute, nil)
		require.ErrorAs(t, err, new(*TimeoutError))
		require.NotContains(t, counts.values, rosterKey("p", first))
		require.ErrorAs(t, Agree(s, "p", first, size, time.Second, nil), new(*TimeoutError)) // where the time is up it does
		require.Contains(t, counts.values, rosterKey("p", first))
	})
}
