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
