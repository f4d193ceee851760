package ping

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/internal/exchange"
	"github.com/gorxe/gorxe/internal/session"
	"github.com/gorxe/gorxe/roce"
)

// spin is how long the client looks for a reply without sleeping: longer than a round trip, shorter than anybody
// notices.
const spin = time.Millisecond

var (
	errBroken = errors.New("the connection broke")
	errData   = errors.New("the reply is not what was sent: data was corrupted on the way, or the peer is no gorxe")
)

// link is the client's end of one connection.
type link struct {
	conn  *exchange.Conn
	s     *session.Session
	bytes int
	wcs   [sendDepth + slots]roce.WC
	gone  context.Context // ends with its cause when the peer closes or complains
	stop  context.CancelCauseFunc

	sent    []flight // on the way, oldest first: RC keeps their order
	next    int      // slot of the next ping
	freed   int      // sends that completed
	posted  int      // sends that were posted
	replied func(f flight, rtt time.Duration)
}

// flight is a ping on its way.
type flight struct {
	seq  int
	slot int
	at   time.Time
}

// connect opens a connection to the server at addr.
func connect(ctx context.Context, dev *roce.Device, f *device.Flags, addr string, p Params) (*link, error) {
	conn, err := exchange.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	s, err := session.New(dev, conn.Local().AddrPort().Addr(), p.session(f))
	if err != nil {
		conn.Close()
		return nil, err
	}
	l := &link{conn: conn, s: s, bytes: p.Bytes}
	if err := l.open(ctx, p); err != nil {
		if !errors.Is(err, exchange.ErrRemote) && !errors.Is(err, exchange.ErrGone) && !errors.Is(err, cli.ErrInterrupted) {
			conn.Refuse(err)
		}
		conn.Close()
		return nil, errors.Join(err, s.Close())
	}
	l.gone, l.stop = context.WithCancelCause(ctx)
	go func() {
		_, err := conn.Await(l.gone, exchange.KindDone)
		l.stop(err)
	}()
	return l, nil
}

func (l *link) open(ctx context.Context, p Params) error {
	for i := range slots {
		if err := l.receive(i); err != nil {
			return err
		}
	}
	req := &exchange.Message{Kind: exchange.KindRequest, Service: Service, Params: exchange.Encode(p), QPs: l.s.Local()}
	if err := l.conn.Send(ctx, req); err != nil {
		return err
	}
	m, err := l.conn.Receive(ctx, exchange.KindAccept)
	if err != nil {
		return err
	}
	return l.s.Connect(ctx, m.QPs)
}

// close ends the connection. The server sees it by TCP.
func (l *link) close() error {
	l.stop(nil)
	l.conn.Close()
	return l.s.Close()
}

func (l *link) in(slot int) int  { return l.s.In(0) + slot*max(1, l.bytes) }
func (l *link) out(slot int) int { return l.s.Out(0) + slot*max(1, l.bytes) }

func (l *link) receive(slot int) error {
	sge := []roce.SGE{l.s.MR.SGE(l.in(slot), max(1, l.bytes))}
	return l.s.QPs[0].PostRecv(roce.RecvWR{ID: recvFlag | uint64(slot), SGEs: sge})
}

// full tells that no further ping may be sent before a reply.
func (l *link) full() bool { return len(l.sent) == slots || l.posted-l.freed == sendDepth }

// room waits until a ping may be sent.
func (l *link) room(ctx context.Context, deadline time.Time) error {
	for l.full() {
		now := time.Now()
		if !now.Before(deadline) {
			return fmt.Errorf("%w: %d pings without an answer", errBroken, len(l.sent))
		}
		if err := l.await(ctx, now.Add(spin), false); err != nil {
			return err
		}
	}
	return nil
}

// ping sends ping number seq.
func (l *link) ping(seq int) error {
	f := flight{seq: seq, slot: l.next, at: time.Now()}
	l.next = (l.next + 1) % slots
	wr := roce.SendWR{ID: uint64(f.slot), Op: roce.OpSend, Flags: roce.Signaled}
	if l.bytes > 0 {
		fill(l.s.MR.Bytes()[l.out(f.slot):][:l.bytes], seq)
		wr.SGEs = []roce.SGE{l.s.MR.SGE(l.out(f.slot), l.bytes)}
	}
	f.at = time.Now()
	if err := l.s.QPs[0].PostSend(wr); err != nil {
		return fmt.Errorf("%w: %w", errBroken, err)
	}
	l.posted++
	l.sent = append(l.sent, f)
	return nil
}

// fill makes each ping's bytes its own.
func fill(b []byte, seq int) {
	src := rand.NewChaCha8([32]byte{byte(seq), byte(seq >> 8), byte(seq >> 16), byte(seq >> 24)})
	_, _ = src.Read(b) // never fails
}

// await drives the connection until the time t, or until no ping is on its way if idle.
func (l *link) await(ctx context.Context, t time.Time, idle bool) error {
	spinEnd := time.Now().Add(spin)
	until, cancel := context.WithDeadline(ctx, t)
	defer cancel()
	defer context.AfterFunc(l.gone, cancel)()
	for !idle || len(l.sent) > 0 {
		n := l.s.CQ.Poll(l.wcs[:])
		now := time.Now()
		if n == 0 && (len(l.sent) == 0 || now.After(spinEnd)) {
			var err error
			n, err = l.s.CQ.Wait(until, l.wcs[:])
			now = time.Now()
			if err != nil && until.Err() == nil {
				return fmt.Errorf("%w: %w", errBroken, err)
			}
		}
		for i := range l.wcs[:n] {
			if err := l.complete(&l.wcs[i], now); err != nil {
				return err
			}
		}
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case l.gone.Err() != nil:
			return fmt.Errorf("%w: %w", errBroken, context.Cause(l.gone))
		case !now.Before(t):
			return nil
		}
	}
	return nil
}

func (l *link) complete(wc *roce.WC, now time.Time) error {
	if wc.Status != roce.Success {
		return fmt.Errorf("%w: %w", errBroken, session.StatusError(wc))
	}
	if wc.ID&recvFlag == 0 {
		l.freed++
		return nil
	}
	if len(l.sent) == 0 || wc.ByteLen != uint32(l.bytes) {
		return fmt.Errorf("%w: %w", errBroken, errData)
	}
	f, slot := l.sent[0], int(wc.ID&^recvFlag)
	l.sent = l.sent[1:]
	b := l.s.MR.Bytes()
	if !bytes.Equal(b[l.in(slot):][:l.bytes], b[l.out(f.slot):][:l.bytes]) {
		return fmt.Errorf("%w: %w", errBroken, errData)
	}
	l.replied(f, now.Sub(f.at))
	return l.receive(slot)
}
