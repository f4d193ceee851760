package rsocket

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/gorxe/gorxe/internal/testbed"
)

// newServer starts an HTTP server on device 1. The handler returns what it gets.
func newServer(t *testing.T, l net.Listener, withTLS bool) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Proto", r.Proto)
		body, _ := io.ReadAll(r.Body) // the client checks it
		_, _ = w.Write(body)
	}))
	s.Listener.Close()
	s.Listener = l
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // of connections that the client drops
	if withTLS {
		s.EnableHTTP2 = true
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	return s
}

// HTTP/1.1, and HTTP/2 over TLS, with requests at the same time.
func TestHTTP(t *testing.T) {
	bed := newTestbed(t, testbed.Config{})
	d := Dialer{Device: bed.Dev[0]}
	for _, c := range []struct {
		proto string
		tls   bool
	}{{"HTTP/1.1", false}, {"HTTP/2.0", true}} {
		t.Run(c.proto, func(t *testing.T) {
			s := newServer(t, listenOn(t, bed, Config{}), c.tls)
			tr := &http.Transport{DialContext: d.DialContext, ForceAttemptHTTP2: true}
			if c.tls {
				tr.TLSClientConfig = clientConfig(s)
			}
			t.Cleanup(tr.CloseIdleConnections)
			client := &http.Client{Transport: tr, Timeout: patience}
			var wg sync.WaitGroup
			for i := range 8 {
				wg.Go(func() {
					if err := postEcho(client, s.URL, noise(100_000+i, uint64(i)), c.proto); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
		})
	}
}

func postEcho(c *http.Client, url string, body []byte, proto string) error {
	r, err := c.Post(url, "application/octet-stream", bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer r.Body.Close()
	got, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	if !bytes.Equal(got, body) || r.Header.Get("X-Proto") != proto {
		return fmt.Errorf("%d bytes over %s, want the %d bytes of the request over %s", len(got),
			r.Header.Get("X-Proto"), len(body), proto)
	}
	return nil
}

// crypto/tls over a Conn, with CloseWrite, which sends an alert first.
func TestTLS(t *testing.T) {
	cert := httptest.NewUnstartedServer(nil)
	cert.StartTLS()
	defer cert.Close()
	client, server := newPair(t, Config{})
	out, in := tls.Client(client, clientConfig(cert)), tls.Server(server, cert.TLS)
	data := noise(1<<20, 5)
	go func() {
		_, _ = out.Write(data) // the other side finds an error
		_ = out.CloseWrite()
	}()
	got, err := io.ReadAll(in)
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf("ReadAll() = %d bytes, %v; want %d as sent", len(got), err, len(data))
	}
	check(t, in.Close())
}

// clientConfig returns the configuration of a client that trusts the server.
func clientConfig(s *httptest.Server) *tls.Config {
	cfg := s.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	cfg.ServerName = "example.com" // in the certificate of package httptest
	return cfg
}
