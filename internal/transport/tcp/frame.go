package tcp

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Kind is the kind of a frame.
type Kind uint8

// The kinds.
const (
	Heartbeat Kind = iota + 1
	Message
	Room
	Eager
	Announce
	Grant
	Data
	Credit
	Goodbye
	Ask
	State
	Exchange
	Declare
	Collect
	Promise
	Cause
	Lost
	Close
	Probe
	Echo
	Open
	Left
	Want
)

var names = [...]string{"", "HEARTBEAT", "MESSAGE", "ROOM", "EAGER", "ANNOUNCE", "GRANT", "DATA", "CREDIT", "GOODBYE", "ASK", "STATE", "EXCHANGE",
	"DECLARE", "COLLECT", "PROMISE", "CAUSE", "LOST", "CLOSE", "PROBE", "ECHO", "OPEN", "LEFT", "WANT"}

func (k Kind) String() string {
	if k == 0 || int(k) >= len(names) {
		return fmt.Sprintf("frame of kind %d", uint8(k))
	}
	return names[k]
}

// Header is the header of a frame. What a field means depends on the kind; a field that the kind does not use is 0.
type Header struct {
	Kind     Kind
	Lane     uint8
	Channel  uint8
	Bytes    uint32 // of the payload
	Group    uint64
	From, To uint32
	Number   uint64
	Hash     uint64
	Block    uint64
	Taken    uint64
	Tag      int32
	Type     uint8
}

// HeaderBytes is the length of an encoded header. Its last 4 bytes, from sumAt on, are the checksum of a frame.
const (
	HeaderBytes = 64
	sumAt       = 60
)

// The longest payloads.
const (
	MaxMessage = 512 << 10 // of MESSAGE and DATA
	MaxEager   = 8 << 10
	maxState   = 8 << 10
	maxRecord  = 4 << 10
	maxEntry   = 4<<10 + 152
)

// Connections of a link, by index.
const control = 0

// Fields of a header that only some kinds use.
const (
	useLane = 1 << iota
	useChannel
	useGroup // with From and To
	useNumber
	useHash
	useBlock
	useTaken
	useTag
	useType
)

// rule is what a frame of one kind may look like.
type rule struct {
	control, data bool   // connections that it may come on
	limit         uint32 // of the payload
	uses          int
}

const pairOf = useGroup | useLane

var rules = [...]rule{
	Heartbeat: {true, true, 0, 0},
	Message:   {false, true, MaxMessage, pairOf | useChannel | useNumber | useHash | useBlock | useTaken},
	Room:      {false, true, 0, pairOf | useChannel | useTaken},
	Eager:     {false, true, MaxEager, pairOf | useNumber | useHash | useBlock | useTaken | useTag | useType},
	Announce:  {false, true, 0, pairOf | useNumber | useHash | useBlock | useTaken | useTag | useType},
	Grant:     {false, true, 0, pairOf | useNumber | useBlock | useTaken},
	Data:      {false, true, MaxMessage, pairOf | useNumber | useHash | useBlock | useTaken},
	Credit:    {false, true, 0, pairOf | useBlock | useTaken},
	Goodbye:   {true, true, 0, useGroup | useNumber},
	Ask:       {true, false, 0, useGroup},
	State:     {true, false, maxState, useGroup},
	Exchange:  {true, false, maxEntry, useGroup | useChannel | useNumber | useHash | useBlock | useTaken | useTag},
	Declare:   {true, false, maxRecord, useGroup | useTaken},
	Collect:   {true, false, maxRecord, useGroup | useNumber | useTaken},
	Promise:   {true, false, maxRecord, useGroup | useNumber | useTaken},
	Cause:     {true, false, maxRecord, useGroup | useNumber | useTaken},
	Lost:      {true, false, 0, useGroup | useNumber | useBlock | useTaken},
	Close:     {true, true, 0, useGroup},
	Probe:     {false, true, probeBytes, useNumber},
	Echo:      {false, true, 0, useNumber},
	Open:      {true, false, 0, useGroup},
	Left:      {true, false, maxState, useGroup | useNumber},
	Want:      {true, false, 0, useGroup | useTaken},
}

// errHeader is the error of a header that no process sends.
var errHeader = errors.New("a frame that no rank sends")

// Encode writes the header, with 0 in the place of the checksum.
func (h *Header) Encode(to *[HeaderBytes]byte) {
	le := binary.LittleEndian
	to[0], to[1], to[2], to[3] = byte(h.Kind), h.Lane, h.Channel, h.Type
	le.PutUint32(to[4:], h.Bytes)
	le.PutUint64(to[8:], h.Group)
	le.PutUint32(to[16:], h.From)
	le.PutUint32(to[20:], h.To)
	le.PutUint64(to[24:], h.Number)
	le.PutUint64(to[32:], h.Hash)
	le.PutUint64(to[40:], h.Block)
	le.PutUint64(to[48:], h.Taken)
	le.PutUint32(to[56:], uint32(h.Tag))
	le.PutUint32(to[sumAt:], 0)
}

func (h *Header) decode(from *[HeaderBytes]byte) {
	le := binary.LittleEndian
	*h = Header{Kind: Kind(from[0]), Lane: from[1], Channel: from[2], Bytes: le.Uint32(from[4:]), Group: le.Uint64(from[8:]),
		From: le.Uint32(from[16:]), To: le.Uint32(from[20:]), Number: le.Uint64(from[24:]), Hash: le.Uint64(from[32:]),
		Block: le.Uint64(from[40:]), Taken: le.Uint64(from[48:]), Tag: int32(le.Uint32(from[56:])), Type: from[3]}
}

// check returns an error unless a frame with this header may be sent on a connection.
func (h *Header) check(on int) error {
	if h.Kind == 0 || int(h.Kind) >= len(rules) {
		return fmt.Errorf("%w: its kind is %d", errHeader, uint8(h.Kind))
	}
	r := &rules[h.Kind]
	if on == control && !r.control || on != control && !r.data {
		return fmt.Errorf("%w: %v on connection %d", errHeader, h.Kind, on)
	}
	if h.Bytes > r.limit {
		return fmt.Errorf("%w: %v with %d bytes, at most %d are sent", errHeader, h.Kind, h.Bytes, r.limit)
	}
	for _, f := range [...]struct {
		use   int
		value uint64
	}{{useLane, uint64(h.Lane)}, {useChannel, uint64(h.Channel)}, {useGroup, h.Group | uint64(h.From) | uint64(h.To)}, {useNumber, h.Number},
		{useHash, h.Hash}, {useBlock, h.Block}, {useTaken, h.Taken}, {useTag, uint64(uint32(h.Tag))}, {useType, uint64(h.Type)}} {
		if r.uses&f.use == 0 && f.value != 0 {
			return fmt.Errorf("%w: %v with a field that it does not have", errHeader, h.Kind)
		}
	}
	return nil
}

// parse accepts what Encode writes of a header that check accepts, and nothing else. It does not look at the checksum.
func (h *Header) parse(from *[HeaderBytes]byte, on int) error {
	h.decode(from)
	return h.check(on)
}
