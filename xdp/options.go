package xdp

import (
	"fmt"
	"strings"
)

// Mode is the point in the kernel's receive path at which the XDP program runs.
type Mode uint8

const (
	// Auto selects Generic on veth, and on virtio_net if the MTU allows path MTU 4096. It selects
	// Native on other interfaces, or Generic if the driver does not support XDP. Native mode on a
	// veth would turn off segmentation offload for the host's own TCP.
	Auto Mode = iota
	// Native runs in the driver, before the kernel allocates a socket buffer.
	Native
	// Generic runs on socket buffers. Every Ethernet interface supports it.
	Generic
)

var modeNames = [...]string{Auto: "auto", Native: "native", Generic: "generic"}

// String returns "auto", "native" or "generic".
func (m Mode) String() string {
	if int(m) < len(modeNames) {
		return modeNames[m]
	}
	return fmt.Sprintf("mode %d", uint8(m))
}

// ParseMode parses the result of Mode.String. It ignores case.
func ParseMode(s string) (Mode, error) {
	for m, name := range modeNames {
		if strings.EqualFold(s, name) {
			return Mode(m), nil
		}
	}
	return Auto, fmt.Errorf("%w: unknown XDP mode %q: use auto, native or generic", ErrOptions, s)
}

// Sizes and limits.
const (
	chunkSize = 4096 // bytes of a UMEM chunk: one page, the maximum that all kernels support
	headroom  = 256  // bytes that the kernel keeps free before a frame (XDP_PACKET_HEADROOM)

	defaultRing = 2048
	minRing     = 64
	maxRing     = 1 << 15
	smallRing   = 64 // completion ring of a queue that only receives
	maxQueues   = 256

	// maxUMEM limits the memory of all queues of a Port. With many queues the default ring size
	// shrinks to stay below it.
	maxUMEM = 512 << 20
)

// Options configure Open. The zero value suits most users.
type Options struct {
	Mode Mode

	// ZeroCopy: nil tries zero-copy and falls back to copying, false uses copying, true requires
	// zero-copy. veth and generic mode do not support it.
	ZeroCopy *bool

	// MultiBuffer says whether a frame may span two chunks, which frames of more than 3840 bytes
	// (path MTU 4096) need. nil uses it if the kernel supports it (6.6 and later), false does not
	// use it, true requires it.
	MultiBuffer *bool

	// Queues is the number of receive queues to serve, starting with the first; 0 means all. RoCE
	// frames that the NIC puts on another queue go to the kernel, so use less than all only if the
	// NIC steers UDP port 4791 to the first ones.
	Queues int

	// RingSize is the number of descriptors in each ring, a power of two; 0 means 2048.
	RingSize int

	// Chunks is the number of frame buffers per direction on the first queue, and of receive
	// buffers on every other queue; 0 means RingSize, which is the maximum. With 0, the kernel gets
	// few receive buffers at first and more if frames accumulate (see refill.go). Otherwise it gets
	// all of them from the start, which suits owners that poll rarely and must not lose a burst.
	Chunks int

	// NetNS is a file descriptor of the interface's network namespace; 0 or a negative value means
	// the namespace of the calling thread.
	NetNS int

	// BusyPoll lets Receive and Wait drive the NIC's queue from the calling thread instead of from
	// interrupts (SO_PREFER_BUSY_POLL), in microseconds; 0 means off. It is meant for NICs whose
	// drivers report the NAPI instance of a queue, with napi_defer_hard_irqs and gro_flush_timeout
	// set. veth does not report one (Linux 6.18), so there it only adds a system call to each poll
	// of an empty ring. Kernels that do not know the socket options ignore it.
	BusyPoll int

	// Runs lets Send pass long runs of equal-length RoCEv2 packets to one address through UDP
	// sockets in generic mode, which takes the kernel a fraction of the time. The kernel then finds
	// route and neighbor itself. These packets have the source port of a socket, the IPv4
	// identification that the kernel chooses and an ICRC that matches both. Without Runs, all
	// frames are sent as they are.
	Runs bool

	// Shared lets other programs receive RoCEv2 packets with UDP sockets, as members of a node
	// service: the Port receives only packets whose destination QPN is below 0x10000. Those to
	// multicast groups go to the kernel, too.
	Shared bool

	adapt bool // Chunks was 0
}

func (o *Options) check() error {
	bad := func(format string, a ...any) error {
		return fmt.Errorf("%w: %s", ErrOptions, fmt.Sprintf(format, a...))
	}
	switch {
	case int(o.Mode) >= len(modeNames):
		return bad("unknown mode %d", uint8(o.Mode))
	case o.Queues < 0 || o.Queues > maxQueues:
		return bad("%d queues, want 0 to %d", o.Queues, maxQueues)
	case o.RingSize != 0 &&
		(o.RingSize < minRing || o.RingSize > maxRing || o.RingSize&(o.RingSize-1) != 0):
		return bad("ring size is %d, want a power of two from %d to %d", o.RingSize, minRing,
			maxRing)
	case o.Chunks < 0 || o.Chunks > maxRing:
		return bad("%d chunks, want 0 to %d", o.Chunks, maxRing)
	case o.BusyPoll < 0 || o.BusyPoll > 1_000_000:
		return bad("busy-poll time is %d us, want 0 to 1000000", o.BusyPoll)
	case o.Mode == Generic && isTrue(o.ZeroCopy):
		return bad("generic mode does not support zero-copy")
	}
	return nil
}

// sizes sets the defaults that depend on the number of queues.
func (o *Options) sizes(queues int) error {
	if o.RingSize == 0 {
		o.RingSize = defaultRing
		for o.RingSize > minRing && (queues+1)*o.RingSize*2*chunkSize > maxUMEM {
			o.RingSize /= 2
		}
	}
	if o.Chunks == 0 {
		o.adapt = true
		o.Chunks = o.RingSize
	}
	if o.Chunks > o.RingSize {
		return fmt.Errorf("%w: %d chunks exceed the ring size %d", ErrOptions, o.Chunks, o.RingSize)
	}
	return nil
}

func isTrue(b *bool) bool  { return b != nil && *b }
func isFalse(b *bool) bool { return b != nil && !*b }
