//go:build interop

package interop_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/interop/lab"
)

// gidIndex is the index of an address in the GID tables of both sides: the link-local address is 0.
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
			return fmt.Sprintf("ibv_%s_pingpong -d rxe0 -g %d -n %d -s %d%s %s", kind, gidIndex(v),
				iters, size(v.mtu), mtu, host)
		},
		gorxe: func(v variant, host string) []string {
			args := []string{"pingpong", kind, "-d", "gx0", "-n", strconv.Itoa(iters), "-s",
				strconv.Itoa(size(v.mtu)), "-m", strconv.Itoa(int(v.mtu)),
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

// rping is librdmacm's ping, which compares what it receives (-V).
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
			// On a lossy link an RTU that is lost twice delays the first answer by 2 s.
			return []string{"ping", host, "-I", "gx0", "--rping", "-c", strconv.Itoa(count), "-i",
				"0", "-t", "30s"}
		},
		check: func(t *testing.T, v variant, gorxe, kernel string) {
			if want := fmt.Sprintf("%d sent, %d received", count, count); !v.gorxePassive &&
				!strings.Contains(gorxe, want) {
				t.Errorf("gorxe does not say %q:\n%s", want, gorxe)
			}
		},
	}
}

// guestAddr is the first guest's address in every lab.
func guestAddr(v variant) string {
	if v.v6 {
		return "fd77::1"
	}
	return "10.77.0.1"
}

func fixed(n int) func(bth.MTU) int      { return func(bth.MTU) int { return n } }
func onePacket(mtu bth.MTU) int          { return int(mtu) }
func both1500And(vs []variant) []variant { return append(vs, onDevice1500()...) }

// onDevice1500 is not in the core because its lab must boot first.
func onDevice1500() []variant {
	if *coreFlag {
		return nil
	}
	return variants(1500)
}

// TestTools runs Debian's own programs against gorxe.
func TestTools(t *testing.T) {
	all := variants(lab.MaxMTU)
	tools := []tool{
		pingpong("rc", 200, fixed(4096), both1500And(all)),
		pingpong("uc", 200, fixed(4096), both1500And(all)),
		pingpong("ud", 200, onePacket, both1500And(all)),
		pingpong("srq", 400, fixed(4096), both1500And(all)),
		rping(1000, cmVariants()),
	}
	perDevice(func(device int, suffix string) {
		for _, s := range tools {
			stage(t, s.name+suffix, ofDevice(device, s.variants),
				func(t *testing.T, r *rig, v variant) { s.run(t, r, v) })
		}
	})
}
