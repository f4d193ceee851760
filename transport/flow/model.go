package flow

import (
	"fmt"
	"math"
	"math/bits"
	"time"

	"github.com/gorxe/gorxe/transport/flow/core"
)

// Link describes what the flows of Bound share: a link, and how messages get there.
type Link struct {
	Rate int64 // bits per second
	// MTU is the path MTU, the greatest payload of a packet in bytes; 0 means 1024.
	MTU int
	// Overhead is what each packet takes on the link in addition to its payload, in bytes; 0 means
	// DefaultOverhead.
	Overhead int
	// Delay is the time from the end of a message on the link until it counts as done: the
	// propagation, and for a Scheduler also the way of the acknowledgment.
	Delay time.Duration
	// Backlog is what may be queued below the scheduler when a message arrives, in bytes.
	Backlog int
	// Gap is how long the link may be idle after each part: for a Scheduler the time from the end
	// of a part on the link until its acknowledgment has arrived.
	Gap time.Duration
	// InFlight is SchedulerConfig.InFlight; 0 means 1.
	InFlight int
	// Points means that the engine's traffic classes order the messages: each message is one RDMA
	// WRITE, posted when it arrives, to a queue pair of the class Flow.Priority, and can be
	// preempted every Flow.Part bytes (roce.ClassConfig.Preempt). Each class has the order FIFO.
	// Two frames of lower classes may be queued below the engine. Gap and InFlight have no meaning.
	Points bool
}

// DefaultOverhead is the overhead of a packet in bytes: preamble 8, Ethernet 18, gap 12, IPv4 20,
// UDP 8, BTH 12, ICRC 4.
const DefaultOverhead = 82

const (
	defaultMTU = 1024
	rethLen    = 16 // in the first packet of a WRITE
	immLen     = 4  // in the last packet of a message

	// maxFlows bounds the flows of Bound.
	maxFlows = 1024
)

// Flow describes messages of one kind, for Bound. They arrive with a period, or within a token
// bucket.
type Flow struct {
	Name     string
	Priority int // 0 to MaxPriority, which is the most urgent
	Size     int // of a message, bytes

	// Period is the least time between two messages, if they have no jitter. Jitter is the greatest
	// delay of a message. The response time includes it.
	Period, Jitter time.Duration
	// Burst and Rate are a token bucket, instead of Period: in any time t, at most Burst bytes plus
	// t times Rate bits per second arrive.
	Burst int
	Rate  int64

	// Split and Part are those of SendConfig.
	Split []int
	Part  int
	// Deadline is the longest acceptable response time. 0 means Period, and none for a token
	// bucket.
	Deadline time.Duration
}

// deadline returns the deadline, 0 for none.
func (f *Flow) deadline() time.Duration {
	if f.Deadline == 0 {
		return f.Period
	}
	return f.Deadline
}

func (l *Link) check() error {
	if l.MTU == 0 {
		l.MTU = defaultMTU
	}
	if l.Overhead == 0 {
		l.Overhead = DefaultOverhead
	}
	if l.InFlight == 0 {
		l.InFlight = 1
	}
	switch {
	case l.Rate < 1:
		return fmt.Errorf("%w: a link of %d bit/s: choose at least 1", ErrConfig, l.Rate)
	case l.MTU < 1 || l.MTU > math.MaxUint16:
		return fmt.Errorf("%w: a path MTU of %d: choose 1 to %d", ErrConfig, l.MTU, math.MaxUint16)
	case l.Overhead < 0 || l.Overhead > math.MaxUint16:
		return fmt.Errorf("%w: packets with %d bytes of overhead: choose 0 to %d", ErrConfig,
			l.Overhead, math.MaxUint16)
	case l.Delay < 0 || l.Gap < 0 || l.Backlog < 0 || l.Backlog > MaxMemory:
		return fmt.Errorf("%w: a link with the delay %v, the gap %v and the backlog %d: choose 0 or "+
			"more", ErrConfig, l.Delay, l.Gap, l.Backlog)
	case l.InFlight < 1 || l.InFlight > MaxInFlight:
		return fmt.Errorf("%w: %d parts in flight: choose 1 to %d", ErrConfig, l.InFlight,
			MaxInFlight)
	}
	return nil
}

func (l *Link) checkFlow(f *Flow) error {
	if err := f.check(); err != nil {
		return err
	}
	return l.checkClass(f)
}

func (f *Flow) check() error {
	bucket := f.Burst != 0 || f.Rate != 0
	switch {
	case f.Priority < 0 || f.Priority > MaxPriority:
		return fmt.Errorf("%w: flow %q has the priority %d: choose 0 to %d", ErrConfig, f.Name,
			f.Priority, MaxPriority)
	case f.Size < 1 || f.Size > MaxSize:
		return fmt.Errorf("%w: flow %q has messages of %d bytes: choose 1 to %d", ErrConfig, f.Name,
			f.Size, MaxSize)
	case bucket && (f.Period != 0 || f.Jitter != 0):
		return fmt.Errorf("%w: flow %q has a period and a token bucket: choose one", ErrConfig,
			f.Name)
	case bucket && (f.Burst < f.Size || f.Burst > MaxMemory || f.Rate < 1):
		return fmt.Errorf("%w: flow %q has a token bucket of %d bytes and %d bit/s: choose at least "+
			"a message of %d bytes, and 1 bit/s", ErrConfig, f.Name, f.Burst, f.Rate, f.Size)
	case !bucket && (f.Period < 1 || f.Period > core.MaxPeriod):
		return fmt.Errorf("%w: flow %q has the period %v: choose 1 ns to %v", ErrConfig, f.Name,
			f.Period, core.MaxPeriod)
	case f.Jitter < 0 || f.Jitter > core.MaxPeriod:
		return fmt.Errorf("%w: flow %q has the jitter %v: choose 0 to %v", ErrConfig, f.Name,
			f.Jitter, core.MaxPeriod)
	case f.Deadline < 0 || f.Deadline > core.MaxPeriod:
		return fmt.Errorf("%w: flow %q has the deadline %v: choose 0 (none) to %v", ErrConfig,
			f.Name, f.Deadline, core.MaxPeriod)
	}
	_, err := splitEnds(fmt.Sprintf("flow %q", f.Name), f.Size, f.Split, f.Part)
	return err
}

// checkClass checks a flow that the engine's traffic classes send.
func (l *Link) checkClass(f *Flow) error {
	switch {
	case !l.Points:
	case f.Priority > MaxClass:
		return fmt.Errorf("%w: flow %q has the traffic class %d: choose 0 to %d", ErrConfig, f.Name,
			f.Priority, MaxClass)
	case len(f.Split) > 0:
		return fmt.Errorf("%w: flow %q has a split, but the engine's preemption points are at equal "+
			"distances: set Part", ErrConfig, f.Name)
	}
	return nil
}

// duration returns how long n bytes take on the link in nanoseconds, rounded up.
func (l *Link) duration(n int64) int64 {
	hi, lo := bits.Mul64(uint64(n), 8e9)
	if hi >= uint64(l.Rate) {
		return math.MaxInt64
	}
	q, r := bits.Div64(hi, lo, uint64(l.Rate))
	if r > 0 {
		q++
	}
	return int64(min(q, math.MaxInt64))
}

// demand is what a flow needs from the link, in nanoseconds.
type demand struct {
	f              *Flow
	message        int64 // a message
	last           int64 // its last part
	largest        int64 // its largest part
	period, jitter int64 // 0: a token bucket
	burst          int64
	rate           float64 // share of the link
	late           int64   // how late messages are posted at most
	rounds         int     // in which late was computed
	parts          []int64
	packet         int64 // the longest packet, with Link.Points
	delay          int64
}

// demand returns the demand of a flow.
func (l *Link) demand(f *Flow) (*demand, error) {
	ends, err := splitEnds(fmt.Sprintf("flow %q", f.Name), f.Size, f.Split, f.Part)
	if err != nil {
		return nil, err
	}
	d := &demand{f: f, period: int64(f.Period), jitter: int64(f.Jitter), delay: int64(l.Delay)}
	if l.Points {
		l.points(d)
	} else {
		l.writes(d, ends)
	}
	for _, p := range d.parts {
		d.message = add(d.message, p)
		d.largest = max(d.largest, p)
		d.last = p
	}
	if f.Period > 0 {
		d.rate = float64(d.message) / float64(d.period)
		return d, nil
	}
	// A burst that is not a multiple of the message's size counts as one more message.
	n := int64((f.Burst + f.Size - 1) / f.Size)
	if d.burst = d.message * n; d.message > math.MaxInt64/n {
		d.burst = math.MaxInt64
	}
	d.rate = float64(d.message) / 1e9 * float64(f.Rate) / 8 / float64(f.Size)
	return d, nil
}

// writes computes the parts of a message that is sent by a Scheduler, a WRITE for each.
func (l *Link) writes(d *demand, ends []int) {
	at := 0
	for i, end := range ends {
		payload := int64(end - at)
		if i == 0 {
			payload += headerLen
		}
		headers := int64(rethLen)
		if i == len(ends)-1 {
			headers += immLen
		}
		d.parts = append(d.parts, add(l.packets(payload, headers), int64(l.Gap)))
		at = end
	}
}

// points computes the parts of a message that the engine may interrupt: one WRITE, and a preemption
// point after the packet with which at least Part bytes of payload were sent.
func (l *Link) points(d *demand) {
	mtu, payload := int64(l.MTU), int64(d.f.Size+headerLen)
	part := payload
	if d.f.Part > 0 {
		part = (int64(d.f.Part) + mtu - 1) / mtu * mtu
	}
	for at := int64(0); at < payload; at += part {
		headers := int64(0)
		if at == 0 {
			headers += rethLen
		}
		if at+part >= payload {
			headers += immLen
		}
		d.parts = append(d.parts, l.packets(min(part, payload-at), headers))
	}
	d.packet = l.packets(min(mtu, payload), rethLen)
	if payload <= mtu {
		d.packet = d.parts[0]
	}
}

// packets returns how long the packets of a WRITE take.
func (l *Link) packets(payload, headers int64) int64 {
	n := max(1, (payload+int64(l.MTU)-1)/int64(l.MTU))
	return l.duration((payload+3)/4*4 + headers + n*int64(l.Overhead))
}

// PartTimes returns how long each part of a message of f takes, with Gap.
func (l Link) PartTimes(f Flow) ([]time.Duration, error) {
	demands, err := demandsOf(&l, []Flow{f})
	if err != nil {
		return nil, err
	}
	times := make([]time.Duration, len(demands[0].parts))
	for i, p := range demands[0].parts {
		times[i] = time.Duration(p)
	}
	return times, nil
}

// add adds times that are not negative. It stops at the greatest one.
func add(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
