package xdp

import "github.com/gorxe/gorxe/bth"

// virtio_net and long frames.
//
// In native mode the driver copies a frame whose first receive buffer has no room in front for XDP into a page of its own, and drops
// it if that buffer's bytes, 256 in front and the kernel's bookkeeping (320 on amd64) exceed a page. Buffers without that room
// are those that were in the queue before the program was attached, up to 1024 of them, and the driver makes buffers as long as
// the packets were of late that the kernel got: after other traffic with a large MTU they are so long that a frame of path MTU 4096
// is dropped; as long as frames are lost, so few arrive that the buffers stay for minutes. Frames of path MTU 2048 always fit.
// Seen with Linux 6.12; docs/interop.md has the counters.
const (
	virtioDriver = "virtio_net"
	virtioMTU    = virtioPathMTU + bth.Headroom // IP bytes that always fit

	virtioPathMTU = 2048
)

// losesLong says whether a driver in native mode, copying, may lose the longest frames of that IP MTU.
func losesLong(driver string, mtu int) bool {
	return driver == virtioDriver && bth.MTUFor(mtu) > virtioPathMTU
}

// autoMode is what mode Auto tries first on an interface of that kind, as `ip link` names it, driver and IP MTU.
func autoMode(kind, driver string, mtu int) Mode {
	if kind == vethKind || losesLong(driver, mtu) {
		return Generic
	}
	return Native
}

// limiter returns how much of an interface's IP MTU a Port can use, and a word on it where that or the mode may surprise;
// most is what buffers hold.
func (o *opener) limiter(most int) limit {
	native := o.prog.mode == Native && !o.Port.queues[0].zeroCopy
	return func(mtu int) (int, string) {
		use := min(mtu, most)
		switch {
		case !losesLong(o.driver, use):
			return use, ""
		case native:
			return virtioMTU, "path MTU 4096 needs generic mode here: in native mode virtio_net may drop longer frames"
		case o.Mode == Auto:
			return use, "generic mode, because in native mode virtio_net may drop frames of path MTU 4096"
		}
		return use, ""
	}
}
