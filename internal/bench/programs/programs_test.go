package programs

import (
	"bytes"
	"encoding/json"
	"net"
	"strings"
	"testing"
)

const bandwidthOutput = `
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536      24912          1399.31            772.95               0.012367
---------------------------------------------------------------------------------------
`

const latencyOutput = `
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]
 8       2000          50.81          19492.85     110.68             231.94         603.75          2083.63                18382.90
`

func TestParseRow(t *testing.T) {
	if r, err := parseRow([]byte(bandwidthOutput), 65536); err != nil || r.Bandwidth != 772.95 ||
		r.Rate != 0.012367 {
		t.Errorf("parseRow() = %+v, %v, want 772.95 MB/s and 0.012367 Mpps", r, err)
	}
	if r, err := parseRow([]byte(latencyOutput), 8); err != nil || r.Typical != 110.68 {
		t.Errorf("parseRow() = %+v, %v, want 110.68 us", r, err)
	}
	for _, text := range []string{"", bandwidthOutput, " 8 2000 fast 1 2"} {
		if r, err := parseRow([]byte(text), 8); err == nil {
			t.Errorf("parseRow(%q) = %+v, want an error", text, r)
		}
	}
}

func TestParseCalls(t *testing.T) {
	n, err := parseCalls([]byte("counter            value\nintercepted_calls    191\n"))
	if err != nil || n != 191 {
		t.Errorf("parseCalls() = %v, %v, want 191", n, err)
	}
	if n, err := parseCalls([]byte("gorxe run: no such program")); err == nil {
		t.Errorf("parseCalls() = %v, want an error", n)
	}
}

// listens finds a listening socket without connecting to it.
func TestListens(t *testing.T) {
	for _, network := range []string{"tcp4", "tcp"} {
		l, err := net.Listen(network, ":0")
		if err != nil {
			t.Fatal(err)
		}
		_, port, _ := net.SplitHostPort(l.Addr().String())
		if !listens(port) {
			t.Errorf("%s: listens(%s) = false, want true", network, port)
		}
		_ = l.Close()
		if listens(port) {
			t.Errorf("%s: listens(%s) = true after Close, want false", network, port)
		}
	}
}

// Targets are compared with the ratio, or with the value if there is no baseline.
func TestTargets(t *testing.T) {
	b := &bench{Config: Config{Rounds: 1}, samples: map[string]*samples{
		"fast": {[]float64{7}, []float64{10}}, "slow": {[]float64{5}, []float64{10}},
		"low": {[]float64{7}, nil}, "high": {[]float64{9}, nil},
		"scattered": {[]float64{1, 9}, []float64{1, 1}},
	}}
	base := test{}.own(gbits)
	b.figures = []figure{
		{name: "fast", target: 0.6, base: base}, {name: "slow", target: 0.6, base: base},
		{name: "low", target: 8, atMost: true}, {name: "high", target: 8, atMost: true},
		{name: "scattered", target: 8, base: base},
	}
	want := map[string]string{"fast": "false", "slow": "true", "low": "false", "high": "true",
		"scattered": "null"}
	r := b.report()
	for _, v := range r.Results {
		if got, _ := json.Marshal(v.Missed); string(got) != want[v.Name] {
			t.Errorf("%s: missed = %s, want %s", v.Name, got, want[v.Name])
		}
	}
	var out bytes.Buffer
	if err := r.WriteTable(&out); err != nil || !strings.Contains(out.String(), "FAIL") {
		t.Errorf("WriteTable() = %v and writes %q, want a missed target", err, out.String())
	}
}
