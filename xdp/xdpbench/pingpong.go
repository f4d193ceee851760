package xdpbench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/gorxe/gorxe/driver"
)

// Latency is the result of PingPong: round-trip times.
type Latency struct {
	Payload            int // UDP payload, bytes
	Rounds             int
	Min, P50, P99, Max time.Duration
	Mean               time.Duration
}

// PingPongConfig configures PingPong.
type PingPongConfig struct {
	Payload int // UDP payload, bytes; at least MinPayload
	Rounds  int
	Warmup  int // rounds that are not counted, before the others
	// Spin is how long each side polls an empty ring before it blocks; negative = it never blocks,
	// 0 = it blocks at once.
	Spin time.Duration
}

// PingPong sends a frame from a to b and a frame of the same size back, one at a time.
func PingPong(a, b End, c PingPongConfig) (Latency, error) {
	if c.Rounds < 1 || c.Warmup < 0 || c.Rounds+c.Warmup > maxRounds {
		return Latency{}, fmt.Errorf("%d+%d rounds, want 1 to %d", c.Warmup, c.Rounds, maxRounds)
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
		echoed <- onThread(b.CPU, nil,
			func() error { return echo(b.Port, pong, at, &stop, c.Spin) })
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
	return summarize(c.Payload, times), nil
}

func summarize(payload int, times []time.Duration) Latency {
	slices.Sort(times)
	var sum time.Duration
	for _, t := range times {
		sum += t
	}
	n := len(times)
	return Latency{
		Payload: payload, Rounds: n,
		Min: times[0], P50: times[n/2], P99: times[n*99/100], Max: times[n-1],
		Mean: sum / time.Duration(n),
	}
}

func pings(p driver.Port, t frameTemplate, at int, c *PingPongConfig,
	times *[]time.Duration) error {
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
	for p.Alloc(bufs[:]) == 0 { // the kernel will complete some buffers
	}
	bufs[0].B = t.write(bufs[0].B, seq)
	if _, err := p.Send(bufs[:]); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	return nil
}

// receiveOne waits for a frame and returns its sequence number. ok is false if the deadline has
// passed or stop was set.
func receiveOne(p driver.Port, at int, spin time.Duration, deadline time.Time,
	stop *atomic.Bool) (seq uint64, ok bool, err error) {
	var bufs [1]driver.Buf
	const pollsPerCheck = 64 // polls between two readings of the clock
	var idle time.Time
	for polls := 0; ; polls++ {
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
		if spin != 0 && polls%pollsPerCheck != pollsPerCheck-1 {
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
			if err := p.Wait(maxWait); err != nil {
				return 0, false, fmt.Errorf("wait: %w", err)
			}
		}
	}
}
