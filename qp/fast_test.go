package qp

import (
	"errors"
	"testing"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/mr"
)

// fast prepares a registration of new memory.
func (k *talk) fast(n int, a mr.Access) *mr.MR {
	k.t.Helper()
	f, err := k.mrs.AllocFastMR(k.pd, n)
	must(k.t, err)
	mem := seq(n)
	m, err := k.mrs.Prepare(f, mem, mr.AddrOf(mem), a)
	must(k.t, err)
	return m
}

// IBA 10.6.6: REG_MR registers memory within a list of work requests, and later ones may use its
// L_Key. LOCAL_INV ends the registration.
func TestFastRegister(t *testing.T) {
	k := newTalk(t, RC)
	m := k.fast(64, mr.LocalWrite|mr.RemoteWrite)
	use := SendWR{ID: 2, Op: OpWrite, Flags: Signaled,
		SGEs: []SGE{{Addr: m.Addr(), Length: 64, LKey: bth.LKey(m.LKey())}}}
	k.post(regMR(1, m), use)
	ps := k.listen()
	k.equal("packets", len(ps), 1)
	k.equal("data", string(ps[0].Payload), string(seq(64)))
	k.say(ack(0))
	k.completes("1 success REG_MR 0B", "2 success RDMA_WRITE 64B")
	in := pkt{op: bth.RCWriteOnly, va: m.Addr(), key: bth.RKey(m.RKey()), n: 8,
		data: make([]byte, 8)}
	k.say(in)
	k.hears("ACK +0 msn=1")
	k.equal("written", string(m.Bytes()[:8]), string(make([]byte, 8)))

	k.post(localInv(3, bth.RKey(m.RKey())))
	k.hears()
	k.completes("3 success LOCAL_INV 0B")
	if _, err := k.q.PostSend([]SendWR{use}); !errors.Is(err, ErrInvalidKey) {
		t.Fatalf("an invalid L_Key was posted: %v", err)
	}
	in.psn = 1
	k.say(in)
	k.refused("NAK remote access error +1 msn=1", "QP_ACCESS_ERR")
}

// Before REG_MR has run, the R_Key is invalid.
func TestRemoteAccessBeforeRegister(t *testing.T) {
	k := newTalk(t, RC)
	m := k.fast(64, mr.LocalWrite|mr.RemoteWrite)
	k.say(pkt{op: bth.RCWriteOnly, va: m.Addr(), key: bth.RKey(m.RKey()), n: 8,
		data: make([]byte, 8)})
	k.refused(access, "QP_ACCESS_ERR")
	k.equal("memory", string(m.Bytes()), string(seq(64)))
}

// A work request whose L_Key waits for a REG_MR that was never posted fails when it is executed.
func TestUseBeforeRegister(t *testing.T) {
	k := newTalk(t, RC)
	m := k.fast(64, 0)
	k.post(SendWR{ID: 1, Op: OpWrite,
		SGEs: []SGE{{Addr: m.Addr(), Length: 64, LKey: bth.LKey(m.LKey())}}})
	k.hears()
	k.completes("1 local protection error")
	k.is(Err)
}

// The peer's SEND with invalidate ends a fast MR registration, as NFS and NVMe over RDMA use it.
// The fast MR can be registered again.
func TestSendInvalidatesFastMR(t *testing.T) {
	k := newTalk(t, RC)
	k.recvs(8)
	f, err := k.mrs.AllocFastMR(k.pd, 64)
	must(t, err)
	var old bth.RKey
	for i := range 3 {
		mem := seq(64)
		m, err := k.mrs.Prepare(f, mem, mr.AddrOf(mem), mr.LocalWrite|mr.RemoteWrite)
		must(t, err)
		k.post(regMR(uint64(i), m))
		k.hears()
		k.collect()
		k.wcs = nil
		if old != 0 && old == bth.RKey(m.RKey()) {
			t.Fatal("prepare() returned the same key twice")
		}
		old = bth.RKey(m.RKey())
		k.world.recv(k.q, RecvWR{ID: 7, SGEs: []SGE{k.sge(0, 8)}})
		k.say(pkt{op: bth.RCSendOnlyInv, psn: i, data: seq(4), inv: old})
		k.listen()
		if f.Registered() != nil || k.q.State() != RTS {
			t.Fatal("not invalidated")
		}
	}
}
