package bootstrap

import (
	"errors"
	"fmt"
	"strconv"
	"time"
)

// NextEpoch counts the groups that rank has begun to make on the keys under prefix: 1 for the first one. Ranks make the
// same groups in the same order, so what one rank writes under its epoch is for the others of the same group only. A
// store outlives groups: torchrun keeps one for the job, and torch gives every default group of it the same prefix.
func NextEpoch(store Store, prefix string, rank int) (int, error) {
	k := key(prefix+"/epoch", rank)
	last := 0
	text, err := store.Get(k, time.Millisecond)
	switch {
	case errors.Is(err, ErrTimeout):
	case err != nil:
		return 0, fmt.Errorf("sagecomm: rank %d cannot read from the store (key %s): %w", rank, k, err)
	default:
		if last, err = strconv.Atoi(string(text)); err != nil || last < 1 {
			return 0, fmt.Errorf("sagecomm: key %s in the store holds %.40q, which no rank of this library wrote: use a fresh store or prefix", k, text)
		}
	}
	if err := store.Set(k, []byte(strconv.Itoa(last+1))); err != nil {
		return 0, fmt.Errorf("sagecomm: rank %d cannot write to the store (key %s): %w", rank, k, err)
	}
	return last + 1, nil
}
