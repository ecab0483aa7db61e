package bootstrap

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A value in the store is a mark of one byte, followed by the content.
const (
	markValue    = 'v' // the content is the rank's value
	markFailure  = 'f' // the content is the text of the error that keeps the rank from giving a value
	markDetailed = 'd' // the content is a line with the detail of such an error, and its text
)

// Detailed is an error of which the other ranks get more than the text.
type Detailed interface {
	error
	Detail() []byte // short, and without a line feed; nil: there is none
}

// failureText bounds the text of a rank's failure, in bytes.
const failureText = 4096

// probeTimeout is how long each further rank is looked for once the time is up, to name all that are missing and only
// those: a second for all of them, but never less than a store needs to answer.
func probeTimeout(size int) time.Duration {
	return min(max(time.Second/time.Duration(size), 2*time.Millisecond), 10*time.Millisecond)
}

// Exchange gives every rank the values of all, in rank order. When ranks do not arrive in time the error is a
// [*TimeoutError] that names them; when ranks arrive with a failure instead of a value ([Abandon]) it is a
// [*FailedError] with the reason of each, the same on all ranks. check sees each value of another rank as it comes: its error
// ends the wait at once, as a [*FailedError] of this rank.
func Exchange(store Store, prefix string, rank, size int, timeout time.Duration, mine []byte, check func(rank int, value []byte) error) ([][]byte, error) {
	return gather(store, prefix, rank, size, timeout, append([]byte{markValue}, mine...), check)
}

// ExchangeOr is Exchange for a rank that may have failed: an error takes the place of its value, and every rank gets a [*FailedError], the
// same on all. No rank may go on before it returns.
func ExchangeOr(store Store, prefix string, rank, size int, timeout time.Duration, mine []byte, failed error) ([][]byte, error) {
	record := append([]byte{markValue}, mine...)
	if failed != nil {
		record = failure(failed)
	}
	return gather(store, prefix, rank, size, timeout, record, func(int, []byte) error { return nil })
}

// Abandon takes the place of Exchange on a rank that has nothing to contribute because of cause, so that the others
// hear the reason instead of waiting for their timeout. It does not wait.
func Abandon(store Store, prefix string, rank int, cause error) error {
	if err := store.Set(key(prefix, rank), failure(cause)); err != nil {
		return fmt.Errorf("sagecomm: rank %d cannot tell the others that it failed (key %s): %w", rank, key(prefix, rank), err)
	}
	return nil
}

// Abandoned returns the reason that a rank has given by [Abandon] or [Agree], nil if it has given none. It does not wait.
func Abandoned(store Store, prefix string, rank int) *RankFailure {
	record, err := store.Get(key(prefix, rank), 0)
	if err != nil || len(record) == 0 {
		return nil
	}
	return readFailure(rank, record)
}

// Agree tells every rank whether all ranks succeeded: nil if err is nil everywhere, otherwise a [*FailedError] that
// names every rank that failed and why, the same on all ranks. No rank may go on before it returns. A rank that does
// not come makes it a [*TimeoutError].
func Agree(store Store, prefix string, rank, size int, timeout time.Duration, err error) error {
	_, err = ExchangeOr(store, prefix, rank, size, timeout, nil, err)
	return err
}

func key(prefix string, rank int) string { return prefix + "/" + strconv.Itoa(rank) }

// failure is the value of a rank that failed. Every rank, the failed one included, uses the text as it is here.
func failure(err error) []byte {
	text := err.Error()
	if len(text) > failureText {
		text = strings.ToValidUTF8(text[:failureText], "") + " ..."
	}
	var detailed Detailed
	if errors.As(err, &detailed) {
		if detail := detailed.Detail(); detail != nil {
			return slices.Concat([]byte{markDetailed}, detail, []byte("\n"), []byte(text))
		}
	}
	return append([]byte{markFailure}, text...)
}

// readFailure returns what failure has written, nil for another record.
// Requires: it is not empty.
func readFailure(rank int, record []byte) *RankFailure {
	switch record[0] {
	case markFailure:
		return &RankFailure{Rank: rank, Reason: string(record[1:])}
	case markDetailed:
		detail, reason, _ := bytes.Cut(record[1:], []byte("\n"))
		return &RankFailure{Rank: rank, Reason: string(reason), Detail: detail}
	}
	return nil
}

// gather publishes this rank's record and collects those of all ranks. It reads all records even after a failure, because the
// error must not depend on the order of reading.
func gather(store Store, prefix string, rank, size int, timeout time.Duration, mine []byte, check func(int, []byte) error) ([][]byte, error) {
	if size < 1 || rank < 0 || rank >= size {
		return nil, fmt.Errorf("sagecomm: rendezvous %s: rank %d of %d ranks does not exist", prefix, rank, size)
	}
	began := time.Now()
	deadline := began.Add(timeout)
	if err := store.Set(key(prefix, rank), mine); err != nil {
		return nil, fmt.Errorf("sagecomm: rank %d cannot write to the store (key %s): %w", rank, key(prefix, rank), err)
	}
	records, err := getTogether(store, prefix, rank, size, time.Until(deadline))
	if err != nil {
		return nil, err
	}
	values := make([][]byte, size)
	var missing []int
	var failed []RankFailure
	for peer := range size {
		record := mine
		switch {
		case peer == rank:
		case records != nil:
			record = records[peer]
		default:
			record, err = store.Get(key(prefix, peer), max(time.Until(deadline), probeTimeout(size)))
			if errors.Is(err, ErrTimeout) {
				missing = append(missing, peer)
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("sagecomm: rank %d cannot read from the store (key %s): %w", rank, key(prefix, peer), err)
			}
		}
		switch {
		case len(record) > 0 && record[0] == markValue:
			values[peer] = record[1:]
			if peer == rank {
				break
			}
			if err := check(peer, values[peer]); err != nil {
				return nil, verdict(prefix, size, time.Since(began), nil, []RankFailure{{Rank: rank, Reason: err.Error()}})
			}
		case len(record) > 0 && readFailure(peer, record) != nil:
			failed = append(failed, *readFailure(peer, record))
		default:
			return nil, fmt.Errorf("sagecomm: key %s in the store holds %.40q, which no rank of this library wrote: use a fresh store or prefix",
				key(prefix, peer), record)
		}
	}
	if len(missing) == 0 && len(failed) == 0 {
		return values, nil
	}
	return nil, verdict(prefix, size, time.Since(began), missing, failed)
}

// together bounds the wait of getTogether. While one rank is missing, the value of a rank that disagrees, which would end the
// rendezvous at once, is noticed later by this time.
const together = 250 * time.Millisecond

// getTogether returns the records of all peers, by rank, if all come soon. Most rendezvous then need two round trips to
// the store's server, whatever the number of ranks. It returns nil if the caller must get the records one by one.
func getTogether(store Store, prefix string, rank, size int, left time.Duration) ([][]byte, error) {
	many, ok := store.(ManyGetter)
	if !ok || size == 1 || left <= 0 {
		return nil, nil
	}
	keys := make([]string, 0, size-1)
	for peer := range size {
		if peer != rank {
			keys = append(keys, key(prefix, peer))
		}
	}
	found, err := many.GetMany(keys, min(left, together))
	switch {
	case errors.Is(err, ErrTimeout):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("sagecomm: rank %d cannot read from the store (keys %s/0 to %s): %w", rank, prefix, key(prefix, size-1), err)
	}
	return slices.Insert(found, rank, nil), nil
}

// verdict returns the error of a rendezvous. Failures take precedence over missing ranks, which may be late because of them.
func verdict(prefix string, size int, waited time.Duration, missing []int, failed []RankFailure) error {
	if len(failed) == 0 {
		return &TimeoutError{Prefix: prefix, Size: size, Missing: missing, Waited: waited}
	}
	return &FailedError{Prefix: prefix, Size: size, Failed: failed, Missing: missing}
}
