package main

import (
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/xdp/veth"
)

// If the route of one side has a smaller MTU than the interfaces, both sides use its path MTU.
func TestRouteMTU(t *testing.T) {
	pair := needRoot(t, veth.Options{MTU: 4200, NoIPv6: true})
	if err := pair.A.Do(func() error {
		routes, err := netlink.RouteList(nil, unix.AF_INET)
		if err != nil {
			return err
		}
		for i := range routes {
			routes[i].MTU = 1500
			if err := netlink.RouteReplace(&routes[i]); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	sides := []*veth.End{&pair.A, &pair.B}
	for i, end := range sides {
		up := server(t, end, port, "up", end.Iface)
		host, other := end.IPv4.Addr().String(), sides[1-i]
		run(t, other, "ping", host, "-s", "4k", "-c", "1").ok()
		for _, op := range []string{"write-bw", "read-bw", "send-bw"} {
			rows := run(t, other, "perf", op, host, "-n", "20", "--json").ok().json()
			if rows[0]["path_mtu"] != 1024. {
				t.Errorf("%s: the path MTU is %v, want 1024", op, rows[0]["path_mtu"])
			}
		}
		up.cmd.Process.Signal(syscall.SIGTERM)
		up.wait().ok()
	}
}
