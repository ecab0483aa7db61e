package bootstrap

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// TimeoutError names the ranks that did not come to a rendezvous.
type TimeoutError struct {
	Prefix  string
	Size    int
	Missing []int // in rising order
	Unknown int   // ranks that were not looked for, in a group in which rank 0 has written no roster in time
	Waited  time.Duration
	Late    bool // this rank is one of those missing: it came when the others no longer waited
}

func (e *TimeoutError) Error() string {
	who := fmt.Sprintf("%d of %d ranks have not arrived: %s", len(e.Missing), e.Size, ranks(e.Missing))
	if len(e.Missing) == 0 {
		who = fmt.Sprintf("rank 0 of %d has not written what it has read of all ranks", e.Size)
	}
	more := unknown(e.Unknown)
	if e.Late {
		more += "; this rank came when the others no longer waited for it"
	}
	const advice = "are they running, with the same store and the same world size?"
	return fmt.Sprintf("sagecomm: rendezvous %s timed out after %v: %s%s; %s", e.Prefix, e.Waited.Round(time.Millisecond), who, more, advice)
}

// unknown writes that ranks were not looked for.
func unknown(ranks int) string {
	if ranks == 0 {
		return ""
	}
	return fmt.Sprintf("; %d others were not looked for", ranks)
}

// Unwrap returns ErrTimeout.
func (e *TimeoutError) Unwrap() error { return ErrTimeout }

// RankFailure holds the reason why one rank failed.
type RankFailure struct {
	Rank   int
	Reason string
	Detail []byte // of a [Detailed] error; nil: none was given
}

// FailedError names the ranks that failed, with their reasons. Unless ranks are missing, or were not looked for, it is
// the same on every rank. It wraps no error, because a rank's own cause is known to that rank only.
type FailedError struct {
	Prefix  string
	Size    int
	Failed  []RankFailure // in rising order of ranks
	Missing []int         // ranks that had not arrived either when the time was up
	Unknown int           // as of a TimeoutError
}

func (e *FailedError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "sagecomm: rendezvous %s: %d of %d ranks failed", e.Prefix, len(e.Failed), e.Size)
	// Ranks with one reason are named together: eight ranks on one full disk make one line.
	said := make(map[string]bool)
	for _, f := range e.Failed {
		if said[f.Reason] {
			continue
		}
		said[f.Reason] = true
		var same []int
		for _, g := range e.Failed {
			if g.Reason == f.Reason {
				same = append(same, g.Rank)
			}
		}
		fmt.Fprintf(&b, "; %s: %s", ranks(same), f.Reason)
	}
	if len(e.Missing) > 0 {
		fmt.Fprintf(&b, "; %s not arrived", ranks(e.Missing))
	}
	b.WriteString(unknown(e.Unknown))
	return b.String()
}

// StoreError reports that a rank cannot use the store, because its server has ended, say, or the caller was interrupted.
type StoreError struct {
	Rank   int
	Action string // "read from" or "write to"
	Keys   string
	Cause  error
}

// storeError returns the error of a rank that cannot use the store. That the rank which serves the store gave up is a
// reason of its own.
func storeError(rank int, action, keys string, cause error) error {
	if gaveUp := (*GaveUpError)(nil); errors.As(cause, &gaveUp) {
		return gaveUp
	}
	return &StoreError{rank, action, keys, cause}
}

func (e *StoreError) Error() string {
	return fmt.Sprintf("sagecomm: rank %d cannot %s the store (%s): %v", e.Rank, e.Action, e.Keys, e.Cause)
}

func (e *StoreError) Unwrap() error { return e.Cause }

// StoppedError reports that a round has ended on this rank alone, as by an interruption, after it had read that ranks
// failed, or had failed itself. It wraps both errors.
type StoppedError struct {
	Cause  error // what has ended the round
	Stored *FailedError
	Own    bool // this rank had failed itself, which is the first of what Stored has
}

func (e *StoppedError) Error() string {
	if e.Own {
		return fmt.Sprintf("%v; after that, %v", e.Stored, e.Cause)
	}
	return fmt.Sprintf("%v; before that, %v", e.Cause, e.Stored)
}

// Unwrap returns both errors.
func (e *StoppedError) Unwrap() []error { return []error{e.Cause, e.Stored} }

// ranks writes a rising list of ranks: "rank 3", "ranks 0-2, 5".
func ranks(list []int) string {
	if len(list) == 1 {
		return "rank " + strconv.Itoa(list[0])
	}
	var parts []string
	for i := 0; i < len(list); {
		j := i
		for j+1 < len(list) && list[j+1] == list[j]+1 {
			j++
		}
		part := strconv.Itoa(list[i])
		if j > i {
			part += "-" + strconv.Itoa(list[j])
		}
		parts = append(parts, part)
		i = j + 1
	}
	return "ranks " + strings.Join(parts, ", ")
}
