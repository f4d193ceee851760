//go:build interop

package interop_test

import (
	"context"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gorxe/gorxe/interop/lab"
)

// TestInsideGuest runs gorxe on virtio_net, whose native mode drops frames of path MTU 4096 after
// long traffic of the kernel's (package xdp, virtio.go). Mode auto is generic there, and native
// mode is limited to path MTU 2048. It is not in the core: in Debian 12 AF_XDP has frames of one
// page.
func TestInsideGuest(t *testing.T) {
	if *coreFlag {
		t.Skip("needs guests of Debian 13, which the core does not build")
	}
	newerGuests(t)
	for _, c := range []struct {
		mode string
		vs   []variant
	}{
		{"auto", []variant{{lab.MaxMTU, 4096, false, false}, {lab.MaxMTU, 4096, true, false}}},
		{"native", []variant{{lab.MaxMTU, 2048, false, false}}},
	} {
		stage(t, "gorxe inside the guest, mode "+c.mode+", after long packets", c.vs,
			func(t *testing.T, r *rig, v variant) {
				r.putGorxe(t)
				p := perftest{op: "write-bw", size: 65536, iters: 200}
				long := variant{lab.MaxMTU, 4096, false, false}
				traffic := p.tool(nil)
				traffic.run(t, r, long) // to the guest's kernel
				k := r.guestProgram(t, "gorxe perf write-bw -d eth0 --mode "+c.mode)
				r.awaitTCP(t, 18515, false)
				host := r.Guests[0].Addr(v.v6).String()
				g := r.gorxe(t, "perf", p.op, "-d", "gx0", "-m", "4096", "-s", "65536", "-n", "200",
					"--json", host)
				gorxe, kernel := both(t, g, k, time.Minute)
				if want := `"path_mtu":` +
					strconv.Itoa(int(v.mtu)); !strings.Contains(strings.ReplaceAll(gorxe, " ", ""),
					want) {
					t.Errorf("no %s in\n%s\n%s", want, gorxe, kernel)
				}
				p.check(t, true, "", kernel)
			})
	}
}

// TestRunsInsideGuest moves bulk data between gorxe on this host and gorxe on UDP sockets in the
// guest. Both sides send runs of packets. QEMU before 8.2 does not offer segmentation of UDP, so
// the kernel of either side cuts them in front of the tap and of virtio_net.
func TestRunsInsideGuest(t *testing.T) {
	if *coreFlag {
		t.Skip("not in the core")
	}
	for _, datapath := range []string{"xdp", "udp"} {
		for _, op := range []string{"write-bw", "read-bw"} {
			p := perftest{op: op, size: 65536, iters: 500}
			stage(t, "gorxe inside the guest on UDP sockets, host on "+datapath+", "+op,
				[]variant{{lab.MaxMTU, 1024, false, false}, {lab.MaxMTU, 4096, true, false}},
				func(t *testing.T, r *rig, v variant) { p.intoGuest(t, r, v, datapath) })
		}
	}
}

// intoGuest runs gorxe perf on both sides, in the guest as the server.
func (p perftest) intoGuest(t *testing.T, r *rig, v variant, datapath string) {
	r.plugOut(t)
	r.putGorxe(t)
	r.guest(t, "rmmod rdma_rxe") // it has UDP port 4791
	t.Cleanup(func() {
		r.guest(t, "modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0")
	})
	r.watch(t)
	k := r.guestProgram(t, "gorxe perf "+p.op+" -d eth0 --datapath udp")
	r.awaitTCP(t, 18515, false)
	args := append([]string{"perf", p.op, "-d", "gx0", "--datapath", datapath, "-m",
		strconv.Itoa(int(v.mtu))}, p.flags()...)
	gorxe, _ := both(t, r.gorxe(t, append(args, r.Guests[0].Addr(v.v6).String())...), k, time.Minute)
	p.check(t, false, gorxe, "")
}

// putGorxe copies gorxe's binary into the guest.
func (r *rig) putGorxe(t *testing.T) {
	t.Helper()
	path, err := gorxeBinary()
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	if err := r.Guests[0].Put(ctx, "/usr/bin/gorxe", 0o755, f); err != nil {
		t.Fatal(err)
	}
}
