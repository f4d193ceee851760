package statusbyte

import (
	"context"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/stat"
)

// observer is a port that tells what its driver's time goes to. A driver never sleeps here (Manual progress): it works, or it looks
// in vain. A turn that receives nothing and sends nothing is waiting. It costs two looks at the clock a turn.
type observer struct {
	driver.Port
	on atomic.Bool

	// The driver's.
	turn   int64 // when the present turn began
	worked bool  // it has received or sent
	since  int64 // when the first of a row of turns in vain began; 0: the last one was none
	waited int64 // ns
	frames int   // sent
	reads  int   // READ requests among them
}

// Unwrap is the port inside.
func (o *observer) Unwrap() driver.Port { return o.Port }

// Receive implements driver.Port.
func (o *observer) Receive(bufs []driver.Buf) int {
	n := o.Port.Receive(bufs)
	if !o.on.Load() {
		return n
	}
	at := now()
	if !o.worked && o.since == 0 {
		o.since = o.turn
	}
	o.turn, o.worked = at, false
	if n > 0 {
		o.works()
	}
	return n
}

// works notes that the present turn is not in vain.
func (o *observer) works() {
	o.worked = true
	if o.since != 0 {
		o.waited += o.turn - o.since
		o.since = 0
	}
}

// Send implements driver.Port.
func (o *observer) Send(bufs []driver.Buf) (int, error) {
	if o.on.Load() {
		o.works()
		o.frames += len(bufs)
		for i := range bufs {
			if h := frame.PeekBTH(bufs[i].B); len(h) > 0 && bth.Opcode(h[0]) == bth.RCReadRequest {
				o.reads++
			}
		}
	}
	return o.Port.Send(bufs)
}

// costs are what a block costs: microseconds from one to the next, how many of them each end waits, frames.
type costs struct {
	total, sendWaits, recvWaits []float64
	out, in, reads              []float64
}

// observe measures what a block of a size costs, both lanes in turns.
func (b *bench) observe(ctx context.Context, size, rounds int) error {
	b.costs = map[string]*costs{}
	for round := range rounds {
		for i := range laneNames {
			lane := laneNames[(i+round)%len(laneNames)]
			if b.costs[lane] == nil {
				b.costs[lane] = new(costs)
			}
			if err := b.observeLane(ctx, lane, size, b.costs[lane]); err != nil {
				return fmt.Errorf("observe %s: %w", lane, err)
			}
		}
	}
	return nil
}

func (b *bench) observeLane(ctx context.Context, lane string, size int, c *costs) (err error) {
	var o [2]*observer
	w, err := newTeedWorld(b.link, b.cpus, manual, func(i int, p driver.Port) driver.Port {
		o[i] = &observer{Port: p}
		return o[i]
	})
	if err != nil {
		return err
	}
	var sent uint64
	var begin, end int64
	err = w.with(ctx, lane, shape{blocks: blocks, size: size}, release, func(p *pair) error {
		stop := now() + int64(b.duration)
		for ; begin == 0 || now() < stop; sent++ {
			if sent == observeWarmup {
				for _, o := range o {
					o.on.Store(true)
				}
				begin = now()
			}
			if err := p.s.post(ctx, size); err != nil {
				return err
			}
		}
		if err := p.s.flush(ctx); err != nil {
			return err
		}
		err := p.await(sent)
		end = now()
		for _, o := range o {
			o.on.Store(false)
		}
		return err
	})
	if e := w.close(); err == nil {
		err = e
	}
	if err != nil {
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

// observeWarmup is how many blocks go by before the observers look.
const observeWarmup = 2 * blocks

// writeCosts shows them as a table.
func (b *bench) writeCosts(w io.Writer, size int) error {
	fmt.Fprintf(w, "\nA block of %s, medians (us; frames): an end that does not work looks for frames in vain.\n\n", cli.FormatSize(int64(size)))
	t := cli.Table{Columns: []cli.Column{
		{Title: "transport"}, {Title: "time", Align: cli.Right}, {Title: "sender works", Align: cli.Right}, {Title: "waits", Align: cli.Right},
		{Title: "receiver works", Align: cli.Right}, {Title: "waits", Align: cli.Right},
		{Title: "frames out", Align: cli.Right}, {Title: "in", Align: cli.Right}, {Title: "READs", Align: cli.Right}, {Title: "spread of time", Align: cli.Right},
	}}
	for _, lane := range laneNames {
		c := b.costs[lane]
		total, sw, rw := stat.Median(c.total), stat.Median(c.sendWaits), stat.Median(c.recvWaits)
		cell := func(v float64) string { return fmt.Sprintf("%.2f", v) }
		t.Row(lane, cell(total), cell(total-sw), cell(sw), cell(total-rw), cell(rw), cell(stat.Median(c.out)), cell(stat.Median(c.in)),
			cell(stat.Median(c.reads)), fmt.Sprintf("%.0f%%", 100*stat.Spread(c.total)))
	}
	return t.Write(w)
}
