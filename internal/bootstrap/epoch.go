package bootstrap

import (
	"errors"
	"fmt"
	"strconv"
	"time"
)

// Epochs tell the groups apart that are made on the same keys, one after the other: a store outlives groups, and even the
// processes of a job that is restarted. A rank writes what it says in a rendezvous under the number of that rendezvous,
// which it counts itself. Ranks make the same groups in the same order, so their counts agree, unless one was ended before
// its turn came: it finds that the others are ahead ([OvertakenError]) and follows them.
type Epochs struct {
	Store  Store
	Prefix string
	Rank   int
}

// OvertakenError says that a rank has gone on to a later epoch and says nothing more in this one.
type OvertakenError struct{ Rank, Epoch int }

func (e *OvertakenError) Error() string {
	return fmt.Sprintf("rank %d makes group number %d already", e.Rank, e.Epoch)
}

// Next begins an epoch: the one after this rank's last, or least if that is later.
func (e Epochs) Next(least int) (int, error) {
	last, err := e.of(e.Rank)
	if err != nil {
		return 0, err
	}
	next := max(last+1, least)
	k := key(e.Prefix, e.Rank)
	if err := e.Store.Set(k, []byte(strconv.Itoa(next))); err != nil {
		return 0, fmt.Errorf("sagecomm: rank %d cannot write to the store (key %s): %w", e.Rank, k, err)
	}
	return next, nil
}

// Overtaken returns an [*OvertakenError] if a rank is in a later epoch than mine.
func (e Epochs) Overtaken(rank, mine int) error {
	theirs, err := e.of(rank)
	if err != nil || theirs <= mine {
		return err
	}
	return &OvertakenError{rank, theirs}
}

// of is the last epoch that a rank has begun, 0 if none.
func (e Epochs) of(rank int) (int, error) {
	k := key(e.Prefix, rank)
	text, err := e.Store.Get(k, time.Millisecond)
	switch {
	case errors.Is(err, ErrTimeout):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("sagecomm: rank %d cannot read from the store (key %s): %w", e.Rank, k, err)
	}
	n, err := strconv.Atoi(string(text))
	if err != nil || n < 1 {
		return 0, fmt.Errorf("sagecomm: key %s in the store holds %.40q, which no rank of this library wrote: use a fresh store or prefix", k, text)
	}
	return n, nil
}
