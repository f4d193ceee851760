//go:build interop

package interop_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"
)

// perftest is one of its programs: op as gorxe perf has it, size and number of messages, queue pairs. With -R the two ends
// meet by rdma_cm.
type perftest struct {
	op    string // "write-bw"
	size  int    // 0 = all of them (-a)
	iters int
	qps   int
	cm    bool
	extra string // for both
	time  time.Duration
}

func (p perftest) flags() string {
	size := " -a"
	if p.size > 0 {
		size = fmt.Sprintf(" -s %d", p.size)
	}
	if p.qps > 1 {
		size += fmt.Sprintf(" -q %d", p.qps)
	}
	if p.cm {
		size += " -R"
	}
	return strings.TrimRight(fmt.Sprintf("%s -n %d %s", size, p.iters, p.extra), " ")
}

func (p perftest) tool(vs []variant) tool {
	program := "ib_" + strings.ReplaceAll(p.op, "-", "_")
	return tool{
		name: program + p.flags(), port: 18515, variants: vs, time: p.time,
		kernel: func(v variant, host string) string {
			return fmt.Sprintf("%s -d rxe0 -F -x %d -m %d%s %s", program, gidIndex(v), int(v.mtu), p.flags(), host)
		},
		gorxe: func(v variant, host string) []string {
			args := append([]string{"perf", p.op, "-d", "gx0", "-x", strconv.Itoa(gidIndex(v)), "-m", strconv.Itoa(int(v.mtu))}, strings.Fields(p.flags())...)
			if host != "" {
				args = append(args, host)
			}
			return args
		},
		check: func(t *testing.T, v variant, gorxe, kernel string) {
			want := strconv.Itoa(p.size)
			if p.size == 0 {
				want = strconv.Itoa(8 << 20)
			}
			// The row of results begins with size and iterations; only the active end has one.
			rows := map[bool]string{false: gorxe, true: kernel}[v.gorxePassive]
			for l := range strings.Lines(rows) {
				if f := strings.Fields(l); len(f) > 3 && f[0] == want {
					t.Attr("figure", strings.Join(f[2:], " "))
					return
				}
			}
			t.Errorf("no row for %s bytes:\n%s", want, rows)
		},
	}
}

// perftests: every program with one size, then many queue pairs, all sizes, and connections by rdma_cm.
func perftests() (out []tool) {
	vs := few()
	for _, op := range []string{"write", "read", "send"} {
		out = append(out,
			perftest{op: op + "-bw", size: 65536, iters: 300, qps: 1}.tool(vs), perftest{op: op + "-lat", size: 8, iters: 300, qps: 1}.tool(vs),
			perftest{op: op + "-bw", size: 4096, iters: 200, qps: 8}.tool(vs))
		if *coreFlag {
			continue
		}
		out = append(out,
			perftest{op: op + "-bw", iters: 5, qps: 1, time: 3 * time.Minute}.tool(vs), perftest{op: op + "-lat", iters: 5, qps: 1, time: 3 * time.Minute}.tool(vs),
			perftest{op: op + "-bw", size: 65536, iters: 300, qps: 1, cm: true}.tool(cmVariants()),
			perftest{op: op + "-bw", size: 4096, iters: 200, qps: 8, cm: true}.tool(cmVariants()),
			perftest{op: op + "-lat", size: 8, iters: 300, qps: 1, cm: true}.tool(cmVariants()))
	}
	return append(out, perftest{op: "atomic-bw", size: 8, iters: 300, qps: 1}.tool(vs), perftest{op: "atomic-lat", size: 8, iters: 300, qps: 1}.tool(vs))
}
