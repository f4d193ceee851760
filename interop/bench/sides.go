package main

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// row is what a tool tells of a run.
type row struct {
	mib      float64 // bandwidth, 2^20 bytes a second
	mpps     float64 // 10^6 messages a second
	typical  float64 // latency, us: median
	p99      float64 // latency, us
	mtu      int     // path MTU; 0 where the tool does not tell
	datapath string  // of gorxe
}

// side is one of the two competitors.
type side struct {
	name string
	// argv is the command of one end; host is empty for the server.
	argv  func(f *figure, n int, o *options, host string) []string
	parse func(f *figure, out string) (row, error)
}

// tcpPort is where the two ends of a run meet, on either side.
const tcpPort = 18515

var sides = [...]side{{"gorxe", gorxeArgs, parseGorxe}, {"rxe", perftestArgs, parsePerftest}}

// pathMTU is what fits the device MTU beside the headers, up to 80 bytes as rxe counts them.
func pathMTU(device int) int {
	m := 256
	for m < 4096 && 2*m+80 <= device {
		m *= 2
	}
	return m
}

func gorxeArgs(f *figure, n int, o *options, host string) []string {
	args := []string{gorxePath, "perf", strings.ReplaceAll(f.op, "_", "-"), "-d", "eth0", "--mode", o.mode, "-p", strconv.Itoa(tcpPort), "--json",
		"-s", strconv.Itoa(f.bytes), "-n", strconv.Itoa(n), "-m", strconv.Itoa(pathMTU(o.mtu))}
	if host != "" {
		args = append(args, host)
	}
	return args
}

// perftestArgs: -x 1 is the GID of the IPv4 address; -F tolerates a CPU whose clock varies; -N leaves the peak out, for
// which perftest reads the clock at every message.
func perftestArgs(f *figure, n int, o *options, host string) []string {
	args := []string{"ib_" + f.op, "-d", "rxe0", "-x", "1", "-F", "-p", strconv.Itoa(tcpPort), "-s", strconv.Itoa(f.bytes), "-n", strconv.Itoa(n),
		"-m", strconv.Itoa(pathMTU(o.mtu))}
	if !f.latency {
		args = append(args, "-N")
	}
	if host != "" {
		args = append(args, host)
	}
	return args
}

// parseGorxe reads the line of JSON of 'gorxe perf --json'.
func parseGorxe(f *figure, out string) (row, error) {
	var j struct {
		Datapath string  `json:"datapath"`
		MTU      int     `json:"path_mtu"`
		Average  float64 `json:"bw_average"`
		MsgRate  float64 `json:"msg_rate"`
		Typical  float64 `json:"t_typical"`
		P99      float64 `json:"t_99"`
	}
	if err := json.Unmarshal([]byte(out), &j); err != nil {
		return row{}, fmt.Errorf("no JSON in what gorxe perf printed: %w", err)
	}
	return checked(f, row{mib: j.Average, mpps: j.MsgRate, typical: j.Typical, p99: j.P99, mtu: j.MTU, datapath: j.Datapath})
}

// parsePerftest reads the line below perftest's "#bytes". It looks at no other column than it needs: the deviation may be
// "-nan", from a rounding error in perftest.
func parsePerftest(f *figure, out string) (row, error) {
	_, table, found := strings.Cut(out, "#bytes")
	lines := strings.Split(table, "\n")
	if !found || len(lines) < 2 {
		return row{}, fmt.Errorf("no table in what ib_%s printed", f.op)
	}
	columns := []int{3, 4} // of bytes, iterations, peak, average, message rate
	if f.latency {
		columns = []int{4, 7} // of bytes, iterations, min, max, typical, average, deviation, 99 %
	}
	words, v := strings.Fields(lines[1]), [2]float64{}
	for i, c := range columns {
		if c >= len(words) {
			return row{}, fmt.Errorf("ib_%s printed %d columns: this perftest is unknown", f.op, len(words))
		}
		var err error
		if v[i], err = strconv.ParseFloat(words[c], 64); err != nil {
			return row{}, fmt.Errorf("ib_%s printed %q where a number belongs", f.op, words[c])
		}
	}
	mtu := perftestMTU(out)
	if f.latency {
		return checked(f, row{typical: v[0], p99: v[1], mtu: mtu})
	}
	return checked(f, row{mib: v[0], mpps: v[1], mtu: mtu})
}

// perftestMTU is from the line " Mtu             : 1024[B]"; 0 if there is none.
func perftestMTU(out string) int {
	for l := range strings.Lines(out) {
		if name, value, ok := strings.Cut(l, ":"); ok && strings.TrimSpace(name) == "Mtu" {
			value, _, _ = strings.Cut(strings.TrimSpace(value), "[")
			n, _ := strconv.Atoi(value)
			return n
		}
	}
	return 0
}

// checked refuses a row without the figure.
func checked(f *figure, r row) (row, error) {
	if v := f.value(&r); !(v > 0) || math.IsInf(v, 0) {
		return row{}, fmt.Errorf("%s: the result %v is no positive number", f.name, v)
	}
	return r, nil
}
