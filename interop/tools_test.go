//go:build interop

package interop_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/interop/lab"
)

// gidIndex is the index of an address in the GID tables of both ends: the link-local address is 0.
func gidIndex(v variant) int {
	if v.v6 {
		return 2
	}
	return 1
}

// pingpong is rdma-core's example of that kind.
func pingpong(kind string, iters int, size func(bth.MTU) int, vs []variant) tool {
	return tool{
		name: "ibv_" + kind + "_pingpong", port: 18515, tcp4: true, variants: vs,
		kernel: func(v variant, host string) string {
			mtu := fmt.Sprintf(" -m %d", int(v.mtu))
			if kind == "ud" {
				mtu = ""
			}
			return fmt.Sprintf("ibv_%s_pingpong -d rxe0 -g %d -n %d -s %d%s %s", kind, gidIndex(v), iters, size(v.mtu), mtu, host)
		},
		gorxe: func(v variant, host string) []string {
			args := []string{"pingpong", kind, "-d", "gx0", "-n", strconv.Itoa(iters), "-s", strconv.Itoa(size(v.mtu)), "-m", strconv.Itoa(int(v.mtu)),
				"-g", strconv.Itoa(gidIndex(v))}
			if kind != "srq" {
				args = append(args, "--check")
			}
			if host != "" {
				args = append(args, host)
			}
			return args
		},
		check: func(t *testing.T, v variant, gorxe, kernel string) {
			for who, out := range map[string]string{"gorxe": gorxe, "the kernel's side": kernel} {
				if !strings.Contains(out, fmt.Sprintf("%d iters in", iters)) {
					t.Errorf("%s does not say that it did %d iterations:\n%s", who, iters, out)
				}
			}
		},
	}
}

// rping is librdmacm's ping, which compares what comes back (-V).
func rping(count int, vs []variant) tool {
	return tool{
		name: "rping -V", port: 7174, cm: true, service: true, ready: "Ctrl-C ends", variants: vs,
		kernel: func(v variant, host string) string {
			if host == "" {
				return fmt.Sprintf("rping -s -a %s -C %d -V", guestAddr(v), count)
			}
			return fmt.Sprintf("rping -c -a %s -C %d -V", host, count)
		},
		gorxe: func(v variant, host string) []string {
			if host == "" {
				return []string{"up", "gx0"}
			}
			return []string{"ping", host, "-I", "gx0", "--rping", "-c", strconv.Itoa(count), "-i", "0"}
		},
		check: func(t *testing.T, v variant, gorxe, kernel string) {
			if want := fmt.Sprintf("%d sent, %d received", count, count); !v.gorxePassive && !strings.Contains(gorxe, want) {
				t.Errorf("gorxe does not say %q:\n%s", want, gorxe)
			}
		},
	}
}

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

// guestAddr is the first guest's address, in every lab.
func guestAddr(v variant) string {
	if v.v6 {
		return "fd77::1"
	}
	return "10.77.0.1"
}

func fixed(n int) func(bth.MTU) int      { return func(bth.MTU) int { return n } }
func onePacket(mtu bth.MTU) int          { return int(mtu) }
func both1500And(vs []variant) []variant { return append(vs, onDevice1500()...) }

// onDevice1500 is left out of the core: its lab has to boot first.
func onDevice1500() []variant {
	if *coreFlag {
		return nil
	}
	return variants(1500)
}

// TestTools: Debian's own programs take gorxe for one of theirs.
func TestTools(t *testing.T) {
	all := variants(lab.MaxMTU)
	tools := []tool{
		pingpong("rc", 200, fixed(4096), both1500And(all)),
		pingpong("uc", 200, fixed(4096), both1500And(all)),
		pingpong("ud", 200, onePacket, both1500And(all)),
		pingpong("srq", 400, fixed(4096), both1500And(all)),
		rping(1000, cmVariants()),
	}
	for _, s := range append(tools, perftests()...) {
		stage(t, s.name, s.variants, func(t *testing.T, r *rig, v variant) { s.run(t, r, v) })
	}
}
