//go:build linux

package xdp

import "github.com/gorxe/gorxe/bth"

// virtio_net and long frames.
//
// In native mode, virtio_net copies a frame to a new page if the first receive buffer has no
// headroom for XDP. It drops the frame if the buffer's bytes, 256 bytes of headroom and the
// kernel's bookkeeping (320 bytes on amd64) exceed a page. Buffers without headroom are those that
// were queued before the program was attached (up to 1024), and the driver adapts their size to
// recently received packets. After other traffic with a large MTU, they are so large that frames of
// path MTU 4096 are dropped. Because of the loss few frames arrive, so the buffers remain for
// minutes. Frames of path MTU 2048 always fit. This was observed with Linux 6.12; see
// docs/interop.md.
const (
	virtioDriver = "virtio_net"
	virtioMTU    = virtioPathMTU + bth.Headroom // IP bytes that always fit

	virtioPathMTU = 2048
)

// dropsLong reports whether a driver in native copy mode may drop the longest frames of the given
// IP MTU.
func dropsLong(driver string, mtu int) bool {
	return driver == virtioDriver && bth.MTUFor(mtu) > virtioPathMTU
}

// autoMode returns the mode that Auto tries first for a link type, a driver and an IP MTU.
func autoMode(kind, driver string, mtu int) Mode {
	if kind == vethKind || dropsLong(driver, mtu) {
		return Generic
	}
	return Native
}

// limiter returns the function for network.limit. most is the largest IP packet that a buffer
// holds.
func (o *opener) limiter(most int) mtuLimit {
	native := o.prog.mode == Native && !o.Port.queues[0].zeroCopy
	return func(mtu int) (int, string) {
		use := min(mtu, most)
		switch {
		case !dropsLong(o.driver, use):
			return use, ""
		case native:
			return virtioMTU, "path MTU is limited to 2048 because virtio_net may drop longer frames in native mode: use generic mode"
		case o.Mode == Auto:
			return use, "using generic mode because virtio_net may drop frames of path MTU 4096 in native mode"
		}
		return use, ""
	}
}
