package xdp

import (
	"fmt"
	"strings"
)

// Mode is where in the kernel's receive path the XDP program runs.
type Mode uint8

const (
	// Auto is Generic on veth and, if its MTU allows path MTU 4096, on virtio_net; Native
	// elsewhere, and Generic again where the driver has no XDP. Native on a veth would switch segmentation offload off
	// and cut the host's own TCP on it to a fifth.
	Auto Mode = iota
	// Native runs in the driver, before the kernel makes an skb.
	Native
	// Generic runs on skbs; every Ethernet interface can do it.
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

// ParseMode is the inverse of Mode.String, in any case of letters.
func ParseMode(s string) (Mode, error) {
	for m, name := range modeNames {
		if strings.EqualFold(s, name) {
			return Mode(m), nil
		}
	}
	return Auto, fmt.Errorf("%w: XDP mode %q is not auto, native or generic", ErrOptions, s)
}

// Sizes, and their bounds.
const (
	chunkSize = 4096 // bytes of a UMEM chunk: a page, the largest that every kernel takes
	headroom  = 256  // bytes that the kernel leaves free in front of a received frame (XDP_PACKET_HEADROOM)

	defaultRing = 2048
	minRing     = 64
	maxRing     = 1 << 15
	smallRing   = 64 // completion ring of a queue that only receives
	maxQueues   = 256

	// maxUMEM bounds what the queues of one Port take together by default;
	// with many queues the rings shrink until it holds.
	maxUMEM = 512 << 20
)

// Options of Open. The zero value is what most users want.
type Options struct {
	Mode Mode

	// ZeroCopy: nil tries it and falls back to copying, false never tries,
	// true insists. veth and generic mode have none.
	ZeroCopy *bool

	// MultiBuffer: whether a frame may span two chunks, which frames of more than
	// 3840 bytes need (path MTU 4096). nil uses it where the kernel
	// has it (6.6 and later), false never, true insists.
	MultiBuffer *bool

	// Queues is how many receive queues to serve, from the first on; 0 = all.
	// RoCE frames that the NIC puts on another queue go to the kernel, so fewer
	// than all makes sense only where the NIC is told to steer UDP 4791.
	Queues int

	// RingSize is the number of descriptors of each ring, a power of two;
	// 0 = 2048.
	RingSize int

	// Chunks is the number of frame buffers for each direction on the first queue, and for receiving on every
	// other; 0 = RingSize, the most. By default the kernel gets few of the receive buffers while the
	// owner keeps up, and more when frames pile up (see warm.go); if Chunks is given it gets all from the start,
	// for owners that look seldom and may not lose a burst.
	Chunks int

	// NetNS is a file descriptor of the network namespace that the interface is in; 0
	// or negative = the calling thread's.
	NetNS int

	// BusyPoll, in microseconds, lets Receive and Wait drive the NIC's queue from the calling thread instead of its
	// interrupt (SO_PREFER_BUSY_POLL); 0 = off. It is for real NICs whose drivers tell which NAPI serves a queue and
	// whose administrator has set napi_defer_hard_irqs and gro_flush_timeout; with those it has not been measured. veth
	// tells of no NAPI (Linux 6.18), so there it only adds a system call to each look at an empty ring. A kernel that does not know
	// the options goes on without.
	BusyPoll int

	adapt bool // Chunks was not given
}

func (o *Options) check() error {
	bad := func(format string, a ...any) error {
		return fmt.Errorf("%w: %s", ErrOptions, fmt.Sprintf(format, a...))
	}
	switch {
	case int(o.Mode) >= len(modeNames):
		return bad("unknown %v", o.Mode)
	case o.Queues < 0 || o.Queues > maxQueues:
		return bad("%d queues are not in 0..%d", o.Queues, maxQueues)
	case o.RingSize != 0 && (o.RingSize < minRing || o.RingSize > maxRing || o.RingSize&(o.RingSize-1) != 0):
		return bad("ring size %d is not a power of two in %d..%d", o.RingSize, minRing, maxRing)
	case o.Chunks < 0 || o.Chunks > maxRing:
		return bad("%d chunks are not in 0..%d", o.Chunks, maxRing)
	case o.BusyPoll < 0 || o.BusyPoll > 1_000_000:
		return bad("busy-poll time of %d us is not in 0..1000000", o.BusyPoll)
	case o.Mode == Generic && isTrue(o.ZeroCopy):
		return bad("generic mode has no zero-copy")
	}
	return nil
}

// sizes fills in the defaults that depend on how many queues there are.
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
		return fmt.Errorf("%w: %d chunks do not fit rings of %d", ErrOptions, o.Chunks, o.RingSize)
	}
	return nil
}

func isTrue(b *bool) bool  { return b != nil && *b }
func isFalse(b *bool) bool { return b != nil && !*b }
