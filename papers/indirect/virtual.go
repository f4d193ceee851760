package indirect

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gorxe/gorxe/roce"
)

// errStill: the simulation stands still, or has no end.
var errStill = errors.New("transfers are unfinished and nothing moves them on: a defect of the simulation or of the transport")

// maxVirtual is more than any simulation takes but by mistake, in nanoseconds of its own time.
const maxVirtual = int64(time.Hour)

// simulate lets virtual time pass: nothing costs time but the link and the timers, as in the paper's simulation. The same seed gives the same
// figures on any machine.
func (p *pair) simulate(ctx context.Context, t *trial, o *outcome) error {
	var pings []*pinger
	if t.pings {
		for _, size := range pingSizes {
			g, err := newPinger(ctx, p, size, t.pingEvery)
			if err != nil {
				return err
			}
			pings = append(pings, g)
		}
	}
	start := p.link.Now()
	return p.sides[0].pour(t, o, p.link.Now, func() error {
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case p.link.Now()-start > maxVirtual:
			return errStill
		}
		return p.advance(pings)
	})
}

// advance turns all cranks until nothing is to be done now, and then moves the clock to what comes next.
func (p *pair) advance(pings []*pinger) error {
	for busy := true; busy; {
		busy = false
		for _, s := range p.sides {
			busy = s.dev.Progress() > 0 || busy
			busy = s.ep.Progress() > 0 || busy
		}
		for _, g := range pings {
			again, err := g.turn(p.link.Now())
			if err != nil {
				return err
			}
			busy = again || busy
		}
	}
	next, ok := p.link.NextEvent()
	for _, s := range p.sides {
		for _, timer := range []func() (int64, bool){s.dev.NextTimeout, s.ep.NextTimeout} {
			if at, have := timer(); have && (!ok || at < next) {
				next, ok = at, true
			}
		}
	}
	for _, g := range pings {
		if !g.waits && (!ok || g.due < next) {
			next, ok = g.due, true
		}
	}
	if !ok {
		return errStill
	}
	p.link.Advance(time.Duration(max(1, next-p.link.Now())))
	return nil
}

// pinger is a ping in virtual time: datagrams of the two devices, to and fro, which share the link with the transfers.
type pinger struct {
	ends [2]struct {
		qp *roce.QP
		cq *roce.CQ
		mr *roce.MR
		to roce.SendWR
	}
	every int64
	due   int64 // when the next one may go
	waits bool  // for an answer
}

const pingKey = 0x9199

func newPinger(ctx context.Context, p *pair, size int, every time.Duration) (*pinger, error) {
	g := &pinger{every: int64(every)}
	for i := range g.ends {
		e, dev := &g.ends[i], p.sides[i].dev
		pd, err := dev.AllocPD()
		if err != nil {
			return nil, err
		}
		if e.cq, err = dev.CreateCQ(8); err != nil {
			return nil, err
		}
		if e.mr, err = pd.AllocMR(2*(roce.GRHLen+size), roce.LocalWrite); err != nil {
			return nil, err
		}
		if e.qp, err = dev.CreateQP(pd, roce.QPConfig{Type: roce.UD, SendCQ: e.cq, SendDepth: 4, RecvDepth: 2}); err != nil {
			return nil, err
		}
		if err := errors.Join(e.qp.Activate(pingKey), g.listen(i)); err != nil {
			return nil, err
		}
	}
	for i := range g.ends {
		peer := g.ends[1-i].qp.Local()
		ah, err := p.sides[i].dev.CreateAH(ctx, roce.AHAttr{Remote: peer.GID})
		if err != nil {
			return nil, err
		}
		g.ends[i].to = roce.SendWR{
			Op: roce.OpSend, Flags: roce.Signaled, SGEs: []roce.SGE{g.ends[i].mr.SGE(roce.GRHLen+size, size)},
			AH: ah, RemoteQPN: peer.QPN, RemoteQKey: pingKey,
		}
	}
	return g, nil
}

func (g *pinger) listen(i int) error {
	e := &g.ends[i]
	return e.qp.PostRecv(roce.RecvWR{SGEs: []roce.SGE{e.mr.SGE(0, e.mr.Len()/2)}})
}

// turn answers what has come, at the far end, and sends the next one when it is time, at the near end.
func (g *pinger) turn(now int64) (busy bool, err error) {
	var wcs [4]roce.WC
	for i := range g.ends {
		e := &g.ends[i]
		n := e.cq.Poll(wcs[:])
		busy = busy || n > 0
		for _, wc := range wcs[:n] {
			if wc.Status != roce.Success {
				return busy, fmt.Errorf("a ping: %v", wc.Status)
			}
			if wc.Opcode != roce.WCRecv {
				continue
			}
			if err := g.listen(i); err != nil {
				return busy, err
			}
			if i == 0 {
				g.waits = false
			} else if err := e.qp.PostSend(e.to); err != nil {
				return busy, err
			}
		}
	}
	if g.waits || now < g.due {
		return busy, nil
	}
	g.waits, g.due = true, now+g.every
	return true, g.ends[0].qp.PostSend(g.ends[0].to)
}
