package streams

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/gorxe/gorxe/transport/statusbyte"
)

// ErrUnstored means that packets arrived and could not be stored.
var ErrUnstored = errors.New("packets that arrived could not be stored")

// ErrTimeout means that the sender was silent for Options.Timeout.
var ErrTimeout = errors.New("no packet arrived in time: check that the sender still runs (--timeout)")

// Options are the options of a Delivery.
type Options struct {
	Timeout  time.Duration // longest time without a packet; 0: unlimited
	Grace    time.Duration // after the last packet, for directories that cannot be written
	Lossless bool          // stop receiving rather than drop a packet
	Log      io.Writer     // messages about directories; nil: none
}

// Delivery takes packets from a receiver, hashes them and stores them in directories.
type Delivery struct {
	r     *statusbyte.Receiver
	store *statusbyte.Store // nil: packets are only hashed
	Options
	all         tallies
	dirs        [256]directory
	parked      int             // packets of all devices in blocks
	maxParked   int             // limit of parked
	retry       time.Time       // of the next attempt to store parked packets
	hold        time.Time       // when receiving was last stopped for a directory
	ctx         context.Context // of Run
	timeout     *timeout
	first, last time.Time   // of the packets
	pending     bool        // files wait for the disk
	lost        [256]uint64 // packets that the store had lost before
}

// NewDelivery returns a Delivery from r to store. Without a store packets are only counted and
// hashed.
func NewDelivery(r *statusbyte.Receiver, store *statusbyte.Store, o Options) *Delivery {
	if o.Log == nil {
		o.Log = io.Discard
	}
	// The other devices need at least one block.
	d := &Delivery{r: r, store: store, Options: o,
		maxParked: min(max(1, r.Blocks()/2), r.Blocks()-1)}
	if store != nil {
		for device := range d.lost {
			d.lost[device] = store.Lost(uint8(device)).Packets
		}
	}
	return d
}

// Run takes packets until the sender closes. After an error it has stored what arrived before, as
// far as that is possible.
func (d *Delivery) Run(ctx context.Context) error {
	d.ctx, d.timeout = ctx, newTimeout(ctx, d.Timeout)
	defer d.timeout.stop()
	defer d.finish()
	for {
		b, err := d.receive(d.timeout.ctx)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, context.Canceled) && context.Cause(d.timeout.ctx) == ErrTimeout:
			return ErrTimeout
		case err != nil:
			return errors.Join(err, d.drain())
		case b.Data == nil: // only time to retry or to advance
		default:
			d.timeout.reset()
			d.take(b)
		}
		d.retryParked(time.Now())
		if d.store != nil {
			d.pending = d.store.Advance()
		}
	}
}

// drain stops the sender and takes the packets that have arrived: the sender regards them as
// delivered.
func (d *Delivery) drain() error {
	if err := d.r.Stop(); err != nil {
		return err
	}
	for {
		b, err := d.r.Receive(context.Background()) // does not wait after Stop
		if err != nil {
			return nil
		}
		d.take(b)
	}
}

// advanceInterval is how often the store is asked whether files have reached the disk.
const advanceInterval = 2 * time.Millisecond

// receive is Receiver.Receive. If packets are parked or files wait for the disk, it returns an
// empty Block after a while.
func (d *Delivery) receive(ctx context.Context) (statusbyte.Block, error) {
	wait := retryInterval
	switch {
	case d.pending:
		wait = advanceInterval
	case d.parked == 0:
		return d.r.Receive(ctx)
	}
	short, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	b, err := d.r.Receive(short)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return statusbyte.Block{}, nil
	}
	return b, err
}

// take hashes and stores a packet.
func (d *Delivery) take(b statusbyte.Block) {
	now := time.Now()
	if d.first.IsZero() {
		d.first = now
	}
	d.last = now
	// An empty last packet only marks the end.
	if t := d.all.of(b.Device); len(b.Data) > 0 || !b.Last {
		t.add(b.Data)
	}
	dir, p := &d.dirs[b.Device], packet{Block: b}
	switch {
	case d.store == nil:
		b.Release()
	case len(dir.parked) > 0: // keep the order
		d.park(p, dir.err)
	default:
		if err := d.put(&p); err != nil {
			d.park(p, err)
		} else if dir.failing {
			d.recovered(b.Device)
		}
	}
}

// Fill sets the fields of a report that count packets, and Seconds.
func (d *Delivery) Fill(r *Report) {
	r.Seconds = d.last.Sub(d.first).Seconds()
	r.Devices = d.all.reports()
	for i := range r.Devices {
		st := d.r.Device(uint8(r.Devices[i].Device))
		r.Devices[i].Gaps, r.Devices[i].Duplicates = st.Gaps, st.Duplicates
	}
	st := d.r.Stats()
	r.BadStatus, r.BadHeader, r.Unknown, r.Overwrites = st.BadStatus, st.BadHeader, st.Unknown, st.Overwrites
}

// Unstored returns an error that wraps ErrUnstored if packets could not be stored.
func (d *Delivery) Unstored() error {
	var list []string
	var err error
	for _, t := range d.all {
		if t != nil && t.Unstored > 0 {
			list = append(list, fmt.Sprintf("%d of device %d", t.Unstored, t.Device))
			err = d.dirs[t.Device].err
		}
	}
	if list == nil {
		return nil
	}
	return fmt.Errorf("%w: %s: %w", ErrUnstored, strings.Join(list, ", "), err)
}

// timeout is a context that ends when reset is not called for a while.
type timeout struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer // nil: unlimited
	after  time.Duration
}

func newTimeout(ctx context.Context, after time.Duration) *timeout {
	t := &timeout{after: after}
	t.ctx, t.cancel = context.WithCancelCause(ctx)
	if after > 0 {
		t.timer = time.AfterFunc(after, func() { t.cancel(ErrTimeout) })
	}
	return t
}

func (t *timeout) reset() {
	if t.timer != nil {
		t.timer.Reset(t.after)
	}
}

func (t *timeout) stop() {
	if t.timer != nil {
		t.timer.Stop()
	}
	t.cancel(nil)
}
