package statusbyte

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/stat"
	"github.com/gorxe/gorxe/papers/kit"
)

// observer is a port that measures how long its device waits. With Manual progress the device
// never sleeps: it polls. A step that neither receives nor sends a packet is waiting. The
// observer reads the clock twice per step.
type observer struct {
	driver.Port
	on atomic.Bool

	// The fields below belong to the goroutine that drives the device.

	step   int64 // begin of the current step
	worked bool  // the step has received or sent packets
	since  int64 // begin of the first of the latest waiting steps; 0 if the last step worked
	waited int64 // ns
	frames int   // sent
	reads  int   // READ requests among them
}

// Unwrap returns the wrapped port.
func (o *observer) Unwrap() driver.Port { return o.Port }

// Receive implements driver.Port. It begins a step.
func (o *observer) Receive(bufs []driver.Buf) int {
	n := o.Port.Receive(bufs)
	if !o.on.Load() {
		return n
	}
	at := now()
	if !o.worked && o.since == 0 {
		o.since = o.step
	}
	o.step, o.worked = at, false
	if n > 0 {
		o.work()
	}
	return n
}

// work notes that the current step has received or sent packets.
func (o *observer) work() {
	o.worked = true
	if o.since != 0 {
		o.waited += o.step - o.since
		o.since = 0
	}
}

// Send implements driver.Port.
func (o *observer) Send(bufs []driver.Buf) (int, error) {
	if o.on.Load() {
		o.work()
		o.frames += len(bufs)
		for i := range bufs {
			h := frame.PeekBTH(bufs[i].B)
			if len(h) > 0 && bth.Opcode(h[0]) == bth.RCReadRequest {
				o.reads++
			}
		}
	}
	return o.Port.Send(bufs)
}

// costs are the costs of a block, one value of each per round: the time from one block to the
// next and the part of it that each side waits, in microseconds, and numbers of packets.
type costs struct {
	total, sendWaits, recvWaits []float64
	out, in, reads              []float64
}

// observe measures the costs of blocks of size bytes. The transports alternate.
func (b *bench) observe(ctx context.Context, size int) error {
	b.costs = map[string]*costs{statusByte: {}, slidingWindow: {}}
	for round := range b.Rounds {
		for _, transport := range kit.Alternate(transports, round) {
			if err := b.observeTransport(ctx, transport, size, b.costs[transport]); err != nil {
				return fmt.Errorf("observe %s: %w", transport, err)
			}
		}
	}
	return nil
}

// observeWarmup is the number of blocks before the observation.
const observeWarmup = 2 * blocks

func (b *bench) observeTransport(
	ctx context.Context, transport string, size int, c *costs,
) (err error) {
	var o [2]*observer
	d, err := openDevices(b.Link, b.CPUs, manual, func(side int, p driver.Port) driver.Port {
		o[side] = &observer{Port: p}
		return o[side]
	})
	if err != nil {
		return err
	}
	observe := func(on bool) {
		for _, o := range o {
			o.on.Store(on)
		}
	}
	var sent uint64
	var begin, end int64
	err = d.with(ctx, transport, shape{blocks: blocks, size: size}, releaseAll,
		func(p *pair) error {
			stop := now() + int64(b.Duration)
			for ; begin == 0 || now() < stop; sent++ {
				if sent == observeWarmup {
					observe(true)
					begin = now()
				}
				if err := p.s.post(ctx, size); err != nil {
					return err
				}
			}
			err := p.finish(ctx, sent)
			end = now()
			observe(false)
			return err
		})
	if err := errors.Join(err, d.Close()); err != nil {
		return err
	}
	add := func(list *[]float64, v float64) { *list = append(*list, v/float64(sent-observeWarmup)) }
	add(&c.total, micros(end-begin))
	add(&c.sendWaits, micros(o[0].waited))
	add(&c.recvWaits, micros(o[1].waited))
	add(&c.out, float64(o[0].frames))
	add(&c.in, float64(o[1].frames))
	add(&c.reads, float64(o[0].reads))
	return nil
}

// writeCosts writes the costs as a table.
func (b *bench) writeCosts(w io.Writer, size int) error {
	fmt.Fprintf(w, "\nA block of %s, medians (us; packets). A side that does not work polls for packets.\n\n",
		cli.FormatSize(int64(size)))
	t := cli.Table{Columns: []cli.Column{
		{Title: "transport"}, {Title: "time", Align: cli.Right},
		{Title: "sender works", Align: cli.Right},
		{Title: "waits", Align: cli.Right}, {Title: "receiver works", Align: cli.Right},
		{Title: "waits", Align: cli.Right}, {Title: "packets out", Align: cli.Right},
		{Title: "in", Align: cli.Right}, {Title: "READs", Align: cli.Right},
		{Title: "spread of time", Align: cli.Right},
	}}
	for _, transport := range transports {
		c := b.costs[transport]
		total, sw, rw := stat.Median(c.total), stat.Median(c.sendWaits), stat.Median(c.recvWaits)
		cell := func(v float64) string { return fmt.Sprintf("%.2f", v) }
		t.Row(transport, cell(total), cell(total-sw), cell(sw), cell(total-rw), cell(rw),
			cell(stat.Median(c.out)), cell(stat.Median(c.in)), cell(stat.Median(c.reads)),
			fmt.Sprintf("%.0f%%", 100*stat.Spread(c.total)))
	}
	return t.Write(w)
}
