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
	r           *statusbyte.Receiver
	store       *statusbyte.Store // nil: packets are only hashed
	all         tallies
	parked      [256][]statusbyte.Block // packets that their directory did not take, in order
	nparked     int
	most        int // that may be parked
	retry       time.Time
	why         [256]error     // what a directory said
	since       [256]time.Time // when it began to take nothing
	first, last time.Time
}

func newDelivery(r *statusbyte.Receiver, store *statusbyte.Store) *delivery {
	// At least one block has to stay in use for the other devices.
	return &delivery{r: r, store: store, most: min(max(1, r.Blocks()/2), r.Blocks()-1)}
}

// retryEvery is how long a directory that took nothing is left alone.
const retryEvery = 100 * time.Millisecond

// run takes packets until the sender has closed.
func (d *delivery) run(ctx context.Context, timeout time.Duration) error {
	wait := newPatience(ctx, timeout)
	defer wait.end()
	defer d.giveUp()
	for {
		b, err := d.receive(wait.ctx)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, context.Canceled) && context.Cause(wait.ctx) == errTimeout:
			return errTimeout
		case err != nil:
			return errors.Join(err, d.drain())
		case b.Data == nil: // only time to try again
		default:
			wait.renew()
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
	switch {
	case d.store == nil:
		b.Release()
	case len(d.parked[b.Device]) > 0: // those before it come first
		d.park(b)
	default:
		if err := d.put(b); err != nil {
			d.why[b.Device] = err
			d.park(b)
		}
	}
}

func (d *delivery) put(b statusbyte.Block) error {
	if len(b.Data) > 0 {
		if err := d.store.Put(b.Device, b.Data); err != nil {
			return err
		}
	}
	if b.Last {
		if err := d.store.End(b.Device); err != nil {
			return err
		}
	}
	b.Release()
	return nil
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

// unstored is the error of a delivery in which packets arrived that no directory took.
func (d *delivery) unstored() error {
	var list []string
	var why error
	for _, t := range d.all {
		if t != nil && t.Lost > 0 {
			list = append(list, fmt.Sprintf("%d of device %d", t.Lost, t.Device))
			why = d.why[t.Device]
		}
	}
	if list == nil {
		return nil
	}
	return fmt.Errorf("packets that arrived could not be stored: %s: %w", strings.Join(list, ", "), why)
}
