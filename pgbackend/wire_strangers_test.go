package pgbackend

import (
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"sagecomm/internal/handshake"
	"sagecomm/internal/transport/tcp"
)

// visit lets strangers come to the port of one of the two ranks, now and until the trial ends.
func (x *wireTrial) visit() {
	seed := x.random.Uint64()
	var to, from tcp.Identity
	if x.fault == "twice" { // before the groups may end
		to, from = x.world.groups[x.wire.ends[seed%2]].links.network.id, x.world.groups[x.wire.ends[1-seed%2]].links.network.id
	}
	first := make(chan struct{})
	x.visits.Go(func() {
		var at netip.AddrPort
		for ; !at.IsValid(); time.Sleep(time.Millisecond) {
			select {
			case <-x.stopped:
				return
			default:
			}
			x.wire.mu.Lock()
			at = x.wire.real[x.wire.ends[seed%2]]
			x.wire.mu.Unlock()
		}
		count := 20
		if x.fault == "flood" {
			count = 400
		}
		var open []net.Conn
		defer func() {
			for _, c := range open {
				_ = c.Close()
			}
		}()
		for n := range count {
			select {
			case <-x.stopped:
				return
			default:
			}
			c, err := net.Dial("tcp", at.String())
			if err != nil {
				break // it does not listen any more
			}
			open = append(open, c)
			x.say(c, from, to, n, seed, n <= count/2)
			if n == count/2 && x.moment != "making" {
				close(first)
			}
		}
		<-x.stopped
	})
	if x.moment != "making" { // while the group works, half of them were there before, and the others come meanwhile
		select {
		case <-first:
		case <-time.After(opTimeout):
			x.t.Error("strangers cannot connect")
		}
	}
}

// say says what a stranger has to say, in "twice" as if it were a process that has a link. early: the trial waits for
// it.
func (x *wireTrial) say(c net.Conn, from, to tcp.Identity, n int, seed uint64, early bool) {
	hello := make([]byte, handshake.HelloBytes)
	copy(hello, "sagelnk1")
	binary.LittleEndian.PutUint64(hello[handshake.MagicBytes+handshake.SpaceBytes:], seed)
	deadline := time.Now().Add(handshake.Timeout)
	protocol := handshake.Protocol{Magic: "sagelnk1", Label: "sagecomm link", Limit: introductionBytes}
	switch x.fault {
	case "garbage":
		noise := make([]byte, 1+n*50)
		for i := range noise {
			noise[i] = byte(seed >> (i % 57))
		}
		_, _ = c.Write(noise)
	case "half":
		_, _ = c.Write(hello[:(n*7)%len(hello)])
	case "stranger":
		_, _ = protocol.Greet(c, handshake.Space{}, handshake.Key{byte(n)}, deadline)
	case "recorded":
		x.wire.mu.Lock()
		if len(x.wire.said) > 0 {
			hello = append([]byte{}, x.wire.said[n%len(x.wire.said)]...)
		}
		x.wire.mu.Unlock()
		_, _ = c.Write(hello)
	case "twice":
		secret, err := os.ReadFile(x.secret)
		if err != nil {
			x.t.Error(err)
			return
		}
		s, err := protocol.Greet(c, handshake.Space{}, handshake.MAC(secret, "sagecomm links, secret of the job"), deadline)
		if err != nil || x.tls { // within TLS it has no certificate
			return
		}
		body := append(append([]byte{tcp.Version}, from[:]...), to[:]...)
		body = append(binary.LittleEndian.AppendUint64(body, uint64(n)+1<<40), byte(n%2), byte(x.data))
		body = append(body, make([]byte, introductionBytes-len(body))...) // checksums always, of machine 0, between ends 0
		// The link is there, or was lost while a group needs it. Behind the end of the group it may be forgotten, and
		// made anew.
		if s.Send(body) == nil {
			if answer, err := s.Receive(); early && (err != nil || !strings.Contains("cln", string(answer))) {
				x.t.Errorf("a second connection of a link was answered with %q, %v", answer, err)
			}
		}
	}
}
