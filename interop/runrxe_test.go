//go:build interop

package interop_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gorxe/gorxe/interop/guest/image"
	"github.com/gorxe/gorxe/interop/lab"
)

// TestRunRXE runs stock programs under gorxe run, on AF_XDP, against the same programs on the
// kernel's rxe. The programs verify the data where they can.
func TestRunRXE(t *testing.T) {
	s := suiteOf(t, *debFlag)
	four := []variant{{lab.MaxMTU, 1024, false, false}, {lab.MaxMTU, 1024, false, true}}
	both := four
	if !*coreFlag {
		both = append(four[:2:2], variant{lab.MaxMTU, 4096, true, false},
			variant{lab.MaxMTU, 4096, true, true})
	}
	tools := []tool{
		runTool(s, "ibv_rc_pingpong -c", 18515, both, func(v variant) string {
			return fmt.Sprintf("ibv_rc_pingpong -c -n 100 -g %d -m %d", gidIndex(v), int(v.mtu))
		}),
		runCM(s, "rping -V", 7174, both, "rping -s -a %s -C 50 -V", "rping -c -a %s -C 50 -V"),
		runCM(s, "rstream -T v", portCmatose, both, "rstream -b %s -S 1000 -I 10 -C 10 -T v",
			"rstream -s %s -S 1000 -I 10 -C 10 -T v"),
	}
	if !*coreFlag {
		for _, command := range []string{"ibv_uc_pingpong -c -n 100", "ibv_srq_pingpong -c -n 200",
			"ibv_rc_pingpong -c -e -n 100"} {
			tools = append(tools, runTool(s, command, 18515, both, func(v variant) string {
				return fmt.Sprintf("%s -g %d -m %d", command, gidIndex(v), int(v.mtu))
			}))
		}
		tools = append(tools,
			runTool(s, "ibv_ud_pingpong -c", 18515, both, func(v variant) string {
				return fmt.Sprintf("ibv_ud_pingpong -c -n 100 -s 1000 -g %d", gidIndex(v))
			}),
			runCM(s, "ucmatose", portCmatose, both, cmatose+" -b %s", cmatose+" -s %s"),
			runCM(s, "udaddy", portUdaddy, both, udaddy+" -b %s", udaddy+" -s %s"),
			runCM(s, "rdma_client, rdma_server", portCmatose, both, "rdma_server -s %s",
				"rdma_client -s %s"),
			runCM(s, "ib_write_bw -R", 18515, four, "ib_write_bw -R -F -n 100",
				"ib_write_bw -R -F -n 100 %s"))
	}
	programs := []string{"ib_write_bw -s 65536 -n 100"}
	if !*coreFlag {
		programs = append(programs, "ib_read_bw -s 65536 -n 100", "ib_send_bw -s 65536 -n 100",
			"ib_send_bw -c UD -s 1000 -n 100", "ib_atomic_bw -n 100", "ib_write_lat -n 100",
			"ib_send_lat -n 100", "ib_read_lat -n 100", "ib_write_bw -q 16 -n 20",
			"ib_send_bw -e -s 4096 -n 100", "ib_send_lat -e -n 100")
	}
	for _, command := range programs {
		tools = append(tools, runTool(s, command, 18515, four, func(v variant) string {
			return fmt.Sprintf("%s -F -d rxe0 -x %d -m %d", command, gidIndex(v), int(v.mtu))
		}))
	}
	for _, tool := range tools {
		stage(t, "gorxe run, rxe: "+tool.name, tool.variants,
			func(t *testing.T, r *rig, v variant) { tool.run(t, r, v) })
	}
}

// runTool runs a program, whose client has the server's address as its last argument, in the guest
// and under gorxe run.
func runTool(s *image.Suite, name string, port int, vs []variant, command func(variant) string,
) tool {
	return tool{name: name, port: port, tcp4: true, meet4: true, variants: vs,
		kernel: func(v variant, host string) string { return command(v) + " " + host },
		gorxe: func(v variant, host string) []string {
			return underRun(s, command(v)+" "+host)
		},
	}
}

// runCM is runTool for programs of rdma_cm. The commands contain the address of the server.
func runCM(s *image.Suite, name string, port int, vs []variant, server, client string) tool {
	at := func(command, addr string) string { return strings.ReplaceAll(command, "%s", addr) }
	return tool{name: name, port: port, cm: true, variants: vs,
		kernel: func(v variant, host string) string {
			if host == "" {
				return at(server, guestAddr(v))
			}
			// The server may not listen yet.
			return fmt.Sprintf("sh -c 'for i in 1 2 3 4 5 6 7 8 9; do %s && exit 0; sleep 1; done; "+
				"exit 1'", at(client, host))
		},
		gorxe: func(v variant, host string) []string {
			if host == "" {
				return underRun(s, at(server, runAddr(v)))
			}
			return underRun(s, at(client, host))
		},
	}
}

// runAddr is gorxe's address in every lab.
func runAddr(v variant) string {
	if v.v6 {
		return "fd77::64"
	}
	return "10.77.0.100"
}

// underRun returns gorxe's arguments for a command in the folder of the test suite.
func underRun(s *image.Suite, command string) []string {
	const script = `set -e
mount --rbind /proc "$0/proc"
mount --rbind /dev "$0/dev"
mount --rbind /sys "$0/sys"
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
exec chroot "$0" sh -c "$1"`
	return []string{"run", "--dev", "gx0", "--datapath", "xdp", "--", "unshare", "-m", "sh", "-c",
		script, s.Root, command}
}
