//go:build interop

package interop_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gorxe/gorxe/interop/guest/image"
	"github.com/gorxe/gorxe/interop/lab"
)

// perftest is one of its programs: op as in gorxe perf, size and number of messages, queue pairs.
type perftest struct {
	op      string // "write-bw"
	size    int    // 0: all of them (-a)
	iters   int    // 0: for some seconds
	seconds int
	qps     int  // 0: one
	cm      bool // -R: the sides meet by rdma_cm
	events  bool // -e: perftest sleeps until a completion comes
	up      bool // gorxe's server is gorxe up
	time    time.Duration
}

// meetsByIPv6: perftest meets its peer over IPv4 by default, and Debian 12's has no other way, by
// TCP or by rdma_cm.
func meetsByIPv6() bool { return release == image.Trixie }

func (p perftest) program() string { return "ib_" + strings.ReplaceAll(p.op, "-", "_") }

// command is the program with the flags that only perftest has.
func (p perftest) command() string {
	if p.events {
		return p.program() + " -e"
	}
	return p.program()
}

// flags are those that both programs share.
func (p perftest) flags() []string {
	var out []string
	switch {
	case p.size == 0:
		out = append(out, "-a")
	case !strings.HasPrefix(p.op, "atomic"): // atomics have one size
		out = append(out, "-s", strconv.Itoa(p.size))
	}
	if p.iters > 0 {
		out = append(out, "-n", strconv.Itoa(p.iters))
	} else {
		out = append(out, "-D", strconv.Itoa(p.seconds))
	}
	if p.qps > 0 {
		out = append(out, "-q", strconv.Itoa(p.qps))
	}
	if p.cm {
		out = append(out, "-R")
	}
	return out
}

// kernel is the command in the guest.
func (p perftest) kernel(v variant, host string) string {
	ip := ""
	if v.v6 && meetsByIPv6() {
		ip = " --ipv6-addr"
	}
	return fmt.Sprintf("%s -d rxe0 -F -x %d -m %d%s %s %s", p.command(), gidIndex(v), int(v.mtu),
		ip, strings.Join(p.flags(), " "), host)
}

// gorxe returns gorxe's arguments.
func (p perftest) gorxe(v variant, host string) []string {
	if p.up && host == "" {
		return []string{"up", "gx0", "-x", strconv.Itoa(gidIndex(v))}
	}
	args := append([]string{"perf", p.op, "-d", "gx0", "-x", strconv.Itoa(gidIndex(v)), "-m",
		strconv.Itoa(int(v.mtu))}, p.flags()...)
	if host != "" {
		args = append(args, host)
	}
	return args
}

func (p perftest) tool(vs []variant) tool {
	t := tool{
		name: p.command() + " " + strings.Join(p.flags(), " "), port: 18515, cm: p.cm,
		ready: "Waiting for a client", service: p.up, meet4: !meetsByIPv6(),
		variants: vs, time: p.time, kernel: p.kernel, gorxe: p.gorxe,
		check: func(t *testing.T, v variant, gorxe,
			kernel string) {
			p.check(t, v.gorxePassive, gorxe, kernel)
		},
	}
	if p.up {
		t.name += ", gorxe up"
		t.ready = "Ctrl-C ends"
	}
	return t
}

// check looks for the row of results of the largest size. The active side always has one.
func (p perftest) check(t *testing.T, gorxePassive bool, gorxe, kernel string) {
	t.Helper()
	size := p.size
	if size == 0 {
		size = 8 << 20
	}
	rows := gorxe
	if gorxePassive {
		rows = kernel
	}
	for l := range strings.Lines(rows) {
		if f := strings.Fields(l); len(f) > 3 && f[0] == strconv.Itoa(size) {
			t.Attr("figure", strings.Join(f[2:], " "))
			return
		}
	}
	t.Errorf("no row for %d bytes:\n%s", size, rows)
}

// perftests covers every program with one size, for bandwidth also with many queue pairs, by TCP
// and by rdma_cm; all sizes; for a time; and gorxe up as the server.
func perftests() (out []tool) {
	both := few()[:2]
	for _, op := range []string{"write", "read", "send", "atomic"} {
		big, small := 65536, 8
		if op == "atomic" {
			big = 8
		}
		for _, cm := range []bool{false, true} {
			vs := few()
			if cm {
				vs = cmFew()
			}
			tests := []perftest{
				{op: op + "-bw", size: big, iters: 200, cm: cm},
				{op: op + "-lat", size: small, iters: 200, cm: cm},
				{op: op + "-bw", size: min(big, 4096), iters: 100, qps: 8, cm: cm},
			}
			switch {
			case *coreFlag && !cm:
				tests = tests[:2]
			case *coreFlag && op == "write":
				tests = tests[1:]
			case *coreFlag:
				tests = nil
			}
			for _, p := range tests {
				out = append(out, p.tool(vs))
			}
		}
		if *coreFlag {
			if op == "write" {
				out = append(out, perftest{op: "write-bw", size: 4096, iters: 100,
					up: true}.tool(both[1:]))
			}
			continue
		}
		out = append(out, perftest{op: op + "-bw", size: min(big, 4096), seconds: 2}.tool(both),
			perftest{op: op + "-lat", size: small, seconds: 2}.tool(both))
		if op != "write" && meetsByIPv6() {
			continue // one version suffices where versions do not differ
		}
		out = append(out,
			perftest{op: op + "-bw", size: min(big, 4096), iters: 100, up: true}.tool(both[1:]),
			perftest{op: op + "-lat", size: small, iters: 100, up: true}.tool(both[1:]))
		if op != "atomic" {
			out = append(out,
				perftest{op: op + "-bw", size: 1, iters: 100}.tool(both),
				perftest{op: op + "-lat", size: 1, iters: 100}.tool(both),
				perftest{op: op + "-bw", iters: 5, time: 3 * time.Minute}.tool(both),
				perftest{op: op + "-lat", iters: 5, time: 3 * time.Minute}.tool(both))
		}
	}
	// perftest waits forever if its receive completes before its send.
	return append(out, perftest{op: "send-lat", size: 64, iters: 100, events: true}.tool(both))
}

// cmFew is few for connections by rdma_cm, which use the largest path MTU of the device.
func cmFew() []variant {
	out := []variant{{lab.MaxMTU, 4096, false, false}, {lab.MaxMTU, 4096, false, true}}
	if !*coreFlag && meetsByIPv6() {
		out = append(out, variant{lab.MaxMTU, 4096, true, false},
			variant{lab.MaxMTU, 4096, true, true})
	}
	return out
}

// TestPerftest runs stock perftest against gorxe.
func TestPerftest(t *testing.T) { playPerftest(t) }

// TestPerftestNewer does the same with Debian 13's, which is two years newer. It is not in the core
// because it needs a second guest image.
func TestPerftestNewer(t *testing.T) {
	if *coreFlag {
		t.Skip("needs guests of Debian 13, which the core does not build")
	}
	newerGuests(t)
	playPerftest(t)
}

func playPerftest(t *testing.T) {
	for _, s := range perftests() {
		stage(t, s.name, s.variants, func(t *testing.T, r *rig, v variant) { s.run(t, r, v) })
	}
}

// TestPerftestStops: endless tests that are stopped on one side end cleanly on the other.
func TestPerftestStops(t *testing.T) {
	for _, who := range []string{"client", "server"} {
		for _, cm := range []bool{false, true} {
			p := perftest{op: "write-bw", size: 4096, seconds: 1, cm: cm}
			name := "ib_write_bw --run_infinitely"
			if cm {
				name += " -R"
			}
			stage(t, name+", the "+who+" is stopped", cmFew()[:2],
				func(t *testing.T, r *rig, v variant) {
					g, k := p.endless(t, r, v)
					server := who == "server"
					if server != v.gorxePassive {
						if err := k.p.Signal(syscall.SIGINT); err != nil {
							t.Fatal(err)
						}
					} else {
						g.interrupt()
					}
					// A stopped server has not finished its work, and rxe never gives up a silent
					// peer (retry_cnt 7).
					if out, err := g.wait(20 * time.Second); errors.Is(err,
						context.DeadlineExceeded) ||
						err != nil && !(server && v.gorxePassive) {
						t.Errorf("gorxe: %v\n%s", err, out)
					}
					if server || v.gorxePassive {
						return
					}
					if out, err := k.wait(20 * time.Second); err != nil {
						t.Errorf("the kernel's side: %v\n%s", err, out)
					}
				})
		}
	}
}

// endless starts an endless test and returns when it has been measuring for a while.
func (p perftest) endless(t *testing.T, r *rig, v variant) (g *gorxeProgram, k *guestProgram) {
	t.Helper()
	r.plugOut(t)
	r.watch(t)
	const more = " --run_infinitely"
	if v.gorxePassive {
		g = r.gorxe(t, p.gorxe(v, "")...)
		g.says(t, "Waiting for a client")
		k = r.guestProgram(t, p.kernel(v, r.HostAddr(false).String())+more)
		g.says(t, " remote address")
		time.Sleep(2 * time.Second) // the kernel's side prints when it ends
		return g, k
	}
	k = r.guestProgram(t, p.kernel(v, "")+more)
	if p.cm {
		r.awaitCM(t, 18515)
	} else {
		r.awaitTCP(t, 18515, false)
	}
	g = r.gorxe(t, append(p.gorxe(v, r.Guests[0].Addr(false).String()), strings.TrimSpace(more))...)
	g.says(t, "\n 4096 ")
	return g, k
}
