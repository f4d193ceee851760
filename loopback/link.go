package loopback

import (
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"sync/atomic"
	"time"
)

// Sizes that hold when Config leaves them 0, and limits.
const (
	// DefaultMTU lets RoCE use path MTU 4096 over IPv6 and a VLAN tag.
	DefaultMTU    = 4200
	MinMTU        = 128
	MaxMTU        = 9216
	DefaultQueue  = 1024
	DefaultTxBufs = 512
	MaxPorts      = 16
	maxQueue      = 1 << 16

	// headerLen is an Ethernet header, vlanLen a VLAN tag.
	headerLen = 14
	vlanLen   = 4

	// startTime is what a virtual clock shows first: not 0, which means
	// "never" or "at once" to many.
	startTime = int64(time.Second)
)

// Sentinel errors of this package.
var (
	// ErrConfig: a Config field is out of range.
	ErrConfig = errors.New("loopback: unusable configuration")
	// ErrClosed: the Port was closed; it wraps net.ErrClosed.
	ErrClosed = fmt.Errorf("loopback: port is closed: %w", net.ErrClosed)
	// ErrNoRoute: no Port of the link has the address.
	ErrNoRoute = errors.New("loopback: no port of this link has the address")
)

// Config describes a Link; the zero Config is two Ports on a perfect wire in
// real time.
type Config struct {
	Ports  int    // 2 to MaxPorts; 0 means 2
	Seed   uint64 // of all faults
	Plan   Plan   // of every direction; SetPlan changes one
	MTU    int    // largest IP packet in bytes; 0 means DefaultMTU
	Queue  int    // frames under way per direction, at most; 0 means DefaultQueue
	TxBufs int    // buffers that a Port's owner may hold; 0 means DefaultTxBufs

	// Virtual gives the link a clock that stands still between Advance calls.
	Virtual bool
	// Clock replaces the monotonic clock of a link in real time; nanoseconds.
	Clock func() int64
	// Poison overwrites every buffer that is given back, so that whoever
	// reads it later notices.
	Poison bool
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
			return fmt.Errorf("%w: %s is %d, allowed are %d to %d", ErrConfig, f.name, f.v, f.lo, f.top)
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
	clock   func() int64
	now     int64  // virtual time
	trace   uint64 // virtual time: digest of what happened
}

// NewLink makes a link and its Ports.
func NewLink(c Config) (*Link, error) {
	if err := c.fill(); err != nil {
		return nil, err
	}
	l := &Link{virtual: c.Virtual, poison: c.Poison, clock: c.Clock, now: startTime}
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
			if i != j {
				connect(from, to, &c)
			}
		}
	}
	return l, nil
}

// Port is the i-th Port, counted from 0.
func (l *Link) Port(i int) *Port { return l.ports[i] }

// Ports is the number of Ports.
func (l *Link) Ports() int { return len(l.ports) }

// Close closes all Ports.
func (l *Link) Close() error {
	for _, p := range l.ports {
		_ = p.Close()
	}
	return nil
}

// SetPlan replaces the plan of the direction from one Port to another. The
// frames under way are not affected. Any goroutine, at any time.
func (l *Link) SetPlan(from, to int, p Plan) error {
	if err := p.Validate(); err != nil {
		return err
	}
	l.ports[from].out[to].newPlan.Store(&p)
	return nil
}

// Action is what a Filter wants done with a frame.
type Action uint8

// The actions of a Filter.
const (
	Pass      Action = iota // as the plan says
	Drop                    // the frame is lost
	Duplicate               // it arrives twice
	Corrupt                 // some bits are flipped
	Hold                    // it is late by the plan's Hold
)

// Filter sees each frame before the plan does and may decide its fate: "lose
// the third ACK". It runs on the sending Port's thread and must not keep or
// change the frame.
type Filter func(f []byte) Action

// SetFilter installs a filter for one direction, nil to remove it. Any
// goroutine, at any time.
func (l *Link) SetFilter(from, to int, f Filter) {
	d := l.ports[from].out[to]
	if f == nil {
		d.filter.Store(nil)
		return
	}
	d.filter.Store(&f)
}

// Faults counts what happened to the frames from one Port to another. In real
// time it lags by the batch at hand. Any goroutine.
func (l *Link) Faults(from, to int) Faults { return l.ports[from].out[to].faults.load() }

// Now is the link's time in nanoseconds; it begins at one second.
func (l *Link) Now() int64 {
	if l.virtual {
		return l.now
	}
	return l.clock()
}

// Advance moves a virtual clock forward. It panics in real time.
func (l *Link) Advance(d time.Duration) {
	if !l.virtual || d < 0 {
		panic("loopback: Advance needs a virtual link and a time that does not run backwards")
	}
	l.now += int64(d)
}

// AdvanceTo moves a virtual clock to an instant, unless that is past already.
func (l *Link) AdvanceTo(t int64) {
	if t > l.now {
		l.Advance(time.Duration(t - l.now))
	}
}

// NextEvent is when the next frame that is under way arrives at any Port;
// not later than Now if one can be received already. Virtual time only.
func (l *Link) NextEvent() (int64, bool) {
	if !l.virtual {
		panic("loopback: NextEvent needs a virtual link")
	}
	best, ok := int64(0), false
	for _, p := range l.ports {
		if t, any := p.nextArrival(); any && (!ok || t < best) {
			best, ok = t, true
		}
	}
	return best, ok
}

// TraceHash is a digest of every frame sent and received so far, of its
// instant and its fate. Virtual time only; 0 otherwise.
func (l *Link) TraceHash() uint64 { return l.trace }

var crcTable = crc32.MakeTable(crc32.Castagnoli)

// note mixes an event into the digest (FNV-1a by 64-bit words).
func (l *Link) note(what, from, to int, frame []byte) {
	if !l.virtual {
		return
	}
	h := l.trace
	for _, w := range [...]uint64{
		uint64(l.now),
		uint64(what)<<48 | uint64(from)<<40 | uint64(to)<<32 | uint64(crc32.Checksum(frame, crcTable)),
	} {
		h = (h ^ w) * 0x100000001b3
		h ^= h >> 32
	}
	l.trace = h
}

// sharedFaults is Faults that one thread writes and all may read.
type sharedFaults struct{ v [7]atomic.Uint64 }

func (s *sharedFaults) store(f *Faults) {
	for i, n := range [...]uint64{f.Frames, f.Lost, f.Duplicated, f.Reordered, f.Corrupted, f.Held, f.Overflow} {
		if s.v[i].Load() != n {
			s.v[i].Store(n)
		}
	}
}

func (s *sharedFaults) load() Faults {
	return Faults{Frames: s.v[0].Load(), Lost: s.v[1].Load(), Duplicated: s.v[2].Load(), Reordered: s.v[3].Load(),
		Corrupted: s.v[4].Load(), Held: s.v[5].Load(), Overflow: s.v[6].Load()}
}
