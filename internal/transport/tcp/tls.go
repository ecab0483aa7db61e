package tcp

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"

	"sagecomm/internal/handshake"
)

// TLS returns the settings of links that are encrypted: both ends show a certificate of the authorities in a file. Names in certificates
// do not count, because the handshake behind TLS proves who the ends are.
func TLS(certificate, key, authorities string) (*tls.Config, error) {
	own, err := tls.LoadX509KeyPair(certificate, key)
	if err != nil {
		return nil, fmt.Errorf("sagecomm: the certificate of this process: %w", err)
	}
	text, err := os.ReadFile(authorities)
	if err != nil {
		return nil, fmt.Errorf("sagecomm: the certificates of authorities: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("sagecomm: %s holds no certificate in PEM", authorities)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{own}, ClientAuth: tls.RequireAnyClientCert,
		InsecureSkipVerify: true, // VerifyConnection verifies, without names
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) == 0 {
				return errors.New("no certificate")
			}
			between := x509.NewCertPool()
			for _, c := range s.PeerCertificates[1:] {
				between.AddCert(c)
			}
			_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: pool, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
			return err
		},
		SessionTicketsDisabled: true,
	}, nil
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
