package loopback

import (
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"sync/atomic"
	"time"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/internal/clock"
)

// Default values of Config fields and their limits.
const (
	// DefaultMTU allows path MTU 4096 over IPv6 with a VLAN tag.
	DefaultMTU    = 4200
	MinMTU        = 128
	MaxMTU        = 9216
	DefaultQueue  = 1024
	DefaultTxBufs = 512
	MaxPorts      = 64
	maxQueue      = 1 << 16

	// Lengths of an Ethernet header and a VLAN tag in bytes.
	headerLen = 14
	vlanLen   = 4

	// startTime is the initial value of a virtual clock. It is not 0, which often means "never" or
	// "at once".
	startTime = int64(time.Second)
)

// Errors of this package.
var (
	// ErrConfig means that a field of Config is out of range.
	ErrConfig = errors.New("loopback: invalid configuration")
	// ErrClosed means that the Port was closed. It wraps net.ErrClosed.
	ErrClosed = fmt.Errorf("loopback: port is closed: %w", net.ErrClosed)
	// ErrNoRoute means that no Port of the link has the address. It matches driver.ErrNoRoute, so
	// that programs can test how they handle that error of other ports.
	ErrNoRoute error = noRoute{}
)

type noRoute struct{}

func (noRoute) Error() string { return "loopback: no port of this link has the address" }

func (noRoute) Is(target error) bool { return target == driver.ErrNoRoute }

// Config configures a Link. The zero value gives two Ports on a perfect link in real time.
type Config struct {
	Ports  int    // number of ports, 2 to MaxPorts; 0 means 2
	Seed   uint64 // seed of all random faults
	Plan   Plan   // faults of every direction; see also SetPlan
	MTU    int    // largest IP packet, bytes; 0 means DefaultMTU
	Queue  int    // maximum number of frames in flight per direction; 0 means DefaultQueue
	TxBufs int    // maximum number of buffers from Alloc in use; 0 means DefaultTxBufs

	// Virtual selects virtual time: the clock changes only by Advance.
	Virtual bool
	// Clock returns nanoseconds and replaces the monotonic clock in real time.
	Clock func() int64
	// Poison overwrites every returned buffer, so that a later read of it is noticed.
	Poison bool
	// NoTrace leaves TraceHash 0, which saves time in virtual time.
	NoTrace bool
	// Star connects the other Ports with Port 0 only, which saves memory and time if there are
	// many.
	Star bool
}

// connects reports whether frames can cross from one Port to another.
func (c *Config) connects(from, to int) bool {
	return from != to && (!c.Star || from == 0 || to == 0)
}

func (c *Config) fill() error {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&c.Ports, 2)
	def(&c.MTU, DefaultMTU)
	def(&c.Queue, DefaultQueue)
	def(&c.TxBufs, DefaultTxBufs)
	for _, f := range []struct {
		name       string
		v, lo, top int
	}{
		{"Ports", c.Ports, 2, MaxPorts}, {"MTU", c.MTU, MinMTU, MaxMTU},
		{"Queue", c.Queue, 1, maxQueue}, {"TxBufs", c.TxBufs, 1, maxQueue},
	} {
		if f.v < f.lo || f.v > f.top {
			return fmt.Errorf("%w: %s is %d, want %d to %d", ErrConfig, f.name, f.v, f.lo, f.top)
		}
	}
	if c.Virtual && c.Clock != nil {
		return fmt.Errorf("%w: a virtual link has its own clock", ErrConfig)
	}
	return c.Plan.Validate()
}

// Link is a switch in memory with two or more Ports.
type Link struct {
	ports   []*Port
	virtual bool
	poison  bool
	traced  bool
	seed    uint64
	clock   func() int64
	yields  time.Duration // Wait yields instead of sleeping this long before a frame is due
	now     int64         // virtual time, ns
	trace   uint64        // digest of all events in virtual time
}

// NewLink creates a link and its Ports.
func NewLink(c Config) (*Link, error) {
	if err := c.fill(); err != nil {
		return nil, err
	}
	l := &Link{virtual: c.Virtual, poison: c.Poison, traced: c.Virtual && !c.NoTrace, seed: c.Seed,
		clock: c.Clock, yields: spinFor, now: startTime}
	if clock.Simulated() {
		l.yields = 0 // time passes only while Wait sleeps, and timers are exact
	}
	switch {
	case c.Virtual:
		l.clock = l.Now
	case c.Clock == nil:
		start := time.Now()
		l.clock = func() int64 { return startTime + int64(time.Since(start)) }
	}
	for i := range c.Ports {
		l.ports = append(l.ports, newPort(l, i, &c))
	}
	for i, from := range l.ports {
		for j, to := range l.ports {
			if c.connects(i, j) {
				connect(from, to, &c)
			}
		}
	}
	return l, nil
}

// Port returns the i-th Port, counted from 0.
func (l *Link) Port(i int) *Port { return l.ports[i] }

// Ports returns the number of Ports.
func (l *Link) Ports() int { return len(l.ports) }

// Close closes all Ports.
func (l *Link) Close() error {
	for _, p := range l.ports {
		_ = p.Close()
	}
	return nil
}

// SetPlan replaces the plan of the direction from one Port to another, which must be connected. It
// does not affect frames in flight. It is safe for concurrent use.
func (l *Link) SetPlan(from, to int, p Plan) error {
	if err := p.Validate(); err != nil {
		return err
	}
	l.ports[from].out[to].newPlan.Store(&p)
	return nil
}

// Action is what a Filter decides about a frame.
type Action uint8

// The actions of a Filter.
const (
	Pass      Action = iota // apply the plan
	Drop                    // lose the frame
	Duplicate               // deliver it twice
	Corrupt                 // flip some bits
	Hold                    // delay it by Plan.Hold
)

// Filter sees each frame before the plan is applied and may decide its fate, for example lose the
// third ACK. It runs on the goroutine of the sending Port's owner and must not keep or change the
// frame.
type Filter func(f []byte) Action

// SetFilter installs a filter for one direction; nil removes it. It is safe for concurrent use.
func (l *Link) SetFilter(from, to int, f Filter) {
	d := l.ports[from].out[to]
	if f == nil {
		d.filter.Store(nil)
		return
	}
	d.filter.Store(&f)
}

// Faults returns the counters of the frames from one Port to another. In real time they may lag by
// one batch. It is safe for concurrent use.
func (l *Link) Faults(from, to int) Faults { return l.ports[from].out[to].faults.load() }

// Now returns the link's time in nanoseconds. Time starts at one second.
func (l *Link) Now() int64 {
	if l.virtual {
		return l.now
	}
	return l.clock()
}

// Advance moves a virtual clock forward. It panics in real time.
func (l *Link) Advance(d time.Duration) {
	if !l.virtual || d < 0 {
		panic("loopback: Advance requires a virtual link and a duration that is not negative")
	}
	l.now += int64(d)
}

// AdvanceTo moves a virtual clock to time t, unless t is in the past.
func (l *Link) AdvanceTo(t int64) {
	if t > l.now {
		l.Advance(time.Duration(t - l.now))
	}
}

// NextEvent returns the time at which the next frame in flight arrives at any Port. The time is not
// after Now if a frame can be received already. NextEvent panics in real time.
func (l *Link) NextEvent() (int64, bool) {
	if !l.virtual {
		panic("loopback: NextEvent requires a virtual link")
	}
	best, ok := int64(0), false
	for _, p := range l.ports {
		if t, any := p.nextArrival(); any && (!ok || t < best) {
			best, ok = t, true
		}
	}
	return best, ok
}

// NextEventAt is NextEvent of one Port.
func (l *Link) NextEventAt(port int) (int64, bool) {
	if !l.virtual {
		panic("loopback: NextEventAt requires a virtual link")
	}
	return l.ports[port].nextArrival()
}

// TraceHash returns a digest of all frames sent and received so far, their times and their fates.
// It is 0 in real time and with Config.NoTrace.
func (l *Link) TraceHash() uint64 { return l.trace }

var crcTable = crc32.MakeTable(crc32.Castagnoli)

// note adds an event to the digest (FNV-1a on 64-bit words).
func (l *Link) note(what, from, to int, frame []byte) {
	if !l.traced {
		return
	}
	h := l.trace
	for _, w := range [...]uint64{
		uint64(l.now),
		uint64(what)<<48 | uint64(from)<<40 | uint64(to)<<32 | uint64(crc32.Checksum(frame,
			crcTable)),
	} {
		h = (h ^ w) * 0x100000001b3
		h ^= h >> 32
	}
	l.trace = h
}

// sharedFaults is a copy of Faults that one goroutine writes and all may read.
type sharedFaults struct{ v [7]atomic.Uint64 }

func (s *sharedFaults) store(f *Faults) {
	for i, n := range [...]uint64{f.Frames, f.Lost, f.Duplicated, f.Reordered, f.Corrupted, f.Held,
		f.Overflow} {
		if s.v[i].Load() != n {
			s.v[i].Store(n)
		}
	}
}

func (s *sharedFaults) load() Faults {
	return Faults{Frames: s.v[0].Load(), Lost: s.v[1].Load(), Duplicated: s.v[2].Load(),
		Reordered: s.v[3].Load(),
		Corrupted: s.v[4].Load(), Held: s.v[5].Load(), Overflow: s.v[6].Load()}
}
