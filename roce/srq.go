package roce

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/gorxe/gorxe/qp"
)

// SRQ is a shared receive queue, from which several QPs take their receives. Its methods are safe
// for concurrent use.
//
// Each receive completes in the CQ of the QP that took it. When a connection ends, receives that
// its QP has taken complete there, successfully or with WRFlushErr: call QP.Cancel, poll the CQ
// until it is empty, and post the buffers again. Otherwise the SRQ shrinks with each connection. A
// server does so in ServeConfig.Done: the peer of a connection that was not established, for which
// no Handler is called, may have sent messages, too. If the SRQ is empty, RC peers get RNR NAKs and
// try again; SetLimit requests an event before that.
type SRQ struct {
	dev    *Device
	srq    *qp.SRQ
	pd     *PD
	mu     sync.Mutex // serializes posters
	refs   int        // QPs that use it; guarded by Device.ctl
	bytes  int        // taken from Device.mem
	closed atomic.Bool
}

// CreateSRQ creates a shared receive queue for QPs of the device.
//
// Errors: ErrInvalid, ErrInvalidDepth, ErrNoMemory, ErrForeign, ErrClosed.
func (d *Device) CreateSRQ(pd *PD, c SRQConfig) (*SRQ, error) {
	if pd == nil {
		return nil, fmt.Errorf("%w: an SRQ needs a PD", ErrInvalid)
	}
	if c.MaxSGE == 0 {
		c.MaxSGE = defaultSGE
	}
	d.ctl.Lock()
	defer d.ctl.Unlock()
	err := d.open()
	switch {
	case err != nil:
		return nil, err
	case pd.dev != d: // before closed, which ctl guards only for PDs of this device
		return nil, ErrForeign
	case pd.closed:
		return nil, ErrClosed
	}
	inner, err := d.eng.NewSRQ(pd.pd, qp.SRQConfig(c))
	if err != nil {
		return nil, fmt.Errorf("roce: create an SRQ: %w", err)
	}
	if err := d.mem.take(c.Footprint(), "an SRQ of this depth"); err != nil {
		return nil, fmt.Errorf("roce: create an SRQ: %w", err)
	}
	if err := pd.pd.Retain(); err != nil {
		d.mem.give(c.Footprint())
		return nil, fmt.Errorf("%w: %w", ErrClosed, err)
	}
	s := &SRQ{dev: d, srq: inner, pd: pd, bytes: c.Footprint()}
	if err := d.do(func(qp.Time) { d.engineSRQs[inner] = s }); err != nil {
		d.mem.give(s.bytes)
		pd.pd.Release()
		return nil, err
	}
	d.srqs[s] = struct{}{}
	pd.add(s)
	return s, nil
}

// PostRecv posts receive work requests, in order. If a work request fails, those before it are
// posted, and the error is a *PostError that says how many.
//
// Errors: ErrRQFull, ErrInvalidWR, ErrInvalidKey, ErrClosed.
func (s *SRQ) PostRecv(wrs ...RecvWR) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed.Load() { // checked under the lock: after Close nothing is posted
		return ErrClosed
	}
	n, err := s.srq.PostRecv(engineRecvs(wrs))
	return postError(n, err)
}

// SetLimit requests one EventSRQLimit when fewer than n receives are left; 0 cancels the request.
//
// Errors: ErrInvalidAttr, ErrClosed.
func (s *SRQ) SetLimit(n int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed.Load() { // Close resets the depth, which limits n
		return ErrClosed
	}
	return s.srq.SetLimit(n)
}

// Len returns the number of posted receives.
func (s *SRQ) Len() int { return s.srq.Len() }

// Close destroys the SRQ and discards its receives, which do not complete: their buffers belong to
// the program again. Buffers of a BufferPool are still in use then: the program keeps those that it
// has posted, and releases them before BufferPool.Close. Close returns ErrInUse while QPs use the
// SRQ. Closing twice is harmless.
func (s *SRQ) Close() error {
	s.dev.ctl.Lock()
	defer s.dev.ctl.Unlock()
	if s.refs > 0 && !s.closed.Load() {
		return fmt.Errorf("%w (%d QPs use this SRQ)", ErrInUse, s.refs)
	}
	return s.shut()
}

// shut destroys the SRQ. The caller holds Device.ctl.
func (s *SRQ) shut() error {
	s.mu.Lock()
	again := s.closed.Swap(true)
	s.mu.Unlock()
	if again {
		return nil
	}
	err := s.dev.do(func(qp.Time) {
		delete(s.dev.engineSRQs, s.srq)
		s.srq.Release()
	})
	s.dev.mem.give(s.bytes)
	delete(s.dev.srqs, s)
	s.pd.remove(s)
	s.pd.pd.Release()
	return err
}
