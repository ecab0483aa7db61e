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

// Exchange gives every rank the values of all, in rank order. In a group of more than mostDirect ranks, rank 0 reads
// for all what each has written (roster.go). When ranks do not arrive in time the error is a [*TimeoutError] that names
// them; when ranks arrive with a failure instead of a value ([Abandon]) it is a [*FailedError] with the reason of each,
// the same on all ranks. check sees each value of another rank as it comes: its error ends the wait at once, as a
// [*FailedError] of this rank.
func Exchange(store Store, prefix string, rank, size int, timeout time.Duration, mine []byte,
	check func(rank int, value []byte) error) ([][]byte, error) {
	return gather(store, prefix, rank, size, timeout, append([]byte{markValue}, mine...), check)
}

// ExchangeOr is Exchange for a rank that may have failed: an error takes the place of its value, and every rank gets a
// [*FailedError], the same on all. No rank may go on before it returns. A rank that has failed and cannot use the store
// has its own failure as a [*StoppedError].
func ExchangeOr(store Store, prefix string, rank, size int, timeout time.Duration, mine []byte,
	failed error) ([][]byte, error) {
	record := append([]byte{markValue}, mine...)
	if failed != nil {
		record = failure(failed)
	}
	all, err := gather(store, prefix, rank, size, timeout, record, nil)
	return all, WithOwn(prefix, rank, size, failed, err)
}

// WithOwn returns the error with which a round has ended on a rank that has failed itself, as failed says. Where the
// rank could not use the store any more, its own failure is in front. No rank goes on without the value of this one.
func WithOwn(prefix string, rank, size int, failed, err error) error {
	if err == nil || failed == nil {
		return err
	}
	own := *readFailure(rank, failure(failed))
	var stopped *StoppedError
	switch {
	case errors.As(err, &stopped):
		others := slices.DeleteFunc(slices.Clone(stopped.Stored.Failed), func(f RankFailure) bool { return f.Rank == rank })
		stored := *stopped.Stored
		stored.Failed = append([]RankFailure{own}, others...)
		return &StoppedError{Cause: stopped.Cause, Stored: &stored, Own: true}
	case errors.As(err, new(*StoreError)), errors.As(err, new(*GaveUpError)):
		stored := &FailedError{Prefix: prefix, Size: size, Failed: []RankFailure{own}, Unknown: size - 1}
		return &StoppedError{Cause: err, Stored: stored, Own: true}
	}
	return err
}

// Abandon takes the place of Exchange on a rank of size ranks that has nothing to contribute because of cause, so that
// the others hear the reason instead of waiting for their timeout. It does not wait.
func Abandon(store Store, prefix string, rank, size int, cause error) error {
	where := []string{key(prefix, rank)}
	if rank == 0 && HasRoster(size) { // the others wait for its roster
		where = append(where, rosterKey(prefix, 0))
	}
	for _, k := range where {
		if err := store.Set(k, failure(cause)); err != nil {
			return fmt.Errorf("sagecomm: rank %d cannot tell the others that it failed (key %s): %w", rank, k, err)
		}
	}
	return nil
}

// Abandoned returns the reason that a rank has given by [Abandon] or [Agree], nil if it has given none. It does not
// wait.
func Abandoned(store Store, prefix string, rank int) *RankFailure {
	record, err := store.Get(key(prefix, rank), 0)
	if err != nil || len(record) == 0 {
		return nil
	}
	return readFailure(rank, record)
}

// TellEnded tells the others that a rank reads nothing more in the store.
func TellEnded(store Store, prefix string, rank int) error {
	return store.Set(key(prefix, rank), []byte{markValue})
}

// AwaitEnded waits until ranks have told something by [TellEnded] or [Abandon], or until the timeout.
func AwaitEnded(store Store, prefix string, ranks []int, timeout time.Duration) {
	deadline := time.Now().Add(timeout)
	if many, ok := store.(ManyGetter); ok && len(ranks) > 1 {
		keys := make([]string, len(ranks))
		for i, rank := range ranks {
			keys[i] = key(prefix, rank)
		}
		if _, err := many.GetMany(keys, timeout); !errors.Is(err, ErrTimeout) {
			return // all have, or the store is gone
		}
	}
	for _, rank := range ranks {
		left := time.Until(deadline)
		if left <= 0 {
			return
		}
		if _, err := store.Get(key(prefix, rank), left); err != nil && !errors.Is(err, ErrTimeout) {
			return
		}
	}
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
	text := cut(err.Error())
	var detailed Detailed
	if errors.As(err, &detailed) {
		if detail := detailed.Detail(); detail != nil {
			return slices.Concat([]byte{markDetailed}, detail, []byte("\n"), []byte(text))
		}
	}
	return append([]byte{markFailure}, text...)
}

// cut shortens the text of an error that others are to read.
func cut(text string) string {
	if len(text) > failureText {
		return strings.ToValidUTF8(text[:failureText], "") + " ..."
	}
	return text
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

// round is one call of Exchange, ExchangeOr or Agree on one rank.
type round struct {
	store      Store
	prefix     string
	rank, size int
	mine       []byte                             // the record of this rank
	check      func(rank int, value []byte) error // nil: every value will do
	began      time.Time
	deadline   time.Time
	grace      time.Duration // how long after the deadline the round may wait for a roster
	lost       error         // why the wait for a rank of a large group has ended early: see Watchful
}

// gather publishes this rank's record and collects those of all ranks. It reads all records even after a failure,
// because the error must not depend on the order of reading.
func gather(store Store, prefix string, rank, size int, timeout time.Duration, mine []byte,
	check func(int, []byte) error) ([][]byte, error) {
	if size < 1 || rank < 0 || rank >= size {
		return nil, fmt.Errorf("sagecomm: rendezvous %s: rank %d of %d ranks does not exist", prefix, rank, size)
	}
	began := time.Now()
	r := &round{store: store, prefix: prefix, rank: rank, size: size, mine: mine, check: check,
		began: began, deadline: began.Add(timeout), grace: min(rosterGrace, timeout)}
	if err := store.Set(key(prefix, rank), mine); err != nil {
		return nil, r.cannotWrite(key(prefix, rank), err)
	}
	if size > mostDirect {
		return r.roster()
	}
	found, ended, err := r.collect()
	switch {
	case err != nil && ended < 0:
		return nil, r.stopped(found, err)
	case err != nil:
		return nil, err
	}
	return r.result(found, absent(found), 0)
}

// collect reads the record of each rank. Those of ranks that have not come by the deadline are nil. Where a record ends
// the round with an error, ended is its rank, and found has it; else ended is -1, and an error has what was found
// before it. In a large group, where others wait for the roster, no rank is waited for behind the deadline, nor once
// the wait for one has ended early, which sets lost.
func (r *round) collect() (found [][]byte, ended int, err error) {
	found = make([][]byte, r.size)
	records, err := r.together()
	if err != nil {
		return found, -1, err
	}
	var rest [][]byte // those of ranks that are no longer waited for, nil before they are looked for
	for peer := range r.size {
		record := r.mine
		switch {
		case peer == r.rank:
		case records != nil:
			record = records[peer]
		case r.waitsNoLonger():
			if rest == nil {
				if rest, err = r.lookFrom(peer); err != nil {
					for rank, record := range rest { // a failure among them proves that nobody goes on
						if rank != r.rank && len(record) > 0 && r.look(rank, record) == nil {
							found[rank] = record
						}
					}
					return found, -1, err
				}
			}
			if record = rest[peer]; record == nil {
				continue
			}
		default:
			record, err = r.store.Get(key(r.prefix, peer), max(time.Until(r.deadline), probeTimeout(r.size)))
			if early := (*endedEarly)(nil); r.size > mostDirect && errors.As(err, &early) {
				r.lost = early.why
			}
			if errors.Is(err, ErrTimeout) {
				continue
			}
			if err != nil {
				return found, -1, r.cannotRead(key(r.prefix, peer), err)
			}
		}
		found[peer] = record
		if err := r.look(peer, record); err != nil {
			return found, peer, err
		}
	}
	return found, -1, nil
}

// waitsNoLonger reports whether this is a large group whose ranks that have not come are no longer waited for.
func (r *round) waitsNoLonger() bool {
	return r.size > mostDirect && (r.lost != nil || !time.Now().Before(r.deadline))
}

// look returns the error with which the record of a rank ends the round at once, nil as a rule.
func (r *round) look(peer int, record []byte) error {
	switch {
	case len(record) > 0 && record[0] == markValue:
		if peer == r.rank || r.check == nil {
			return nil
		}
		if err := r.check(peer, record[1:]); err != nil {
			return r.failed(RankFailure{Rank: r.rank, Reason: err.Error()})
		}
		return nil
	case len(record) > 0 && readFailure(peer, record) != nil:
		return nil
	}
	return r.foreign(key(r.prefix, peer), record)
}

// absent returns the ranks that have no record.
func absent(found [][]byte) (missing []int) {
	for rank, record := range found {
		if record == nil {
			missing = append(missing, rank)
		}
	}
	return missing
}

// result returns the values of all ranks, or the error of those that failed or are missing. unknown ranks were not
// looked for, or not waited for. A failure takes precedence over missing ranks, which may be late because of that.
func (r *round) result(found [][]byte, missing []int, unknown int) ([][]byte, error) {
	values := make([][]byte, r.size)
	var failed []RankFailure
	for peer, record := range found {
		if len(record) == 0 {
			continue
		}
		if values[peer] = record[1:]; record[0] != markValue {
			failed = append(failed, *readFailure(peer, record))
		}
	}
	switch {
	case len(failed) > 0:
		return nil, &FailedError{Prefix: r.prefix, Size: r.size, Failed: failed, Missing: missing, Unknown: unknown}
	case len(missing) > 0 || unknown > 0:
		return nil, &TimeoutError{Prefix: r.prefix, Size: r.size, Missing: missing, Unknown: unknown,
			Waited: time.Since(r.began), Late: slices.Contains(missing, r.rank)}
	}
	return values, nil
}

// stopped returns the error of a round that err has ended on this rank. Where a failure is stored among what was found,
// that is a [*StoppedError]: no rank goes on then, and the caller may rely on it.
func (r *round) stopped(found [][]byte, err error) error {
	_, failed := r.result(found, nil, len(absent(found)))
	if stored := (*FailedError)(nil); errors.As(failed, &stored) {
		return &StoppedError{Cause: err, Stored: stored}
	}
	return err
}

// together bounds the wait of round.together. While one rank is missing, the value of a rank that disagrees, which
// would end the rendezvous at once, is noticed later by this time.
const together = 250 * time.Millisecond

// together returns the records of all peers, by rank, if all come soon. Most rendezvous then need two round trips to
// the store's server, whatever the number of ranks. It returns nil if the caller must get the records one by one.
func (r *round) together() ([][]byte, error) {
	many, ok := r.store.(ManyGetter)
	left := time.Until(r.deadline)
	if !ok || r.size == 1 || left <= 0 {
		return nil, nil
	}
	return r.getAll(many, min(left, together))
}

// getAll returns the records of all peers, by rank, nil if they are not all there in time.
func (r *round) getAll(many ManyGetter, timeout time.Duration) ([][]byte, error) {
	keys := make([]string, 0, r.size-1)
	for peer := range r.size {
		if peer != r.rank {
			keys = append(keys, key(r.prefix, peer))
		}
	}
	found, err := many.GetMany(keys, timeout)
	switch {
	case errors.Is(err, ErrTimeout):
		return nil, nil
	case err != nil:
		return nil, storeError(r.rank, "read from", fmt.Sprintf("keys %s/0 to %s", r.prefix, key(r.prefix, r.size-1)), err)
	}
	return slices.Insert(found, r.rank, nil), nil
}

// failed returns the error of a round that the failure of one rank has ended.
func (r *round) failed(failed RankFailure) error {
	return &FailedError{Prefix: r.prefix, Size: r.size, Failed: []RankFailure{failed}}
}

func (r *round) cannotWrite(key string, err error) error {
	return storeError(r.rank, "write to", "key "+key, err)
}

func (r *round) cannotRead(key string, err error) error {
	return storeError(r.rank, "read from", "key "+key, err)
}

// foreign returns the error for a value that no rank has written.
func (r *round) foreign(key string, value []byte) error {
	return fmt.Errorf("sagecomm: key %s in the store holds %.40q, which no rank of this library wrote: "+
		"use a fresh store or prefix", key, value)
}
