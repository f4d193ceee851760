package roce

import (
	"time"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/qp"
	"github.com/gorxe/gorxe/xdp"
)

// Progress says who turns the crank of a Device: who receives, answers, retransmits and completes.
type Progress uint8

const (
	// Auto: a goroutine of the Device, locked to its OS thread, spins a little (WithSpin) and then blocks. The passive
	// side of one-sided operations needs nothing else.
	Auto Progress = iota
	// Manual: the caller's CQ.Poll, CQ.Wait and Device.Progress do the work in the caller's own thread: no hand-over
	// between threads, hence the lowest latency. A Device that nobody polls answers nobody.
	Manual
)

func (p Progress) String() string {
	if p == Manual {
		return "manual"
	}
	return "auto"
}

// DefaultSpin is how long a Device spins for the next packet before it blocks. A wake-up costs some 20 us, a spinning
// core that long costs about the same.
const DefaultSpin = 20 * time.Microsecond

// spinDefault stands for DefaultSpin, or for 0 while the process has no more cores than devices with Auto progress: who is
// waited for needs one.
const spinDefault = time.Duration(-1)

// Option changes how Open and New make a Device.
type Option func(*config)

type config struct {
	progress  Progress
	xdp       xdp.Options
	rand      func() uint64
	clock     func() int64
	spin      time.Duration
	cpu       int
	maxQP     int
	maxMR     int
	maxPD     int
	maxWindow int
	prefetch  *int // nil: the default
	maxMemory uint64
	network   driver.Network
}

func newConfig(opts []Option) *config {
	c := &config{spin: spinDefault, cpu: -1}
	for _, o := range opts {
		o(c)
	}
	if c.clock != nil {
		c.progress = Manual
	}
	return c
}

// WithProgress chooses between Auto (the default) and Manual progress.
func WithProgress(p Progress) Option { return func(c *config) { c.progress = p } }

// WithXDP sets the options of the AF_XDP port that Open makes. New ignores it.
func WithXDP(o xdp.Options) Option { return func(c *config) { c.xdp = o } }

// WithRand replaces the cryptographic random source of keys, QPNs and PSNs: for tests that must replay. f need not be
// safe for concurrent use.
func WithRand(f func() uint64) Option { return func(c *config) { c.rand = f } }

// WithClock puts the Device on a clock of the caller's, in nanoseconds, that never runs backwards and starts above 0:
// virtual time for simulation. It implies Manual progress; the caller drives Device.Progress, and Device.NextTimeout
// says when it has to be called again. Nothing blocks and no goroutine is started; CQ.Wait gives ErrVirtualTime.
func WithClock(now func() int64) Option { return func(c *config) { c.clock = now } }

// WithSpin sets how long the Device spins for the next packet before it blocks, eight times as long while packets get lost (or
// one end's waking up would keep the other waiting, in turns) and, for up to 64 us, behind a burst of long messages; 0 blocks
// at once, which is right where both peers share one core. The default is DefaultSpin, or 0 while the process has no more
// cores (GOMAXPROCS) than devices with Auto progress.
func WithSpin(d time.Duration) Option { return func(c *config) { c.spin = max(d, 0) } }

// WithCPU pins the thread of Auto progress to CPU n.
func WithCPU(n int) Option { return func(c *config) { c.cpu = n } }

// WithMaxQP limits the number of QPs; 0 is the engine's default.
func WithMaxQP(n int) Option { return func(c *config) { c.maxQP = n } }

// WithMaxMR limits the number of memory regions, windows and fast regions; 0 is mr's default.
func WithMaxMR(n int) Option { return func(c *config) { c.maxMR = n } }

// WithMaxPD limits the number of protection domains; 0 is mr's default.
func WithMaxPD(n int) Option { return func(c *config) { c.maxPD = n } }

// WithMaxWindow limits how many packets a QP may have unacknowledged; 0 is the engine's default.
func WithMaxWindow(n int) Option { return func(c *config) { c.maxWindow = n } }

// WithMaxMemory limits the bytes that QPs, regions, queues (of QPs, SRQs and CQs) and memory of AllocMR take together. By default, or with
// 0, all devices of the process share three quarters of what it may have: the machine's memory, or its control group's.
// What goes beyond is refused with ErrNoMemory.
func WithMaxMemory(bytes uint64) Option { return func(c *config) { c.maxMemory = bytes } }

// WithPrefetch sets how many QPs ahead of their turns the engine fetches what they need from memory; 0 is off. The default is
// qp.DefaultPrefetch. Fewer than some 2000 QPs and MRs stay in the caches, and nothing is fetched for them on receipt; on the way out from 64 on.
func WithPrefetch(window int) Option {
	return func(c *config) { c.prefetch = &window }
}

// WithNetwork gives New the addresses and neighbours of a Port that does not know them itself.
func WithNetwork(n driver.Network) Option { return func(c *config) { c.network = n } }

// QPConfig says what CreateQP makes. SendCQ and RecvCQ are needed; the rest has defaults.
type QPConfig struct {
	Type   QPType // RC by default
	SendCQ *CQ
	RecvCQ *CQ  // nil: SendCQ serves both
	SRQ    *SRQ // receives come from here, instead of a receive queue of its own

	SendDepth  int // work requests; 0 = 128
	RecvDepth  int // work requests; 0 = 128; ignored with an SRQ
	MaxSendSGE int // pieces a send work request; 0 = 4
	MaxRecvSGE int // pieces a receive work request; 0 = 4
	MaxInline  int // bytes that SendWR.Inline may hold; 0 = 64
	SignalAll  bool

	// GIDIndex is the entry of Device.GIDs that the QP sends from. Nil: the first IPv4 address, else the first global
	// IPv6 address, else the link-local one.
	GIDIndex *int
	// QPN asks for a number; 0 takes a random one.
	QPN QPN
}

const (
	defaultDepth  = 128
	defaultSGE    = 4
	defaultInline = 64
)

// SRQConfig says what CreateSRQ makes.
type SRQConfig = qp.SRQConfig

// ConnectOptions are the attributes that Connect gives a QP on its way to RTS. The zero value is a sane default for
// every field; where 0 itself is wanted of a field that says "negative", give a negative number.
type ConnectOptions struct {
	MTU    MTU    // upper limit for the path MTU; 0: the largest that both ends carry
	Access Access // what the peer may do through this QP, on top of each region's rights; 0: write, read, atomics and FLUSH

	Timeout     int // Local ACK Timeout exponent, 4.096 us << n; 0: 17 (0.54 s); negative: never
	Retries     int // retries after time-outs and sequence errors, 1..7; 0: 7; negative: none
	RNRRetries  int // retries after RNR NAKs, 1..6, 7 for ever; 0: 7; negative: none
	MinRNRTimer int // RNR timer code that this end's NAKs carry, 1..31; 0: 12 (0.64 ms); negative: code 0 (655 ms)

	MaxRdAtomic     int // READs and atomics in flight from this end; 0: 16; negative: none
	MaxDestRdAtomic int // READs and atomics that this end serves at a time; 0: 16; negative: none

	PathOptions
}

// PathOptions are the fields of the IP and UDP headers that a path carries. The zero value is a sane default.
type PathOptions struct {
	TrafficClass uint8  // IPv4 TOS or IPv6 traffic class
	HopLimit     uint8  // 0: 64
	FlowLabel    uint32 // IPv6, 20 bits
	SourcePort   uint16 // UDP; 0: a hash of the two QPNs in 0xc000..0xffff (RoCEv2 A17.9.1)
}

// AHAttr says whom an address handle addresses.
type AHAttr struct {
	Remote   GID
	GIDIndex *int // the entry of Device.GIDs to send from; nil: the first one of Remote's family that the route chooses
	PathOptions
}
