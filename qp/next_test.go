package qp

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/mr"
)

// These tests are about states in which HandleNext and PollRun must not continue.

// sent returns what an end sends now.
func (w *world) sent(from int) (list []*bth.Packet) {
	w.pump(from)
	for _, f := range w.wire {
		list = append(list, w.parse(1-f.to, f.data))
	}
	w.wire = nil
	return list
}

// handle passes packets to an engine in one batch. It returns how many HandleNext has handled.
func (w *world) handle(e *end, batch ...*bth.Packet) (next int) {
	for i, p := range batch {
		if i > 0 && e.HandleNext(w.now, p) {
			next++
		} else {
			e.HandlePacket(w.now, p)
		}
	}
	e.HandleEnd(w.now)
	return next
}

// A response to a READ that arrives late, after a packet of a WRITE by the peer, closes the
// scoreboard, so nothing is requested again.
func TestNextWhileRepairing(t *testing.T) {
	w := newWorld(t, 5)
	a, b := w.pair(RC)
	va, key := w.ends[1].remote(0)
	vb, keyb := w.ends[0].remote(512 << 10)
	from, to := w.ends[0], w.ends[1]
	w.post(a, SendWR{Op: OpRead, SGEs: []SGE{from.sge(0, 20<<10)}, RemoteAddr: va, RKey: key})
	w.handle(to, w.sent(0)...)
	responses := w.sent(1)
	w.post(b, SendWR{Op: OpWrite, SGEs: []SGE{to.sge(0, 20<<10)}, RemoteAddr: vb, RKey: keyb})
	first := w.sent(1)[0]
	late := responses[5]
	w.handle(from, append(responses[:5:5], responses[6:]...)...)
	w.handle(from, first, late)
	w.now += 10_000_000
	from.HandleTimeout(w.now)
	var buf [8192]byte
	n := 0
	for from.HasTransmit(w.now) && from.PollTransmit(w.now, buf[:]) != nil {
		if n++; n > 10 {
			t.Fatalf("%d packets without an end", n)
		}
	}
}

// A READ that fails ends the QP, also for a WRITE by the peer.
func TestNextAfterFailedRead(t *testing.T) {
	w := newWorld(t, 5)
	a, b := w.pair(RC)
	va, key := w.ends[1].remote(0)
	vb, keyb := w.ends[0].remote(512 << 10)
	from, to := w.ends[0], w.ends[1]
	m, err := from.mrs.Register(from.pd, make([]byte, 64<<10), 1<<40, mr.LocalWrite)
	must(t, err)
	w.post(a, SendWR{Op: OpRead, RemoteAddr: va, RKey: key,
		SGEs: []SGE{{Addr: 1 << 40, Length: 20 << 10, LKey: bth.LKey(m.LKey())}}})
	w.handle(to, w.sent(0)...)
	responses := w.sent(1)
	w.post(b, SendWR{Op: OpWrite, SGEs: []SGE{to.sge(0, 20<<10)}, RemoteAddr: vb, RKey: keyb})
	write := w.sent(1)
	must(t, from.mrs.Deregister(m))
	w.handle(from, write[0])
	if n := w.handle(from, append([]*bth.Packet{responses[0]}, write[1:5]...)...); n > 0 {
		t.Errorf("HandleNext executed %d packets in state %v", n, a.State())
	}
}

// selectiveWrite returns a QP with selective repeat and the packets of a WRITE to it.
func selectiveWrite(t *testing.T) (w *world, b *QP, write []*bth.Packet) {
	w = newWorld(t, 5)
	a, b := w.pair(RC, func(_ *InitAttr, at *Attr) { at.Selective = true })
	va, key := w.ends[1].remote(0)
	w.post(a, SendWR{Op: OpWrite, SGEs: []SGE{w.ends[0].sge(0, 20<<10)}, RemoteAddr: va, RKey: key})
	return w, b, w.sent(0)
}

// A held packet that is refused when it is executed ends the QP.
func TestNextAfterRefusedHeldPacket(t *testing.T) {
	w, b, write := selectiveWrite(t)
	bad := w.parse(0, bytes.Clone(write[2].BTH))
	bad.BTH[0] = byte(bth.RCSendMiddle)
	must(t, bad.Parse(bad.BTH))
	batch := append([]*bth.Packet{write[0], bad, write[1]}, write[2:6]...)
	if n := w.handle(w.ends[1], batch...); n > 0 || b.State() != Err {
		t.Errorf("HandleNext executed %d packets, state %v; want 0 and ERR", n, b.State())
	}
}

// Held packets are executed by HandleTimeout, too. That prepares nothing for HandleNext, because
// anything may happen before the next packet.
func TestNextAfterTimeout(t *testing.T) {
	w, b, write := selectiveWrite(t)
	e := w.ends[1]
	e.fills.most = 1
	w.handle(e, write[1], write[2], write[3], write[4], write[0])
	for i := 0; e.Filling() && i < 100; i++ {
		w.now++
		e.HandleTimeout(w.now)
	}
	for _, p := range write[5:8] {
		if e.HandleNext(w.now, p) {
			t.Fatalf("HandleNext() = true in state %v without a packet before it", b.State())
		}
	}
}

// A packet that does not fit the port says nothing about the packets of another QP.
func TestNextAfterDroppedPacket(t *testing.T) {
	w := newWorld(t, 3, func(c *Config) { c.Runs = true })
	big, _ := w.pair(RC, func(_ *InitAttr, a *Attr) { a.PathMTU = 4096 })
	small, _ := w.pair(RC, func(_ *InitAttr, a *Attr) { a.PathMTU = 1024 })
	va, key := w.ends[1].remote(0)
	e := w.ends[0]
	w.post(big, SendWR{Op: OpWrite, SGEs: []SGE{e.sge(0, 16<<10)}, RemoteAddr: va, RKey: key})
	w.post(small, SendWR{Op: OpWrite, SGEs: []SGE{e.sge(0, 100)}, RemoteAddr: va, RKey: key},
		SendWR{Op: OpWrite, SGEs: []SGE{e.sge(0, 16<<10)}, RemoteAddr: va, RKey: key})
	e.HandleDoorbells(0)
	buf := make([]byte, 2048) // the port's MTU fell
	found := false
	for e.HasTransmit(w.now) {
		tx := e.PollTransmit(w.now, buf)
		if tx == nil {
			break
		}
		var p bth.Packet
		must(t, p.Parse(buf[tx.NetLen:tx.Len]))
		if p.Info == bth.RCWriteOnly.Info() {
			found = true
			if tx.Next > 0 {
				t.Errorf("Next = %d after a message of one packet", tx.Next)
			}
		}
	}
	if !found {
		t.Error("the message of one packet was not sent")
	}
}

// Both ends use one QP with losses, duplicates and reordering. All data arrives.
func TestNextRandom(t *testing.T) {
	const slot, ops = 32 << 10, 8
	for seed := range uint64(300) {
		w := newWorld(t, seed, func(c *Config) { c.Runs = seed%2 == 0 })
		qs := [2]*QP{}
		qs[0], qs[1] = w.pair(RC, func(_ *InitAttr, a *Attr) {
			a.PathMTU, a.Selective = 1024, seed%3 != 0
			a.RetryCnt, a.Timeout = 7, 8
		})
		w.faults = faults{loss: 0.02, dup: 0.02, reorder: 0.05, late: 20_000}
		type check struct{ got, want []byte }
		var checks []check
		for i, e := range w.ends {
			_, _ = rand.NewChaCha8([32]byte{byte(i)}).Read(e.mem[:2*ops*slot])
		}
		for i, e := range w.ends {
			peer := w.ends[1-i]
			for j := range ops {
				n := 1 + w.rng.IntN(24<<10)
				local, remote := j*slot, (2*ops+j)*slot // a WRITE
				op := OpWrite
				if w.rng.IntN(2) == 0 { // a READ of what nobody writes
					op, local, remote = OpRead, (3*ops+j)*slot, (ops+j)*slot
				}
				va, key := peer.remote(remote)
				w.post(qs[i], SendWR{Op: op, Flags: Signaled, RemoteAddr: va, RKey: key,
					SGEs: []SGE{e.sge(local, n)}})
				checks = append(checks, check{e.mem[local:][:n], peer.mem[remote:][:n]})
			}
		}
		before := w.pkts
		w.run(2_000_000_000, func() bool {
			return len(w.ends[0].wcs) == ops && len(w.ends[1].wcs) == ops
		})
		for i, c := range checks {
			if !bytes.Equal(c.got, c.want) {
				t.Fatalf("seed %d: operation %d stored other data", seed, i)
			}
		}
		if n := w.pkts - before; n > 5000 {
			t.Errorf("seed %d: %d packets", seed, n)
		}
	}
}

// program is the memory of another process. It implements mr.Backing.
type program struct {
	t      *testing.T
	copy   []byte // memory of the MR
	memory []byte
	stores int
}

// foreignMR registers memory of another process, with random bytes.
func foreignMR(t *testing.T, e *end, n int) (*program, *mr.MR) {
	p := &program{t: t, copy: make([]byte, n), memory: make([]byte, n)}
	_, _ = rand.NewChaCha8([32]byte{byte(e.qp.QPN())}).Read(p.memory)
	m, err := e.mrs.RegisterForeign(e.pd, p.copy, 1<<40, mr.LocalWrite|allAccess, p)
	must(t, err)
	return p, m
}

func (p *program) at(b []byte) []byte {
	return p.memory[mr.AddrOf(b)-mr.AddrOf(p.copy):][:len(b)]
}

func (p *program) Load(b []byte) bool {
	copy(b, p.at(b))
	return true
}

func (p *program) Store(dst, src []byte, _ bool) {
	if len(dst) != len(src) {
		p.t.Errorf("Store() of %d bytes to %d bytes", len(src), len(dst))
	}
	copy(p.at(dst), src)
	p.stores++
}

// oneReceive is a Source of receives of one SGE.
type oneReceive struct{ sge SGE }

func (oneReceive) Sends() bool { return false }

func (r oneReceive) Recv(wr *RecvWR) bool {
	wr.SGEs = append(wr.SGEs, r.sge)
	return true
}

// exchange passes packets between the ends, with HandleNext and PollRun, until nothing is sent. It
// returns how many packets these have handled and written.
func (w *world) exchange(qps [2]*QP) (handled, written int) {
	for idle := 0; idle < 2; {
		for i, q := range qps {
			s := w.sends(i, q, 1000)
			written += s.inRuns
			batch := make([]*bth.Packet, len(s.packets))
			for k, b := range s.packets {
				batch[k] = w.parse(i, b[bth.MaxNetHeader-4:])
			}
			handled += w.handle(w.ends[1-i], batch...)
			if idle++; len(batch) > 0 {
				idle = 0
			}
		}
	}
	return handled, written
}

// Middle packets of memory of other processes have its bytes at the time of the work request, and
// arrive there.
func TestNextWithForeignMemory(t *testing.T) {
	const mtu, n = 1024, 400 << 10
	for _, c := range []struct {
		op     Op
		length int // of the first piece
	}{
		{OpWrite, 0}, {OpWrite, 3}, {OpWrite, 70_000}, {OpWrite, 128 << 10},
		{OpSend, 0}, {OpSend, 70_001}, {OpRead, 0}, {OpRead, 70_002},
	} {
		w := newWorld(t, 5, func(cfg *Config) {
			cfg.MaxWindow, cfg.Congestion, cfg.Runs = 256, CongestionNone, true
		})
		a, b := w.pair(RC, func(_ *InitAttr, a *Attr) { a.PathMTU = mtu })
		w.ends[0].qp, w.ends[1].qp = a, b
		p0, m0 := foreignMR(t, w.ends[0], 512<<10)
		p1, m1 := foreignMR(t, w.ends[1], 512<<10)
		key, rkey := bth.LKey(m0.LKey()), bth.RKey(m1.RKey())
		sges := []SGE{{Addr: 1<<40 + 5, Length: uint32(c.length), LKey: key},
			{Addr: 1<<40 + 5 + uint64(c.length), Length: uint32(n - c.length), LKey: key}}
		for round := range 2 {
			p0.memory[1<<18]++ // the program changes it between the work requests
			p1.memory[1<<18]++
			if c.op == OpSend {
				b.SetSource(oneReceive{SGE{Addr: 1<<40 + 7, Length: n, LKey: bth.LKey(m1.LKey())}})
			}
			w.post(a, SendWR{Op: c.op, SGEs: sges, RemoteAddr: 1<<40 + 7, RKey: rkey})
			handled, written := w.exchange([2]*QP{a, b})
			if handled < n/mtu*9/10 || written < n/mtu/2 {
				t.Errorf("%v: HandleNext has handled %d packets, PollRun has made %d of %d", c.op,
					handled, written, n/mtu)
			}
			if !bytes.Equal(p0.memory[5:5+n], p1.memory[7:7+n]) {
				t.Errorf("%v, first piece of %d bytes, round %d: the memories differ", c.op, c.length,
					round)
			}
		}
		if p0.stores+p1.stores < 2*n/mtu {
			t.Errorf("%v: %d calls of Store", c.op, p0.stores+p1.stores)
		}
	}
}

// A READ of memory of another process does not make the next WRITE or ATOMIC WRITE, to memory of
// this process, go to the other one.
func TestForeignReadBeforeOwnWrite(t *testing.T) {
	for _, op := range []bth.Opcode{bth.RCWriteOnly, bth.RCAtomicWrite} {
		k := newTalk(t, RC)
		p, m := foreignMR(t, k.end, 4096)
		k.say(pkt{op: bth.RCReadRequest, va: m.Addr(), key: bth.RKey(m.RKey()), n: 8})
		va, key := k.remote(0)
		k.say(pkt{op: op, psn: 1, va: va, key: key, n: 8, data: seq(8)})
		if p.stores != 0 || !bytes.Equal(k.mem[:8], seq(8)) {
			t.Errorf("%v: %d bytes stored in the other process, own memory % x", op, 8*p.stores,
				k.mem[:8])
		}
	}
}
