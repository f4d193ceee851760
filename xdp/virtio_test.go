//go:build linux

package xdp

import (
	"testing"

	"github.com/gorxe/gorxe/bth"
)

// virtio_net in native mode may drop frames of path MTU 4096, and no shorter ones.
func TestAutoMode(t *testing.T) {
	for _, c := range []struct {
		kind, driver string
		mtu          int
		want         Mode
	}{
		{"veth", "veth", 1500, Generic},
		{"veth", "veth", 9000, Generic},
		{"device", "virtio_net", 1500, Native},
		{"device", "virtio_net", 4175, Native}, // path MTU 2048
		{"device", "virtio_net", 4176, Generic},
		{"device", "virtio_net", 65535, Generic},
		{"device", "mlx5_core", 9000, Native},
		{"tuntap", "tun", 4200, Native},
		{"device", "", 9000, Native}, // a driver that does not report its name
	} {
		if got := autoMode(c.kind, c.driver, c.mtu); got != c.want {
			t.Errorf("autoMode(%s, %s, %d) = %v, want %v", c.kind, c.driver, c.mtu, got, c.want)
		}
	}
}

// If frames may be dropped, the port limits the MTU and sets a note, which disappears when the MTU
// shrinks.
func TestLimiter(t *testing.T) {
	const single, double = chunkSize - headroom - etherLen - vlanLen, 2*chunkSize - headroom - etherLen - vlanLen
	for _, c := range []struct {
		name         string
		driver       string
		asked, mode  Mode
		zero         bool
		most, mtu    int
		use, pathMTU int
		note         bool
	}{
		{"native", "virtio_net", Native, Native, false, double, 4176, 2128, 2048, true},
		{"native, small", "virtio_net", Native, Native, false, double, 4175, 4175, 2048, false},
		{"MTU raised after Open", "virtio_net", Auto, Native, false, double, 9000, 2128, 2048,
			true},
		{"auto", "virtio_net", Auto, Generic, false, double, 4176, 4176, 4096, true},
		{"auto, MTU lowered after Open", "virtio_net", Auto, Generic, false, double, 1500, 1500,
			1024, false},
		{"generic requested", "virtio_net", Generic, Generic, false, double, 4176, 4176, 4096,
			false},
		{"kernel without multi-buffer", "virtio_net", Auto, Generic, false, single, 4176, single,
			2048, false},
		{"zero-copy", "virtio_net", Native, Native, true, double, 4176, 4176, 4096, false},
		{"another driver", "mlx5_core", Auto, Native, false, double, 9000, double, 4096, false},
	} {
		o := &opener{Port: Port{prog: &program{mode: c.mode}, queues: []*queue{{zeroCopy: c.zero}}},
			Options: Options{Mode: c.asked}, driver: c.driver}
		use, note := o.limiter(c.most)(c.mtu)
		if use != c.use || int(bth.MTUFor(use)) != c.pathMTU || note != "" != c.note {
			t.Errorf("%s: limit of MTU %[3]d = %[2]d with path MTU %[4]d, want %[6]d with %[5]d; note %[7]q", c.name, use, c.mtu, bth.MTUFor(use), c.pathMTU, c.use, note)
		}
	}
}
