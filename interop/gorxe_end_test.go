//go:build interop

package interop_test

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/interop/peer"
	"github.com/gorxe/gorxe/roce"
)

type gorxeEnd struct {
	t   *testing.T
	dev *roce.Device
	s   setting
	gid roce.GIDEntry
	pd  *roce.PD
	mr  *roce.MR
	cqs map[queue]*roce.CQ
	srq *roce.SRQ
	qp  *roce.QP
	ahs map[netip.Addr]*roce.AH

	closers []func() error // of windows, which must end before their region
}

func newGorxeEnd(t *testing.T, r *rig, s setting) *gorxeEnd {
	t.Helper()
	g := &gorxeEnd{t: t, dev: r.dev, s: s, cqs: map[queue]*roce.CQ{},
		ahs: map[netip.Addr]*roce.AH{}}
	want := r.HostAddr(s.v6)
	for _, e := range r.dev.GIDs() {
		if e.Addr == want {
			g.gid = e
		}
	}
	t.Cleanup(g.kill)
	var err error
	g.pd, err = r.dev.AllocPD()
	g.must(err)
	g.mr, err = g.pd.AllocMR(region,
		roce.LocalWrite|roce.RemoteWrite|roce.RemoteRead|roce.RemoteAtomic|roce.MWBind|roce.FlushGlobal)
	g.must(err)
	for _, q := range []queue{sendQueue, recvQueue} {
		g.cqs[q], err = r.dev.CreateCQ(2 * depth)
		g.must(err)
	}
	c := roce.QPConfig{
		Type: s.kind, SendCQ: g.cqs[sendQueue], RecvCQ: g.cqs[recvQueue], SendDepth: depth,
		RecvDepth: depth, GIDIndex: &g.gid.Index,
	}
	if s.srq {
		g.srq, err = r.dev.CreateSRQ(g.pd, roce.SRQConfig{Depth: depth})
		g.must(err)
		c.SRQ = g.srq
	}
	g.qp, err = r.dev.CreateQP(g.pd, c)
	g.must(err)
	return g
}

func (g *gorxeEnd) must(err error) {
	g.t.Helper()
	if err != nil {
		g.t.Fatalf("gorxe: %v", err)
	}
}

func (g *gorxeEnd) address() address {
	l := g.qp.Local()
	return address{uint32(l.QPN), uint32(l.PSN), g.gid.Addr, g.mr.Addr(), uint32(g.mr.RKey())}
}

func (g *gorxeEnd) connect(to address) {
	g.t.Helper()
	if g.s.kind == roce.UD {
		g.must(g.qp.Activate(qkey))
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	g.must(g.qp.Connect(ctx, roce.Endpoint{
		QPN: roce.QPN(to.qpn), PSN: roce.PSN(to.psn), GID: bth.GIDFromAddr(to.gid), MTU: g.s.mtu,
		PKey: roce.DefaultPKey,
	}, roce.ConnectOptions{
		Timeout: g.s.timeout, Retries: g.s.retries, RNRRetries: g.s.rnrRetries,
		MinRNRTimer: g.s.rnrTimer,
	}))
}

func (g *gorxeEnd) post(w work) {
	g.t.Helper()
	for k := range max(w.n, 1) {
		wr := roce.SendWR{
			ID: w.id + uint64(k), Op: w.op, Flags: roce.Signaled,
			RemoteAddr: w.raddr + uint64(k*w.rstep), RKey: roce.RKey(w.rkey),
			Imm: w.imm + uint32(k), InvKey: roce.RKey(w.inv), Compare: w.cmp + uint64(k),
			SwapAdd: w.swap,
		}
		if w.op == roce.OpCmpSwap {
			wr.SwapAdd += uint64(k)
		}
		if w.solicited {
			wr.Flags |= roce.Solicited
		}
		if w.op == roce.OpFlush {
			wr.Length, wr.Placement, wr.Level = uint32(w.size), roce.PlaceGlobal, w.level
		} else if w.size > 0 {
			wr.SGEs = []roce.SGE{g.mr.SGE(w.off+k*w.step, w.size)}
		}
		if w.to != nil {
			wr.AH, wr.RemoteQPN, wr.RemoteQKey = g.ah(w.to.gid), roce.QPN(w.to.qpn), qkey
		}
		g.must(g.qp.PostSend(wr))
	}
}

func (g *gorxeEnd) ah(to netip.Addr) *roce.AH {
	g.t.Helper()
	if g.ahs[to] == nil {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		ah, err := g.dev.CreateAH(ctx,
			roce.AHAttr{Remote: bth.GIDFromAddr(to), GIDIndex: &g.gid.Index})
		g.must(err)
		g.ahs[to] = ah
	}
	return g.ahs[to]
}

func (g *gorxeEnd) recv(id uint64, n, off, size, step int) {
	g.t.Helper()
	for k := range n {
		wr := roce.RecvWR{ID: id + uint64(k), SGEs: []roce.SGE{g.mr.SGE(off+k*step, size)}}
		if g.srq != nil {
			g.must(g.srq.PostRecv(wr))
		} else {
			g.must(g.qp.PostRecv(wr))
		}
	}
}

func (g *gorxeEnd) poll(q queue, n int, patience time.Duration) []wc {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var out []wc
	for len(out) < n {
		wcs := make([]roce.WC, n-len(out))
		got, err := g.cqs[q].Wait(ctx, wcs)
		if err != nil {
			break
		}
		for _, w := range wcs[:got] {
			o := wc{id: w.ID, status: w.Status.String(), size: w.ByteLen, imm: w.Imm,
				src: uint32(w.SrcQP)}
			if w.Flags&roce.WCWithInv != 0 {
				o.imm = uint32(w.InvKey)
			}
			out = append(out, o)
		}
	}
	return out
}

func (g *gorxeEnd) fill(seed uint32, n, off, size, step int) {
	for k := range n {
		peer.Fill(g.mr.Bytes()[off+k*step:][:size], seed+uint32(k))
	}
}

func (g *gorxeEnd) check(seed uint32, n, off, size, step int) {
	g.t.Helper()
	for k := range n {
		if err := peer.Check(g.mr.Bytes()[off+k*step:][:size], seed+uint32(k)); err != nil {
			g.t.Fatalf("gorxe's memory: block %d: %v", k, err)
		}
	}
}

func (g *gorxeEnd) peek(off int) uint64    { return g.mr.Load64(off) }
func (g *gorxeEnd) poke(off int, v uint64) { g.mr.Store64(off, v) }
func (g *gorxeEnd) state() string          { return g.qp.State().String() }

func (g *gorxeEnd) join(group netip.Addr) { g.t.Helper(); g.must(g.qp.AttachMulticast(group)) }

const windowRights = roce.RemoteWrite | roce.RemoteRead

// window's addresses are those of the memory that it covers.
func (g *gorxeEnd) window(kind windowKind, off, size int) (rkey uint32) {
	g.t.Helper()
	mem, rights := g.mr.Bytes()[off:off+size], roce.LocalWrite|windowRights|roce.RemoteInvalidate
	switch kind {
	case slowReg:
		m, err := g.pd.RegisterMR(mem, rights)
		g.must(err)
		g.t.Cleanup(func() { _ = m.Close() })
		return uint32(m.RKey())
	case fastReg:
		f, err := g.pd.AllocFastMR(size)
		g.must(err)
		g.closers = append(g.closers, f.Close)
		reg, err := f.Prepare(mem, rights)
		g.must(err)
		g.must(g.qp.PostSend(roce.SendWR{ID: bindID, Op: roce.OpRegMR, RKey: reg.RKey(),
			Flags: roce.Signaled}))
		rkey = uint32(reg.RKey())
	default:
		w, err := g.pd.AllocMW(map[windowKind]roce.MWType{window1: roce.MWType1,
			window2: roce.MWType2}[kind])
		g.must(err)
		g.closers = append(g.closers, w.Close)
		key, err := g.qp.BindMW(w,
			roce.MWBindAttr{ID: bindID, Flags: roce.Signaled, SGE: g.mr.SGE(off, size),
				Access: windowRights})
		g.must(err)
		rkey = uint32(key)
	}
	expect(g.t, "gorxe binds", g, sendQueue, bindID, 1)
	return rkey
}

// The IDs of the work requests for windows. The kernel's side uses the same.
const (
	bindID = 0xb1d
	linvID = 0x11f
)

func (g *gorxeEnd) invalidate(rkey uint32) {
	g.t.Helper()
	g.must(g.qp.PostSend(roce.SendWR{ID: linvID, Op: roce.OpLocalInv, InvKey: roce.RKey(rkey),
		Flags: roce.Signaled}))
	expect(g.t, "gorxe", g, sendQueue, linvID, 1)
}

// kill destroys everything in an order that works from any state. Calling it twice has no effect.
func (g *gorxeEnd) kill() {
	for _, ah := range g.ahs {
		_ = ah.Close()
	}
	if g.qp != nil {
		_ = g.qp.Close()
	}
	for _, f := range g.closers {
		_ = f()
	}
	if g.srq != nil {
		_ = g.srq.Close()
	}
	for _, c := range g.cqs {
		_ = c.Close()
	}
	if g.mr != nil {
		_ = g.mr.Close()
	}
	if g.pd != nil {
		_ = g.pd.Close()
	}
}
