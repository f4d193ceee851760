package statusbyte

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/gorxe/gorxe/transport/statusbyte"
)

// delivery takes packets from a receiver to their hashes and directories.
type delivery struct {
	r     *statusbyte.Receiver
	store *statusbyte.Store // nil: packets are only hashed
	options
	all         tallies
	shelves     [256]shelf
	nparked     int // packets in blocks, of all devices
	most        int // that may be
	retry       time.Time
	hold        time.Time       // when everything began to wait for a directory
	ctx         context.Context // run's
	wait        *patience
	first, last time.Time
}

// options say how patient a delivery is, and whom it tells.
type options struct {
	timeout  time.Duration // without a packet; 0: for ever
	grace    time.Duration // after the end, for directories that take nothing
	lossless bool          // rather everything waits than that a packet is dropped
	diag     io.Writer
}

func newDelivery(r *statusbyte.Receiver, store *statusbyte.Store, o options) *delivery {
	if o.diag == nil {
		o.diag = io.Discard
	}
	// At least one block has to stay in use for the other devices.
	return &delivery{r: r, store: store, options: o, most: min(max(1, r.Blocks()/2), r.Blocks()-1)}
}

// run takes packets until the sender has closed.
func (d *delivery) run(ctx context.Context) error {
	d.ctx, d.wait = ctx, newPatience(ctx, d.timeout)
	defer d.wait.end()
	defer d.giveUp()
	for {
		b, err := d.receive(d.wait.ctx)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, context.Canceled) && context.Cause(d.wait.ctx) == errTimeout:
			return errTimeout
		case err != nil:
			return errors.Join(err, d.drain())
		case b.Data == nil: // only time to try again
		default:
			d.wait.renew()
			d.take(b)
		}
		d.again(time.Now())
	}
}

// drain stops the sender and takes what has arrived before that: the sender takes it for delivered.
func (d *delivery) drain() error {
	if err := d.r.Stop(); err != nil {
		return err
	}
	for {
		b, err := d.r.Receive(context.Background()) // never waits: the connection has ended
		if err != nil {
			return nil
		}
		d.take(b)
	}
}

// receive is Receive, which comes back after a while if packets are parked: without a packet then.
func (d *delivery) receive(ctx context.Context) (statusbyte.Block, error) {
	if d.nparked == 0 {
		return d.r.Receive(ctx)
	}
	short, cancel := context.WithTimeout(ctx, retryEvery)
	defer cancel()
	b, err := d.r.Receive(short)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return statusbyte.Block{}, nil
	}
	return b, err
}

// take hashes a packet and stores it.
func (d *delivery) take(b statusbyte.Block) {
	now := time.Now()
	if d.first.IsZero() {
		d.first = now
	}
	d.last = now
	if t := d.all.of(b.Device); len(b.Data) > 0 || !b.Last { // an empty last packet is only the mark of the end
		t.add(b.Data)
	}
	s, it := &d.shelves[b.Device], item{Block: b}
	switch {
	case d.store == nil:
		b.Release()
	case len(s.parked) > 0: // those before it come first
		d.park(it, s.why)
	default:
		if err := d.put(&it); err != nil {
			d.park(it, err)
		} else if s.stuck {
			d.recovered(b.Device)
		}
	}
}

func (d *delivery) elapsed() time.Duration { return d.last.Sub(d.first) }

// fill completes a report.
func (d *delivery) fill(rep *report) {
	rep.Devices = d.all.reports()
	for i := range rep.Devices {
		st := d.r.Device(uint8(rep.Devices[i].Device))
		rep.Devices[i].Gaps, rep.Devices[i].Duplicates = st.Gaps, st.Duplicates
	}
	st := d.r.Stats()
	rep.BadStatus, rep.BadHeader, rep.Unknown, rep.Overwrites = st.BadStatus, st.BadHeader, st.Unknown, st.Overwrites
}

// errUnstored: packets were lost between the NIC and their directory.
var errUnstored = errors.New("packets that arrived could not be stored")

// unstored is the error of a delivery in which packets arrived that no directory took.
func (d *delivery) unstored() error {
	var list []string
	var why error
	for _, t := range d.all {
		if t != nil && t.Lost > 0 {
			list = append(list, fmt.Sprintf("%d of device %d", t.Lost, t.Device))
			why = d.shelves[t.Device].why
		}
	}
	if list == nil {
		return nil
	}
	return fmt.Errorf("%w: %s: %w", errUnstored, strings.Join(list, ", "), why)
}
