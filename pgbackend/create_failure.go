package pgbackend

import (
	"encoding/json"
	"errors"

	"sagecomm/internal/bootstrap"
	"sagecomm/internal/coll"
)

// CreateFailure turns an error of Create into a failure: err itself if it is one, else a failure whose status is
// Timeout if ranks were missing, that of the ranks that failed (culprit), or of rank 0 or the rank that serves the store
// if it gave up while the others waited for it, PeerFailure if the store's process has ended, and Invalid otherwise.
func CreateFailure(name string, err error) *coll.Failure {
	var known *coll.Failure
	if errors.As(err, &known) {
		return known
	}
	f := &coll.Failure{Status: coll.Invalid, Rank: -1, Group: name, Message: err.Error()}
	var absent *bootstrap.TimeoutError
	var ranks *bootstrap.FailedError
	var gaveUp *bootstrap.GaveUpError
	var stopped *bootstrap.StoppedError
	own := errors.As(err, &stopped) && stopped.Own
	switch {
	case errors.As(err, &absent):
		f.Status = coll.Timeout
	case errors.As(err, &gaveUp) && !own:
		f.Status = coll.System
		if told := readTold(gaveUp.Detail); told != nil {
			told.giveTo(f)
		}
	case errors.As(err, &ranks):
		f.Status = coll.System
		if told := culprit(ranks.Failed); told != nil {
			told.giveTo(f)
		}
	case errors.Is(err, bootstrap.ErrGone):
		f.Status = coll.PeerFailure
	}
	return f
}

// toldFailure is what a rank tells the others of a failure beside its text, so that all raise the same kind of error
// with the same culprit.
type toldFailure struct {
	Status coll.Status `json:"status"`
	Rank   int         `json:"rank"` // the culprit; -1: ranks have not come
	PID    int         `json:"pid"`
	Host   string      `json:"host"`
}

// tellingError is an error with what the other ranks are to know of the failure in it.
type tellingError struct {
	error
	told toldFailure
}

func (e tellingError) Unwrap() error { return e.error }

// Detail implements [bootstrap.Detailed].
func (e tellingError) Detail() []byte {
	text, _ := json.Marshal(e.told) // it does not fail
	return text
}

// telling returns an error as a rank is to tell it. What other ranks have told is passed on.
func telling(err error) error {
	var f *coll.Failure
	if errors.As(err, &f) && f.Rank >= 0 {
		return tellingError{err, toldFailure{f.Status, f.Rank, f.PID, shorten(f.Host, mostName)}}
	}
	var ranks *bootstrap.FailedError
	if errors.As(err, &ranks) {
		if told := culprit(ranks.Failed); told != nil {
			return tellingError{err, *told}
		}
	}
	var gaveUp *bootstrap.GaveUpError
	if errors.As(err, &gaveUp) {
		if told := readTold(gaveUp.Detail); told != nil {
			return tellingError{err, *told}
		}
	}
	return err
}

// forgetOwnCulprit takes this rank out of what others have told: where two ranks have lost each other, each names the
// other one, and no rank is the culprit of its own error.
func (g *Group) forgetOwnCulprit(err error) {
	own := func(detail []byte) bool {
		told := readTold(detail)
		return told != nil && told.Rank == g.rank
	}
	var ranks *bootstrap.FailedError
	if errors.As(err, &ranks) {
		for i := range ranks.Failed {
			if own(ranks.Failed[i].Detail) {
				ranks.Failed[i].Detail = nil
			}
		}
	}
	var gaveUp *bootstrap.GaveUpError
	if errors.As(err, &gaveUp) && own(gaveUp.Detail) {
		gaveUp.Detail = nil
	}
}

// readTold returns what a rank has told, nil if that is nothing, or no rank tells it.
func readTold(detail []byte) *toldFailure {
	t := new(toldFailure)
	if len(detail) == 0 || json.Unmarshal(detail, t) != nil || !t.Status.Known() || t.Status >= coll.OK {
		return nil
	}
	if t.Rank < 0 && (t.Rank != -1 || t.Status != coll.Timeout) {
		return nil
	}
	return t
}

// culprit returns what the first rank has told that names a process which is lost, else the first that names any.
func culprit(failed []bootstrap.RankFailure) (first *toldFailure) {
	for _, f := range failed {
		switch told := readTold(f.Detail); {
		case told == nil:
		case told.Status == coll.PeerFailure:
			return told
		case first == nil:
			first = told
		}
	}
	return first
}

// giveTo gives a failure the culprit. What went wrong there is another matter here, unless the culprit is lost or does
// not answer.
func (t *toldFailure) giveTo(f *coll.Failure) {
	if t.Status == coll.PeerFailure || t.Status == coll.Timeout {
		f.Status = t.Status
	}
	f.Rank, f.PID, f.Host = t.Rank, t.PID, t.Host
}
