package pgbackend

import (
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"os"

	"sagecomm/internal/env"
	"sagecomm/internal/transport/tcp"
)

// This file has what encrypts links to other hosts: the files that SAGECOMM_TLS_CERTIFICATE, SAGECOMM_TLS_KEY and SAGECOMM_TLS_AUTHORITIES name.

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
	files := [...]struct {
		name, path string
		text       []byte
	}{{name: "SAGECOMM_TLS_CERTIFICATE", path: env.TLSCertificate.Get(settings)}, {name: "SAGECOMM_TLS_KEY", path: env.TLSKey.Get(settings)},
		{name: "SAGECOMM_TLS_AUTHORITIES", path: env.TLSAuthorities.Get(settings)}}
	if !wantsEncryption(settings) {
		return e, nil
	}
	all := sha256.New()
	for i := range files {
		f := &files[i]
		if f.path == "" {
			return e, fmt.Errorf("sagecomm: %s is not set, and TLS needs SAGECOMM_TLS_CERTIFICATE, SAGECOMM_TLS_KEY and SAGECOMM_TLS_AUTHORITIES: set all three, or none", f.name)
		}
		if f.text, err = os.ReadFile(f.path); err != nil {
			return e, fmt.Errorf("sagecomm: %s: %w", f.name, err)
		}
		sum := sha256.Sum256(f.text)
		_, _ = all.Write(sum[:]) // it does not fail
	}
	all.Sum(e.files[:0])
	e.config, err = tcp.TLS(files[0].text, files[1].text, files[2].text)
	return e, err
}

// checkEncryption refuses a group of which only some ranks encrypt. All ranks return the same.
func (g *Group) checkEncryption() error {
	for rank, m := range g.members {
		if m.Encrypts != g.members[0].Encrypts {
			with, without := 0, rank
			if m.Encrypts {
				with, without = rank, 0
			}
			return fmt.Errorf("TLS is set on rank %d and not on rank %d, and the ranks are on several hosts: set SAGECOMM_TLS_CERTIFICATE, SAGECOMM_TLS_KEY and SAGECOMM_TLS_AUTHORITIES on all ranks, or on none", with, without)
		}
	}
	return nil
}
