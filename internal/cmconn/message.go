package cmconn

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/gorxe/gorxe/roce"
)

var (
	// ErrClosed means that the connection has ended.
	ErrClosed = errors.New("the connection has ended")
	// ErrUnexpected means that the peer sent more messages than there are slots, or something other
	// than a SEND.
	ErrUnexpected = errors.New("unexpected message")
)

// StatusError is the error of a completion that failed.
type StatusError struct {
	Opcode roce.WCOpcode
	Status roce.Status
}

func (e *StatusError) Error() string { return fmt.Sprintf("%v: %v", e.Opcode, e.Status) }

// The IDs of work requests. A receive's ID also contains the number of its slot.
const (
	recvID  = uint64(1) << 63
	probeID = uint64(1) << 62
)

func (c *Conn) postRecv(slot int) error {
	return c.QP.PostRecv(roce.RecvWR{
		ID:   recvID | uint64(slot),
		SGEs: []roce.SGE{c.MR.SGE(slot*c.cfg.SlotBytes, c.cfg.SlotBytes)},
	})
}

// Send sends a message of at most Config.SlotBytes and waits until the peer has acknowledged it.
func (c *Conn) Send(ctx context.Context, b []byte) error {
	offset := c.cfg.Slots * c.cfg.SlotBytes
	copy(c.MR.Bytes()[offset:], b)
	return c.Do(ctx, roce.SendWR{Op: roce.OpSend, SGEs: []roce.SGE{c.MR.SGE(offset, len(b))}})
}

// Do posts a work request and waits until it has completed.
func (c *Conn) Do(ctx context.Context, wr roce.SendWR) error {
	wr.ID, wr.Flags = 0, wr.Flags|roce.Signaled
	if err := c.QP.PostSend(wr); err != nil {
		return c.failure(ctx, err)
	}
	c.pending++
	return c.pollUntil(ctx, func() bool { return c.pending == 0 })
}

// Receive waits for the next message. The slice belongs to the caller.
func (c *Conn) Receive(ctx context.Context) ([]byte, error) {
	if err := c.WaitMessage(ctx); err != nil {
		return nil, err
	}
	b := c.received[0]
	c.received = c.received[1:]
	return b, nil
}

// WaitMessage waits until there is a message for Receive. It also returns when the connection ends,
// because this flushes the posted receives.
func (c *Conn) WaitMessage(ctx context.Context) error {
	return c.pollUntil(ctx, func() bool { return len(c.received) > 0 })
}

// pollUntil handles completions until done. A message that arrived before the connection ended is
// received although the completions after it failed: their error is kept for the next call.
func (c *Conn) pollUntil(ctx context.Context, done func() bool) error {
	for !done() {
		if c.err != nil {
			return c.err
		}
		n, err := c.wait(ctx)
		if err != nil {
			return c.failure(ctx, err)
		}
		for i := range c.wcs[:n] {
			if err := c.complete(&c.wcs[i]); err != nil && c.err == nil {
				c.err = err
			}
		}
	}
	return nil
}

// wait waits for completions. It probes the peer if there are none for Config.Quiet.
func (c *Conn) wait(ctx context.Context) (int, error) {
	if c.cfg.Quiet == 0 {
		return c.CQ.Wait(ctx, c.wcs)
	}
	for {
		quiet, cancel := context.WithTimeout(ctx, c.cfg.Quiet)
		n, err := c.CQ.Wait(quiet, c.wcs)
		silent := quiet.Err() != nil && ctx.Err() == nil
		cancel()
		if err == nil || !silent {
			return n, err
		}
		if c.probing {
			continue // the queue pair retransmits the probe
		}
		c.probing = true
		// An empty WRITE uses no memory, key or receive of the peer, but is acknowledged (IBA,
		// C9-88).
		wr := roce.SendWR{ID: probeID, Op: roce.OpWrite, Flags: roce.Signaled}
		if err := c.QP.PostSend(wr); err != nil {
			return 0, err
		}
	}
}

func (c *Conn) complete(wc *roce.WC) error {
	switch {
	case wc.Status != roce.Success:
		return &StatusError{wc.Opcode, wc.Status}
	case wc.ID == probeID:
		c.probing = false
		return nil
	case wc.ID&recvID == 0:
		c.pending--
		return nil
	case wc.Opcode != roce.WCRecv:
		return fmt.Errorf("%w: %v", ErrUnexpected, wc.Opcode)
	case len(c.received) == c.cfg.Slots:
		return fmt.Errorf("%w: more than %d at a time", ErrUnexpected, c.cfg.Slots)
	}
	slot := int(wc.ID &^ recvID)
	b := c.MR.Bytes()[slot*c.cfg.SlotBytes:][:wc.ByteLen]
	c.received = append(c.received, slices.Clone(b))
	return c.postRecv(slot)
}

// failure returns the reason why waiting or posting failed with err.
func (c *Conn) failure(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case c.cm != nil && c.cm.Err() != nil:
		return ErrClosed
	}
	return err
}
