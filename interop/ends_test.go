//go:build interop

package interop_test

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/interop/peer"
	"github.com/gorxe/gorxe/roce"
)

// The layout of every end's memory: blocks of up to slot bytes, one behind the other.
const (
	slot   = 64 << 10
	slots  = 32
	region = slot * slots
	qkey   = 0x11111111
	depth  = 512 // of every queue
)

// address is what an end tells the other one.
type address struct {
	qpn  uint32
	psn  uint32
	gid  netip.Addr
	mem  uint64
	rkey uint32
}

// setting is how an end's QP is made and connected.
type setting struct {
	kind roce.QPType
	v6   bool
	mtu  bth.MTU
	srq  bool

	retries    int // 0 = 7
	rnrRetries int // 0 = 7, without end
	rnrTimer   int // code; 0 = 12, 0.64 ms
	timeout    int // 0 = 14, 67 ms
}

func (s *setting) setDefaults() {
	for _, f := range []struct {
		v *int
		d int
	}{{&s.retries, 7}, {&s.rnrRetries, 7}, {&s.rnrTimer, 12}, {&s.timeout, 14}} {
		if *f.v == 0 {
			*f.v = f.d
		}
	}
	s.timeout += slow
}

// work is n send work requests: request k has ID id + k, and its offsets advance by step and rstep.
type work struct {
	op              roce.Op
	id              uint64
	n               int // 0 = 1
	off, size, step int
	raddr           uint64
	rkey            uint32
	rstep           int
	imm             uint32 // imm + k
	inv             uint32
	cmp, swap       uint64 // CMP_SWAP: cmp + k, swap + k; FETCH_ADD: swap
	solicited       bool
	to              *address // UD
}

// wc is a completion.
type wc struct {
	id     uint64
	status string // ibv_wc_status_str's text
	size   uint32
	imm    uint32 // or the key that was invalidated
	src    uint32
}

const success = "success"

// queue says which CQ to poll.
type queue byte

const (
	sendQueue queue = 's'
	recvQueue queue = 'r'
)

// end is one side of a conversation. What cannot go wrong between correct ends fails the test.
type end interface {
	address() address
	connect(remote address)
	post(w work)
	recv(id uint64, n, off, size, step int)
	poll(q queue, n int, patience time.Duration) []wc
	fill(seed uint32, n, off, size, step int)
	check(seed uint32, n, off, size, step int)
	peek(off int) uint64
	poke(off int, v uint64)
	window(off, size int) (rkey uint32) // a memory window that the peer may invalidate
	join(group netip.Addr)              // a multicast group
	state() string
	kill() // as if the program had crashed
}

// ends makes both sides, connected: the active one first.
func (r *rig) ends(t *testing.T, v variant, s setting) (active, passive end) {
	t.Helper()
	s.v6, s.mtu = v.v6, v.mtu
	s.setDefaults()
	g, k := newGorxeEnd(t, r, s), newKernelEnd(t, r, s)
	ga, ka := g.address(), k.address()
	g.connect(ka)
	k.connect(ga)
	if v.gorxePassive {
		return k, g
	}
	return g, k
}

// ---- gorxe ----

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
}

func newGorxeEnd(t *testing.T, r *rig, s setting) *gorxeEnd {
	t.Helper()
	g := &gorxeEnd{t: t, dev: r.dev, s: s, cqs: map[queue]*roce.CQ{}, ahs: map[netip.Addr]*roce.AH{}}
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
	g.mr, err = g.pd.AllocMR(region, roce.LocalWrite|roce.RemoteWrite|roce.RemoteRead|roce.RemoteAtomic)
	g.must(err)
	for _, q := range []queue{sendQueue, recvQueue} {
		g.cqs[q], err = r.dev.CreateCQ(2 * depth)
		g.must(err)
	}
	c := roce.QPConfig{
		Type: s.kind, SendCQ: g.cqs[sendQueue], RecvCQ: g.cqs[recvQueue], SendDepth: depth, RecvDepth: depth, GIDIndex: &g.gid.Index,
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
		QPN: roce.QPN(to.qpn), PSN: roce.PSN(to.psn), GID: bth.GIDFromAddr(to.gid), MTU: g.s.mtu, PKey: roce.DefaultPKey,
	}, roce.ConnectOptions{
		Timeout: g.s.timeout, Retries: g.s.retries, RNRRetries: g.s.rnrRetries, MinRNRTimer: g.s.rnrTimer,
	}))
}

func (g *gorxeEnd) post(w work) {
	g.t.Helper()
	for k := range max(w.n, 1) {
		wr := roce.SendWR{
			ID: w.id + uint64(k), Op: w.op, Flags: roce.Signaled, RemoteAddr: w.raddr + uint64(k*w.rstep), RKey: roce.RKey(w.rkey),
			Imm: w.imm + uint32(k), InvKey: roce.RKey(w.inv), Compare: w.cmp + uint64(k), SwapAdd: w.swap,
		}
		if w.op == roce.OpCmpSwap {
			wr.SwapAdd += uint64(k)
		}
		if w.solicited {
			wr.Flags |= roce.Solicited
		}
		if w.size > 0 {
			wr.SGEs = []roce.SGE{g.mr.SGE(w.off+k*w.step, w.size)}
		}
		if w.to != nil {
			wr.AH, wr.RemoteQPN, wr.RemoteQKey = g.ah(w.to.gid).Path(), roce.QPN(w.to.qpn), qkey
		}
		g.must(g.qp.PostSend(wr))
	}
}

func (g *gorxeEnd) ah(to netip.Addr) *roce.AH {
	g.t.Helper()
	if g.ahs[to] == nil {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		ah, err := g.dev.CreateAH(ctx, roce.AHAttr{Remote: bth.GIDFromAddr(to), GIDIndex: &g.gid.Index})
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
			o := wc{id: w.ID, status: w.Status.String(), size: w.ByteLen, imm: w.Imm, src: uint32(w.SrcQP)}
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

// window is a region of its own whose key the peer may invalidate.
func (g *gorxeEnd) window(off, size int) uint32 {
	g.t.Helper()
	m, err := g.pd.RegisterMR(g.mr.Bytes()[off:off+size], roce.LocalWrite|roce.RemoteWrite|roce.RemoteRead|roce.RemoteInvalidate)
	g.must(err)
	g.t.Cleanup(func() { _ = m.Close() })
	return uint32(m.RKey())
}

// kill takes everything apart, in an order that works from any state; twice is harmless.
func (g *gorxeEnd) kill() {
	for _, ah := range g.ahs {
		_ = ah.Close()
	}
	if g.qp != nil {
		_ = g.qp.Close()
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

// ---- the kernel ----

type kernelEnd struct {
	t     *testing.T
	p     *peer.Peer
	s     setting
	me    address
	dgid  string // as the peer's commands want it
	rq    string // where receives go
	alive bool
}

func newKernelEnd(t *testing.T, r *rig, s setting) *kernelEnd {
	t.Helper()
	p, err := peer.Start(r.Guests[0].VM)
	if err != nil {
		t.Fatal(err)
	}
	k := &kernelEnd{t: t, p: p, s: s, rq: "i=0", alive: true}
	t.Cleanup(k.kill)
	k.me.gid = r.Guests[0].Addr(s.v6)
	m := k.do("mr i=0 size=%d access=31", region)
	k.me.mem, k.me.rkey = m.Num("addr"), uint32(m.Num("rkey"))
	srq := ""
	if s.srq {
		k.do("srq i=0 depth=%d", depth)
		srq, k.rq = "srq=0", "srq=0"
	}
	kind := map[roce.QPType]string{roce.RC: "rc", roce.UC: "uc", roce.UD: "ud"}[s.kind]
	k.me.qpn = uint32(k.do("qp i=0 type=%s sq=%d rq=%d %s", kind, depth, depth, srq).Num("qpn"))
	k.me.psn = k.me.qpn*0x9e3779b1>>8 ^ 0x5a5a5a
	k.do("init i=0 qkey=%d", qkey)
	return k
}

func (k *kernelEnd) do(format string, args ...any) peer.Reply {
	k.t.Helper()
	r, err := k.p.Do(0, format, args...)
	if err != nil {
		k.t.Fatal(err)
	}
	return r
}

func (k *kernelEnd) address() address { return k.me }

func gidText(a netip.Addr) string {
	if a.Is4() {
		return "::ffff:" + a.String()
	}
	return a.String()
}

func (k *kernelEnd) connect(to address) {
	k.t.Helper()
	k.dgid = fmt.Sprintf("gid=%s sgid=%d", gidText(to.gid), k.p.GIDs[k.me.gid])
	k.do("rtr i=0 mtu=%d dqpn=%d psn=%d %s rnr=%d", int(k.s.mtu), to.qpn, to.psn, k.dgid, k.s.rnrTimer)
	k.do("rts i=0 psn=%d timeout=%d retry=%d rnrretry=%d", k.me.psn, k.s.timeout, k.s.retries, k.s.rnrRetries)
}

var opNames = map[roce.Op]string{
	roce.OpSend: "send", roce.OpSendImm: "send_imm", roce.OpSendInv: "send_inv", roce.OpWrite: "write",
	roce.OpWriteImm: "write_imm", roce.OpRead: "read", roce.OpCmpSwap: "cas", roce.OpFetchAdd: "fadd",
}

func (k *kernelEnd) post(w work) {
	k.t.Helper()
	flags := "s"
	if w.solicited {
		flags += "o"
	}
	to := ""
	if w.to != nil {
		to = fmt.Sprintf("gid=%s sgid=%d dqpn=%d qkey=%d", gidText(w.to.gid), k.p.GIDs[k.me.gid], w.to.qpn, qkey)
	}
	k.do("post i=0 op=%s id=%d n=%d off=%d len=%d step=%d rva=%d rkey=%d rstep=%d imm=%d inv=%d cmp=%d swap=%d flags=%s %s",
		opNames[w.op], w.id, max(w.n, 1), w.off, w.size, w.step, w.raddr, w.rkey, w.rstep, w.imm, w.inv, w.cmp, w.swap, flags, to)
}

func (k *kernelEnd) recv(id uint64, n, off, size, step int) {
	k.t.Helper()
	k.do("recv %s id=%d n=%d off=%d len=%d step=%d", k.rq, id, n, off, size, step)
}

func (k *kernelEnd) poll(q queue, n int, patience time.Duration) []wc {
	k.t.Helper()
	r, err := k.p.Do(patience, "poll i=0 cq=%c n=%d ms=%d", q, n, patience.Milliseconds())
	if err != nil {
		k.t.Fatal(err)
	}
	var out []wc
	for _, l := range r.Lines {
		o := wc{id: l.Num("id"), status: l["text"], size: uint32(l.Num("len")), imm: uint32(l.Num("imm")), src: uint32(l.Num("src"))}
		if l.Num("status") == 0 {
			o.status = success
		}
		out = append(out, o)
	}
	return out
}

func (k *kernelEnd) fill(seed uint32, n, off, size, step int) {
	k.t.Helper()
	k.do("fill mr=0 seed=%d n=%d off=%d len=%d step=%d", seed, n, off, size, step)
}

func (k *kernelEnd) check(seed uint32, n, off, size, step int) {
	k.t.Helper()
	k.do("check mr=0 seed=%d n=%d off=%d len=%d step=%d", seed, n, off, size, step)
}

func (k *kernelEnd) peek(off int) uint64 {
	k.t.Helper()
	return k.do("peek mr=0 off=%d", off).Num("v")
}

func (k *kernelEnd) poke(off int, v uint64) {
	k.t.Helper()
	k.do("poke mr=0 off=%d v=%d", off, v)
}

func (k *kernelEnd) join(group netip.Addr) {
	k.t.Helper()
	k.do("attach i=0 gid=%v", group)
}

func (k *kernelEnd) window(off, size int) uint32 {
	k.t.Helper()
	rkey := uint32(k.do("mw i=0 mr=0 qp=0 off=%d len=%d", off, size).Num("rkey"))
	if wcs := k.poll(sendQueue, 1, 10*time.Second); len(wcs) != 1 || wcs[0].status != success {
		k.t.Fatalf("the kernel binds no memory window: %+v", wcs)
	}
	return rkey
}

func (k *kernelEnd) state() string {
	k.t.Helper()
	return k.do("state i=0").Fields["state"]
}

func (k *kernelEnd) kill() {
	if !k.alive {
		return
	}
	k.alive = false
	if err := k.p.Kill(); err != nil {
		k.t.Logf("kill the verbs peer: %v", err)
	}
}
