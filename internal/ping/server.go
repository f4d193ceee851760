package ping

import (
	"context"
	"errors"
	"time"

	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/internal/endpoint"
	"github.com/gorxe/gorxe/internal/exchange"
	"github.com/gorxe/gorxe/internal/session"
	"github.com/gorxe/gorxe/roce"
)

// Host answers pings.
type Host struct {
	Dev    *roce.Device
	GID    device.GIDIndex
	Budget *session.Budget // of memory; nil: no limit
	Idle   time.Duration   // longest time between two pings of a client; 0: unlimited

	polls pollTime
}

// Serve answers one client until the client closes the connection. It is an exchange.Handler.
func (h *Host) Serve(ctx context.Context, conn *exchange.Conn, request *exchange.Message) error {
	var p Params
	if err := request.Decode(&p); err != nil {
		return err
	}
	if err := p.check(); err != nil {
		return err
	}
	s, release, err := session.NewWithin(h.Budget, h.Dev, conn.Local().AddrPort().Addr(),
		conn.Remote().AddrPort().Addr(), p.session(h.GID))
	if err != nil {
		return err
	}
	defer release()
	e := &echoer{s: s, p: &p, polls: &h.polls}
	if err := p.postRecvs(s); err != nil {
		return err
	}
	if err := s.Connect(ctx, request.QPs); err != nil {
		return err
	}
	if err := conn.Send(ctx,
		&exchange.Message{Kind: exchange.KindAccept, QPs: s.Local()}); err != nil {
		return err
	}
	ctx, stop := session.WatchIdle(ctx, h.Idle, func() []*roce.QP { return s.QPs })
	defer stop()
	return e.run(ctx, conn)
}

// echoer sends back what it receives.
type echoer struct {
	s     *session.Session
	p     *Params
	polls *pollTime
	awake time.Time // end of the time for which it polls
}

// run echoes pings until the client closes the connection.
func (e *echoer) run(ctx context.Context, conn *exchange.Conn) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		_, err := conn.Await(ctx, exchange.KindDone)
		cancel(err)
	}()
	defer e.s.Dev.Drive()() // the goroutine that receives a ping answers it
	wcs := make([]roce.WC, 2*slots)
	for {
		n, err := e.wait(ctx, wcs)
		if ctx.Err() != nil {
			cause := context.Cause(ctx)
			if errors.Is(cause, exchange.ErrGone) || errors.Is(cause, context.Canceled) {
				return nil // the client is done
			}
			return cause
		}
		if err != nil {
			return err
		}
		for i := range wcs[:n] {
			if err := e.complete(&wcs[i]); err != nil {
				return err
			}
		}
	}
}

// wait waits for completions. It first polls for the rest of the time that stayAwake has set.
func (e *echoer) wait(ctx context.Context, wcs []roce.WC) (int, error) {
	for time.Now().Before(e.awake) && ctx.Err() == nil {
		if n := e.s.CQ.Poll(wcs); n > 0 {
			return n, nil
		}
	}
	return e.s.CQ.Wait(ctx, wcs)
}

// stayAwake makes wait poll for awakeTime if the client's message is empty, because a ping follows.
func (e *echoer) stayAwake(bytes uint32) {
	now := time.Now()
	e.polls.giveBack(max(0, e.awake.Sub(now)))
	e.awake = time.Time{}
	if bytes == 0 && e.polls.take(now, awakeTime) {
		e.awake = now.Add(awakeTime)
	}
}

func (e *echoer) complete(wc *roce.WC) error {
	if err := endpoint.StatusError(wc); err != nil {
		return err
	}
	slot := int(wc.ID &^ recvFlag)
	if wc.ID&recvFlag == 0 {
		return e.p.postRecv(e.s, slot)
	}
	e.stayAwake(wc.ByteLen)
	sge := []roce.SGE{e.s.MR.SGE(e.s.In(0)+slot*e.p.slotBytes(), int(wc.ByteLen))}
	return e.s.QP.PostSend(roce.SendWR{ID: uint64(slot), Op: roce.OpSend, Flags: roce.Signaled,
		SGEs: sge})
}
