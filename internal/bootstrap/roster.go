package bootstrap

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// This file has rounds of more than mostDirect ranks. If each rank read the record of each other one, the store would answer N^2 requests. So
// rank 0 alone reads them, and writes them under one key, as the roster, which the others read.

// mostDirect is the largest number of ranks of which each reads the records of all others.
const mostDirect = 64

// A roster is a mark of one byte, followed by the content, or a record of rank 0 that holds its failure.
const (
	rosterAll    = 'a' // the content is the records of all ranks in their order, each with its length before it; that of a rank that has not come is 0
	rosterEarly  = 'e' // the content is a rank, its record, which ended the round, and rank 0's error
	rosterNone   = 'n' // the store has refused the roster: each rank reads the records
	rosterGaveUp = 'g' // the content is a record with the failure for which rank 0 has no roster
)

const (
	// mostRoster bounds the bytes of a roster. torch's TCPStore ends the connection over which a value of more than 8 MiB comes.
	mostRoster = 4 << 20
	// rosterGrace is how much later than its deadline a rank stops waiting for the roster, in which rank 0 names those that are missing at its own.
	rosterGrace = 500 * time.Millisecond
	// mostLooks bounds the requests of a rank that looks for the others by itself because there is no roster in time. All ranks may do so at once.
	mostLooks = 48
)

func rosterKey(prefix string) string { return prefix + "/roster/0" } // it ends with the rank that writes it: see Watchful

// GaveUpError reports that rank 0 has ended a round before its roster was there, after it had given its own value: it was interrupted, or has noticed
// that a rank is lost. Unlike a [*FailedError] it does not prove that all ranks fail: some may have read the values by themselves.
type GaveUpError struct {
	Prefix, Reason string
	Detail         []byte // of a [Detailed] error; nil: none was given
}

func (e *GaveUpError) Error() string {
	return fmt.Sprintf("sagecomm: rendezvous %s: rank 0, which reads for all ranks what each has written, gave up: %s", e.Prefix, e.Reason)
}

// roster returns the values of all ranks, of which rank 0 reads the records.
func (r *round) roster() ([][]byte, error) {
	if r.rank == 0 {
		return r.writeRoster()
	}
	return r.readRoster()
}

func (r *round) writeRoster() ([][]byte, error) {
	k := rosterKey(r.prefix)
	if own := readFailure(0, r.mine); own != nil { // no rank waits for the others then, so all have the same error
		if err := r.store.Set(k, r.mine); err != nil {
			return nil, r.cannotWrite(k, err)
		}
		return nil, r.failed(nil, *own)
	}
	found, ended, err := r.collect()
	if err != nil && ended < 0 {
		var over *OvertakenError
		if !errors.As(err, &over) { // else the others are to follow, and find by themselves that rank 0 has gone on
			r.tellGivingUp(err)
		}
		return nil, err
	}
	if r.lost != nil { // ranks that are not there may come yet
		r.tellGivingUp(r.lost)
		next := absent(found)
		_, err := r.result(found, next[:1], len(next)-1)
		return nil, err
	}
	var text []byte
	if ended >= 0 {
		text = binary.AppendUvarint([]byte{rosterEarly}, uint64(ended))
		text = append(appendRecord(text, found[ended]), cut(err.Error())...)
	} else {
		text = []byte{rosterAll}
		for _, record := range found {
			text = appendRecord(text, record)
		}
	}
	var refused error
	if len(text) <= mostRoster {
		refused = r.store.Set(k, text)
	}
	if len(text) > mostRoster || refused != nil {
		if again := r.store.Set(k, []byte{rosterNone}); again != nil {
			return nil, r.cannotWrite(k, errors.Join(refused, again))
		}
	}
	if err != nil {
		return nil, err
	}
	return r.result(found, absent(found), 0)
}

// tellGivingUp writes in the place of the roster why rank 0 has none, if it can.
func (r *round) tellGivingUp(why error) {
	_ = r.store.Set(rosterKey(r.prefix), append([]byte{rosterGaveUp}, failure(why)...))
}

func appendRecord(text, record []byte) []byte {
	return append(binary.AppendUvarint(text, uint64(len(record))), record...)
}

// cutRecord returns what appendRecord has appended, and what is behind it.
func cutRecord(text []byte) (record, rest []byte, ok bool) {
	n, used := binary.Uvarint(text)
	if used <= 0 || n > uint64(len(text)-used) {
		return nil, nil, false
	}
	return text[used:][:n:n], text[used:][n:], true
}

func (r *round) readRoster() ([][]byte, error) {
	if r.check != nil { // a rank 0 that takes part in a smaller group writes no roster
		record, err := r.store.Get(key(r.prefix, 0), max(time.Until(r.deadline), probeTimeout(r.size)))
		switch {
		case errors.Is(err, ErrTimeout):
			return r.lookAround(mostLooks)
		case err != nil:
			return nil, r.cannotRead(key(r.prefix, 0), err)
		}
		if err := r.look(0, record); err != nil {
			return nil, err
		}
	}
	k := rosterKey(r.prefix)
	text, err := r.store.Get(k, max(time.Until(r.deadline), 0)+rosterGrace)
	switch {
	case errors.Is(err, ErrTimeout):
		return r.lookAround(mostLooks)
	case err != nil:
		return nil, r.cannotRead(k, err)
	case len(text) == 0:
		return nil, r.foreign(k, text)
	}
	content := text[1:]
	switch text[0] {
	case rosterAll:
		found := make([][]byte, r.size)
		for rank := range found {
			record, rest, ok := cutRecord(content)
			if !ok {
				return nil, r.foreign(k, text)
			}
			if content = rest; len(record) == 0 {
				continue
			}
			if record[0] != markValue && readFailure(rank, record) == nil {
				return nil, r.foreign(k, text)
			}
			found[rank] = record
		}
		if len(content) > 0 {
			return nil, r.foreign(k, text)
		}
		return r.result(found, absent(found), 0)
	case rosterEarly:
		rank, used := binary.Uvarint(content)
		if used <= 0 || rank >= uint64(r.size) {
			return nil, r.foreign(k, text)
		}
		record, reason, ok := cutRecord(content[used:])
		if !ok {
			return nil, r.foreign(k, text)
		}
		if err := r.look(int(rank), record); err != nil {
			return nil, err
		}
		return nil, r.failed(nil, RankFailure{Rank: 0, Reason: string(reason)})
	case rosterNone:
		looks := mostLooks
		if _, together := r.store.(ManyGetter); !together {
			looks = r.size
		}
		return r.lookAround(looks)
	case rosterGaveUp:
		if len(content) > 0 {
			if told := readFailure(0, content); told != nil {
				return nil, &GaveUpError{r.prefix, told.Reason, told.Detail}
			}
		}
		return nil, r.foreign(k, text)
	}
	if failed := readFailure(0, text); failed != nil {
		return nil, r.failed(nil, *failed)
	}
	return nil, r.foreign(k, text)
}

// lookAround reads the records of all ranks without waiting, in so many requests at most.
func (r *round) lookAround(requests int) ([][]byte, error) {
	l := looking{round: r, left: requests, found: make([][]byte, r.size)}
	l.many, _ = r.store.(ManyGetter)
	if err := l.lookFor(0, r.size); err != nil {
		return nil, err
	}
	for rank, record := range l.found {
		if record != nil {
			if err := r.look(rank, record); err != nil {
				return nil, err
			}
		}
	}
	if len(l.missing) == 0 && l.unknown > 0 {
		l.missing = []int{0} // which has written no roster
	}
	return r.result(l.found, l.missing, l.unknown)
}

// looking is a rank's look for records of all ranks.
type looking struct {
	*round
	many    ManyGetter // nil: the store is none
	left    int        // requests
	found   [][]byte
	missing []int
	unknown int // ranks for which no request was left
}

// lookFor looks for the ranks of a block. Where the store answers for many keys at once, and not all of them are there, it looks for each half: one
// rank that is missing among a thousand costs some twenty requests.
func (l *looking) lookFor(from, to int) error {
	if l.left == 0 {
		l.unknown += to - from
		return nil
	}
	if to-from == 1 || l.many != nil {
		l.left--
		records, err := l.ask(from, to)
		switch {
		case err == nil:
			for i, record := range records {
				l.found[from+i] = append([]byte{}, record...) // not nil
			}
			return nil
		case !errors.Is(err, ErrTimeout):
			return l.cannotRead(key(l.prefix, from), err)
		case to-from == 1:
			l.missing = append(l.missing, from)
			return nil
		}
	}
	middle := (from + to) / 2
	if err := l.lookFor(from, middle); err != nil {
		return err
	}
	return l.lookFor(middle, to)
}

func (l *looking) ask(from, to int) ([][]byte, error) {
	wait := probeTimeout(l.size)
	if to-from == 1 {
		record, err := l.store.Get(key(l.prefix, from), wait)
		return [][]byte{record}, err
	}
	var keys []string
	for rank := from; rank < to; rank++ {
		keys = append(keys, key(l.prefix, rank))
	}
	return l.many.GetMany(keys, wait)
}
