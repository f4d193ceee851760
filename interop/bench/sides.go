package main

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// row is what a tool reports about a run.
type row struct {
	mib      float64 // bandwidth, 2^20 bytes per second
	mpps     float64 // 10^6 messages per second
	typical  float64 // latency, us: median
	p99      float64 // latency, us
	mtu      int     // path MTU; 0 if the tool does not report it
	datapath string  // of gorxe
}

// side is one of the competitors.
type side struct {
	name   string
	prefix string // of the names of the rows that compare it with rxe
	// argv is the command line; host is empty for the server.
	argv  func(f *figure, n int, o *options, host string) []string
	parse func(f *figure, out string) (row, error)
}

// tcpPort is the TCP port on which both sides of a run meet.
const tcpPort = 18515

var (
	gorxeSide = side{"gorxe", "", gorxeArgs, parseGorxe}
	runSide   = side{"gorxe run", "run_", runArgs, parsePerftest}
	rxeSide   = side{"rxe", "", perftestArgs, parsePerftest}
	sides     = [...]*side{&gorxeSide, &rxeSide, &runSide}
)

// pathMTU returns the largest path MTU that fits the device MTU with up to 80 bytes of headers, as
// rxe counts them.
func pathMTU(device int) int {
	m := 256
	for m < 4096 && 2*m+80 <= device {
		m *= 2
	}
	return m
}

func gorxeArgs(f *figure, n int, o *options, host string) []string {
	args := []string{gorxePath, "perf", strings.ReplaceAll(f.op, "_", "-"), "-d", "eth0", "--mode",
		o.mode, "-p", strconv.Itoa(tcpPort), "--json",
		"-s", strconv.Itoa(f.bytes), "-n", strconv.Itoa(n), "-m", strconv.Itoa(pathMTU(o.mtu))}
	if host != "" {
		args = append(args, host)
	}
	return args
}

// runArgs runs the program of perftestArgs on gorxe's device, which has the same name and GIDs.
func runArgs(f *figure, n int, o *options, host string) []string {
	return append([]string{gorxePath, "run", "--dev", "eth0", "--datapath", "xdp", "--mode", o.mode,
		"--"}, perftestArgs(f, n, o, host)...)
}

// perftestArgs: -x 1 is the GID of the IPv4 address. -F accepts a CPU with a varying clock. -N
// omits the peak, for which perftest reads the clock for every message.
func perftestArgs(f *figure, n int, o *options, host string) []string {
	args := []string{"ib_" + f.op, "-d", "rxe0", "-x", "1", "-F", "-p", strconv.Itoa(tcpPort), "-s",
		strconv.Itoa(f.bytes), "-n", strconv.Itoa(n),
		"-m", strconv.Itoa(pathMTU(o.mtu))}
	if !f.latency {
		args = append(args, "-N")
	}
	if host != "" {
		args = append(args, host)
	}
	return args
}

// parseGorxe parses the JSON line of 'gorxe perf --json'.
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
		return row{}, fmt.Errorf("gorxe perf printed no JSON: %w", err)
	}
	return checked(f, row{mib: j.Average, mpps: j.MsgRate, typical: j.Typical, p99: j.P99,
		mtu: j.MTU, datapath: j.Datapath})
}

// parsePerftest parses the line below perftest's "#bytes". It reads only the columns that it needs:
// the deviation may be "-nan" because of a rounding error in perftest.
func parsePerftest(f *figure, out string) (row, error) {
	_, table, found := strings.Cut(out, "#bytes")
	lines := strings.Split(table, "\n")
	if !found || len(lines) < 2 {
		return row{}, fmt.Errorf("ib_%s printed no table", f.op)
	}
	columns := []int{3, 4} // of bytes, iterations, peak, average, message rate
	if f.latency {
		columns = []int{4, 7} // of bytes, iterations, min, max, typical, average, deviation, 99 %
	}
	words, v := strings.Fields(lines[1]), [2]float64{}
	for i, c := range columns {
		if c >= len(words) {
			return row{}, fmt.Errorf("ib_%s printed %d columns: this version of perftest is unknown", f.op, len(words))
		}
		var err error
		if v[i], err = strconv.ParseFloat(words[c], 64); err != nil {
			return row{}, fmt.Errorf("ib_%s printed %q instead of a number", f.op, words[c])
		}
	}
	mtu := perftestMTU(out)
	if f.latency {
		return checked(f, row{typical: v[0], p99: v[1], mtu: mtu})
	}
	return checked(f, row{mib: v[0], mpps: v[1], mtu: mtu})
}

// perftestMTU parses the line " Mtu             : 1024[B]"; 0 if there is none.
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
		return row{}, fmt.Errorf("%s: the result %v is not a positive number", f.name, v)
	}
	return r, nil
}
