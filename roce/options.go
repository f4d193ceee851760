package roce

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/internal/inside"
	"github.com/gorxe/gorxe/internal/limit"
	"github.com/gorxe/gorxe/internal/loop"
	"github.com/gorxe/gorxe/xdp"
)

// Option is an argument of Open and New.
type Option func(*config)

// WithProgress chooses between Auto (the default) and Manual progress.
func WithProgress(p Progress) Option { return func(c *config) { c.progress = p } }

// WithXDP sets how Open attaches to the interface if it uses AF_XDP. New ignores it.
func WithXDP(o XDPOptions) Option { return func(c *config) { c.xdp = o } }

// WithExpert sets what few programs need. If it is given more than once, each one overrides only
// the fields that it sets.
func WithExpert(e Expert) Option { return e.apply }

// WithPeers restricts which peers may send connection requests and datagram lookups to the Device's
// listeners. Requests of others are dropped without an answer and counted (cm_drop_peer). It does
// not restrict QP.Connect, Dial, or datagrams to QPs of type UD.
func WithPeers(l PeerList) Option { return func(c *config) { c.peers = l } }

// PeerList permits or refuses peers by the address from which their packets come. Deny has
// precedence. An empty Allow permits all addresses that Deny does not contain, so the zero PeerList
// permits everyone. IPv4 prefixes match IPv4 addresses only, and IPv6 prefixes IPv6 addresses. A
// prefix that is not valid is refused with ErrInvalid.
type PeerList struct {
	Allow, Deny []netip.Prefix
}

// access returns a copy of the list for the connection manager.
func (l PeerList) access() (limit.Access, error) {
	a, err := (*limit.Access)(&l).Checked()
	if err != nil {
		return a, fmt.Errorf("%w: list of peers: %w", ErrInvalid, err)
	}
	return a, nil
}

// Progress says which thread runs the protocol of a Device: receives, answers, retransmits and
// completes.
type Progress uint8

const (
	// Auto: a goroutine of the Device, which is locked to its OS thread unless the Device is in
	// memory. It spins for a while after the last packet (Expert.Spin) and then sleeps. Peers'
	// requests are served without calls of the program.
	Auto Progress = iota
	// Manual: the program's calls of CQ.Poll, CQ.Wait and Device.Progress, in the calling thread.
	// This gives the lowest latency, because no work passes between threads. While the program
	// makes none of these calls, the Device answers no peer.
	Manual
)

// String returns "auto" or "manual".
func (p Progress) String() string {
	if p == Manual {
		return "manual"
	}
	return "auto"
}

// XDPOptions are the settings of the AF_XDP port that Open creates. The zero value suits most
// programs.
type XDPOptions struct {
	Mode XDPMode

	// ZeroCopy: nil tries zero-copy and falls back to copying, false uses copying, true requires
	// zero-copy. veth and XDPGeneric do not support it.
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
	// few receive buffers at first and more if frames accumulate. Otherwise it gets all of them
	// from the start, which suits programs that poll rarely and must not lose a burst.
	Chunks int

	// NetNS is a file descriptor of the interface's network namespace; 0 or a negative value means
	// the namespace of the calling thread.
	NetNS int

	// Runs says whether long runs of packets of equal length to one address are sent through UDP
	// sockets, which takes the kernel a fraction of the time. nil or true: in generic mode; false:
	// never. These packets have another UDP source port than the others of their QP. On a network
	// with several paths they may take another one, and overtake others.
	Runs *bool

	// BusyPoll makes receiving and waiting drive the NIC's queue from the calling thread instead of
	// from interrupts (SO_PREFER_BUSY_POLL), in microseconds; 0 means off. It is meant for NICs
	// whose drivers report the NAPI instance of a queue, with napi_defer_hard_irqs and
	// gro_flush_timeout set.
	BusyPoll int
}

// port returns the options in the form of package xdp.
func (o XDPOptions) port() xdp.Options {
	return xdp.Options{Mode: o.Mode, ZeroCopy: o.ZeroCopy, MultiBuffer: o.MultiBuffer,
		Queues: o.Queues, RingSize: o.RingSize, Chunks: o.Chunks, NetNS: o.NetNS,
		BusyPoll: o.BusyPoll, Runs: o.Runs == nil || *o.Runs}
}

// XDPMode is where in the kernel's receive path frames are taken: XDPOptions.Mode. Its String
// method returns "auto", "native" or "generic".
type XDPMode = xdp.Mode

// The modes of AF_XDP.
const (
	XDPAuto    XDPMode = xdp.Auto    // native; generic where that is better or nothing else works
	XDPNative  XDPMode = xdp.Native  // in the driver
	XDPGeneric XDPMode = xdp.Generic // on the kernel's socket buffers; works on every interface
)

// Port moves Ethernet frames for a Device: see New and package driver.
type Port = driver.Port

// Network reports the addresses of a Port and finds the next hop towards a peer: see package
// driver.
type Network = driver.Network

// Expert holds settings that few programs need, for WithExpert. A zero field means the default.
type Expert struct {
	// Limits on objects: protection domains; memory regions, windows and fast regions together;
	// queue pairs. The defaults are 65,536, 1,048,576 and 65,536.
	MaxPD, MaxMR, MaxQP int

	// MaxMemory limits the bytes of QPs, regions, queues and AllocMR together; beyond it, calls
	// fail with ErrNoMemory. By default all devices of a process share three quarters of the memory
	// that the machine, or the process's control group, has. On other systems than Linux, 16 GiB
	// count as the memory of the machine.
	MaxMemory uint64

	// MaxWindow limits the unacknowledged packets of each QP. The default is 2^23, and 256 without
	// congestion control.
	MaxWindow int

	// MaxReorderMemory limits the bytes of packets that the QPs of the Device together keep because
	// they arrived out of order: see WithSelectiveRepeat. Packets beyond it are dropped. The
	// default is 64 MiB.
	MaxReorderMemory int

	// DCQCN holds the parameters of CongestionDCQCN.
	DCQCN DCQCN

	// Spin is how long the Device polls for the next packet before it sleeps. The default is
	// DefaultSpin, or NoSpin while the process has no more cores (GOMAXPROCS) than devices with
	// Auto progress. The Device spins longer while packets get lost.
	Spin time.Duration

	// CPU pins the thread of Auto progress to a CPU. It needs Linux.
	CPU *int

	// Prefetch is how many QPs in advance the engine prefetches the state of the QPs that it serves
	// next, at most MaxPrefetch; 0 is off. The default is DefaultPrefetch. It matters for thousands
	// of QPs and memory regions.
	Prefetch *int

	// Clock replaces the monotonic clock: virtual time for simulations, in nanoseconds, above 0 and
	// never decreasing. It implies Manual progress. The Device starts no goroutine and never
	// blocks: the program calls Device.Progress, and Device.NextTimeout says when the next call is
	// due. loopback.Drive does both until a condition holds.
	Clock func() int64

	// Wait lets calls block on a device with Clock: Dial, Accept, CQ.Wait, QP.Drain and others. It
	// must drive all devices and move the clock until ready returns true, or return an error, for
	// example ctx's. loopback.Sim implements it. Without it these calls return ErrVirtualTime.
	Wait func(ctx context.Context, ready func() bool) error

	// Rand replaces the cryptographic random source of keys, QPNs and PSNs, for reproducible runs.
	// The Device serializes its calls. With Clock and Rand, a program that makes the same calls in
	// one goroutine sends the same bytes at the same times in every run.
	Rand func() uint64

	// Network is for a Port that does not implement Network itself.
	Network Network
}

// Defaults and limits of Expert.
const (
	DefaultSpin     = 20 * time.Microsecond
	NoSpin          = time.Duration(-1) // sleep at once
	DefaultPrefetch = 8                 // QPs
	MaxPrefetch     = 4096              // QPs
)

// MaxMeters is the number of QPs of a device whose bytes and round trips are counted; see QPStats.
const MaxMeters = 1023

type config struct {
	progress   Progress
	logger     *slog.Logger
	trace      func(TraceEvent)
	peers      PeerList
	pkeys      []PKey
	xdp        XDPOptions
	port       PortKind
	wrapper    func(Port) Port
	noService  bool
	notJoined  error              // why Open has not joined the node service of the interface
	program    string             // name at a node service; "": that of this program
	host       inside.ServiceHost // nil: the device does not host a node service
	portKind   string             // of the port that Open has opened; "": New
	portReason string
	rand       func() uint64
	clock      func() int64
	wait       func(context.Context, func() bool) error
	spin       time.Duration
	cpu        int
	maxQP      int
	maxMR      int
	maxPD      int
	maxWindow  int
	maxReorder int
	dcqcn      DCQCN
	prefetch   *int // nil: the default
	maxMemory  uint64
	limits     Limits
	network    driver.Network
	features   Features
	congestion CongestionControl

	linkRate     int64
	hasLinkRate  bool
	backlogLimit int
	classMap     ClassMap
	class        int
	classes      [NumClasses]ClassConfig
}

// defaultFeatures are the features of a Device unless an option changes them.
const defaultFeatures = SelectiveRepeat

func newConfig(opts []Option) *config {
	c := &config{spin: loop.AutoSpin, cpu: -1, features: defaultFeatures,
		classMap: DefaultClassMap()}
	for _, o := range opts {
		o(c)
	}
	if c.clock != nil {
		c.progress = Manual
	}
	return c
}

func (e Expert) apply(c *config) {
	override(&c.maxPD, e.MaxPD)
	override(&c.maxMR, e.MaxMR)
	override(&c.maxQP, e.MaxQP)
	override(&c.maxMemory, e.MaxMemory)
	override(&c.maxWindow, e.MaxWindow)
	override(&c.maxReorder, e.MaxReorderMemory)
	override(&c.dcqcn, e.DCQCN)
	override(&c.prefetch, e.Prefetch)
	override(&c.network, e.Network)
	if e.Spin != 0 {
		c.spin = max(e.Spin, 0) // NoSpin: 0
	}
	if e.CPU != nil {
		c.cpu = *e.CPU
	}
	if e.Clock != nil {
		c.clock = e.Clock
	}
	if e.Wait != nil {
		c.wait = e.Wait
	}
	if e.Rand != nil {
		c.rand = e.Rand
	}
}

// override sets *to unless v is zero.
func override[T comparable](to *T, v T) {
	var zero T
	if v != zero {
		*to = v
	}
}

// QPConfig describes the queue pair that CreateQP creates. The zero value suits most programs.
type QPConfig struct {
	Type   QPType // RC by default
	SendCQ *CQ    // nil: a CQ of the QP's own, which QP.SendCQ returns until QP.Close
	RecvCQ *CQ    // nil: the CQ of sends
	SRQ    *SRQ   // nil: the QP has its own receive queue

	SendDepth  int  // send work requests, at most MaxQueueDepth; 0: 128
	RecvDepth  int  // receive work requests, at most MaxQueueDepth; 0: 128; ignored with an SRQ
	MaxSendSGE int  // SGEs per send work request, at most MaxSGE; 0: 4
	MaxRecvSGE int  // SGEs per receive work request, at most MaxSGE; 0: 4
	MaxInline  int  // bytes of SendWR.Inline, at most MaxInline; 0: 64
	SignalAll  bool // every send work request completes with a WC, as if it had the flag Signaled

	// GIDIndex is the index in Device.GIDs of the local address. Nil: the first IPv4 address; if
	// there is none, the first global IPv6 address; otherwise the link-local address.
	GIDIndex *int
	// QPN requests a number; 0: a random one.
	QPN QPN
	// PKey selects the partition among Device.PKeys by its low 15 bits; 0: the first one.
	PKey PKey

	// AckFirst makes an RC QP acknowledge a message that has completed a receive before it sends
	// work requests that are posted later, as NICs in hardware do. By default a reply may precede
	// the ACK, which is faster. Then the peer's receive can complete before its send does, and some
	// programs depend on the opposite: ib_send_lat -e waits forever.
	AckFirst bool
	// GoBackN makes the QP refuse selective repeat: see WithSelectiveRepeat.
	GoBackN bool
	// Congestion is the algorithm of congestion control of an RC QP; nil: the Device's.
	Congestion *CongestionControl
	// Class is the traffic class, 1 to 7: see PathOptions.Class. A negative number means class 0,
	// and 0 the default (WithDefaultClass). QP.Local tells it to the peer, which uses it, too,
	// unless it has chosen another one.
	Class int
	// Rate limits what the QP sends, in bytes of frames per second, MinRate to MaxRate; 0: no
	// limit. Burst is what it may send at once after a pause, in bytes, at most MaxBurst; at least
	// one frame. Acknowledgments count, but do not wait. A change to StateReset removes the limit.
	Rate  uint64
	Burst int
}

// Defaults of QPConfig.
const (
	defaultDepth  = 128
	defaultSGE    = 4
	defaultInline = 64
)

// ConnectOptions are the attributes that a QP gets when it is connected. The zero value suits most
// programs. In the fields of type int, 0 means the default and a negative number means 0.
type ConnectOptions struct {
	MTU    MTU    // limit of the path MTU; 0: the largest that both sides support
	Access Access // what the peer may do through this QP; 0: RDMA WRITE, READ, atomics and FLUSH

	// Timeout is the Local ACK Timeout, 4.096 us << n; 0: 17 (0.54 s); negative: never, or for Dial
	// MaxAckTimeout. With Dial, the delay of ACKs that the peer states is a lower limit: 15 (0.13
	// s) for gorxe and rxe. QP.Query returns the value in use.
	Timeout    int
	Retries    int // retries after timeouts and sequence errors, 1 to 7; 0: 7; negative: none
	RNRRetries int // retries after RNR NAKs, 1 to 6, or 7 for no limit; 0: 7; negative: none
	// MinRNRTimer is the timer code of the RNR NAKs that this side sends, 1 to 31; 0: 12 (0.64 ms);
	// negative: code 0 (655 ms).
	MinRNRTimer int

	MaxRdAtomic     int // outstanding READs and atomics of this side; 0: 16; negative: none
	MaxDestRdAtomic int // outstanding READs and atomics of the peer; 0: 16; negative: none

	// KeepAlive is how long the peer of an RC QP may be silent at most before this side checks that
	// it is alive; the check may come when it was silent for half of that time. 0: DefaultKeepAlive
	// (15 s) for Dial and Accept, none for QP.Connect; negative: none; less than 10 ms: 10 ms. The
	// check is a packet that every RDMA NIC answers without the help of the application. If several
	// in a row are not answered, one per Timeout, Retries + 1 but at least 3, the QP goes to
	// StateErr with the event EventQPFatal, and Conn.Err returns ErrConnLost. With the defaults a
	// dead peer is detected at most 20 s after its last packet, or 4.3 s after work that waits for
	// its answer was posted. Without Timeout there is no check. These timeouts together must be
	// longer than the longest round trip and the longest pause of the peer's host. Otherwise the
	// check, like the retries of a work request, ends a healthy connection. 1 s is safe in a data
	// center, for example Timeout 15 (134 ms) with 7 retries.
	KeepAlive time.Duration

	PathOptions
}

// DefaultHopLimit is the hop limit of packets if PathOptions name none.
const DefaultHopLimit = 64

// PathOptions are fields of the headers in front of the BTH. The zero value suits most programs.
type PathOptions struct {
	// Class is the traffic class, 1 to 7; higher classes are more urgent. A negative number means
	// class 0, and 0 the default: for connections QPConfig.Class, otherwise WithDefaultClass. It
	// determines the DSCP and the priority in a VLAN tag: see WithClassMap.
	Class int
	// TrafficClass is the IPv4 TOS or IPv6 traffic class. If its DSCP (upper six bits) is not 0, it
	// replaces that of the class.
	TrafficClass uint8
	HopLimit     uint8  // 0: DefaultHopLimit
	FlowLabel    uint32 // IPv6, 20 bits
	SourcePort   uint16 // UDP; 0: a hash of the two QPNs in 0xc000 to 0xffff (RoCEv2 A17.9.1)
}

// AHAttr describes the address handle that CreateAH creates.
type AHAttr struct {
	Remote   GID  // the receiver: a unicast address or a multicast group
	GIDIndex *int // local address, as index in Device.GIDs; nil: the first of Remote's IP version
	PathOptions
}
