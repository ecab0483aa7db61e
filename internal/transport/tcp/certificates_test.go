package tcp

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// authority certifies processes.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func newAuthority(t testing.TB) (a authority) {
	t.Helper()
	a.certificate, a.key = certified(t, nil, nil, time.Now().Add(time.Hour))
	return a
}

// certified returns a certificate that is valid until a time, of an authority or of nobody but itself.
func certified(t testing.TB, parent *x509.Certificate, signer *ecdsa.PrivateKey, until time.Time) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	return issued(t, parent, signer, func(c *x509.Certificate) { c.NotAfter, c.IsCA = until, parent == nil })
}

// issued returns a certificate for an hour, with changes, of a signer or of nobody but itself.
func issued(t testing.TB, parent *x509.Certificate, signer *ecdsa.PrivateKey, change func(*x509.Certificate)) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	now := time.Now()
	c := &x509.Certificate{SerialNumber: big.NewInt(now.UnixNano()), NotBefore: now.Add(-2 * time.Hour), NotAfter: now.Add(time.Hour), BasicConstraintsValid: true}
	change(c)
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	require.NoError(t, err)
	c, err = x509.ParseCertificate(der)
	require.NoError(t, err)
	return c, key
}

// texts returns what the files of a process hold.
func (a authority) texts(t testing.TB, until time.Time) (certificate, key, authorities []byte) {
	t.Helper()
	own, ownKey := certified(t, a.certificate, a.key, until)
	certificate, key = pems(t, ownKey, own)
	return certificate, key, text("CERTIFICATE", a.certificate.Raw)
}

func text(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// pems returns the files of a chain of certificates and of the key of the first one.
func pems(t testing.TB, own *ecdsa.PrivateKey, chain ...*x509.Certificate) (certificates, key []byte) {
	t.Helper()
	for _, c := range chain {
		certificates = append(certificates, text("CERTIFICATE", c.Raw)...)
	}
	der, err := x509.MarshalPKCS8PrivateKey(own)
	require.NoError(t, err)
	return certificates, text("PRIVATE KEY", der)
}

func (a authority) settings(t testing.TB) *tls.Config {
	t.Helper()
	c, err := TLS(a.texts(t, time.Now().Add(time.Hour)))
	require.NoError(t, err)
	return c
}

func secure(settings *tls.Config) func(*Config) { return func(c *Config) { c.TLS = settings } }

// linked returns two ends and their link, with TLS.
func linked(t *testing.T) (a, b *end, there, back *Link) {
	t.Helper()
	settings := newAuthority(t).settings(t)
	a, b = newEnd(t, secure(settings)), newEnd(t, secure(settings))
	there = a.linkTo(t, b)
	return a, b, there, b.linkOf(t, a)
}
