package tcp

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/handshake"
)

func TestTLS(t *testing.T) {
	noLeaks(t)
	settings := newAuthority(t).settings(t)
	a, b := newEnd(t, secure(settings)), newEnd(t, secure(settings))
	l := a.linkTo(t, b)
	for n := range uint64(50) {
		require.NoError(t, l.Send(1, message(n+1), make([]byte, MaxMessage)))
	}
	b.await(t, 50)
	require.False(t, l.PollData(), "goroutines read; a thread that polls finds nothing")
	require.NoError(t, b.linkOf(t, a).Send(2, message(1), []byte("back")))
	require.Equal(t, "back", a.await(t, 1)[0].body)

	// Nobody gets as far as TLS without the secret, so no certificate is read before.
	c := knock(t, a)
	require.Error(t, tls.Client(c, settings).Handshake())
}

// Whom one of the two processes does not accept gets no link, and is told why. Who gets no certificate to see says nothing about them.
func TestCertificatesThatAreNotAccepted(t *testing.T) {
	noLeaks(t)
	ours, others := newAuthority(t), newAuthority(t)
	settings := ours.settings(t)
	with := func(of *tls.Config, pool *tls.Config) *tls.Config {
		c := pool.Clone()
		c.Certificates = of.Certificates
		return c
	}
	expired, expiredKey := certified(t, ours.certificate, ours.key, time.Now().Add(-time.Hour))
	late := settings.Clone()
	late.Certificates = []tls.Certificate{{Certificate: [][]byte{expired.Raw}, PrivateKey: expiredKey}}
	none := settings.Clone()
	none.Certificates = nil
	short := func(c *Config) {
		c.Timing = Timing{Beat: time.Second, Unacked: time.Minute, Ending: time.Minute, Greeting: 500 * time.Millisecond}
	}
	for name, x := range map[string]struct {
		settings      *tls.Config
		dials, dialed string // what is said where the other one dials, and where it is dialed
	}{
		"foreign":          {with(others.settings(t), settings), "there does not accept the certificate of this process", "signed by unknown authority"},
		"other authority":  {with(settings, others.settings(t)), "signed by unknown authority", "there does not accept the certificate of this process"},
		"all of the other": {others.settings(t), "signed by unknown authority", "signed by unknown authority"},
		"expired":          {late, "there does not accept the certificate of this process", "certificate has expired"},
		"none":             {none, "certificate required", ""},
	} {
		a, b := newEnd(t, secure(settings)), newEnd(t, secure(x.settings))
		for range 5 { // the alert is not lost by a reset
			_, err := b.dialTo(a)
			var refused *CertificateError
			require.ErrorAs(t, err, &refused, name)
			require.ErrorContains(t, err, x.dials, name)
			_, err = a.dialTo(b)
			require.Error(t, err, name)
			require.ErrorContains(t, err, x.dialed, name)
		}
	}
	for name, change := range map[string]func(*Config){
		"plain": func(*Config) {},
		"old": func(c *Config) {
			c.TLS = settings.Clone()
			c.TLS.MinVersion, c.TLS.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
		},
	} {
		a := newEnd(t, secure(settings))
		_, err := newEnd(t, func(c *Config) { change(c); short(c) }).dialTo(a)
		require.Error(t, err, name)
	}
	another := testKey
	another[0]++
	_, err := newEndWith(t, testSpace, another, func(c *Config) { secure(settings)(c); short(c) }).dialTo(newEnd(t, secure(settings)))
	require.ErrorIs(t, err, handshake.ErrRefused)
}

func TestFilesOfTLS(t *testing.T) {
	ours := newAuthority(t)
	cert, key, ca := ours.texts(t, time.Now().Add(time.Hour))
	_, otherKey, _ := ours.texts(t, time.Now().Add(time.Hour))
	old, oldKey, _ := ours.texts(t, time.Now().Add(-time.Hour))
	c, own := issued(t, ours.certificate, ours.key, func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Minute) })
	early, earlyKey := pems(t, own, c)
	for _, x := range []struct {
		certificate, key, authorities []byte
		want                          string
	}{
		{cert, otherKey, ca, "SAGECOMM_TLS_CERTIFICATE and SAGECOMM_TLS_KEY: tls: private key does not match public key"},
		{nil, key, ca, "SAGECOMM_TLS_CERTIFICATE and SAGECOMM_TLS_KEY: tls: failed to find any PEM data in certificate input"},
		{cert, key, key, "SAGECOMM_TLS_AUTHORITIES: the file holds no certificate in PEM"},
		{old, oldKey, ca, "SAGECOMM_TLS_CERTIFICATE: the certificate has expired at "},
		{early, earlyKey, ca, "SAGECOMM_TLS_CERTIFICATE: the certificate is valid from "},
	} {
		_, err := TLS(x.certificate, x.key, x.authorities)
		require.ErrorContains(t, err, x.want)
	}
}

// A certificate may lead to an authority by others, which are authorities themselves.
func TestIntermediateCertificates(t *testing.T) {
	root := newAuthority(t)
	between, betweenKey := issued(t, root.certificate, root.key, func(c *x509.Certificate) { c.IsCA = true })
	leaf, leafKey := certified(t, between, betweenKey, time.Now().Add(time.Hour))
	below, belowKey := certified(t, leaf, leafKey, time.Now().Add(time.Hour))
	settings := func(key *ecdsa.PrivateKey, chain ...*x509.Certificate) func(*Config) {
		certificates, keyText := pems(t, key, chain...)
		c, err := TLS(certificates, keyText, text("CERTIFICATE", root.certificate.Raw))
		require.NoError(t, err)
		return secure(c)
	}
	a := newEnd(t, secure(root.settings(t)))
	_, err := newEnd(t, settings(leafKey, leaf, between)).dialTo(a)
	require.NoError(t, err)
	for name, config := range map[string]func(*Config){
		"left out":                           settings(leafKey, leaf),
		"issued by one that is no authority": settings(belowKey, below, leaf, between),
	} {
		_, err := newEnd(t, config).dialTo(a)
		require.ErrorContains(t, err, "there does not accept the certificate of this process", name)
	}
}

// Neither end reads more certificates than a bound, also of who has the secret.
func TestLongCertificates(t *testing.T) {
	ours := newAuthority(t)
	leaf, key := issued(t, ours.certificate, ours.key, func(c *x509.Certificate) {
		for n := range 1000 {
			c.DNSNames = append(c.DNSNames, fmt.Sprintf("host-%d.example.org", n))
		}
	})
	certificates, keyText := pems(t, key, leaf)
	_, err := TLS(certificates, keyText, text("CERTIFICATE", ours.certificate.Raw))
	require.ErrorContains(t, err, "SAGECOMM_TLS_CERTIFICATE: certificates of ")
	long := ours.settings(t)
	long.Certificates = []tls.Certificate{{Certificate: [][]byte{leaf.Raw}, PrivateKey: key}}
	a, b := newEnd(t, secure(ours.settings(t))), newEnd(t, secure(long))
	_, err = b.dialTo(a)
	require.Error(t, err)
	_, err = a.dialTo(b)
	require.ErrorIs(t, err, handshake.ErrStranger)
}

// A process with certificates and one without make no link, whoever dials.
func TestTLSAndPlain(t *testing.T) {
	settings := newAuthority(t).settings(t)
	for range 3 {
		with, without := newEnd(t, func(c *Config) { secure(settings)(c); short(c) }), newEnd(t, short)
		_, err := with.dialTo(without)
		require.Error(t, err)
		_, err = without.dialTo(with)
		require.Error(t, err)
	}
}

// Frames come as they were sent, in order, on all connections, whoever sends them in whatever way.
func TestOrderWithinTLS(t *testing.T) {
	noLeaks(t)
	_, b, there, _ := linked(t)
	const each = 300
	var all sync.WaitGroup
	for on := range 3 {
		all.Go(func() {
			for n := uint64(1); n <= each; {
				h, body := message(n), bytes.Repeat([]byte{byte(n)}, int(n)*50)
				if on == control {
					h, body = &Header{Kind: Collect, Group: 9, Number: n}, body[:min(len(body), maxRecord)]
				}
				taken, err := true, error(nil)
				switch n % 3 {
				case 0:
					err = there.Send(on, h, body)
				case 1:
					taken, err = there.TrySend(on, h, body[:7], body[7:])
				default:
					taken, err = there.Push(on, h, body)
				}
				if err != nil {
					t.Error(err)
					return
				}
				clear(body) // it is the caller's again, also where nothing was taken
				if taken {
					n++
				}
			}
		})
	}
	all.Wait()
	next := [3]uint64{}
	for _, f := range b.await(t, 3*each) {
		next[f.on]++
		require.Equal(t, next[f.on], f.h.Number)
		require.Equal(t, string(bytes.Repeat([]byte{byte(f.h.Number)}, len(f.body))), f.body)
	}
}

// Who must not wait is told that a connection is full, and who may wait goes on when there is room. Without an outbox, TrySend would not return.
func TestNobodyWaitsWithinTLS(t *testing.T) {
	noLeaks(t)
	_, b, there, _ := linked(t)
	held, slow := make(chan struct{}), make(chan struct{})
	goOn := sync.OnceFunc(func() { close(slow) })
	t.Cleanup(goOn)
	b.set(func(_ int, h *Header) ([][]byte, error) {
		if h.Number == 1 {
			close(held)
			<-slow
		}
		return nil, nil
	})
	require.Eventually(t, func() bool { flushed, err := there.TryFlush(1); return err == nil && flushed }, soon, time.Millisecond, "nothing was sent behind the heartbeat")
	sent := uint64(0)
	for full := 0; full < 100; { // the goroutine may be about to take what waits
		taken, err := there.Push(1, message(sent+1), make([]byte, 60_000))
		require.NoError(t, err)
		if taken {
			sent, full = sent+1, 0
		} else {
			full++
			<-time.After(time.Millisecond)
		}
	}
	<-held
	flushed, err := there.TryFlush(1)
	require.NoError(t, err)
	require.False(t, flushed)
	taken, err := there.TrySend(2, message(2), []byte("another connection is not full"))
	require.NoError(t, err)
	require.True(t, taken)
	waits := make(chan error)
	go func() { waits <- there.Send(1, message(sent+1), make([]byte, 60_000)) }()
	o := there.conns[1].out
	require.Eventually(t, func() bool { o.mu.Lock(); defer o.mu.Unlock(); return o.senders == 1 }, soon, time.Millisecond)
	taken, err = there.TrySend(1, message(sent+2))
	require.NoError(t, err)
	require.False(t, taken, "nobody overtakes a sender that waits")
	goOn()
	require.NoError(t, <-waits)
	b.await(t, int(sent)+2)
	require.Eventually(t, func() bool { flushed, err := there.TryFlush(1); return err == nil && flushed }, soon, time.Millisecond)
}

// A sender that waits is told of the loss, as are those that do not.
func TestLossWhileTheOutboxIsFull(t *testing.T) {
	noLeaks(t)
	_, b, there, _ := linked(t)
	slow := make(chan struct{})
	b.set(func(int, *Header) ([][]byte, error) { <-slow; return nil, nil })
	ends := make(chan error)
	go func() {
		for n := uint64(1); ; n++ {
			if err := there.Send(1, message(n), make([]byte, MaxMessage)); err != nil {
				ends <- err
				return
			}
		}
	}()
	o := there.conns[1].out
	require.Eventually(t, func() bool { o.mu.Lock(); defer o.mu.Unlock(); return o.senders == 1 }, soon, time.Millisecond)
	there.Break(errors.New("for the test"))
	require.ErrorContains(t, <-ends, "for the test")
	_, err := there.Push(1, message(1))
	require.ErrorContains(t, err, "for the test")
	close(slow)
}

// What was sent goes out before a process ends its links, on all connections, also where the other one ends them at the same time.
func TestNothingIsLostAtExitWithinTLS(t *testing.T) {
	noLeaks(t)
	const each = 40
	for range 5 {
		a, b, there, _ := linked(t)
		sendOnAll(t, there, each)
		a.Close()
		require.ErrorIs(t, b.awaitLoss(t), io.EOF)
		require.Equal(t, 3*each, b.count())
	}
	a, b, there, back := linked(t)
	var all sync.WaitGroup
	for _, way := range []struct {
		*end
		l *Link
	}{{a, there}, {b, back}} {
		all.Go(func() {
			for n := range uint64(each) {
				if way.l.Send(1, message(n+1), make([]byte, 20_000)) != nil {
					t.Error("the link was lost too early")
				}
			}
		})
	}
	all.Wait()
	all.Go(a.Close)
	all.Go(b.Close)
	all.Wait()
	require.Equal(t, each, a.count())
	require.Equal(t, each, b.count())
}

// Both processes have more on the way than connections hold, from threads that poll and must not wait.
func TestBothWaysAreFullWithinTLS(t *testing.T) {
	noLeaks(t)
	a, b, there, back := linked(t)
	const messages = 300 // 18 MiB
	talk := func(e *end, l *Link) {
		l.Calm(true)
		defer l.Calm(false)
		for sent := 0; sent < messages || e.count() < messages; {
			if sent < messages {
				taken, err := l.Push(1, message(uint64(sent+1)), bytes.Repeat([]byte{byte(sent)}, 60_000))
				require.NoError(t, err)
				if taken {
					sent++
				}
			}
			l.PollData()
		}
	}
	var both sync.WaitGroup
	both.Go(func() { talk(a, there) })
	both.Go(func() { talk(b, back) })
	both.Wait()
	for _, e := range []*end{a, b} {
		for n, f := range e.await(t, messages) {
			require.EqualValues(t, n+1, f.h.Number)
			require.Equal(t, byte(n), f.body[len(f.body)-1])
		}
	}
}

// Heartbeats go on within TLS.
func TestHeartbeatsWithinTLS(t *testing.T) {
	noLeaks(t)
	settings := newAuthority(t).settings(t)
	quick := func(c *Config) {
		c.TLS, c.Timing = settings, Timing{Beat: 5 * time.Millisecond, Unacked: time.Minute, Ending: time.Minute, Greeting: soon}
	}
	a, b := newEnd(t, quick), newEnd(t, quick)
	a.linkTo(t, b)
	back := b.linkOf(t, a)
	for _, c := range back.conns {
		for range 3 {
			before := c.heard.Load()
			require.Eventually(t, func() bool { return c.heard.Load() > before }, soon, time.Millisecond)
		}
	}
}

// What crosses cannot be read by somebody in between. Without TLS it can.
func TestDataAreNotReadableWithinTLS(t *testing.T) {
	noLeaks(t)
	pattern := bytes.Repeat([]byte("the weights of the model"), 100)
	for _, encrypted := range []bool{false, true} {
		change := func(*Config) {}
		if encrypted {
			change = secure(newAuthority(t).settings(t))
		}
		a, b := newEnd(t, change), newEnd(t, change)
		r := newRelay(t, b.at[0])
		b.at = []netip.AddrPort{r.address()}
		require.NoError(t, a.linkTo(t, b).Send(1, message(1), pattern))
		require.Equal(t, string(pattern), b.await(t, 1)[0].body)
		r.mu.Lock()
		sent := bytes.Join(r.sent, nil)
		r.mu.Unlock()
		require.Greater(t, len(sent), len(pattern))
		require.Equal(t, !encrypted, bytes.Contains(sent, []byte("the weights of the model")))
	}
}

// Who changes a byte on the way ends the link.
func TestChangedBytesWithinTLS(t *testing.T) {
	noLeaks(t)
	settings := newAuthority(t).settings(t)
	a, b := newEnd(t, secure(settings)), newEnd(t, secure(settings))
	r := newRelay(t, b.at[0])
	b.at = []netip.AddrPort{r.address()}
	l := a.linkTo(t, b)
	b.linkOf(t, a) // the end of a link over which nothing has come is no loss
	r.mu.Lock()
	r.spoil = func(sent []byte) { sent[len(sent)/2] ^= 1 }
	r.mu.Unlock()
	_ = l.Send(1, message(1), make([]byte, 40_000))
	require.Error(t, b.awaitLoss(t))
	require.Error(t, a.awaitLoss(t))
	require.Zero(t, b.count())
}

// The secret proves nothing to somebody who ends TLS in between, even with a certificate of the authority.
func TestSomebodyBetweenTwoTLSConnections(t *testing.T) {
	noLeaks(t)
	settings := newAuthority(t).settings(t)
	a, b := newEnd(t, secure(settings)), newEnd(t, secure(settings))
	between, to := listenOn(t, "127.0.0.1:0"), b.at[0].String()
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := between.Accept()
		if err != nil {
			return
		}
		d, err := net.Dial("tcp", to)
		if err != nil {
			return
		}
		for _, part := range []struct {
			from, to net.Conn
			bytes    int64
		}{{c, d, handshake.HelloBytes}, {d, c, handshake.NonceBytes}, {c, d, handshake.ProofBytes}, {d, c, handshake.ProofBytes}} {
			_, _ = io.CopyN(struct{ io.Writer }{part.to}, struct{ io.Reader }{part.from}, part.bytes) // the challenge in front of TLS can be passed on
		}
		from, onward := tls.Server(c, settings), tls.Client(d, settings)
		go func() {
			_, _ = io.Copy(from, onward)
			_ = c.Close()
		}()
		_, _ = io.Copy(onward, from)
		_, _ = d.Close(), c.Close()
	}()
	b.at = []netip.AddrPort{between.Addr().(*net.TCPAddr).AddrPort()}
	_, err := a.dialTo(b)
	require.ErrorIs(t, err, handshake.ErrRefused)
	require.NoError(t, between.Close())
	<-done
}
