package tcp

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"time"

	"sagecomm/internal/handshake"
)

// TLS returns the settings of links that are encrypted, from texts in PEM. Both ends show a certificate that one of the authorities issued. Names in
// certificates do not count, because the handshake within TLS proves who the ends are.
func TLS(certificate, key, authorities []byte) (*tls.Config, error) {
	own, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, fmt.Errorf("sagecomm: SAGECOMM_TLS_CERTIFICATE and SAGECOMM_TLS_KEY: %w", err)
	}
	if n := length(own.Certificate); n > maxCertificates {
		return nil, fmt.Errorf("sagecomm: SAGECOMM_TLS_CERTIFICATE: certificates of %d bytes, and the process there reads %d: leave the authority out, and intermediate certificates that are not needed", n, maxCertificates)
	}
	leaf, err := x509.ParseCertificate(own.Certificate[0]) // own.Leaf may be left out, by a setting of GODEBUG
	if err != nil {
		return nil, fmt.Errorf("sagecomm: SAGECOMM_TLS_CERTIFICATE: %w", err)
	}
	switch now := time.Now(); {
	case now.Before(leaf.NotBefore):
		return nil, fmt.Errorf("sagecomm: SAGECOMM_TLS_CERTIFICATE: the certificate is valid from %v on: set the clock of this host, or use another one", leaf.NotBefore)
	case now.After(leaf.NotAfter):
		return nil, fmt.Errorf("sagecomm: SAGECOMM_TLS_CERTIFICATE: the certificate has expired at %v: use another one", leaf.NotAfter)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(authorities) {
		return nil, errors.New("sagecomm: SAGECOMM_TLS_AUTHORITIES: the file holds no certificate in PEM")
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{own}, ClientAuth: tls.RequireAnyClientCert,
		InsecureSkipVerify: true, // VerifyConnection verifies, without names
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) == 0 {
				return &CertificateError{"the process there has shown none", errors.New("no certificate")}
			}
			between := x509.NewCertPool()
			for _, c := range s.PeerCertificates[1:] {
				between.AddCert(c)
			}
			_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: pool, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
			if err != nil {
				return &CertificateError{"this process does not accept the certificate of the process there; give it a valid one that an authority in SAGECOMM_TLS_AUTHORITIES of this process issued", err}
			}
			return nil
		},
		SessionTicketsDisabled: true,
	}, nil
}

// CertificateError is why two processes make no encrypted link, however often they try.
type CertificateError struct {
	text string
	Why  error
}

func (e *CertificateError) Error() string { return fmt.Sprintf("%s: %v", e.text, e.Why) }

func (e *CertificateError) Unwrap() error { return e.Why }

// asCertificateError makes a CertificateError of an alert that the other process has sent, and returns other errors as they are.
func asCertificateError(err error) error {
	if alert := (*net.OpError)(nil); errors.As(err, &alert) && alert.Op == "remote error" {
		return &CertificateError{"the process there does not accept the certificate of this process: by its clock it is not valid now, no authority in SAGECOMM_TLS_AUTHORITIES there issued it, or an intermediate certificate is missing", alert.Err}
	}
	return err
}

// bound returns the key for the handshake within a TLS connection. It depends on that connection, so that nobody who ends TLS in
// between can pass the proofs on.
func bound(key handshake.Key, c *tls.Conn) (handshake.Key, error) {
	state := c.ConnectionState()
	channel, err := state.ExportKeyingMaterial("EXPORTER-sagecomm-link", nil, 32)
	if err != nil {
		return key, err
	}
	return handshake.MAC(key[:], "sagecomm link, within TLS", channel), nil
}
