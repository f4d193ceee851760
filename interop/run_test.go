//go:build interop

package interop_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gorxe/gorxe/interop/lab"
)

// TestRun runs stock programs in a guest under gorxe run, without the kernel's RDMA: with each
// other on two loopback addresses, and with gorxe on the host.
func TestRun(t *testing.T) {
	one := []variant{{lab.MaxMTU, 1024, false, false}}
	stage(t, "gorxe run", one, func(t *testing.T, r *rig, _ variant) {
		r.runInside(t)
		out := r.guest(t, "gorxe run --dev 127.0.0.1 -- sh -c 'ibv_devinfo; rdma link; rdma dev; "+
			"rdma statistic; grep . /sys/class/infiniband/rxe0/ports/1/hw_counters/*; "+
			"ibv_rc_pingpong -g 0 & sleep 1; rdma resource show qp; kill $!'")
		for _, want := range []string{"PORT_ACTIVE", "link rxe0/1 state ACTIVE", "netdev lo",
			"rxe0: node_type ca", "sent_pkts 0 ", "/sent_pkts:0",
			"type RC state INIT"} {
			if !strings.Contains(out, want) {
				t.Errorf("ibv_devinfo and rdma print no %q:\n%s", want, out)
			}
		}
		// With -e programs sleep until a completion arrives. Others poll, and guests have few CPUs.
		programs := []string{"ibv_rc_pingpong -g 0 -n 50 -e"}
		if !*coreFlag {
			programs = append(programs, "ibv_rc_pingpong -g 0 -n 10", "ibv_uc_pingpong -g 0 -n 10",
				"ibv_ud_pingpong -g 0 -n 10 -e", "ibv_srq_pingpong -g 0 -n 10 -e",
				"ib_write_bw -x 0 -F -n 20", "ib_read_bw -x 0 -F -n 20", "ib_atomic_bw -x 0 -F -n 20",
				"ib_send_bw -x 0 -F -n 100 -e", "ib_write_bw -x 0 -F -n 5 -q 16")
		}
		for _, command := range programs {
			start := time.Now()
			r.guest(t, fmt.Sprintf(runPair, command, command))
			t.Logf("%s: %v", command, time.Since(start))
		}
	})
	vs := []variant{{lab.MaxMTU, 1024, false, false}, {lab.MaxMTU, 1024, false, true}}
	if *coreFlag {
		vs = vs[:1]
	}
	p := perftest{op: "write-bw", size: 65536, iters: 100}
	s := p.tool(vs)
	stage(t, "gorxe run with gorxe perf", vs, func(t *testing.T, r *rig, v variant) {
		r.runInside(t)
		// The index of the IPv4 address in the GID table of the device.
		index := strings.TrimSpace(r.guest(t, "gorxe run --dev eth0 --datapath udp -- sh -c "+
			"'cd /; grep -l :ffff: /sys/class/infiniband/rxe0/ports/1/gids/*' | "+
			"head -1 | sed s,.*/,,"))
		s := s
		s.kernel = func(v variant, host string) string {
			return fmt.Sprintf("gorxe run --dev eth0 --datapath udp -- %s -F -x %s -m %d %s %s",
				p.program(), index, int(v.mtu), strings.Join(p.flags(), " "), host)
		}
		s.run(t, r, v)
	})
}

// runPair runs a program as a server and as a client, and fails if one of them fails.
const runPair = `gorxe run --dev 127.0.0.1 -- %s > /tmp/server 2>&1 & server=$!
sleep 1
gorxe run --dev 127.0.0.2 -- %s 127.0.0.1 && wait $server || { cat /tmp/server; exit 1; }`

// runInside copies gorxe into the guest, and removes the kernel's RDMA until the test ends.
func (r *rig) runInside(t *testing.T) {
	t.Helper()
	r.putGorxe(t)
	r.guest(t, "ip link set lo up; rmmod rdma_rxe")
	t.Cleanup(func() {
		r.guest(t, "modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0")
	})
}
