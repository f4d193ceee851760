//go:build interop

package interop_test

import (
	"testing"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/roce"
)

// patience bounds a completion on an overloaded machine. It grows if guests are slow
// (rig.setPace).
var patience = usualPatience

const usualPatience = 30 * time.Second

// sizes are message sizes at the limits of packets for a path MTU.
func sizes(mtu bth.MTU) []int {
	m := int(mtu)
	return []int{1, 3, m - 1, m, m + 1, 2 * m, 5*m + 3, 0, 9 * m, slot}
}

// expect waits for n completions, which must be successful and in order.
func expect(t *testing.T, who string, e end, q queue, id uint64, n int) []wc {
	t.Helper()
	wcs := e.poll(q, n, patience)
	for i, w := range wcs {
		if w.status != success || w.id != id+uint64(i) {
			t.Fatalf("%s: completion %d of %d: work request %d: %s", who, i, n, w.id, w.status)
		}
	}
	if len(wcs) != n {
		t.Fatalf("%s: %d of %d completions came in %v", who, len(wcs), n, patience)
	}
	return wcs
}

// TestVerbs compares every operation with the kernel's, at every size at the limits of packets.
func TestVerbs(t *testing.T) {
	perDevice(func(device int, suffix string) {
		for _, s := range []struct {
			name string
			set  setting
			talk func(t *testing.T, v variant, active, passive end)
		}{
			{"RC WRITE", setting{}, talkWrite(roce.OpWrite)},
			{"RC WRITE with immediate", setting{}, talkWrite(roce.OpWriteImm)},
			{"RC SEND", setting{}, talkSend(roce.OpSend)},
			{"RC SEND with immediate", setting{}, talkSend(roce.OpSendImm)},
			{"RC SEND to an SRQ", setting{srq: true}, talkSend(roce.OpSend)},
			{"RC READ", setting{}, talkRead},
			{"RC CMP_SWAP", setting{}, talkCmpSwap},
			{"RC FETCH_ADD", setting{}, talkFetchAdd},
			{"RC mixed, both ways", setting{}, talkMixed},
			{"UC WRITE", setting{kind: roce.UC}, talkWrite(roce.OpWrite)},
			{"UC WRITE with immediate", setting{kind: roce.UC}, talkWrite(roce.OpWriteImm)},
			{"UC SEND", setting{kind: roce.UC}, talkSend(roce.OpSend)},
			{"UC SEND with immediate", setting{kind: roce.UC}, talkSend(roce.OpSendImm)},
			{"UD SEND", setting{kind: roce.UD}, talkDatagrams(roce.OpSend)},
			{"UD SEND with immediate", setting{kind: roce.UD}, talkDatagrams(roce.OpSendImm)},
			{"UD SEND to an SRQ", setting{kind: roce.UD, srq: true}, talkDatagrams(roce.OpSend)},
		} {
			play(t, s.name+suffix, variants(device), func(t *testing.T, r *rig, v variant) {
				active, passive := r.ends(t, v, s.set)
				s.talk(t, v, active, passive)
			})
		}
	})
}

// talkWrite: one WRITE of each size, each to its own block. With an immediate each takes a receive
// and reports its length.
func talkWrite(op roce.Op) func(*testing.T, variant, end, end) {
	return func(t *testing.T, v variant, a, p end) {
		to := p.address()
		ss := sizes(v.mtu)
		if op == roce.OpWriteImm {
			p.recv(100, len(ss), 0, 8, 0)
		}
		for i, n := range ss {
			a.fill(uint32(i), 1, i*slot, n, 0)
			a.post(work{op: op, id: uint64(i), off: i * slot, size: n,
				raddr: to.mem + uint64(i*slot), rkey: to.rkey, imm: 0xfee1900d + uint32(i)})
		}
		if op == roce.OpWrite {
			// A WRITE causes no completion on the remote side, and UC's sender knows only that it
			// has sent. A message after them does.
			p.recv(100, 1, 0, 8, 0)
			a.post(work{op: roce.OpSend, id: uint64(len(ss))})
			expect(t, "active", a, sendQueue, 0, len(ss)+1)
			expect(t, "passive", p, recvQueue, 100, 1)
		} else {
			expect(t, "active", a, sendQueue, 0, len(ss))
			for i, w := range expect(t, "passive", p, recvQueue, 100, len(ss)) {
				if w.imm != 0xfee1900d+uint32(i) || w.size != uint32(ss[i]) {
					t.Errorf("receive %d: immediate %#x, %d bytes; want %#x, %d", i, w.imm, w.size,
						0xfee1900d+i, ss[i])
				}
			}
		}
		for i, n := range ss {
			p.check(uint32(i), 1, i*slot, n, 0)
		}
	}
}

// talkSend: one SEND of each size.
func talkSend(op roce.Op) func(*testing.T, variant, end, end) {
	return func(t *testing.T, v variant, a, p end) {
		sendAll(t, op, a, p, nil, sizes(v.mtu), 0)
	}
}

// talkDatagrams: one SEND of each size to the QP's own address.
func talkDatagrams(op roce.Op) func(*testing.T, variant, end, end) {
	return func(t *testing.T, v variant, a, p end) {
		to := p.address()
		sendAll(t, op, a, p, &to, datagramSizes(v.mtu), roce.GRHLen)
	}
}

// talkSendTo is talkDatagrams to another address that also leads to the passive side.
func talkSendTo(t *testing.T, v variant, a, p end, to *address) {
	sendAll(t, roce.OpSendImm, a, p, to, datagramSizes(v.mtu), roce.GRHLen)
}

// datagramSizes: a datagram is one packet.
func datagramSizes(mtu bth.MTU) []int {
	return []int{1, 3, int(mtu) / 2, int(mtu) - 1, int(mtu), 0}
}

func sendAll(t *testing.T, op roce.Op, a, p end, to *address, ss []int, grh int) {
	p.recv(200, len(ss), 0, slot, slot)
	for i, n := range ss {
		a.fill(uint32(i+40), 1, i*slot, n, 0)
		a.post(work{op: op, id: uint64(i), off: i * slot, size: n, imm: 0xdead0000 + uint32(i),
			to: to, solicited: i%2 == 0})
	}
	expect(t, "active", a, sendQueue, 0, len(ss))
	for i, w := range expect(t, "passive", p, recvQueue, 200, len(ss)) {
		if int(w.size) != ss[i]+grh || (op == roce.OpSendImm && w.imm != 0xdead0000+uint32(i)) {
			t.Errorf("receive %d: %d bytes, immediate %#x; want %d", i, w.size, w.imm, ss[i]+grh)
		}
		if grh > 0 && w.src != a.address().qpn {
			t.Errorf("receive %d: from QP %#x, want %#x", i, w.src, a.address().qpn)
		}
		p.check(uint32(i+40), 1, i*slot+grh, ss[i], 0)
	}
}

// talkRead: READs of every size, several at a time.
func talkRead(t *testing.T, v variant, a, p end) {
	to := p.address()
	ss := sizes(v.mtu)
	for i, n := range ss {
		p.fill(uint32(i+80), 1, i*slot, n, 0)
	}
	for i, n := range ss {
		a.post(work{op: roce.OpRead, id: uint64(i), off: i * slot, size: n,
			raddr: to.mem + uint64(i*slot), rkey: to.rkey})
	}
	expect(t, "active", a, sendQueue, 0, len(ss))
	for i, n := range ss {
		a.check(uint32(i+80), 1, i*slot, n, 0)
	}
}

// talkCmpSwap: a chain in which each swap finds the value of the previous one, and one that finds
// another value.
func talkCmpSwap(t *testing.T, v variant, a, p end) {
	const n, first = 40, 1 << 40
	to := p.address()
	p.poke(64, first)
	a.post(work{op: roce.OpCmpSwap, n: n, size: 8, step: 8, raddr: to.mem + 64, rkey: to.rkey,
		cmp: first, swap: first + 1})
	a.post(work{op: roce.OpCmpSwap, id: n, off: n * 8, size: 8, raddr: to.mem + 64, rkey: to.rkey,
		cmp: 5, swap: 6})
	expect(t, "active", a, sendQueue, 0, n+1)
	for i := range n + 1 {
		if got := a.peek(i * 8); got != first+uint64(i) {
			t.Errorf("swap %d found %d, want %d", i, got, first+i)
		}
	}
	if got := p.peek(64); got != first+n {
		t.Errorf("in the end there is %d, want %d", got, first+n)
	}
}

func talkFetchAdd(t *testing.T, v variant, a, p end) {
	const n, first, add = 100, 1<<63 + 5, 3
	to := p.address()
	p.poke(72, first)
	a.post(work{op: roce.OpFetchAdd, n: n, size: 8, step: 8, raddr: to.mem + 72, rkey: to.rkey,
		swap: add})
	expect(t, "active", a, sendQueue, 0, n)
	for i := range n {
		if got := a.peek(i * 8); got != first+uint64(i)*add {
			t.Errorf("addition %d found %d, want %d", i, got, uint64(first)+uint64(i)*add)
		}
	}
	if got, want := p.peek(72), uint64(first)+n*add; got != want {
		t.Errorf("the sum is %d, want %d", got, want)
	}
}

// talkMixed: both sides do everything at once.
func talkMixed(t *testing.T, v variant, a, p end) {
	const n = 30
	size := 2*int(v.mtu) + 5
	ends := []end{a, p}
	for i, e := range ends {
		e.recv(900, n, 16*slot, size, slot/4)
		e.fill(uint32(1000*i), n, 0, size, slot/4) // what is sent, in blocks 0 to 7
		e.poke(31*slot, 0)
	}
	for i, e := range ends {
		to := ends[1-i].address()
		for k := range n {
			off := k * (slot / 4)
			e.post(work{op: roce.OpSend, id: uint64(4 * k), off: off, size: size})
			e.post(work{op: roce.OpWrite, id: uint64(4*k + 1), off: off, size: size,
				raddr: to.mem + 8*slot + uint64(off), rkey: to.rkey})
			e.post(work{op: roce.OpFetchAdd, id: uint64(4*k + 2), off: 30 * slot, size: 8,
				raddr: to.mem + 31*slot, rkey: to.rkey, swap: 1})
			e.post(work{op: roce.OpRead, id: uint64(4*k + 3), off: 24*slot + (k%8)*(slot/4),
				size: size, raddr: to.mem + uint64(off), rkey: to.rkey})
		}
	}
	for i, e := range ends {
		who := []string{"active", "passive"}[i]
		expect(t, who, e, sendQueue, 0, 4*n)
		expect(t, who, e, recvQueue, 900, n)
	}
	// Only now: what one side did to the other's memory is certain when the first one's requests
	// have completed.
	for i, e := range ends {
		who := []string{"active", "passive"}[i]
		other := uint32(1000 * (1 - i))
		e.check(other, n, 16*slot, size, slot/4)
		e.check(other, n, 8*slot, size, slot/4)
		for k := n - 8; k < n; k++ { // the last READ into each block
			e.check(other+uint32(k), 1, 24*slot+(k%8)*(slot/4), size, 0)
		}
		if got := e.peek(31 * slot); got != n {
			t.Errorf("%s: %d of %d atomics", who, got, n)
		}
	}
}
