package bootstrap

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// This file holds the rounds of groups of more than mostDirect ranks. If each rank read the record of each other one,
// the store would answer N^2 requests. So rank 0 alone reads them, and writes them under one key, as the roster, which
// the others read. Where it writes none in time, one of them, the deputy, does so in its place.

// mostDirect is the largest number of ranks of which each reads the records of all others.
const mostDirect = 64

// A roster is a mark of one byte, followed by the content, or a record of rank 0 that holds its failure.
const (
	// The content is the records of all ranks in their order, each with its length before it. That of a rank that has
	// not come is 0.
	rosterAll   = 'a'
	rosterEarly = 'e' // the content is a rank, its record, which ended the round, and rank 0's error
	rosterNone  = 'n' // the store has refused the roster: each rank reads the records
	// The content is a record with the failure for which rank 0 has no roster. If rank 0 has read the failure of a
	// rank, that rank and its record follow.
	rosterGaveUp = 'g'
)

const (
	// mostRoster bounds the bytes of a roster. torch's TCPStore ends the connection over which a value of more than 8
	// MiB comes.
	mostRoster = 4 << 20
	// rosterGrace is how much later than its deadline a rank stops waiting for the roster, in which rank 0 names those
	// that are missing at its own, and deputyGrace how much later than that it stops waiting for the deputy's.
	rosterGrace = 500 * time.Millisecond
	deputyGrace = 400 * time.Millisecond
	// mostCandidates is the number of ranks that may become the deputy.
	mostCandidates = 8
	// mostLooks bounds the requests of a rank that looks for the others by itself because there is no roster in time.
	// All ranks may do so at once.
	mostLooks = 48
	// fewRanks is the length of a block of which each rank is looked for. Ranks of a host are missing together.
	fewRanks = 8
	// firstLook is how long a rank waits for the roster before it looks for the first time whether all have come, so
	// that rank 0 must have ended or be stopped, and rosterPause how long rank 0 has had then for the roster.
	firstLook   = 5 * time.Second
	rosterPause = time.Second
)

// HasRoster reports whether rank 0 reads for all ranks of a group of this size what each has written.
func HasRoster(size int) bool { return size > mostDirect }

// rosterKey is the key of the roster of rank 0, or of a deputy. It ends with the rank that writes it: see Watchful.
func rosterKey(prefix string, writer int) string { return key(prefix+"/roster", writer) }

// candidates returns the ranks of a large group that may become the deputy, in their order. They are far apart, because
// a host that is missing may have many ranks, and the last rank is the first of them: rank 0, in whose place it writes,
// mostly has neighbours on its host.
func candidates(size int) (ranks []int) {
	for i := range mostCandidates {
		ranks = append(ranks, size-1-i*(size-1)/mostCandidates)
	}
	return ranks
}

// GaveUpError reports that rank 0 has ended a round before its roster was there, after it had given its own value: it
// was interrupted, or has noticed that a rank is lost. It also reports that a rank whose process serves the store of a
// unique id has given up: see [Meeting.End]. Unlike a [*FailedError] it does not prove that all ranks fail: some may
// have read the values by themselves.
type GaveUpError struct {
	Prefix string // of the round; empty: a rank that serves the store gave up
	Reason string
	Detail []byte // of a [Detailed] error; nil: none was given
}

func (e *GaveUpError) Error() string {
	if e.Prefix == "" {
		return "sagecomm: the rank whose process serves the store of the unique id gave up: " + strings.TrimPrefix(e.Reason, "sagecomm: ")
	}
	return fmt.Sprintf("sagecomm: rendezvous %s: rank 0, which reads for all ranks what each has written, gave up: %s",
		e.Prefix, e.Reason)
}

// roster returns the values of all ranks, of which rank 0 reads the records.
func (r *round) roster() ([][]byte, error) {
	if r.rank == 0 {
		return r.writeRoster()
	}
	return r.readRoster()
}

func (r *round) writeRoster() ([][]byte, error) {
	k := rosterKey(r.prefix, 0)
	if own := readFailure(0, r.mine); own != nil { // no rank waits for the others then, so all have the same error
		if err := r.store.Set(k, r.mine); err != nil {
			return nil, r.cannotWrite(k, err)
		}
		return nil, r.failed(*own)
	}
	found, ended, err := r.collect()
	if err != nil && ended < 0 {
		if errors.As(err, new(*OvertakenError)) { // the others are to follow, and find by themselves that rank 0 has gone on
			return nil, err
		}
		r.tellGivingUp(err, found)
		return nil, r.stopped(found, err)
	}
	if err == nil && r.lost != nil {
		next := absent(found) // they may come yet
		r.tellGivingUp(r.lost, found)
		_, err := r.result(found, next[:1], len(next)-1)
		return nil, err
	}
	return r.publish(found, ended, err)
}

// publish writes as this rank's roster what collect has returned, and returns the outcome of the round.
func (r *round) publish(found [][]byte, ended int, err error) ([][]byte, error) {
	k, missing := rosterKey(r.prefix, r.rank), absent(found)
	var text []byte
	if ended >= 0 {
		text = binary.AppendUvarint([]byte{rosterEarly}, uint64(ended))
		text = append(appendRecord(text, found[ended]), cut(err.Error())...)
	} else {
		used := len(missing) == 0 && !slices.ContainsFunc(found, func(record []byte) bool { return record[0] != markValue })
		text = []byte{rosterAll}
		for _, record := range found {
			if !used && len(record) > 0 && record[0] == markValue {
				record = record[:1] // nobody uses the values
			}
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
	return r.result(found, missing, 0)
}

// tellGivingUp writes in the place of the roster why rank 0 has none, if it can, and one of the failures that it has
// found: they prove that no rank goes on.
func (r *round) tellGivingUp(why error, found [][]byte) {
	text := appendRecord([]byte{rosterGaveUp}, failure(why))
	for rank, record := range found {
		if len(record) > 0 && readFailure(rank, record) != nil {
			text = appendRecord(binary.AppendUvarint(text, uint64(rank)), record)
			break
		}
	}
	_ = r.store.Set(rosterKey(r.prefix, 0), text)
}

// readGivingUp returns the error that tellGivingUp has told, nil for another content.
func (r *round) readGivingUp(content []byte) error {
	record, rest, ok := cutRecord(content)
	if !ok || len(record) == 0 {
		return nil
	}
	told := readFailure(0, record)
	if told == nil {
		return nil
	}
	if len(rest) == 0 {
		return &GaveUpError{Prefix: r.prefix, Reason: told.Reason, Detail: told.Detail}
	}
	rank, record, rest, ok := cutRanked(rest)
	if !ok || len(rest) > 0 || len(record) == 0 || rank == 0 || rank >= r.size {
		return nil
	}
	stored := readFailure(rank, record)
	if stored == nil {
		return nil
	}
	return &FailedError{Prefix: r.prefix, Size: r.size, Failed: []RankFailure{*told, *stored}, Unknown: r.size - 2}
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

// cutRanked returns a rank and the record that is appended to it, and what is behind them.
func cutRanked(text []byte) (rank int, record, rest []byte, ok bool) {
	n, used := binary.Uvarint(text)
	if used <= 0 || n > math.MaxInt32 {
		return 0, nil, nil, false
	}
	record, rest, ok = cutRecord(text[used:])
	return int(n), record, rest, ok
}

func (r *round) readRoster() ([][]byte, error) {
	if r.check != nil { // a rank 0 that takes part in a smaller group writes no roster
		record, err := r.store.Get(key(r.prefix, 0), max(time.Until(r.deadline), 0))
		switch {
		case errors.Is(err, ErrTimeout):
			return r.withoutRoster(err)
		case err != nil:
			return nil, r.cannotRead(key(r.prefix, 0), err)
		}
		if err := r.look(0, record); err != nil {
			return nil, err
		}
		if failed := readFailure(0, record); failed != nil { // which is its roster, too
			return nil, r.failed(*failed)
		}
	}
	k := rosterKey(r.prefix, 0)
	text, found, err := r.awaitRoster(k)
	switch {
	case errors.Is(err, ErrTimeout):
		return r.withoutRoster(err)
	case err != nil:
		return nil, r.cannotRead(k, err)
	case found != nil:
		return r.goOn(found, nil, 0)
	}
	return r.read(0, text)
}

// awaitRoster returns the roster of rank 0, or the records of all ranks if they are there and the roster does not come.
// The store that answers for many keys at once is asked for them more and more seldom: values cross only when all are
// there.
func (r *round) awaitRoster(k string) (text []byte, found [][]byte, err error) {
	many, _ := r.store.(ManyGetter)
	until := r.deadline.Add(r.grace)
	for slice := firstLook; ; slice *= 2 {
		left := max(time.Until(until), 0)
		if found != nil {
			slice = rosterPause
		}
		last := many == nil || slice >= left
		if last {
			slice = left
		}
		text, err = r.store.Get(k, slice)
		if !errors.Is(err, ErrTimeout) || errors.As(err, new(*endedEarly)) {
			return text, nil, err
		}
		if found != nil {
			return nil, found, nil
		}
		if last {
			return nil, nil, err
		}
		if found, err = r.getAll(many, 0); err != nil {
			return nil, nil, err
		}
		if found != nil {
			found[r.rank] = r.mine
		}
	}
}

// goOn returns the outcome of a round of which this rank has read the records by itself.
func (r *round) goOn(found [][]byte, missing []int, unknown int) ([][]byte, error) {
	for rank, record := range found {
		if record != nil {
			if err := r.look(rank, record); err != nil {
				return nil, err
			}
		}
	}
	return r.result(found, missing, unknown)
}

// withoutRoster returns the outcome of a round in which rank 0 has written no roster in time, or the wait for it has
// ended early.
func (r *round) withoutRoster(late error) ([][]byte, error) {
	if errors.As(late, new(*endedEarly)) {
		return r.lookAround(mostLooks)
	}
	if many, ok := r.store.(ManyGetter); ok {
		found, err := r.getAll(many, 0)
		if err != nil {
			return nil, err
		}
		if found != nil {
			found[r.rank] = r.mine
			return r.goOn(found, nil, 0)
		}
	}
	return r.withDeputy()
}

// withDeputy returns the outcome of a round whose roster a deputy writes: the first candidate that has come. The next
// one takes its place where it writes none in half of the time that is left for that: it may have ended, or waits no
// longer.
func (r *round) withDeputy() ([][]byte, error) {
	until := time.Now().Add(min(deputyGrace, r.grace))
	var come []int // candidates
	for _, candidate := range candidates(r.size) {
		if candidate == r.rank {
			found, ended, err := r.collect()
			if err != nil && ended < 0 {
				return nil, r.stopped(found, err)
			}
			return r.publish(found, ended, err)
		}
		_, err := r.store.Get(key(r.prefix, candidate), 0)
		if errors.Is(err, ErrTimeout) {
			continue
		}
		if err != nil {
			return nil, r.cannotRead(key(r.prefix, candidate), err)
		}
		come = append(come, candidate)
		if values, written, err := r.readDeputy(candidate, time.Until(until)/2); written {
			return values, err
		}
	}
	for i, candidate := range come { // one may have had much to read
		if values, written, err := r.readDeputy(candidate, time.Until(until)/time.Duration(len(come)-i)); written {
			return values, err
		}
	}
	return r.lookAround(mostLooks)
}

// readDeputy returns the outcome of the round that a candidate has written as its roster, if it has written one in
// time.
func (r *round) readDeputy(candidate int, wait time.Duration) (values [][]byte, written bool, err error) {
	k := rosterKey(r.prefix, candidate)
	text, err := r.store.Get(k, max(wait, 0))
	switch {
	case errors.Is(err, ErrTimeout):
		return nil, false, nil
	case err != nil:
		return nil, true, r.cannotRead(k, err)
	}
	values, err = r.read(candidate, text)
	return values, true, err
}

// read returns the outcome of the round that a rank has written as its roster.
func (r *round) read(writer int, text []byte) ([][]byte, error) {
	k := rosterKey(r.prefix, writer)
	if len(text) == 0 {
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
		rank, record, reason, ok := cutRanked(content)
		if !ok || rank >= r.size {
			return nil, r.foreign(k, text)
		}
		if err := r.look(rank, record); err != nil {
			return nil, err
		}
		return nil, r.failed(RankFailure{Rank: writer, Reason: string(reason)})
	case rosterNone:
		looks := mostLooks
		if _, together := r.store.(ManyGetter); !together {
			looks = r.size
		}
		return r.lookAround(looks)
	case rosterGaveUp:
		if err := r.readGivingUp(content); err != nil {
			return nil, err
		}
		return nil, r.foreign(k, text)
	}
	if failed := readFailure(writer, text); failed != nil {
		return nil, r.failed(*failed)
	}
	return nil, r.foreign(k, text)
}

// lookAround reads the records of all ranks without waiting, in so many requests at most.
func (r *round) lookAround(requests int) ([][]byte, error) {
	l := r.looking(requests)
	if err := l.lookFor(0, r.size); err != nil {
		return nil, err
	}
	return r.goOn(l.found, l.missing, l.unknown)
}

// lookFrom reads the records of a rank and all behind it without waiting. Those of ranks that have not come are nil.
// Once the wait has ended early, it looks for the failure of a rank only, and the others wait for what rank 0 tells: so
// it makes few requests, and ranks that were not looked for are nil, too.
func (r *round) lookFrom(rank int) (found [][]byte, err error) {
	requests := 2 * r.size // which is enough for all
	if r.lost != nil {
		requests = mostLooks
	}
	l := r.looking(requests)
	err = l.lookFor(rank, r.size)
	return l.found, err
}

// looking is a rank's look for records of others.
type looking struct {
	*round
	many    ManyGetter // nil: the store is none
	left    int        // requests
	found   [][]byte
	missing []int
	unknown int // ranks for which no request was left
}

func (r *round) looking(requests int) *looking {
	l := &looking{round: r, left: requests, found: make([][]byte, r.size)}
	l.many, _ = r.store.(ManyGetter)
	return l
}

// lookFor looks for the ranks of a block. Where the store answers for many keys at once, and not all of them are there,
// it looks for each half, and for each rank of a block of fewRanks: one rank that is missing among a thousand costs
// some twenty requests, and a thousand that are missing cost a quarter more than one request for each.
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
	step := (to - from + 1) / 2
	if to-from <= fewRanks {
		step = 1
	}
	for ; from < to; from += step {
		if err := l.lookFor(from, min(from+step, to)); err != nil {
			return err
		}
	}
	return nil
}

func (l *looking) ask(from, to int) ([][]byte, error) {
	if to-from == 1 {
		record, err := l.store.Get(key(l.prefix, from), 0)
		return [][]byte{record}, err
	}
	var keys []string
	for rank := from; rank < to; rank++ {
		keys = append(keys, key(l.prefix, rank))
	}
	return l.many.GetMany(keys, 0)
}
