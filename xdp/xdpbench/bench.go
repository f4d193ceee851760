package xdpbench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/frame"
	"golang.org/x/sys/unix"
)

const (
	// Batch is the number of frames of a Send, and of a Receive, if the caller does not choose.
	Batch = 32
	// MinPayload holds the sequence number that every frame carries.
	MinPayload = 8

	maxBatch = 256
	// drain is how long the receiver waits for stragglers after the sender has stopped, unless all
	// have come before.
	drain = 200 * time.Millisecond
	// doze bounds a single Wait.
	doze = 50 * time.Millisecond
	// replyPatience is how long a ping waits for its answer before it counts as lost.
	replyPatience = time.Second
	maxRounds     = 1 << 24
	hopLimit      = 64
)

// ErrLost: a round trip's frame did not come back within a second.
var ErrLost = errors.New("no answer to a frame")

// End is one side of a measurement.
type End struct {
	Port driver.Port
	Addr netip.Addr // for the IP header; both ends need the same family
	CPU  int        // the CPU to pin its thread to; negative = not pinned
}

// Rate is the result of OneWay.
type Rate struct {
	Payload   int           // UDP payload, bytes
	Sent      uint64        // frames that the sender's Port took
	Delivered uint64        // frames that the receiver got
	Elapsed   time.Duration // from the start of sending to the last frame received
	SenderCPU time.Duration // CPU time of the sender's thread, kernel included
	// ReceiverCPU is the receiver's. On a veth the sender's thread does the receiver's kernel work too.
	ReceiverCPU time.Duration
}

// PPS is delivered frames per second.
func (r *Rate) PPS() float64 {
	if r.Elapsed <= 0 {
		return 0
	}
	return float64(r.Delivered) / r.Elapsed.Seconds()
}

// Gbps is delivered payload in 10^9 bits per second.
func (r *Rate) Gbps() float64 { return r.PPS() * float64(r.Payload) * 8 / 1e9 }

// Loss is the fraction of sent frames that did not arrive.
func (r *Rate) Loss() float64 {
	if r.Sent == 0 {
		return 0
	}
	return 1 - float64(r.Delivered)/float64(r.Sent)
}

// OneWayConfig says how OneWay measures.
type OneWayConfig struct {
	Payload  int           // UDP payload, bytes; at least MinPayload
	Duration time.Duration // how long to send
	Batch    int           // frames a Send; 0 = Batch
	// Spin is how long the receiver looks at an empty ring before it blocks; negative = it never blocks.
	Spin time.Duration
}

// OneWay sends frames from one end to the other as fast as they go.
func OneWay(from, to End, c OneWayConfig) (Rate, error) {
	if c.Batch == 0 {
		c.Batch = Batch
	}
	if c.Batch < 1 || c.Batch > maxBatch {
		return Rate{}, fmt.Errorf("batch of %d frames is not in 1..%d", c.Batch, maxBatch)
	}
	template, _, err := newTemplate(from, to, c.Payload)
	if err != nil {
		return Rate{}, err
	}
	w := &oneWay{OneWayConfig: c, template: template, run: runs.Add(1) << 32, rate: Rate{Payload: c.Payload}}
	received := make(chan error, 1)
	go func() {
		received <- onThread(to.CPU, &w.rate.ReceiverCPU, func() error { return w.count(to.Port) })
	}()
	sent := make(chan error, 1)
	go func() {
		sent <- onThread(from.CPU, &w.rate.SenderCPU, func() error { return w.pour(from.Port) })
	}()
	err = <-sent
	w.stop.Store(true)
	to.Port.Wake()
	err = errors.Join(err, <-received)
	return w.rate, err
}

// runs numbers the measurements, so that a late frame of one does not count in the next.
var runs atomic.Uint64

// oneWay is a measurement under way. Sender and receiver write different fields of rate; start and rate.Sent
// are the receiver's to read once stop is set.
type oneWay struct {
	OneWayConfig
	template frameTemplate
	run      uint64 // in the upper half of every sequence number
	start    time.Time
	stop     atomic.Bool // the sender has sent its last frame
	rate     Rate
}

// pour sends copies of the template for the configured time.
func (w *oneWay) pour(p driver.Port) error {
	bufs := make([]driver.Buf, w.Batch)
	seq := w.run
	w.start = time.Now()
	for end := w.start.Add(w.Duration); time.Now().Before(end); {
		n := p.Alloc(bufs)
		for i := range n {
			bufs[i].B = w.template.write(bufs[i].B, seq)
			seq++
		}
		k, err := p.Send(bufs[:n])
		w.rate.Sent += uint64(k)
		if err != nil {
			return fmt.Errorf("send: %w", err)
		}
	}
	return nil
}

// count receives until the sender has stopped and no more comes.
func (w *oneWay) count(p driver.Port) error {
	bufs := make([]driver.Buf, w.Batch)
	idle := time.Now() // when the ring was found empty, after the last frame
	for fresh := true; ; {
		n := p.Receive(bufs)
		if n > 0 {
			w.rate.Delivered += w.ours(bufs[:n])
			p.Release(bufs[:n])
			fresh = true
			continue
		}
		now := time.Now()
		if fresh {
			idle, fresh = now, false
		}
		switch {
		case w.stop.Load():
			if w.rate.Delivered >= w.rate.Sent || now.Sub(idle) > drain {
				w.rate.Elapsed = idle.Sub(w.start)
				return nil
			}
		case w.Spin >= 0 && now.Sub(idle) >= w.Spin:
			if err := p.Wait(doze); err != nil {
				return fmt.Errorf("wait: %w", err)
			}
		}
	}
}

// ours counts the frames of this measurement.
func (w *oneWay) ours(bufs []driver.Buf) (n uint64) {
	for i := range bufs {
		b := bufs[i].B
		if len(b) >= w.template.seqAt+MinPayload && binary.LittleEndian.Uint64(b[w.template.seqAt:])>>32 == w.run>>32 {
			n++
		}
	}
	return n
}

// Latency is the result of PingPong: round-trip times.
type Latency struct {
	Payload            int // UDP payload, bytes
	Rounds             int
	Min, P50, P99, Max time.Duration
	Mean               time.Duration
}

// PingPongConfig says how PingPong measures.
type PingPongConfig struct {
	Payload int // UDP payload, bytes; at least MinPayload
	Rounds  int
	Warmup  int // rounds before those that count
	// Spin is how long each end looks at an empty ring before it blocks; negative = it never blocks, 0 = it blocks
	// at once.
	Spin time.Duration
}

// PingPong sends a frame from a to b and a frame of the same size back, again and again, one at a time.
func PingPong(a, b End, c PingPongConfig) (Latency, error) {
	if c.Rounds < 1 || c.Warmup < 0 || c.Rounds+c.Warmup > maxRounds {
		return Latency{}, fmt.Errorf("%d+%d rounds are not in 1..%d", c.Warmup, c.Rounds, maxRounds)
	}
	ping, at, err := newTemplate(a, b, c.Payload)
	if err != nil {
		return Latency{}, err
	}
	pong, _, err := newTemplate(b, a, c.Payload)
	if err != nil {
		return Latency{}, err
	}
	var stop atomic.Bool
	echoed := make(chan error, 1)
	go func() {
		echoed <- onThread(b.CPU, nil, func() error { return echo(b.Port, pong, at, &stop, c.Spin) })
	}()
	times := make([]time.Duration, 0, c.Rounds)
	err = runThread(a.CPU, func() error {
		return pings(a.Port, ping, at, &c, &times)
	})
	stop.Store(true)
	b.Port.Wake()
	if err = errors.Join(err, <-echoed); err != nil {
		return Latency{}, err
	}
	return summarise(c.Payload, times), nil
}

func summarise(payload int, times []time.Duration) Latency {
	slices.Sort(times)
	var sum time.Duration
	for _, t := range times {
		sum += t
	}
	n := len(times)
	return Latency{
		Payload: payload, Rounds: n,
		Min: times[0], P50: times[n/2], P99: times[n*99/100], Max: times[n-1], Mean: sum / time.Duration(n),
	}
}

func pings(p driver.Port, t frameTemplate, at int, c *PingPongConfig, times *[]time.Duration) error {
	run := runs.Add(1) << 32
	for i := range uint64(c.Warmup + c.Rounds) {
		start := time.Now()
		if err := sendOne(p, t, run|i); err != nil {
			return err
		}
		for {
			seq, ok, err := receiveOne(p, at, c.Spin, start.Add(replyPatience), nil)
			if err != nil {
				return err
			}
			if !ok {
				return fmt.Errorf("%w: round trip %d", ErrLost, i)
			}
			if seq == run|i {
				break
			}
		}
		if i >= uint64(c.Warmup) {
			*times = append(*times, time.Since(start))
		}
	}
	return nil
}

func echo(p driver.Port, t frameTemplate, at int, stop *atomic.Bool, spin time.Duration) error {
	for {
		seq, ok, err := receiveOne(p, at, spin, time.Time{}, stop)
		if err != nil || !ok {
			return err
		}
		if err := sendOne(p, t, seq); err != nil {
			return err
		}
	}
}

func sendOne(p driver.Port, t frameTemplate, seq uint64) error {
	var bufs [1]driver.Buf
	for p.Alloc(bufs[:]) == 0 { // the kernel holds all: it will complete some
	}
	bufs[0].B = t.write(bufs[0].B, seq)
	if _, err := p.Send(bufs[:]); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	return nil
}

// receiveOne waits for a frame and returns its sequence number; !ok: the deadline has passed, or stop was set.
func receiveOne(p driver.Port, at int, spin time.Duration, deadline time.Time, stop *atomic.Bool) (seq uint64, ok bool, err error) {
	var bufs [1]driver.Buf
	const look = 64 // rounds between two looks at the clock
	var idle time.Time
	for turns := 0; ; turns++ {
		if p.Receive(bufs[:]) == 1 {
			b := bufs[0].B
			ok = len(b) >= at+MinPayload
			if ok {
				seq = binary.LittleEndian.Uint64(b[at:])
			}
			p.Release(bufs[:])
			if ok {
				return seq, true, nil
			}
			continue
		}
		if stop != nil && stop.Load() {
			return 0, false, nil
		}
		if spin != 0 && turns%look != look-1 {
			continue
		}
		now := time.Now()
		if idle.IsZero() {
			idle = now
		}
		if !deadline.IsZero() && now.After(deadline) {
			return 0, false, nil
		}
		if spin >= 0 && now.Sub(idle) >= spin {
			if err := p.Wait(doze); err != nil {
				return 0, false, fmt.Errorf("wait: %w", err)
			}
		}
	}
}

// frameTemplate is a whole frame; write copies it and sets its sequence number.
type frameTemplate struct {
	frame []byte
	seqAt int
}

func (t *frameTemplate) write(b []byte, seq uint64) []byte {
	b = b[:copy(b, t.frame)]
	binary.LittleEndian.PutUint64(b[t.seqAt:], seq)
	return b
}

// newTemplate builds the frame; seqAt is where its payload begins.
func newTemplate(from, to End, payload int) (t frameTemplate, seqAt int, err error) {
	if from.Addr.Is4() != to.Addr.Is4() {
		return t, 0, fmt.Errorf("addresses %v and %v are of two families", from.Addr, to.Addr)
	}
	header := make([]byte, bth.MaxNetHeader)
	seqAt = frame.PutHeaders(header, &frame.Address{
		SrcMAC: from.Port.Info().MAC, DstMAC: to.Port.Info().MAC,
		Src: bth.GIDFromAddr(from.Addr), Dst: bth.GIDFromAddr(to.Addr),
		SrcPort: frame.SourcePort(1, 1), HopLimit: hopLimit,
	})
	most := min(from.Port.Info().MaxFrame, to.Port.Info().MaxFrame) - seqAt
	if payload < MinPayload || payload > most {
		return t, 0, fmt.Errorf("payload of %d bytes is not in %d..%d", payload, MinPayload, most)
	}
	t = frameTemplate{frame: append(header[:seqAt:seqAt], make([]byte, payload)...), seqAt: seqAt}
	for i := range payload {
		t.frame[seqAt+i] = byte(i)
	}
	var e frame.Encoder
	e.Finish(t.frame, seqAt) // lengths and IP checksum; the ICRC is wrong once the number is set
	return t, seqAt, nil
}

// runThread runs f on a thread of its own.
func runThread(cpu int, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- onThread(cpu, nil, f) }()
	return <-done
}

// onThread runs f with its goroutine locked to its thread, which ends with the goroutine if it was pinned.
func onThread(cpu int, used *time.Duration, f func() error) error {
	runtime.LockOSThread()
	if cpu >= 0 {
		var set unix.CPUSet
		set.Set(cpu)
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			return fmt.Errorf("pin thread to CPU %d: %w", cpu, err)
		}
	} else {
		defer runtime.UnlockOSThread()
	}
	before := threadTime()
	err := f()
	if used != nil {
		*used = threadTime() - before
	}
	return err
}

// threadTime is the CPU time of the calling thread, in user space and kernel.
func threadTime() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_THREAD, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
