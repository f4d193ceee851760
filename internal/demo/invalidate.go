package demo

import (
	"context"
	"errors"
	"fmt"

	"github.com/gorxe/gorxe/internal/endpoint"
	"github.com/gorxe/gorxe/roce"
)

// grantKeys creates the memory regions whose keys the next k SEND inv invalidate.
func (t *trial) grantKeys(k int) error {
	for range k {
		m, err := t.d.b.PD.RegisterMR(make([]byte, small),
			roce.LocalWrite|roce.RemoteWrite|roce.RemoteInvalidate)
		if err != nil {
			return err
		}
		t.keys = append(t.keys, m)
	}
	return nil
}

// dropKeys closes the regions of a round.
func (t *trial) dropKeys() error {
	var err error
	for _, m := range t.keys {
		err = errors.Join(err, m.Close())
	}
	t.keys = t.keys[:0]
	return err
}

// checkInvalidated checks that a WRITE with an invalidated key fails. It uses an extra pair of
// queue pairs, because the failure breaks them. If packets are lost, B's NAK may be lost too; B's
// QP does not answer retransmissions, so A's retries run out instead.
func (d *Demo) checkInvalidated(ctx context.Context) error {
	t := newTrial(ctx, d, &operation{name: "SEND inv", qp: rc, op: roce.OpSendInv, recv: true},
		small)
	if err := t.grantKeys(1); err != nil {
		return err
	}
	key := t.keys[0]
	t.fill(t.source(0), t.next)
	if _, err := t.exchange(1); err != nil {
		return err
	}
	if _, err := t.verifyReceives(1); err != nil {
		return err
	}
	qa, err := d.extraPair(ctx)
	if err == nil {
		err = qa.PostSend(roce.SendWR{
			Op: roce.OpWrite, SGEs: []roce.SGE{d.a.MR.SGE(outArea, small)}, RemoteAddr: key.Addr(),
			RKey: key.RKey(),
		})
	}
	if err == nil {
		err = d.awaitFailure(ctx)
	}
	return errors.Join(err, t.dropKeys())
}

// extraPair connects two more RC QPs and returns A's. The endpoints destroy them.
func (d *Demo) extraPair(ctx context.Context) (*roce.QP, error) {
	qa, err := d.a.AddQPOfType(roce.RC)
	if err != nil {
		return nil, err
	}
	qb, err := d.b.AddQPOfType(roce.RC)
	if err != nil {
		return nil, err
	}
	return qa, endpoint.ConnectQPs(ctx, qa, qb, roce.ConnectOptions{MTU: d.MTU})
}

// awaitFailure waits for one completion on A. It must be a failed one.
func (d *Demo) awaitFailure(ctx context.Context) error {
	var wcs [1]roce.WC
	for p := (poller{}); d.a.CQ.Poll(wcs[:]) == 0; {
		if _, err := p.empty(ctx); err != nil {
			return err
		}
	}
	switch s := wcs[0].Status; {
	case s == roce.RemAccessErr, s == roce.RetryExcErr && d.Loss > 0:
		return nil
	case s == roce.Success:
		return fmt.Errorf("%w: a WRITE with a key that SEND inv had invalidated succeeded",
			errWrong)
	}
	return fmt.Errorf("WRITE with a key that SEND inv had invalidated: %w",
		endpoint.StatusError(&wcs[0]))
}
