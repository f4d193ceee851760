package qp

import (
	"errors"
	"testing"

	"github.com/gorxe/gorxe/bth"
)

// IBA 10.5.2: each QP attached to the group gets a multicast packet under its own conditions:
// Q_Key, a receive, a state that receives. A QP that drops it does not affect the others.
func TestMulticast(t *testing.T) {
	k := newTalk(t, UD)
	group := bth.GIDFromIPv4([4]byte{239, 1, 1, 1})
	say := func(dst bth.GID, p pkt) {
		p.dest = bth.QPNMulticast
		k.sayRaw(p.wire(k.q, k.base), func(p *bth.Packet) { p.Dst = dst })
	}
	msg := pkt{op: bth.UDSendOnlyImm, data: seq(60), qkey: talkQKey, src: 0x4711, imm: 7}
	first := k.q
	k.world.recv(first, RecvWR{ID: 1, SGEs: []SGE{k.sge(0, 100)}})
	k.renew(UD)
	second := k.q
	k.world.recv(second, RecvWR{ID: 2, SGEs: []SGE{k.sge(200, 100)}})

	say(group, msg) // no QP is attached
	k.equal("DropMulticast", k.c.DropMulticast, uint64(1))
	for _, q := range []*QP{first, second, second} {
		must(t, k.AttachMulticast(q, group))
	}
	k.equal("HasGroup", k.HasGroup(&group), true)
	other := group
	other[15]++
	say(other, msg)
	say(k.gid, msg)                                   // the multicast QPN at a unicast address
	say(group, pkt{op: bth.RCSendOnly, data: seq(8)}) // not a datagram
	k.equal("DropMulticast", k.c.DropMulticast, uint64(4))
	wrong := msg
	wrong.qkey++
	say(group, wrong)
	k.equal("DropQKey", k.c.DropQKey, uint64(2))

	say(group, msg)
	k.hears()
	k.completes("1 success RECV 100B imm=7", "2 success RECV 100B imm=7")
	for _, at := range []int{40, 240} {
		k.equal("payload", string(k.mem[at:at+60]), string(seq(60)))
	}
	k.world.recv(second, RecvWR{ID: 3, SGEs: []SGE{k.sge(0, 100)}})
	say(group, msg) // the first has no receive
	k.hears()
	k.completes("3 success RECV 100B imm=7")
	k.equal("DropNoRecv", k.c.DropNoRecv, uint64(1))

	must(t, k.DetachMulticast(first, group))
	if err := k.DetachMulticast(first, group); !errors.Is(err, ErrNotAttached) {
		t.Errorf("detached twice: %v", err)
	}
	k.DestroyQP(second) // detaches it
	if k.HasGroup(&group) || len(k.groups) != 0 {
		t.Error("a group without QPs remains")
	}
	if err := k.AttachMulticast(second, group); !errors.Is(err, ErrQPState) {
		t.Errorf("a destroyed QP: %v", err)
	}
}

// Which QPs may be attached, and how many.
func TestMulticastLimits(t *testing.T) {
	k := newTalk(t, UD)
	group := bth.GIDFromIPv4([4]byte{239, 0, 0, 0})
	if err := k.AttachMulticast(k.q, k.gid); !errors.Is(err, ErrNotMulticast) {
		t.Errorf("a unicast address: %v", err)
	}
	for i := range maxGroups {
		group[14], group[15] = byte(i>>8), byte(i)
		must(t, k.AttachMulticast(k.q, group))
	}
	one := group
	group[13]++
	if err := k.AttachMulticast(k.q, group); !errors.Is(err, ErrGroupsFull) {
		t.Errorf("one group too many: %v", err)
	}
	for range maxAttached - 1 {
		k.renew(UD)
		must(t, k.AttachMulticast(k.q, one))
	}
	k.renew(UD)
	if err := k.AttachMulticast(k.q, one); !errors.Is(err, ErrGroupsFull) {
		t.Errorf("one QP too many: %v", err)
	}
	k.renew(RC)
	if err := k.AttachMulticast(k.q, one); !errors.Is(err, ErrInvalidAttr) {
		t.Errorf("an RC QP: %v", err)
	}
}

// The hook is called for every QP that goes to ERR, for any reason.
func TestErrHook(t *testing.T) {
	k := newTalk(t, RC)
	var gone []*QP
	k.SetErrHook(func(q *QP) { gone = append(gone, q) })
	must(t, k.modify(Err))
	if len(gone) != 1 || gone[0] != k.q {
		t.Errorf("%d calls", len(gone))
	}
}

// Receiving a multicast packet does not allocate.
func TestMulticastAllocatesNothing(t *testing.T) {
	k := newTalk(t, UD)
	group := bth.GIDFromIPv4([4]byte{239, 1, 1, 1})
	must(t, k.AttachMulticast(k.q, group))
	m := pkt{op: bth.UDSendOnly, data: seq(60), qkey: talkQKey, dest: bth.QPNMulticast}
	var p bth.Packet
	must(t, p.Parse(m.wire(k.q, k.base)))
	p.Src, p.Dst, p.NetHeader = k.ends[0].gid, group, grhZeros[:]
	recvs := []RecvWR{{SGEs: []SGE{k.sge(0, 100)}}}
	var wcs [4]WC
	run := func() {
		if _, err := k.q.PostRecv(recvs); err != nil {
			t.Fatal(err)
		}
		k.HandlePacket(k.now, &p)
		k.HandlePacket(k.now, &p) // no receive for this one
		if n := k.cq.Poll(wcs[:]); n != 1 || wcs[0].Status != Success {
			t.Fatalf("%d completions, %v", n, wcs[0].Status)
		}
	}
	if n := testing.AllocsPerRun(50, run); n != 0 {
		t.Errorf("%v allocations a packet", n)
	}
}
