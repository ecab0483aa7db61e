package tcp

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
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

// Whatever comes, in whatever pieces, a connection hands on whole frames, in order, or ends; and writes nowhere else.
func FuzzStream(f *testing.F) {
	var stream, plain []byte // within TLS, and with checksums
	for n := range uint64(3) {
		frame := encoded(message(n), bytes.Repeat([]byte{byte(n)}, int(n*9_000)))
		plain = append(plain, frame...)
		clear(frame[sumAt:HeaderBytes])
		stream = append(stream, frame...)
	}
	for _, h := range []*Header{{Kind: Probe}, {Kind: Probe, Number: 1}, {Kind: Probe, Number: 2}, {Kind: Echo, Number: 1}} {
		text := encoded(h, make([]byte, []int{100, 0}[min(h.Number, 1)]))
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
		c := &conn{link: l, index: 1, plain: plain, out: newOutbox(), ended: make(chan struct{})}
		defer c.out.close()
		l.conns = []*conn{nil, c} // it answers PROBE
		c.receiving.intake = make([]byte, intakeBytes)
		in := bytes.NewReader(text)
		for {
			_, err := c.once(func(bufs [][]byte) (n int, err error) {
				left := int(piece)%(2*intakeBytes) + 1
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
			})
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
