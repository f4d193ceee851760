package soak

import (
	"errors"
	"fmt"

	"github.com/gorxe/gorxe/internal/endpoint"
	"github.com/gorxe/gorxe/internal/verify"
	"github.com/gorxe/gorxe/roce"
)

// grant is a right to a part of the server's memory that ends.
type grant struct {
	addr   uint64
	key    roce.RKey
	off    int // in sv.MR
	len    int
	byPeer bool         // the peer may end it
	end    func() error // ends it at the server
	close  func() error
}

// window grants a part of the memory by a memory window or a fast registration, uses it, ends it,
// and if last is true shows that it has ended, which costs the connection.
func (p *pair) window(last bool) (err error) {
	g, err := p.grant()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.close()) }()
	n := 1 + p.r.IntN(g.len)
	if err := p.writeTo(g, n, roce.Success); err != nil {
		return fmt.Errorf("within the grant: %w", err)
	}
	if g.byPeer && p.r.IntN(2) == 0 {
		if err := p.invalidate(g); err != nil {
			return err
		}
	} else if err := g.end(); err != nil {
		return err
	}
	p.w.n[windows].Add(1)
	if !last {
		return p.compare()
	}
	p.ended = true
	if err := p.writeTo(g, n, roce.RemAccessErr); err != nil {
		return fmt.Errorf("after the end of the grant: %w", err)
	}
	return p.compare()
}

// local runs a work request at the server.
func (p *pair) local(wr roce.SendWR) error {
	wc, err := p.one(p.sv.QP, p.sv.CQ, wr)
	return errors.Join(err, endpoint.StatusError(&wc))
}

func (p *pair) grant() (*grant, error) {
	n := 8 + p.r.IntN(dataLen/2)
	g := &grant{off: p.r.IntN(dataLen - n), len: n}
	g.addr = p.sv.MR.Addr() + uint64(g.off)
	if p.r.IntN(3) == 0 {
		return g, p.grantFast(g)
	}
	return g, p.grantWindow(g)
}

func (p *pair) grantFast(g *grant) error {
	f, err := p.sv.PD.AllocFastMR(dataLen)
	if err != nil {
		return err
	}
	p.w.n[regions].Add(1)
	g.close = f.Close
	reg, err := f.Prepare(p.sv.MR.Bytes()[g.off:g.off+g.len],
		roce.LocalWrite|roce.RemoteWrite|roce.RemoteInvalidate)
	if err != nil {
		return errors.Join(err, f.Close())
	}
	g.addr, g.key, g.byPeer = reg.Addr(), reg.RKey(), true
	g.end = func() error {
		return p.local(roce.SendWR{Op: roce.OpLocalInv, InvKey: reg.RKey()})
	}
	if err := p.local(roce.SendWR{Op: roce.OpRegMR, RKey: g.key}); err != nil {
		return errors.Join(err, f.Close())
	}
	return nil
}

func (p *pair) grantWindow(g *grant) error {
	typ := []roce.MWType{roce.MWType1, roce.MWType2}[p.r.IntN(2)]
	w, err := p.sv.PD.AllocMW(typ)
	if err != nil {
		return err
	}
	p.w.n[regions].Add(1)
	g.close, g.byPeer = w.Close, typ == roce.MWType2
	bind := func(n int) (roce.RKey, error) {
		key, err := p.sv.QP.BindMW(w, roce.MWBindAttr{Flags: roce.Signaled,
			SGE: p.sv.MR.SGE(g.off, n), Access: roce.RemoteWrite})
		if err != nil {
			return 0, err
		}
		ctx, cancel := p.w.wait()
		defer cancel()
		wc, err := next(ctx, p.sv.CQ)
		return key, errors.Join(err, endpoint.StatusError(&wc))
	}
	if g.key, err = bind(g.len); err != nil {
		return errors.Join(err, w.Close())
	}
	g.end = func() error {
		if typ == roce.MWType2 {
			return p.local(roce.SendWR{Op: roce.OpLocalInv, InvKey: g.key})
		}
		_, err := bind(0)
		return err
	}
	return nil
}

// writeTo writes n bytes with the key of the grant and checks the status.
func (p *pair) writeTo(g *grant, n int, want roce.Status) error {
	b := &batch{}
	sge, data := p.source(b, n)
	if want == roce.Success {
		copy(p.model[g.off:], data)
	}
	wc, err := p.one(p.cl.QP, p.cl.CQ, roce.SendWR{Op: roce.OpWrite, SGEs: []roce.SGE{sge},
		RemoteAddr: g.addr, RKey: g.key})
	if err != nil {
		return err
	}
	// If the NAK is lost, the server's queue pair does not answer anymore, and the connection
	// manager may disconnect first.
	lost := want != roce.Success && (wc.Status == roce.RetryExcErr || wc.Status == roce.WRFlushErr)
	if wc.Status != want && !lost {
		return fmt.Errorf("WRITE completed with %v, want %v", wc.Status, want)
	}
	p.w.n[messages].Add(1)
	return nil
}

// invalidate ends the grant by the peer's SEND.
func (p *pair) invalidate(g *grant) error {
	if err := p.postRecvs(1); err != nil {
		return err
	}
	wc, err := p.one(p.cl.QP, p.cl.CQ, roce.SendWR{Op: roce.OpSendInv, InvKey: g.key})
	if err := errors.Join(err, endpoint.StatusError(&wc)); err != nil {
		return err
	}
	return p.receives([]message{{Message: verify.Message{Op: roce.OpSendInv, InvKey: g.key}}})
}
