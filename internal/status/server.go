package status

import (
	"context"
	"embed"
	"errors"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/net/netutil"
)

// Limits of the HTTP server.
const (
	maxConns     = 32           // see connections
	maxOpen      = 2 * maxConns // with those that are being closed
	maxScrapes   = 4
	maxHeader    = 16 << 10
	readTimeout  = 5 * time.Second
	writeTimeout = 15 * time.Second
	idleTimeout  = time.Minute
)

//go:embed page
var pageFiles embed.FS

// Handler returns a handler that serves the snapshots of k: "/" is a page, "/status.json" a
// Snapshot, and "/metrics" are metrics of Prometheus. name is the name or the address under which
// clients reach the server.
//
// Web sites that the user of a browser visits cannot read it: the handler refuses requests from
// pages of other origins, and requests whose Host is a name other than localhost and name, as in
// DNS rebinding.
func Handler(k *Collector, name string) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(exporter{k})
	files, err := fs.Sub(pageFiles, "page")
	if err != nil {
		panic(err) // the folder is embedded
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		MaxRequestsInFlight: maxScrapes, Timeout: writeTimeout, DisableCompression: true}))
	mux.HandleFunc("GET /status.json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(k.text(everybody)) // the client is gone
	})
	for path, file := range map[string][2]string{
		"GET /{$}":      {"index.html", "text/html; charset=utf-8"},
		"GET /page.js":  {"page.js", "text/javascript; charset=utf-8"},
		"GET /page.css": {"page.css", "text/css; charset=utf-8"},
	} {
		text, err := fs.ReadFile(files, file[0])
		if err != nil {
			panic(err) // the files are embedded
		}
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", file[1])
			_, _ = w.Write(text)
		})
	}
	return protect(mux, name)
}

// policy lets the page load its own files and the JSON, and nothing else.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// protect refuses requests that other web sites have caused.
func protect(h http.Handler, name string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		head := w.Header()
		head.Set("Content-Security-Policy", policy)
		head.Set("Cross-Origin-Resource-Policy", "same-origin")
		head.Set("Cross-Origin-Opener-Policy", "same-origin")
		head.Set("X-Content-Type-Options", "nosniff")
		head.Set("X-Frame-Options", "DENY")
		head.Set("Referrer-Policy", "no-referrer")
		head.Set("Cache-Control", "no-store")
		switch {
		case !ownHost(r.Host, name):
			http.Error(w, "use the address of the server instead of a name, or pass the name to "+
				"gorxe up --metrics", http.StatusMisdirectedRequest)
		case crossSite(r):
			http.Error(w, "requests from other sites are refused", http.StatusForbidden)
		default:
			h.ServeHTTP(w, r)
		}
	})
}

// ownHost reports whether the Host of a request is an address, localhost or name.
func ownHost(hostPort, name string) bool {
	host := hostPort
	if h, _, err := net.SplitHostPort(hostPort); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if strings.EqualFold(host, "localhost") || strings.EqualFold(host, name) {
		return true
	}
	_, err := netip.ParseAddr(host)
	return err == nil
}

// crossSite reports whether a page of another origin has caused a request. Following a link to the
// page is permitted.
func crossSite(r *http.Request) bool {
	if origin := r.Header.Get("Origin"); origin != "" {
		if u, err := url.Parse(origin); err != nil || u.Host != r.Host {
			return true
		}
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "same-origin", "none":
		return false
	}
	return r.URL.Path != "/" || r.Header.Get("Sec-Fetch-Dest") != "document"
}

// Listen opens the TCP port of a server. It limits the number of connections.
func Listen(ctx context.Context, a *Address) (net.Listener, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", a.String())
	if err != nil {
		return nil, err
	}
	return netutil.LimitListener(l, maxOpen), nil
}

// Serve answers requests until ctx ends, and closes l.
func Serve(ctx context.Context, l net.Listener, h http.Handler) error {
	s := &http.Server{Handler: h, ReadTimeout: readTimeout, WriteTimeout: writeTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader, ConnState: new(connections).changed}
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	defer stop()
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
