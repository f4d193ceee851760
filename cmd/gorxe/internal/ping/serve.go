package ping

import (
	"context"
	"errors"
	"fmt"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/internal/exchange"
	"github.com/gorxe/gorxe/internal/session"
	"github.com/gorxe/gorxe/roce"
)

// Service is the name that the client asks for.
const Service = "ping"

const (
	maxBytes = 1 << 20 // of a ping
	slots    = 8       // pings that may be under way at a time
	recvFlag = uint64(1) << 63

	// A reply may overtake the acknowledgement of its ping: the send queue has room for that.
	sendDepth = 2 * slots
)

// Params is what the client asks for.
type Params struct {
	Bytes int `json:"bytes"` // of each ping
}

func (p *Params) check() error {
	if p.Bytes < 0 || p.Bytes > maxBytes {
		return fmt.Errorf("%w: pings of %d bytes: choose 0 B to %s", exchange.ErrProtocol, p.Bytes, cli.FormatSize(maxBytes))
	}
	return nil
}

// session is what either end needs. A slot is never empty, so that a ping of 0 bytes has memory to name.
func (p *Params) session(f *device.Flags) session.Config {
	return session.Config{QPs: 1, SendDepth: sendDepth, RecvDepth: slots, Bytes: slots * max(1, p.Bytes), Flags: f}
}

// Host answers pings.
type Host struct {
	Dev    *roce.Device
	Flags  *device.Flags
	Budget *session.Budget
}

// Serve answers one client until it closes. It is an exchange.Handler.
func (h *Host) Serve(ctx context.Context, conn *exchange.Conn, request *exchange.Message) error {
	var p Params
	if err := request.Decode(&p); err != nil {
		return err
	}
	if err := p.check(); err != nil {
		return err
	}
	cfg := p.session(h.Flags)
	release, err := h.Budget.Take(cfg.Memory())
	if err != nil {
		return err
	}
	defer release()
	s, err := session.New(h.Dev, conn.Local().AddrPort().Addr(), cfg)
	if err != nil {
		return err
	}
	defer s.Close()
	e := &echoer{s: s, bytes: p.Bytes}
	for i := range slots {
		if err := e.receive(i); err != nil {
			return err
		}
	}
	if err := s.Connect(ctx, request.QPs); err != nil {
		return err
	}
	if err := conn.Send(ctx, &exchange.Message{Kind: exchange.KindAccept, QPs: s.Local()}); err != nil {
		return err
	}
	return e.run(ctx, conn)
}

// echoer sends back what it receives.
type echoer struct {
	s     *session.Session
	bytes int
}

func (e *echoer) sge(slot int, n uint32) []roce.SGE {
	return []roce.SGE{e.s.MR.SGE(e.s.In(0)+slot*max(1, e.bytes), int(n))}
}

func (e *echoer) receive(slot int) error {
	return e.s.QPs[0].PostRecv(roce.RecvWR{ID: recvFlag | uint64(slot), SGEs: e.sge(slot, uint32(max(1, e.bytes)))})
}

// run echoes until the client closes the connection, which is how it ends well.
func (e *echoer) run(ctx context.Context, conn *exchange.Conn) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		_, err := conn.Await(ctx, exchange.KindDone)
		cancel(err) // nil is context.Canceled: the client is done
	}()
	wcs := make([]roce.WC, 2*slots)
	for {
		n, err := e.s.CQ.Wait(ctx, wcs)
		if ctx.Err() != nil {
			return goodbye(context.Cause(ctx))
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

// goodbye is nil for a client that has just gone.
func goodbye(err error) error {
	if errors.Is(err, exchange.ErrGone) || errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

func (e *echoer) complete(wc *roce.WC) error {
	if wc.Status != roce.Success {
		return session.StatusError(wc)
	}
	slot := int(wc.ID &^ recvFlag)
	if wc.ID&recvFlag == 0 {
		return e.receive(slot)
	}
	return e.s.QPs[0].PostSend(roce.SendWR{ID: uint64(slot), Op: roce.OpSend, Flags: roce.Signaled, SGEs: e.sge(slot, wc.ByteLen)})
}
