package bootstrap

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Epochs distinguishes groups that are made on the same keys one after the other, because a store outlives groups and
// even the processes of a restarted job. A rank writes what it says in a rendezvous under the number of that
// rendezvous, which it counts itself. Ranks make the same groups in the same order, so their counts agree unless the
// process of a rank ended before its turn. The restarted rank finds that the others are ahead ([OvertakenError]) and
// follows them.
type Epochs struct {
	Store  Store
	Prefix string
	Rank   int
	Owner  string // description of this process, for errors
}

// epoch is the value under the key of a rank.
type epoch struct {
	number int
	owner  string // the process that began it
}

// TwiceError reports that two processes, or two threads of one, make a group as the same rank.
type TwiceError struct {
	Rank     int
	One, Two string // the processes
}

func (e *TwiceError) Error() string {
	if e.One == e.Two {
		return fmt.Sprintf("sagecomm: rank %d was started twice in one process: %s; give each thread a rank of its own", e.Rank, e.One)
	}
	return fmt.Sprintf("sagecomm: rank %d was started twice: by %s and by %s; give each process a rank of its own (RANK)", e.Rank, e.One, e.Two)
}

// OvertakenError reports that a rank has gone on to a later epoch and writes nothing more in this one.
type OvertakenError struct{ Rank, Epoch int }

func (e *OvertakenError) Error() string {
	return fmt.Sprintf("rank %d makes group number %d already", e.Rank, e.Epoch)
}

// Next begins an epoch: the one after this rank's last, or least if that is later. If another process began the last
// epoch, Next returns that process too: it may have ended, or the rank may have been started twice.
func (e Epochs) Next(least int) (next int, other string, err error) {
	last, err := e.of(e.Rank)
	if err != nil {
		return 0, "", err
	}
	next = max(last.number+1, least)
	k := key(e.Prefix, e.Rank)
	if err := e.Store.Set(k, []byte(strconv.Itoa(next)+" "+e.Owner)); err != nil {
		return 0, "", storeError(e.Rank, "write to", "key "+k, err)
	}
	if last.owner == e.Owner {
		last.owner = ""
	}
	return next, last.owner, nil
}

// Twice returns a [*TwiceError] if another process has begun a later epoch than mine as this rank, or the same one at
// the same time.
func (e Epochs) Twice(mine int) error {
	now, err := e.of(e.Rank)
	if err != nil || now.number < mine || now.owner == e.Owner {
		return err
	}
	return &TwiceError{e.Rank, e.Owner, now.owner}
}

// Overtaken returns an [*OvertakenError] if a rank is in a later epoch than mine.
func (e Epochs) Overtaken(rank, mine int) error {
	theirs, err := e.of(rank)
	if err != nil || theirs.number <= mine {
		return err
	}
	return &OvertakenError{rank, theirs.number}
}

// Ahead returns an [*OvertakenError] if one of size ranks is in a later epoch than mine, nil if none is or the store
// cannot tell. Of a large group it looks at some ranks, rank 0 among them: all ranks of it may ask at once.
func (e Epochs) Ahead(mine, size int) (ahead *OvertakenError) {
	step := (size + mostDirect - 1) / mostDirect
	for rank := 0; rank < size; rank += step {
		if errors.As(e.Overtaken(rank, mine), &ahead) {
			return ahead
		}
	}
	return nil
}

// of returns the last epoch that a rank has begun, with number 0 if there is none.
func (e Epochs) of(rank int) (last epoch, err error) {
	k := key(e.Prefix, rank)
	text, err := e.Store.Get(k, 0)
	switch {
	case errors.Is(err, ErrTimeout):
		return last, nil
	case err != nil:
		return last, storeError(e.Rank, "read from", "key "+k, err)
	}
	number, owner, _ := strings.Cut(string(text), " ")
	n, err := strconv.Atoi(number)
	if err != nil || n < 1 {
		return last, fmt.Errorf("sagecomm: key %s in the store holds %.40q, which no rank of this library wrote: use a fresh store or prefix", k, text)
	}
	return epoch{n, owner}, nil
}
