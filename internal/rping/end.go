package rping

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gorxe/gorxe/roce"
)

// Errors of either role.
var (
	errPeer = errors.New("rping: the peer does not speak rping")
	errWork = errors.New("rping: an operation failed")
)

// Memory of an end: a message received, a message to send, the text out and the text back.
const (
	inOff   = 0
	outOff  = infoLen
	textOff = 64
)

// end is what an end of one connection needs. It owns everything but the device.
type end struct {
	dev  *roce.Device
	pd   *roce.PD
	cq   *roce.CQ
	mr   *roce.MR
	qp   *roce.QP
	size int // of a text

	received int // messages that arrived and were not looked at

	quiet   time.Duration // of the peer, until it is probed; 0: it never is
	probing bool
}

const (
	recvID  = 1 << 63
	probeID = 1 << 62
)

func newEnd(dev *roce.Device, size int) (e *end, err error) {
	e = &end{dev: dev, size: size}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.close())
		}
	}()
	if e.pd, err = dev.AllocPD(); err != nil {
		return e, err
	}
	if e.cq, err = dev.CreateCQ(16); err != nil {
		return e, err
	}
	access := roce.LocalWrite | roce.RemoteWrite | roce.RemoteRead
	if e.mr, err = e.pd.AllocMR(textOff+2*size, access); err != nil {
		return e, err
	}
	if e.qp, err = dev.CreateQP(e.pd, roce.QPConfig{SendCQ: e.cq, SendDepth: 4, RecvDepth: 4, MaxSendSGE: 1, MaxRecvSGE: 1}); err != nil {
		return e, err
	}
	return e, e.receive()
}

// close gives everything back, in the order of dependence.
func (e *end) close() error {
	var errs []error
	if e.qp != nil {
		errs = append(errs, e.qp.Close())
	}
	if e.mr != nil {
		errs = append(errs, e.mr.Close())
	}
	if e.cq != nil {
		errs = append(errs, e.cq.Close())
	}
	if e.pd != nil {
		errs = append(errs, e.pd.Close())
	}
	return errors.Join(errs...)
}

// out and back are the two texts.
func (e *end) out() []byte  { return e.mr.Bytes()[textOff:][:e.size] }
func (e *end) back() []byte { return e.mr.Bytes()[textOff+e.size:][:e.size] }

func (e *end) receive() error {
	return e.qp.PostRecv(roce.RecvWR{ID: recvID, SGEs: []roce.SGE{e.mr.SGE(inOff, infoLen)}})
}

// say sends a message that names a buffer.
func (e *end) say(ctx context.Context, b buffer) error {
	b.put(e.mr.Bytes()[outOff:])
	return e.do(ctx, roce.SendWR{Op: roce.OpSend, SGEs: []roce.SGE{e.mr.SGE(outOff, infoLen)}})
}

// do posts a work request and waits until it is done.
func (e *end) do(ctx context.Context, wr roce.SendWR) error {
	wr.Flags |= roce.Signaled
	if err := e.qp.PostSend(wr); err != nil {
		return err
	}
	return e.until(ctx, func(wc *roce.WC) bool { return wc.ID == 0 })
}

// hear waits for the next message.
func (e *end) hear(ctx context.Context) (buffer, error) {
	if e.received == 0 {
		if err := e.until(ctx, func(wc *roce.WC) bool { return wc.ID&recvID != 0 }); err != nil {
			return buffer{}, err
		}
	}
	e.received--
	b := parse(e.mr.Bytes()[inOff:])
	return b, e.receive()
}

// until takes completions until one is what the caller waits for. A message may come before the completion of what it
// answers.
func (e *end) until(ctx context.Context, wanted func(*roce.WC) bool) error {
	var wcs [1]roce.WC
	for {
		if err := e.wait(ctx, wcs[:]); err != nil {
			return err
		}
		wc := &wcs[0]
		if wc.Status != roce.Success {
			return fmt.Errorf("%w: %v: %v", errWork, wc.Opcode, wc.Status)
		}
		if wc.ID&recvID != 0 {
			if wc.Opcode != roce.WCRecv || wc.ByteLen != infoLen {
				return fmt.Errorf("%w: a message of %d bytes, where %d are due", errPeer, wc.ByteLen, infoLen)
			}
			e.received++
		}
		if wc.ID&probeID != 0 {
			e.probing = false
		}
		if wanted(wc) {
			return nil
		}
	}
}

// wait waits for a completion, and probes the peer when there is none for long: a host that has died says nothing, and
// who waits for its message would wait for ever.
func (e *end) wait(ctx context.Context, wcs []roce.WC) error {
	for {
		some, cancel := ctx, context.CancelFunc(func() {})
		if e.quiet > 0 {
			some, cancel = context.WithTimeout(ctx, e.quiet)
		}
		_, err := e.cq.Wait(some, wcs)
		timeUp := some.Err() != nil && ctx.Err() == nil
		cancel()
		if err == nil || !timeUp {
			return err
		}
		if e.probing {
			continue // its retries run
		}
		e.probing = true
		// A WRITE of nothing takes no memory, no key and no receive of the peer's, but is acknowledged (IBA, C9-88).
		if err := e.qp.PostSend(roce.SendWR{ID: probeID, Op: roce.OpWrite, Flags: roce.Signaled}); err != nil {
			return err
		}
	}
}
