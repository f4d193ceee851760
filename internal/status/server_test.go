package status

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gorxe/gorxe/roce"
)

// get asks a server for a path, with header lines as pairs; "Host" is the Host.
func get(t *testing.T, url string, header ...string) (status int, h http.Header, body string) {
	t.Helper()
	req, err := http.NewRequest("GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			req.Host = header[i+1]
		}
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(b)
}

// newServer returns the address of a server for a device that has sent a message.
func newServer(t *testing.T) (base string, p *pair) {
	t.Helper()
	p = newPair(t)
	p.send(t, 1)
	k := NewCollector(Config{Device: p.dev[0], Name: "test"})
	s := httptest.NewServer(Handler(k, "nic.example"))
	t.Cleanup(s.Close)
	return s.URL, p
}

// serving starts a server and returns its address.
func serving(t *testing.T) string {
	t.Helper()
	p := newPair(t)
	h := Handler(NewCollector(Config{Device: p.dev[0], Name: "test"}), "")
	var a Address
	if err := a.Set("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	l, err := Listen(t.Context(), &a)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error)
	ctx, stop := context.WithCancel(t.Context())
	go func() { served <- Serve(ctx, l, h) }()
	t.Cleanup(func() {
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

// Clients that keep idle connections open do not keep others out.
func TestIdleConnections(t *testing.T) {
	addr := serving(t)
	for i := range 3 * maxConns {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close() // at the end of the test
		// An idle connection would make this client wait until the end of idleTimeout.
		if err := c.SetDeadline(time.Now().Add(idleTimeout / 2)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, "GET /page.css HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatalf("client %d: %v", i, err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("client %d: status %d, %v", i, resp.StatusCode, err)
		}
		resp.Body.Close()
	}
}

// Clients that do not complete their requests do not keep others out: those of other prefixes
// always have a connection, and those of the same prefix replace the oldest one.
func TestUnfinishedRequests(t *testing.T) {
	addr := serving(t)
	for range 3 * maxConns {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close() // at the end of the test
		if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: localhost\r\nA: "); err != nil {
			t.Fatal(err)
		}
	}
	for _, from := range []net.IP{{127, 0, 0, 1}, {127, 0, 0, 2}} {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: from}, Timeout: readTimeout / 2}
		c := http.Client{Timeout: readTimeout / 2, Transport: &http.Transport{DialContext: d.DialContext,
			DisableKeepAlives: true}}
		resp, err := c.Get("http://" + addr + "/page.css")
		if err != nil {
			t.Errorf("from %v: %v", from, err)
			continue
		}
		resp.Body.Close()
	}
}

// TestSurplusConnection: the prefix with the most connections loses its oldest idle one, otherwise
// its oldest one.
func TestSurplusConnection(t *testing.T) {
	var c connections
	conn := func(last byte) net.Conn {
		return fakeConn{addr: &net.TCPAddr{IP: net.IPv4(10, 0, 0, last), Port: int(last)}}
	}
	honest := conn(1)
	if c.note(honest, http.StateNew) != nil {
		t.Fatal("the first connection is too much")
	}
	var others []*fakeConn
	add := func() net.Conn {
		o := &fakeConn{addr: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 2)}}
		others = append(others, o)
		return c.note(o, http.StateNew)
	}
	for range maxConns - 1 {
		if add() != nil {
			t.Fatal("a connection is closed too early")
		}
	}
	if v := add(); v != others[0] {
		t.Error("not the oldest connection of the prefix with the most is closed")
	}
	c.note(honest, http.StateIdle)
	c.note(others[7], http.StateIdle)
	c.note(others[5], http.StateIdle)
	c.note(others[7], http.StateActive)
	if v := add(); v != others[5] {
		t.Error("not the idle connection of the prefix with the most is closed")
	}
	c.note(others[0], http.StateClosed) // has been removed before
	if len(c.open) != maxConns {
		t.Errorf("%d connections", len(c.open))
	}
}

type fakeConn struct {
	net.Conn
	addr net.Addr
}

func (c fakeConn) RemoteAddr() net.Addr { return c.addr }

func TestMetrics(t *testing.T) {
	base, p := newServer(t)
	code, _, body := get(t, base+"/metrics")
	if code != http.StatusOK {
		t.Fatalf("status %d: %s", code, body)
	}
	device := `device="` + p.dev[0].Info().Name + `",program="test"`
	for _, want := range []string{
		"# HELP gorxe_sent_pkts_total packets sent\n",
		"# TYPE gorxe_sent_pkts_total counter\n",
		`gorxe_completions_total{` + device + `,slot="0"} `,
		"# TYPE gorxe_parked_bytes gauge\n",
		`gorxe_drop_frame_total{` + device + `,reason="bad_icrc",slot="0"} 0`,
		`gorxe_class_sent_pkts_total{class="0",` + device,
		`gorxe_cm_received_total{` + `device="` + p.dev[0].Info().Name + `",message="req",program="test"`,
		`gorxe_qp_acked_psns_total{` + device + `,qpn="0x`,
		"# TYPE gorxe_rtt_seconds histogram\n",
		`gorxe_rtt_seconds_bucket{` + device + `,slot="0",le="+Inf"} `,
		`gorxe_qp_sent_bytes_total{` + device + `,qpn="0x`,
		"# TYPE gorxe_qp_round_trip_seconds histogram\n",
		`gorxe_qp_round_trip_seconds_count{` + device + `,qpn="0x`,
		`gorxe_program_objects{` + device + `,slot="0",type="qp"} 1`,
		"gorxe_device_up{", "gorxe_programs{", "gorxe_qps_omitted{",
	} {
		if !strings.Contains(body, want) {
			t.Errorf("the metrics do not contain %q", want)
		}
	}
	if t.Failed() {
		t.Logf("%s", body)
	}
}

// Each metric of a device has a counter of the same value.
func TestCounterMetrics(t *testing.T) {
	n := 0
	for _, c := range counterMetrics {
		if !counterNames[c.counter] {
			t.Errorf("metric %s%v: there is no counter %q", c.Name, c.Labels, c.counter)
		}
		if c.Help == "" {
			t.Errorf("metric %s has no help text", c.Name)
		}
		n++
	}
	if want := len(counterNames); n != want {
		t.Errorf("%d metrics, want one for each of %d counters", n, want)
	}
	if (roce.Counters{}).Get("sent_pkts") != 0 {
		t.Error("the zero Counters are not 0")
	}
}

func TestStatusJSON(t *testing.T) {
	base, _ := newServer(t)
	code, h, body := get(t, base+"/status.json")
	var s Snapshot
	if err := json.Unmarshal([]byte(body), &s); err != nil || code != http.StatusOK ||
		h.Get("Content-Type") != "application/json" || len(s.Programs) != 1 {
		t.Errorf("status %d, %v, %v: %s", code, err, h, body)
	}
}

// Web sites cannot read the server.
func TestOtherSites(t *testing.T) {
	base, _ := newServer(t)
	own := strings.TrimPrefix(base, "http://")
	_, port, _ := net.SplitHostPort(own)
	for _, test := range []struct {
		path   string
		header []string
		want   int
	}{
		{"/", nil, 200}, {"/page.js", nil, 200}, {"/page.css", nil, 200}, {"/x", nil, 404},
		{"/index.html", nil, 404},
		{"/metrics", []string{"Host", "localhost:" + port}, 200},
		{"/metrics", []string{"Host", "NIC.example:" + port}, 200},
		{"/metrics", []string{"Host", "[::1]:80"}, 200},
		{"/metrics", []string{"Host", "[::1]"}, 200},
		{"/metrics", []string{"Host", "10.0.0.1"}, 200},
		{"/metrics", []string{"Host", "evil.example"}, 421}, // DNS rebinding
		{"/status.json", []string{"Host", "evil.example:" + port}, 421},
		{"/", []string{"Host", "127.0.0.1.evil.example:" + port}, 421},
		{"/status.json", []string{"Sec-Fetch-Site", "same-origin"}, 200},
		{"/status.json", []string{"Sec-Fetch-Site", "none", "Sec-Fetch-Dest", "document"}, 200},
		{"/status.json", []string{"Sec-Fetch-Site", "cross-site"}, 403},
		{"/status.json", []string{"Sec-Fetch-Site", "same-site"}, 403},
		{"/page.js", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Dest", "script"}, 403},
		// a link
		{"/", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Dest", "document"}, 200},
		{"/", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Dest", "iframe"}, 403},
		{"/metrics", []string{"Origin", "http://evil.example"}, 403},
		{"/metrics", []string{"Origin", "null"}, 403},
		{"/metrics", []string{"Origin", base}, 200},
	} {
		code, h, body := get(t, base+test.path, test.header...)
		if code != test.want {
			t.Errorf("%s with %v: status %d, want %d: %.100s", test.path, test.header, code, test.want,
				body)
		}
		for name, want := range map[string]string{
			"Cross-Origin-Resource-Policy": "same-origin", "X-Frame-Options": "DENY",
			"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store",
			"Access-Control-Allow-Origin": "",
		} {
			if got := h.Get(name); got != want {
				t.Errorf("%s with %v: %s is %q, want %q", test.path, test.header, name, got, want)
			}
		}
		if p := h.Get("Content-Security-Policy"); !strings.Contains(p, "default-src 'none'") {
			t.Errorf("%s: Content-Security-Policy is %q", test.path, p)
		}
	}
	for _, method := range []string{"POST", "PUT", "DELETE", "PATCH"} {
		req, _ := http.NewRequest(method, base+"/status.json", nil)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusMethodNotAllowed {
			t.Errorf("%s: status %d, want 405", method, resp.StatusCode)
		}
	}
}

// The page loads nothing from other hosts.
func TestPageIsSelfContained(t *testing.T) {
	base, _ := newServer(t)
	for _, path := range []string{"/", "/page.js", "/page.css"} {
		_, _, body := get(t, base+path)
		text := strings.ReplaceAll(body, "http://www.w3.org/2000/svg", "") // a namespace
		if body == "" || strings.Contains(text, "//cdn") || strings.Contains(text, "http://") ||
			strings.Contains(text, "https://") || strings.Contains(text, "innerHTML") {
			t.Errorf("%s refers to other hosts, or is empty:\n%.300s", path, body)
		}
	}
}

// docs/monitoring.md describes each metric that is neither a counter of a device nor of a queue
// pair.
func TestDocumentedMetrics(t *testing.T) {
	text, err := os.ReadFile("../../docs/monitoring.md")
	if err != nil {
		t.Fatal(err)
	}
	base, _ := newServer(t)
	_, _, body := get(t, base+"/metrics")
	counters := map[string]bool{}
	for _, c := range counterMetrics {
		counters[namespace+c.Name], counters[namespace+c.Name+"_total"] = true, true
	}
	n := 0
	for l := range strings.Lines(body) {
		rest, ok := strings.CutPrefix(l, "# HELP ")
		name, _, _ := strings.Cut(rest, " ")
		if !ok || counters[name] || strings.HasPrefix(name, namespace+"qp_") {
			continue
		}
		if n++; !strings.Contains(string(text), "| `"+name+"` |") {
			t.Errorf("docs/monitoring.md does not describe %s", name)
		}
	}
	if documented := strings.Count(string(text), "\n| `gorxe_"); documented != n {
		t.Errorf("docs/monitoring.md describes %d metrics, want %d", documented, n)
	}
}
