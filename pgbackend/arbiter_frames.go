package pgbackend

import (
	"encoding/json"
	"fmt"
	"strings"

	"sagecomm/internal/coll"
	"sagecomm/internal/transport/tcp"
	"sagecomm/internal/verdict"
)

// This file translates between what an arbiter and its member say and what crosses: frames, which name members by their
// lowest ranks, and records, which are failures as JSON.

// memberFrame is a frame on its way to a link.
type memberFrame struct {
	header  tcp.Header
	payload [][]byte // none or one
}

// kinds are the kinds of frames, by those of the verdict.
var kinds = [...]tcp.Kind{verdict.Declare: tcp.Declare, verdict.Collect: tcp.Collect, verdict.Promise: tcp.Promise, verdict.Cause: tcp.Cause, verdict.Lost: tcp.Lost, verdict.Want: tcp.Want}

// write returns the frame of a member's.
func (a *arbiter) write(f verdict.Frame) memberFrame {
	h := tcp.Header{Kind: kinds[f.Kind], Group: a.number, From: uint32(a.lowest[f.From]), To: uint32(a.lowest[f.To]), Number: uint64(f.Ballot), Taken: uint64(f.Hops)}
	if f.Kind == verdict.Lost {
		h.Number, h.Block = uint64(a.lowest[f.Ends[0]]), uint64(a.lowest[f.Ends[1]])
	}
	if f.Record == "" {
		return memberFrame{header: h}
	}
	return memberFrame{h, [][]byte{[]byte(f.Record)}}
}

// read returns what a frame says to the member. An error says what no member sends.
func (a *arbiter) read(h *tcp.Header, payload []byte) (f verdict.Frame, err error) {
	kind := verdict.Declare
	for ; int(kind) < len(kinds) && kinds[kind] != h.Kind; kind++ {
	}
	named := []uint64{uint64(h.From), uint64(h.To)}
	f = verdict.Frame{Kind: kind, Record: string(payload)}
	limit := uint64(len(a.lowest)) // of ballots and hops: Check refuses what is above
	if kind == verdict.Lost {
		named = append(named, h.Number, h.Block)
	} else {
		f.Ballot = int(min(h.Number, limit+1))
	}
	f.Hops = int(min(h.Taken, limit+1))
	members := make([]int, 4)
	for i, rank := range named {
		member, ok := a.memberOf[int(min(rank, uint64(a.size)))]
		if !ok {
			return f, fmt.Errorf("%v of group %x names rank %d, which is no member's lowest", h.Kind, h.Group, rank)
		}
		members[i] = member
	}
	f.From, f.To, f.Ends = members[0], members[1], [2]int(members[2:])
	if err := f.Check(len(a.lowest)); err != nil {
		return f, err
	}
	if f.Record != "" {
		_, err = decodeRecord(f.Record, a.size)
	}
	return f, err
}

// answer returns the record of what the store has. Where a rank of this library did not write that, all ranks make the
// same record of it.
func (a *arbiter) answer(value []byte) string {
	if _, err := decodeRecord(string(value), a.size); err == nil {
		return string(value)
	}
	return encodeRecord(&coll.Failure{Status: coll.Internal, Rank: -1,
		Message: fmt.Sprintf("sagecomm: key %s in the store holds %.40q, which no rank of this library wrote: use a fresh store or prefix", a.key, value)}, a.size)
}

// Lengths of a record, and of texts in it as sagecomm_error has them.
const (
	mostRecord  = 4 << 10
	mostMessage = 2000
	mostName    = 127
)

// encodeRecord returns the record of a failure of a group of so many ranks. Texts that are too long are cut.
func encodeRecord(f *coll.Failure, size int) string {
	short := *f
	if !short.Status.Known() || short.Status >= coll.OK { // readers take none of these
		short.Status = coll.Internal
	}
	if short.Rank < -1 || short.Rank >= size { // as that of any source
		short.Rank = -1
	}
	short.Op, short.Group, short.Host = shorten(short.Op, mostName), shorten(short.Group, mostName), shorten(short.Host, mostName)
	for most := mostMessage; ; most /= 2 { // JSON may be six times as long
		short.Message = shorten(short.Message, most)
		if record, err := json.Marshal(&short); err == nil && len(record) <= mostRecord {
			return string(record)
		}
	}
}

func shorten(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "")
}

// decodeRecord returns the failure of a record, or an error if no rank of a group of so many writes it.
func decodeRecord(record string, size int) (*coll.Failure, error) {
	f := new(coll.Failure)
	if err := json.Unmarshal([]byte(record), f); err != nil || len(record) > mostRecord || !f.Status.Known() || f.Status >= coll.OK || f.Rank < -1 || f.Rank >= size {
		return nil, fmt.Errorf("%.40q is no record of a failure", record)
	}
	return f, nil
}
