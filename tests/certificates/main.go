// Command certificates writes an authority, and certificates of it, for tests of links that are encrypted:
//
//	certificates DIRECTORY NAME[=HOURS]...
//
// writes DIRECTORY/authority.pem, and NAME.pem and NAME.key for each name. A certificate is valid for an hour, or until so many hours from now.
package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: certificates DIRECTORY NAME[=HOURS]...")
		os.Exit(2)
	}
	if err := write(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "certificates:", err)
		os.Exit(1)
	}
}

func write(directory string, names []string) error {
	authority, authorityKey, err := certify(nil, nil, 1)
	if err != nil {
		return err
	}
	if err := save(directory, "authority.pem", "CERTIFICATE", authority.Raw); err != nil {
		return err
	}
	for _, text := range names {
		name, hours := text, 1
		if before, after, found := strings.Cut(text, "="); found {
			name = before
			if hours, err = strconv.Atoi(after); err != nil {
				return err
			}
		}
		c, key, err := certify(authority, authorityKey, hours)
		if err != nil {
			return err
		}
		der, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			return err
		}
		if err := save(directory, name+".pem", "CERTIFICATE", c.Raw); err != nil {
			return err
		}
		if err := save(directory, name+".key", "PRIVATE KEY", der); err != nil {
			return err
		}
	}
	return nil
}

// certify returns a certificate of an authority, or a new authority if there is none.
func certify(parent *x509.Certificate, signer *ecdsa.PrivateKey, hours int) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	until := time.Now().Add(time.Duration(hours) * time.Hour)
	text := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: until.Add(-24 * time.Hour), NotAfter: until,
		IsCA: parent == nil, BasicConstraintsValid: true}
	if parent == nil {
		parent, signer = text, key
	}
	der, err := x509.CreateCertificate(rand.Reader, text, parent, &key.PublicKey, signer)
	if err != nil {
		return nil, nil, err
	}
	c, err := x509.ParseCertificate(der)
	return c, key, err
}

func save(directory, name, kind string, der []byte) error {
	return os.WriteFile(filepath.Join(directory, name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}
