package tcp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"
)

// A header that is accepted is what Encode writes of it, and is within the limits of its kind.
func FuzzHeader(f *testing.F) {
	var text [HeaderBytes]byte
	message(1).Encode(&text)
	f.Add(text[:], 1)
	(&Header{Kind: Probe, Number: 1}).Encode(&text)
	f.Add(bytes.Clone(text[:]), 1)
	f.Add(make([]byte, HeaderBytes), 0)
	f.Fuzz(func(t *testing.T, text []byte, on int) {
		if len(text) != HeaderBytes {
			return
		}
		var h Header
		if h.parse((*[HeaderBytes]byte)(text), on) != nil {
			return
		}
		var again [HeaderBytes]byte
		h.Encode(&again)
		if !bytes.Equal(text[:sumAt], again[:sumAt]) || h.Bytes > MaxMessage || h.check(on) != nil {
			t.Errorf("%x was accepted", text)
		}
	})
}

func FuzzIntroduction(f *testing.F) {
	f.Add(introduction{data: 2, index: 1}.encode())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, text []byte) {
		i, err := parseIntroduction(text)
		if err == nil && (!bytes.Equal(i.encode(), text) || i.data == 0 || i.data > MaxData || i.index > i.data) {
			t.Errorf("%x was accepted", text)
		}
	})
}

// strict accepts messages of one channel within a window, as a group does.
type strict struct {
	t     *testing.T
	next  uint64
	place []byte
	open  bool
}

var errStrict = errors.New("not the next message")

func (s *strict) Place(_ *Link, _ int, h *Header) ([][]byte, error) {
	if s.open {
		s.t.Error("a frame within a frame")
	}
	if h.Kind != Message || h.Number != s.next {
		return nil, errStrict
	}
	s.open = true
	half := h.Bytes / 2
	return [][]byte{s.place[:half:half], nil, s.place[half:h.Bytes:h.Bytes]}, nil
}

func (s *strict) Arrived(_ *Link, _ int, h *Header) error {
	if !s.open || h.Number != s.next {
		s.t.Error("a message that was not announced")
	}
	s.open = false
	s.next++
	return nil
}

// inPieces returns a readv that gives a text in pieces. They are longer than piece says if there would be more than
// 20,000 of them, because the fuzzer takes an input of 10 s for a hang.
func inPieces(text []byte, piece uint16) func(bufs [][]byte) (n int, err error) {
	in := bytes.NewReader(text)
	length := max(int(piece)%(2*intakeBytes)+1, len(text)/20_000)
	return func(bufs [][]byte) (n int, err error) {
		left := length
		for _, b := range bufs {
			m, err := in.Read(b[:min(len(b), left)])
			n, left = n+m, left-m
			if left == 0 || err != nil {
				break
			}
		}
		if n == 0 {
			return 0, io.EOF
		}
		return n, nil
	}
}

// Whatever comes, in whatever pieces, a connection hands on whole frames, in order, or ends; and writes nowhere else.
func FuzzStream(f *testing.F) {
	var stream, plain []byte // within TLS, and with checksums
	for n := range uint64(3) {
		frame := encodedAs(uint32(n), message(n), bytes.Repeat([]byte{byte(n)}, int(n*9_000)))
		plain = append(plain, frame...)
		clear(frame[sumAt:HeaderBytes])
		stream = append(stream, frame...)
	}
	for n, h := range []*Header{{Kind: Probe}, {Kind: Probe, Number: 1}, {Kind: Probe, Number: 2}, {Kind: Echo, Number: 1}} {
		text := encodedAs(uint32(3+n), h, make([]byte, []int{100, 0}[min(h.Number, 1)]))
		plain = append(plain, text...)
		clear(text[sumAt:HeaderBytes])
		stream = append(stream, text...)
	}
	for _, piece := range []uint16{1, 7_000} {
		f.Add(stream, piece, false)
		f.Add(plain, piece, true)
		f.Add(stream, piece, true)
	}
	f.Add(plain[:100], uint16(65), true)
	f.Fuzz(func(t *testing.T, text []byte, piece uint16, plain bool) {
		guard := bytes.Repeat([]byte{0xee}, MaxMessage+64)
		s := &strict{t: t, place: guard[:MaxMessage]}
		l := &Link{node: &Node{config: Config{Receiver: s}}}
		c := &conn{link: l, index: 1, plain: plain, sums: plain, out: newOutbox(), ended: make(chan struct{})}
		defer c.out.close()
		l.conns = []*conn{nil, c} // it answers PROBE
		c.receiving.intake = make([]byte, intakeBytes)
		read := inPieces(text, piece)
		for {
			err := c.once(read)
			if err != nil {
				if strings.Contains(err.Error(), "panic") {
					t.Error(err)
				}
				break
			}
		}
		if !bytes.Equal(guard[MaxMessage:], bytes.Repeat([]byte{0xee}, 64)) {
			t.Error("the connection has written behind the place")
		}
	})
}

// shadowy takes frames of all kinds as package shadow does: payloads go to places of several segments, or nowhere, and a payload may be diverted
// while it comes: then it is in the other one of two places.
type shadowy struct {
	t      *testing.T
	guards [2][]byte
	in     int // the place
	open   bool
	h      Header
	took   []frame
}

var errShadowy = errors.New("a frame of another group")

const guarded = 64

func newShadowy(t *testing.T) *shadowy {
	s := &shadowy{t: t}
	for i := range s.guards {
		s.guards[i] = bytes.Repeat([]byte{0xee}, MaxMessage+2*guarded)
	}
	return s
}

func (s *shadowy) place(i int) []byte { return s.guards[i][guarded : guarded+MaxMessage] }

// divert moves a payload of which rest bytes are to come, as Pair.divert does: what has come goes to the new place, too.
func (s *shadowy) divert(h *Header, rest int) [][]byte {
	if rest > int(h.Bytes) || !s.open || *h != s.h {
		s.t.Errorf("%d bytes of %v are to come", rest, h)
	}
	to := s.place(1 - s.in)
	come := copy(to, s.place(s.in)[:int(h.Bytes)-rest])
	clear(to[come:h.Bytes])
	s.in = 1 - s.in
	return [][]byte{to[come:h.Bytes:h.Bytes]}
}

// outside expects that nothing was written outside the places.
func (s *shadowy) outside() {
	around := bytes.Repeat([]byte{0xee}, guarded)
	for _, g := range s.guards {
		if !bytes.Equal(g[:guarded], around) || !bytes.Equal(g[guarded+MaxMessage:], around) {
			s.t.Error("the connection has written outside the place")
		}
	}
}

func (s *shadowy) Place(_ *Link, on int, h *Header) ([][]byte, error) {
	if s.open {
		s.t.Error("a frame within a frame")
	}
	if h.check(on) != nil {
		s.t.Errorf("%v on connection %d was handed on", h, on)
	}
	switch {
	case h.Group == 0xff:
		return nil, errShadowy
	case h.Group&1 == 1:
		return nil, ErrDrop
	}
	s.open, s.h = true, *h
	if h.Bytes == 0 {
		return nil, nil
	}
	part := h.Bytes / uint32(1+h.To%3)
	place := s.place(s.in)
	return [][]byte{place[:part:part], nil, place[part:h.Bytes:h.Bytes]}, nil
}

func (s *shadowy) Arrived(_ *Link, on int, h *Header) error {
	if !s.open || *h != s.h {
		s.t.Errorf("%v has come, which was not told", h)
	}
	s.open = false
	s.took = append(s.took, frame{on, *h, string(s.place(s.in)[:h.Bytes])})
	return nil
}

// Frames of any kind, whole or damaged, in whatever pieces, come as they were sent, or end the connection. What is behind a damaged one is not read.
func FuzzKinds(f *testing.F) {
	for _, plain := range []bool{true, false} {
		for on := range 2 {
			var headers []byte
			for k := Heartbeat; k <= Close; k++ {
				var text [HeaderBytes]byte
				h := Header{Kind: k, Bytes: rules[k].limit}
				if rules[k].uses&useGroup != 0 {
					h.Group, h.To = 2, uint32(k)
				}
				h.Encode(&text)
				if h.check(on) == nil {
					headers = append(headers, text[:sumAt]...)
				}
			}
			for _, h := range []Header{{Kind: Probe, Bytes: 100}, {Kind: Probe, Number: 1}, {Kind: Probe, Number: 2}, {Kind: Echo, Number: 1}} {
				var text [HeaderBytes]byte
				if h.Encode(&text); h.check(on) == nil {
					headers = append(headers, text[:sumAt]...)
				}
			}
			f.Add(headers, on, uint16(9000), uint32(0), plain)
			f.Add(headers, on, uint16(50), uint32(700), plain)
		}
	}
	f.Fuzz(func(t *testing.T, headers []byte, on int, piece uint16, damage uint32, plain bool) {
		if on != 0 && on != 1 {
			return
		}
		var stream []byte
		var sent []frame
		var ends []int  // of them in stream
		var came uint64 // PROBE
		for n := byte(1); len(headers) >= sumAt && n < 30; n, headers = n+1, headers[sumAt:] {
			var text [HeaderBytes]byte
			copy(text[:], headers[:sumAt])
			var h Header
			bad := h.parse(&text, on) != nil
			body := bytes.Repeat([]byte{n}, int(min(h.Bytes, MaxMessage)))
			if plain {
				binary.LittleEndian.PutUint32(text[sumAt:], sumOf(uint32(n-1), &text, body))
			}
			stream = append(append(stream, text[:]...), body...)
			switch {
			case h.Kind == Probe && h.Number > 0:
				came++
				bad = bad || h.Number != came || h.Bytes > 0
			case h.Kind == Echo: // of no PROBE
				bad = true
			}
			if bad || h.Group == 0xff && h.Kind != Heartbeat {
				break
			}
			if h.Kind != Heartbeat && !h.Kind.ofLink() && h.Group&1 == 0 {
				sent, ends = append(sent, frame{on, h, string(body)}), append(ends, len(stream))
			}
		}
		harmed := plain && damage > 0 && int(damage) <= len(stream)
		if harmed { // a checksum misses one in 4 billion
			stream[damage-1] ^= byte(damage>>3) | 1
		}
		s := newShadowy(t)
		c := &conn{link: &Link{node: &Node{config: Config{Receiver: s}}}, index: on, plain: plain, sums: plain, out: newOutbox(), ended: make(chan struct{})}
		defer c.out.close()
		c.link.conns = []*conn{c, c} // it answers PROBE
		c.receiving.intake = make([]byte, intakeBytes)
		read := inPieces(stream, piece)
		var err error
		for round := 0; err == nil; round++ {
			err = c.once(read)
			if round%3 == 2 {
				c.link.Divert(on, s.divert)
			}
		}
		if strings.Contains(err.Error(), "panic") {
			t.Error(err)
		}
		s.outside()
		want := 0
		for _, end := range ends {
			if !harmed || end < int(damage) {
				want++
			}
		}
		if len(s.took) != want {
			t.Errorf("%d frames were taken of %d, of which %d are whole: %v", len(s.took), len(sent), want, err)
		}
		for i, got := range s.took {
			if got != sent[i] {
				t.Errorf("frame %d is %v, sent was %v", i, got.h, sent[i].h)
			}
		}
	})
}

// Whatever the files hold, they are refused with the name of a setting, or links can be made with them.
func FuzzTLS(f *testing.F) {
	certificate, key, authorities := newAuthority(f).texts(f, time.Now().Add(time.Hour))
	f.Add(certificate, key, authorities)
	f.Add(certificate[:len(certificate)/2], key, authorities)
	f.Add(slices.Concat(certificate, certificate), key, slices.Concat(authorities, certificate))
	f.Add(key, certificate, key)
	f.Add([]byte("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"), key, []byte{})
	f.Fuzz(func(t *testing.T, certificate, key, authorities []byte) {
		made, err := TLS(certificate, key, authorities)
		if (made == nil) == (err == nil) || err != nil && !strings.HasPrefix(err.Error(), "sagecomm: SAGECOMM_TLS_") {
			t.Errorf("%v, %v", made, err)
		}
	})
}
