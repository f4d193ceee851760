//go:build interop

package interop_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/gorxe/gorxe/interop/peer"
	"github.com/gorxe/gorxe/roce"
)

type kernelEnd struct {
	t     *testing.T
	p     *peer.Peer
	s     setting
	me    address
	dgid  string // in the format of the peer's commands
	rq    string // where receives are posted
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
	m := k.do("mr i=0 size=%d access=%d", region, 31|ifSet(s.new, accessFlush))
	k.me.mem, k.me.rkey = m.Num("addr"), uint32(m.Num("rkey"))
	srq := ""
	if s.srq {
		k.do("srq i=0 depth=%d", depth)
		srq, k.rq = "srq=0", "srq=0"
	}
	if s.new {
		srq += " new=1"
	}
	kind := map[roce.QPType]string{roce.RC: "rc", roce.UC: "uc", roce.UD: "ud"}[s.kind]
	k.me.qpn = uint32(k.do("qp i=0 type=%s sq=%d rq=%d %s", kind, depth, depth, srq).Num("qpn"))
	k.me.psn = k.me.qpn*0x9e3779b1>>8 ^ 0x5a5a5a
	if s.new {
		k.do("init i=0 access=%d", 14|accessFlush)
	} else {
		k.do("init i=0 qkey=%d", qkey)
	}
	return k
}

// accessFlush is libibverbs' IBV_ACCESS_FLUSH_GLOBAL.
const accessFlush = 1 << 8

// ifSet returns v if wanted, else 0.
func ifSet(wanted bool, v int) int {
	if wanted {
		return v
	}
	return 0
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
	k.do("rtr i=0 mtu=%d dqpn=%d psn=%d %s rnr=%d", int(k.s.mtu), to.qpn, to.psn, k.dgid,
		k.s.rnrTimer)
	k.do("rts i=0 psn=%d timeout=%d retry=%d rnrretry=%d", k.me.psn, k.s.timeout, k.s.retries,
		k.s.rnrRetries)
}

var opNames = map[roce.Op]string{
	roce.OpSend: "send", roce.OpSendImm: "send_imm", roce.OpSendInv: "send_inv",
	roce.OpWrite:    "write",
	roce.OpWriteImm: "write_imm", roce.OpRead: "read", roce.OpCmpSwap: "cas",
	roce.OpFetchAdd: "fadd",
}

func (k *kernelEnd) post(w work) {
	k.t.Helper()
	if k.postNew(w) {
		return
	}
	flags := "s"
	if w.solicited {
		flags += "o"
	}
	to := ""
	if w.to != nil {
		to = fmt.Sprintf("gid=%s sgid=%d dqpn=%d qkey=%d", gidText(w.to.gid), k.p.GIDs[k.me.gid],
			w.to.qpn, qkey)
	}
	k.do("post i=0 op=%s id=%d n=%d off=%d len=%d step=%d rva=%d rkey=%d rstep=%d imm=%d inv=%d cmp=%d swap=%d flags=%s %s",
		opNames[w.op], w.id, max(w.n, 1), w.off, w.size, w.step, w.raddr, w.rkey, w.rstep, w.imm,
		w.inv, w.cmp, w.swap, flags, to)
}

// postNew posts operations that ibv_post_send lacks. It reports whether it did.
func (k *kernelEnd) postNew(w work) bool {
	k.t.Helper()
	switch w.op {
	case roce.OpFlush:
		k.do("flush i=0 id=%d rva=%d len=%d rkey=%d place=%d level=%d", w.id, w.raddr, w.size,
			w.rkey, roce.PlaceGlobal, w.level)
	case roce.OpAtomicWrite:
		k.do("awrite i=0 id=%d off=%d rva=%d rkey=%d", w.id, w.off, w.raddr, w.rkey)
	default:
		return false
	}
	return true
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
		o := wc{id: l.Num("id"), status: l["text"], size: uint32(l.Num("len")),
			imm: uint32(l.Num("imm")), src: uint32(l.Num("src"))}
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

func (k *kernelEnd) window(kind windowKind, off, size int) uint32 {
	k.t.Helper()
	rkey := uint32(k.do("mw i=0 mr=0 qp=0 off=%d len=%d type=%d", off, size,
		map[windowKind]int{window1: 1, window2: 2}[kind]).Num("rkey"))
	expect(k.t, "the kernel binds", k, sendQueue, bindID, 1)
	return rkey
}

func (k *kernelEnd) invalidate(rkey uint32) {
	k.t.Helper()
	k.do("linv i=0 inv=%d", rkey)
	expect(k.t, "the kernel", k, sendQueue, linvID, 1)
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
