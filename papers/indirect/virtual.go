package indirect

import (
	"context"
	"fmt"
	"time"

	"github.com/gorxe/gorxe/internal/endpoint"
	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/roce"
)

// maxVirtual is the most virtual time of a simulation. Only a defect makes one take so long.
const maxVirtual = int64(time.Hour)

// simulate makes the transfers in virtual time: nothing takes time but the link and the timers,
// as in the paper's simulation. The same seed gives the same figures on any machine.
func (p *sides) simulate(ctx context.Context, t *trial, o *outcome) error {
	parties := []testbed.Party{p.side[0].ep, p.side[1].ep}
	var pings []*simPing
	if t.pings {
		for _, size := range pingSizes {
			g, err := newSimPing(ctx, p.Testbed, size, t.PingInterval)
			if err != nil {
				return err
			}
			pings, parties = append(pings, g), append(parties, g)
		}
	}
	start := p.Link.Now()
	return p.side[0].transfer(t, o, p.Link.Now, func() error {
		for _, g := range pings {
			if g.err != nil {
				return g.err
			}
		}
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case p.Link.Now()-start > maxVirtual:
			return testbed.ErrTimeout
		}
		return p.Step(parties...)
	})
}

// simPing is a ping in virtual time: UD messages between the two devices, which share the link with
// the transfers. It implements testbed.Party.
type simPing struct {
	bed      *testbed.Testbed
	ends     [2]*endpoint.Endpoint
	wr       [2]roce.SendWR
	interval int64
	due      int64 // earliest time of the next request
	waiting  bool  // for the reply
	err      error
}

func newSimPing(
	ctx context.Context, bed *testbed.Testbed, size int, interval time.Duration,
) (*simPing, error) {
	g := &simPing{bed: bed, interval: int64(interval)}
	for i, dev := range bed.Dev {
		e, err := endpoint.New(dev, endpoint.Config{
			QP:     roce.QPConfig{Type: roce.UD, SendDepth: 4, RecvDepth: 2},
			Memory: 2 * (roce.GRHLen + size), Access: roce.LocalWrite,
		})
		if err != nil {
			return nil, err
		}
		g.ends[i] = e
	}
	if err := endpoint.Connect(ctx, g.ends[0], g.ends[1], roce.ConnectOptions{}); err != nil {
		return nil, err
	}
	for i, e := range g.ends {
		peer := g.ends[1-i].QP.Local()
		ah, err := e.Dev.CreateAH(ctx, roce.AHAttr{Remote: peer.GID})
		if err != nil {
			return nil, err
		}
		g.wr[i] = roce.SendWR{
			Op: roce.OpSend, Flags: roce.Signaled,
			SGEs: []roce.SGE{e.MR.SGE(roce.GRHLen+size, size)},
			AH:   ah, RemoteQPN: peer.QPN, RemoteQKey: endpoint.QKey,
		}
		if err := g.postRecv(i); err != nil {
			return nil, err
		}
	}
	return g, nil
}

func (g *simPing) postRecv(i int) error {
	e := g.ends[i]
	return e.QP.PostRecv(roce.RecvWR{SGEs: []roce.SGE{e.MR.SGE(0, e.MR.Len()/2)}})
}

// Progress implements testbed.Party: it answers requests at the second end and sends the next
// request at the first one when it is due.
func (g *simPing) Progress() (n int) {
	for i := range g.ends {
		k, err := g.poll(i)
		if err != nil {
			g.err = err
			return n
		}
		n += k
	}
	if now := g.bed.Link.Now(); !g.waiting && now >= g.due {
		g.waiting, g.due = true, now+g.interval
		g.err = g.ends[0].QP.PostSend(g.wr[0])
		n++
	}
	return n
}

// poll handles the completions of end i and returns their number.
func (g *simPing) poll(i int) (int, error) {
	var wcs [4]roce.WC
	n := g.ends[i].CQ.Poll(wcs[:])
	for k := range wcs[:n] {
		if err := endpoint.StatusError(&wcs[k]); err != nil {
			return n, fmt.Errorf("simulated ping: %w", err)
		}
		if wcs[k].Opcode != roce.WCRecv {
			continue
		}
		if err := g.postRecv(i); err != nil {
			return n, err
		}
		if i == 0 {
			g.waiting = false
		} else if err := g.ends[1].QP.PostSend(g.wr[1]); err != nil {
			return n, err
		}
	}
	return n, nil
}

// NextTimeout implements testbed.Party.
func (g *simPing) NextTimeout() (int64, bool) { return g.due, !g.waiting }
