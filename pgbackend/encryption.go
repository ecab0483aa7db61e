package pgbackend

import (
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"os"
	"time"

	"sagecomm/internal/env"
	"sagecomm/internal/transport/tcp"
)

// This file has what encrypts links to other hosts: the files that SAGECOMM_TLS_CERTIFICATE, SAGECOMM_TLS_KEY and
// SAGECOMM_TLS_AUTHORITIES name.

// encryption is what the links of a group are encrypted with.
type encryption struct {
	config *tls.Config       // nil: they are not encrypted
	files  [sha256.Size]byte // of the contents: groups with other ones share no links
}

// wantsEncryption reports whether a setting of TLS is made. Whether all are, openEncryption finds out.
func wantsEncryption(settings *env.Settings) bool {
	return env.TLSCertificate.Get(settings) != "" || env.TLSKey.Get(settings) != "" || env.TLSAuthorities.Get(settings) != ""
}

// openEncryption reads the files. It does so for each group, since certificates are renewed while a process runs.
func openEncryption(settings *env.Settings) (e encryption, err error) {
	if !wantsEncryption(settings) {
		return e, nil
	}
	return encryptionOf(func() ([3][]byte, [sha256.Size]byte, error) { return readEncryption(settings) })
}

// encryptionOf reads again where a certificate and a key do not belong together: they may be being renewed, one after
// the other.
func encryptionOf(read func() (texts [3][]byte, hash [sha256.Size]byte, err error)) (e encryption, err error) {
	for try := 0; ; try++ {
		before := e.files
		var texts [3][]byte
		if texts, e.files, err = read(); err != nil {
			return encryption{}, err
		}
		if e.config, err = tcp.TLS(texts[0], texts[1], texts[2]); err == nil || try == 2 || try > 0 && e.files == before {
			return e, err
		}
		time.Sleep(renewalTime)
	}
}

// renewalTime is how long a renewal of the files may take.
const renewalTime = 100 * time.Millisecond

// readEncryption returns the contents of the three files, and a hash of them.
func readEncryption(settings *env.Settings) (texts [3][]byte, hash [sha256.Size]byte, err error) {
	all := sha256.New()
	for i, f := range [...]struct{ name, path string }{{"SAGECOMM_TLS_CERTIFICATE", env.TLSCertificate.Get(settings)}, {"SAGECOMM_TLS_KEY", env.TLSKey.Get(settings)},
		{"SAGECOMM_TLS_AUTHORITIES", env.TLSAuthorities.Get(settings)}} {
		if f.path == "" {
			return texts, hash, fmt.Errorf("sagecomm: %s is not set, and TLS needs SAGECOMM_TLS_CERTIFICATE, SAGECOMM_TLS_KEY and SAGECOMM_TLS_AUTHORITIES: set all three, or none", f.name)
		}
		if texts[i], err = os.ReadFile(f.path); err != nil {
			return texts, hash, fmt.Errorf("sagecomm: %s: %w", f.name, err)
		}
		if f.path == env.TLSKey.Get(settings) {
			warnIfOpen(f.name, f.path)
		}
		sum := sha256.Sum256(texts[i])
		_, _ = all.Write(sum[:]) // it does not fail
	}
	all.Sum(hash[:0])
	return texts, hash, nil
}

// checkEncryption refuses a group of which only some ranks encrypt. All ranks return the same.
func (g *Group) checkEncryption() error {
	if with, without, differ := g.differ(func(m *member) bool { return m.Encrypts }); differ {
		return fmt.Errorf("TLS is set on rank %d and not on rank %d, and the ranks are on several hosts: set SAGECOMM_TLS_CERTIFICATE, SAGECOMM_TLS_KEY and SAGECOMM_TLS_AUTHORITIES on all ranks, or on none", with, without)
	}
	return nil
}
