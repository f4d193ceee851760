package xdpbench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/gorxe/gorxe/driver"
)

// Rate is the result of OneWay.
type Rate struct {
	Payload   int           // UDP payload, bytes
	Sent      uint64        // frames that the sending Port accepted
	Delivered uint64        // frames received
	Elapsed   time.Duration // from the start of sending to the last frame received
	SenderCPU time.Duration // CPU time of the sender's thread, user and kernel
	// ReceiverCPU is the CPU time of the receiver's thread. On a veth, the sender's thread does the
	// receiver's kernel work, too.
	ReceiverCPU time.Duration
}

// PPS returns the delivered frames per second.
func (r *Rate) PPS() float64 {
	if r.Elapsed <= 0 {
		return 0
	}
	return float64(r.Delivered) / r.Elapsed.Seconds()
}

// Gbps returns the delivered payload in 10^9 bits per second.
func (r *Rate) Gbps() float64 { return r.PPS() * float64(r.Payload) * 8 / 1e9 }

// Loss returns the fraction of sent frames that did not arrive.
func (r *Rate) Loss() float64 {
	if r.Sent == 0 {
		return 0
	}
	return 1 - float64(r.Delivered)/float64(r.Sent)
}

// OneWayConfig configures OneWay.
type OneWayConfig struct {
	Payload  int           // UDP payload, bytes; at least MinPayload
	Duration time.Duration // how long to send
	Batch    int           // frames per Send; 0 = Batch
	// Spin is how long the receiver polls an empty ring before it blocks; negative = it never
	// blocks.
	Spin time.Duration
}

// OneWay sends frames in one direction as fast as possible.
func OneWay(from, to End, c OneWayConfig) (Rate, error) {
	if c.Batch == 0 {
		c.Batch = Batch
	}
	if c.Batch < 1 || c.Batch > maxBatch {
		return Rate{}, fmt.Errorf("batch of %d frames, want 1 to %d", c.Batch, maxBatch)
	}
	template, _, err := newTemplate(from, to, c.Payload)
	if err != nil {
		return Rate{}, err
	}
	w := &oneWay{OneWayConfig: c, template: template, run: runs.Add(1) << 32,
		rate: Rate{Payload: c.Payload}}
	received := make(chan error, 1)
	go func() {
		received <- onThread(to.CPU, &w.rate.ReceiverCPU,
			func() error { return w.receiveAll(to.Port) })
	}()
	sent := make(chan error, 1)
	go func() {
		sent <- onThread(from.CPU, &w.rate.SenderCPU, func() error { return w.sendAll(from.Port) })
	}()
	err = <-sent
	w.stop.Store(true)
	to.Port.Wake()
	err = errors.Join(err, <-received)
	return w.rate, err
}

// oneWay is a measurement in progress. Sender and receiver write different fields of rate. The
// receiver may read start and rate.Sent after stop is set.
type oneWay struct {
	OneWayConfig
	template frameTemplate
	run      uint64 // in the upper half of every sequence number
	start    time.Time
	stop     atomic.Bool // the sender has sent its last frame
	rate     Rate
}

// sendAll sends copies of the template for the configured time.
func (w *oneWay) sendAll(p driver.Port) error {
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

// receiveAll counts frames until the sender has stopped and no more arrive.
func (w *oneWay) receiveAll(p driver.Port) error {
	bufs := make([]driver.Buf, w.Batch)
	idle := time.Now() // when the ring was first found empty after the last frame
	for fresh := true; ; {
		n := p.Receive(bufs)
		if n > 0 {
			w.rate.Delivered += w.countOwn(bufs[:n])
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
			if err := p.Wait(maxWait); err != nil {
				return fmt.Errorf("wait: %w", err)
			}
		}
	}
}

// countOwn counts the frames of this measurement.
func (w *oneWay) countOwn(bufs []driver.Buf) (n uint64) {
	for i := range bufs {
		b := bufs[i].B
		if len(b) >= w.template.seqAt+MinPayload &&
			binary.LittleEndian.Uint64(b[w.template.seqAt:])>>32 == w.run>>32 {
			n++
		}
	}
	return n
}
