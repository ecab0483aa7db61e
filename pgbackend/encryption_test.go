package pgbackend

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/coll"
	"sagecomm/tests/quick"
)

// certificates is an authority of the tests, and a directory with the files of what it has certified.
type certificates struct {
	dir         string
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func newCertificates(t *testing.T) *certificates {
	t.Helper()
	c := &certificates{dir: t.TempDir()}
	c.certificate, c.key = c.certify(t, time.Now().Add(time.Hour))
	c.write(t, "authority", "CERTIFICATE", c.certificate.Raw)
	return c
}

func (c *certificates) certify(t *testing.T, until time.Time) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	text := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: until.Add(-2 * time.Hour), NotAfter: until, IsCA: c.key == nil, BasicConstraintsValid: true}
	parent, signer := c.certificate, c.key
	if c.key == nil {
		parent, signer = text, key
	}
	der, err := x509.CreateCertificate(rand.Reader, text, parent, &key.PublicKey, signer)
	require.NoError(t, err)
	made, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return made, key
}

func (c *certificates) write(t *testing.T, name, kind string, der []byte) {
	t.Helper()
	text := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	require.NoError(t, os.WriteFile(filepath.Join(c.dir, name), text, 0o600))
}

// options returns the options of a rank with a certificate that is valid until a time.
func (c *certificates) options(t *testing.T, until time.Time) options {
	t.Helper()
	made, key := c.certify(t, until)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	name := made.SerialNumber.String()
	c.write(t, name, "CERTIFICATE", made.Raw)
	c.write(t, name+".key", "PRIVATE KEY", der)
	return options{"tls_certificate": filepath.Join(c.dir, name), "tls_key": filepath.Join(c.dir, name+".key"), "tls_authorities": filepath.Join(c.dir, "authority")}
}

// tryEncrypted makes a group over two or more hosts; change, which may be nil, changes the options of TLS of each rank.
func tryEncrypted(t *testing.T, hosts string, change func(rank int, o options)) (*world, []error) {
	t.Helper()
	eachAProcess(t)
	authority := newCertificates(t)
	all := make([]options, len(hosts))
	for rank := range all {
		all[rank] = authority.options(t, time.Now().Add(time.Hour))
		if change != nil {
			change(rank, all[rank])
		}
		for name, value := range onHosts(hosts)(rank) {
			all[rank][name] = value
		}
	}
	return tryWorld(t, len(hosts), opTimeout, func(rank int) options { return all[rank] })
}

func newEncryptedWorld(t *testing.T, hosts string) *world {
	t.Helper()
	w, errs := tryEncrypted(t, hosts, nil)
	for rank, err := range errs {
		require.NoError(t, err, rank)
	}
	require.Contains(t, w.groups[0].describedLinks(), "TCP with TLS")
	return w
}

func TestCollectivesOverHostsWithTLS(t *testing.T) {
	for _, hosts := range []string{"01", "0011", "012"} {
		t.Run(hosts, func(t *testing.T) {
			w := newEncryptedWorld(t, hosts)
			for kind := range coll.KindCount {
				if !kind.Collective() {
					continue
				}
				for i, length := range []int{0, 1, 1000, 100_000} {
					x := transfer{kind, i % len(hosts), i, equalLength(length)}
					w.each(func(g *Group) error { return g.try(x, coll.Op{}) })
				}
			}
			w.each(func(g *Group) error { return asError(sum(g, 4<<20)) }) // 16 MiB, in both directions at once
		})
	}
}

// Failures are told as without TLS, and all survivors have one cause.
func TestFailuresOverHostsWithTLS(t *testing.T) {
	w := newEncryptedWorld(t, "0012")
	cutLast(t, w, 100_000)

	w = newEncryptedWorld(t, "0011")
	causes := make(chan *coll.Failure, 3)
	for rank := range 3 {
		go func() { causes <- sum(w.groups[rank], 1000) }()
	}
	w.groups[3].Abort("enough")
	for range 3 {
		require.NoError(t, expect(<-causes, coll.Aborted, "rank 3", "enough"))
	}

	w = newEncryptedWorld(t, "01")
	w.each(func(g *Group) error { return asError(sum(g, 10)) })
	list := w.eachFailure(func(g *Group) *coll.Failure { return sum(g, 1000+g.rank) })
	expectAll(t, list, coll.Mismatch, "collective #2", "1000 elements", "1001 elements")

	w = newEncryptedWorld(t, "01")
	require.NoError(t, w.groups[0].SetTimeout(300*time.Millisecond))
	require.NoError(t, expect(sum(w.groups[0], 1000), coll.Timeout, "rank 1"))
}

// Settings that do not fit are errors on all ranks, before the timeout.
func TestSettingsOfTLS(t *testing.T) {
	other := newCertificates(t)
	for name, x := range map[string]struct {
		change func(rank int, o options)
		want   []string
	}{
		"none": {func(rank int, o options) {
			if rank == 1 {
				clear(o)
			}
		}, []string{"TLS is set on rank 0 and not on rank 1"}},
		"no key": {func(rank int, o options) {
			if rank == 1 {
				delete(o, "tls_key")
			}
		}, []string{"SAGECOMM_TLS_KEY is not set, and TLS needs"}},
		"only authorities": {func(rank int, o options) {
			delete(o, "tls_key")
			delete(o, "tls_certificate")
		}, []string{"SAGECOMM_TLS_CERTIFICATE is not set, and TLS needs"}},
		"no such file": {func(rank int, o options) {
			if rank == 1 {
				o["tls_authorities"] += ".none"
			}
		}, []string{"SAGECOMM_TLS_AUTHORITIES: open ", "no such file"}},
		"the key of another one": {func(rank int, o options) {
			if rank == 1 {
				o["tls_key"] = other.options(t, time.Now().Add(time.Hour))["tls_key"]
			}
		}, []string{"SAGECOMM_TLS_CERTIFICATE and SAGECOMM_TLS_KEY: tls: private key does not match public key"}},
		"expired": {func(rank int, o options) {
			if rank == 1 {
				for name, value := range other.options(t, time.Now().Add(-time.Minute)) {
					o[name] = value
				}
			}
		}, []string{"SAGECOMM_TLS_CERTIFICATE: the certificate has expired at "}},
		"another authority": {func(rank int, o options) {
			if rank == 1 {
				for name, value := range other.options(t, time.Now().Add(time.Hour)) {
					o[name] = value
				}
			}
		}, []string{"accept the certificate of th", "SAGECOMM_TLS_AUTHORITIES"}},
	} {
		t.Run(name, func(t *testing.T) {
			if name != "none" && name != "another authority" {
				quick.Skip(t, "the others make certificates, too")
			}
			began := time.Now()
			_, errs := tryEncrypted(t, "01", x.change)
			for rank, err := range errs {
				for _, want := range x.want {
					require.ErrorContains(t, err, want, fmt.Sprint(rank))
				}
			}
			require.Less(t, time.Since(began), opTimeout)
		})
	}
	requireNoNetworks(t)
}

// Files that are read while they are being renewed are read again. What does not change is an error.
func TestFilesThatAreBeingRenewed(t *testing.T) {
	authority := newCertificates(t)
	o, renewed := authority.options(t, time.Now().Add(time.Hour)), authority.options(t, time.Now().Add(time.Hour))
	read := func(name string) []byte {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		return text
	}
	old, key, ca := read(o["tls_certificate"]), read(o["tls_key"]), read(o["tls_authorities"])
	cert, newKey := read(renewed["tls_certificate"]), read(renewed["tls_key"])
	for name, x := range map[string]struct {
		reads [][3][]byte
		fits  bool
	}{
		"at once":      {[][3][]byte{{old, key, ca}}, true},
		"renewed":      {[][3][]byte{{cert, key, ca}, {cert, newKey, ca}}, true},
		"later":        {[][3][]byte{{old, newKey, ca}, {cert, key, ca}, {cert, newKey, ca}}, true},
		"does not fit": {[][3][]byte{{cert, key, ca}, {cert, key, ca}}, false},
	} {
		n := 0
		e, err := encryptionOf(func() (texts [3][]byte, hash [sha256.Size]byte, err error) {
			texts = x.reads[n]
			n++
			return texts, sha256.Sum256(bytes.Join(texts[:], nil)), nil
		})
		require.Equal(t, len(x.reads), n, name)
		if x.fits {
			require.NoError(t, err, name)
			require.NotNil(t, e.config, name)
		} else {
			require.ErrorContains(t, err, "private key does not match", name)
		}
	}
}

// A certificate that is renewed in its file is used by the next group that is made.
func TestRenewedCertificates(t *testing.T) {
	eachAProcess(t)
	authority := newCertificates(t)
	all := []options{authority.options(t, time.Now().Add(time.Hour)), authority.options(t, time.Now().Add(time.Hour))}
	for rank := range all {
		all[rank]["hostid"] = fmt.Sprint("host ", rank)
	}
	make := func() *world {
		w, errs := tryWorld(t, 2, opTimeout, func(rank int) options { return all[rank] })
		for _, err := range errs {
			require.NoError(t, err)
		}
		return w
	}
	first, same := make(), make()
	require.Same(t, first.groups[0].links.network, same.groups[0].links.network)
	renewed := authority.options(t, time.Now().Add(time.Hour))
	for _, name := range []string{"tls_certificate", "tls_key"} {
		require.NoError(t, os.Rename(renewed[name], all[0][name]))
	}
	next := make()
	require.NotSame(t, first.groups[0].links.network, next.groups[0].links.network)
	require.True(t, first.groups[0].links.network.worn.Load(), "nobody is admitted by the older files")
	next.each(func(g *Group) error { return asError(sum(g, 1000)) })
}
