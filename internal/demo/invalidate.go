package demo

import (
	"context"
	"errors"
	"fmt"

	"github.com/gorxe/gorxe/internal/session"
	"github.com/gorxe/gorxe/roce"
)

// grantKeys makes the memory regions whose keys a round of SEND inv takes back.
func (t *trial) grantKeys(k int) error {
	for range k {
		m, err := t.r.b.pd.RegisterMR(make([]byte, small), roce.LocalWrite|roce.RemoteWrite|roce.RemoteInvalidate)
		if err != nil {
			return err
		}
		t.keys = append(t.keys, m)
	}
	return nil
}

// dropKeys frees the regions of a round.
func (t *trial) dropKeys() error {
	var err error
	for _, m := range t.keys {
		err = errors.Join(err, m.Close())
	}
	t.keys = t.keys[:0]
	return err
}

// keyIsDead checks that a key which SEND inv took back opens nothing any more: a
// WRITE with it has to fail, on queue pairs of their own because they break by it.
// Where packets are lost, B's NAK may be one of them: its broken QP answers no
// repetition, so A's retries run out instead.
func (r *rig) keyIsDead(ctx context.Context) error {
	t := newTrial(ctx, r, &step{name: "SEND inv", qp: rc, op: roce.OpSendInv, recv: true}, small)
	if err := t.grantKeys(1); err != nil {
		return err
	}
	key := t.keys[0]
	if err := t.sendOnce(); err != nil {
		return err
	}
	qa, qb, err := r.extraPair(ctx)
	if err != nil {
		return err
	}
	err = qa.PostSend(roce.SendWR{
		Op: roce.OpWrite, SGEs: []roce.SGE{r.a.mr.SGE(outArea, small)}, RemoteAddr: key.Addr(), RKey: key.RKey(),
	})
	if err == nil {
		err = r.refused(ctx)
	}
	return errors.Join(err, qa.Close(), qb.Close(), t.dropKeys())
}

// sendOnce sends one message, with the keys as they are.
func (t *trial) sendOnce() error {
	t.fill(t.source(0), t.next)
	if err := t.post(1); err != nil {
		return err
	}
	if err := t.await(1); err != nil {
		return err
	}
	_, err := t.verifyReceives(1)
	return err
}

// extraPair makes one more pair of RC QPs.
func (r *rig) extraPair(ctx context.Context) (qa, qb *roce.QP, err error) {
	if qa, err = r.a.dev.CreateQP(r.a.pd, roce.QPConfig{SendCQ: r.a.cq}); err != nil {
		return nil, nil, err
	}
	if qb, err = r.b.dev.CreateQP(r.b.pd, roce.QPConfig{SendCQ: r.b.cq}); err != nil {
		return nil, nil, errors.Join(err, qa.Close())
	}
	o := roce.ConnectOptions{MTU: r.mtu}
	if err = qa.Connect(ctx, qb.Local(), o); err == nil {
		err = qb.Connect(ctx, qa.Local(), o)
	}
	if err != nil {
		return nil, nil, errors.Join(err, qa.Close(), qb.Close())
	}
	return qa, qb, nil
}

// refused waits for one completion of A's, which must not be a success.
func (r *rig) refused(ctx context.Context) error {
	var wcs [1]roce.WC
	for idle := (idler{}); r.a.cq.Poll(wcs[:]) == 0; {
		if _, err := idle.vain(ctx); err != nil {
			return err
		}
	}
	switch s := wcs[0].Status; {
	case s == roce.RemAccessErr, s == roce.RetryExcErr && r.loss > 0:
		return nil
	case s == roce.Success:
		return fmt.Errorf("%w: a WRITE with a key that SEND inv had taken back went through", errWrong)
	}
	return fmt.Errorf("WRITE with a key that SEND inv had taken back: %w", session.StatusError(&wcs[0]))
}
