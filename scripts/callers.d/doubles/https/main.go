// Stands before an API server of a test as its HTTPS end, for callers that take no other.
//
//	https URL FOLDER
//
// Writes ca.crt and token to the folder, as a pod has them, prints its port, and passes each request on to the URL.
package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("usage: https URL FOLDER")
	}
	target, err := url.Parse(args[0])
	if err != nil {
		return err
	}
	certificate, err := certify(args[1])
	if err != nil {
		return err
	}
	listener, err := tls.Listen("tcp", "127.0.0.1:0",
		&tls.Config{Certificates: []tls.Certificate{certificate}, NextProtos: []string{"h2", "http/1.1"}})
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	proxy := httputil.NewSingleHostReverseProxy(target)
	// Each event of a WATCH at once.
	proxy.FlushInterval = -1
	return http.Serve(listener, proxy)
}

// certify makes a certificate that is its own authority, and writes what a client needs.
func certify(folder string) (tls.Certificate, error) {
	none := tls.Certificate{}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return none, err
	}
	template := x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, &key.PublicKey, key)
	if err != nil {
		return none, err
	}
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err := os.WriteFile(filepath.Join(folder, "ca.crt"), authority, 0o644); err != nil {
		return none, err
	}
	if err := os.WriteFile(filepath.Join(folder, "token"), []byte("token"), 0o600); err != nil {
		return none, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}
