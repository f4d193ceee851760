package qp

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/gorxe/gorxe/bth"
)

// arrivalCase is a message whose packets arrive in one batch.
type arrivalCase struct {
	name    string
	earlier Op // message that has arrived before
	op      Op
	sges    func(e *end) []SGE // nil: one of 20 packets and a byte
	// edit changes the batch.
	edit  func(w *world, batch []*bth.Packet) []*bth.Packet
	typ   Type
	reads uint8 // outstanding; 0: the default
	srq   bool
	next  int // packets that HandleNext handles
}

// What HandleNext handles leaves the same state as HandlePacket.
func TestHandleNext(t *testing.T) {
	const mtu = 1024
	drop := func(i int) func(*world, []*bth.Packet) []*bth.Packet {
		return func(_ *world, b []*bth.Packet) []*bth.Packet {
			return append(b[:i:i], b[i+1:]...)
		}
	}
	change := func(i int, f func(w *world, p *bth.Packet)) func(*world, []*bth.Packet) []*bth.Packet {
		return func(w *world, b []*bth.Packet) []*bth.Packet {
			p := *b[i]
			p.BTH = bytes.Clone(p.BTH)
			must(w.t, p.Parse(p.BTH))
			f(w, &p)
			b[i] = &p
			return b
		}
	}
	repeat := func(i int) func(*world, []*bth.Packet) []*bth.Packet {
		return func(_ *world, b []*bth.Packet) []*bth.Packet {
			return append(b[:i+1:i+1], b[i:]...)
		}
	}
	opcode := func(op bth.Opcode) func(w *world, p *bth.Packet) {
		return func(w *world, p *bth.Packet) {
			p.BTH[0] = byte(op)
			must(w.t, p.Parse(p.BTH))
		}
	}
	// The last response of a READ becomes one like those before it, which has no AETH.
	readMiddle := func(w *world, p *bth.Packet) {
		p.BTH = append(p.BTH[:bth.HeaderLen:bth.HeaderLen], p.Payload...)
		opcode(bth.RCReadResponseMiddle)(w, p)
	}
	pieces := func(e *end) []SGE {
		return []SGE{e.sge(1, 5*mtu), e.sge(7*mtu, 5*mtu+1), e.sge(14*mtu+3, 11*mtu)}
	}
	for _, c := range []arrivalCase{
		{name: "WRITE", op: OpWrite, next: 19},
		{name: "WRITE with immediate", op: OpWriteImm, next: 19},
		{name: "SEND", op: OpSend, next: 19},
		{name: "SEND to a receive of several pieces", op: OpSend, sges: pieces, next: 17},
		{name: "SEND to an SRQ", op: OpSend, srq: true, next: 19},
		{name: "READ", op: OpRead, next: 19},
		{name: "READ into several pieces", op: OpRead, sges: pieces, next: 18},
		{name: "a lost packet of a WRITE", op: OpWrite, edit: drop(8), next: 7},
		{name: "a lost packet of a SEND", op: OpSend, edit: drop(8), next: 7},
		{name: "a lost packet of a READ", op: OpRead, edit: drop(8), next: 7},
		{name: "a WRITE packet twice", op: OpWrite, edit: repeat(8), next: 18},
		{name: "a READ response twice", op: OpRead, edit: repeat(8), next: 18},
		{name: "another QP", op: OpWrite, next: 7,
			edit: change(8, func(_ *world, p *bth.Packet) { p.BTH[7]++ })},
		{name: "another partition", op: OpWrite, next: 7,
			edit: change(8, func(_ *world, p *bth.Packet) { p.BTH[3]++ })},
		{name: "another source", op: OpRead, next: 7,
			edit: change(8, func(_ *world, p *bth.Packet) { p.Src[15]++ })},
		{name: "another VLAN", op: OpWrite, next: 7,
			edit: change(8, func(_ *world, p *bth.Packet) { p.VLAN++ })},
		{name: "an ECN mark", op: OpWrite, next: 18,
			edit: change(8, func(_ *world, p *bth.Packet) { p.TrafficClass = ecnCE })},
		{name: "a short packet", op: OpWrite, next: 7,
			edit: change(8, func(w *world, p *bth.Packet) { must(w.t, p.Parse(p.BTH[:len(p.BTH)-4])) })},
		{name: "a short READ response", op: OpRead, next: 7,
			edit: change(8, func(w *world, p *bth.Packet) { must(w.t, p.Parse(p.BTH[:len(p.BTH)-4])) })},
		{name: "a packet of a SEND in a WRITE", op: OpWrite, next: 7,
			edit: change(8, opcode(bth.RCSendMiddle))},
		{name: "a SEND continues as WRITE", earlier: OpWrite, op: OpSend,
			edit: change(1, opcode(bth.RCWriteMiddle))},
		{name: "a WRITE continues as SEND", earlier: OpSend, op: OpWrite,
			edit: change(1, opcode(bth.RCSendMiddle))},
		{name: "a packet of UC", op: OpWrite, next: 7, edit: change(8, opcode(bth.UCWriteMiddle))},
		{name: "a packet of RC on a UC QP", typ: UC, op: OpWrite,
			edit: change(8, opcode(bth.RCWriteMiddle))},
		{name: "pad in the second packet", op: OpWrite,
			edit: change(1, func(w *world, p *bth.Packet) {
				p.BTH[1] |= 3 << 4
				must(w.t, p.Parse(p.BTH))
			})},
		{name: "another QP in the second packet", op: OpWrite,
			edit: change(1, func(_ *world, p *bth.Packet) { p.BTH[7]++ })},
		{name: "another partition in the second packet", op: OpWrite,
			edit: change(1, func(_ *world, p *bth.Packet) { p.BTH[3]++ })},
		{name: "only a packet in the middle asks for an ACK", op: OpWrite, next: 19,
			edit: func(w *world, b []*bth.Packet) []*bth.Packet {
				change(len(b)-1, func(_ *world, p *bth.Packet) { p.BTH[8] &^= 0x80 })(w, b)
				return change(8, func(_ *world, p *bth.Packet) { p.BTH[8] |= 0x80 })(w, b)
			}},
		{name: "two gaps", op: OpWrite, next: 7,
			edit: func(_ *world, b []*bth.Packet) []*bth.Packet {
				b[8], b[9], b[10], b[11] = b[9], b[11], b[8], b[10]
				return b
			}},
		{name: "a READ that ends with a packet like those before it", op: OpRead, next: 18,
			sges: func(e *end) []SGE { return []SGE{e.sge(5, 20*mtu)} },
			edit: change(19, readMiddle)},
		// A READ of more than 64 packets is requested in parts, here one after the other.
		{name: "a response to a READ request that was not sent", op: OpRead, next: 63, reads: 1,
			sges: func(e *end) []SGE { return []SGE{e.sge(5, 100*mtu)} },
			edit: func(w *world, b []*bth.Packet) []*bth.Packet {
				change(len(b)-1, readMiddle)(w, b)
				b = append(b, b[len(b)-1])
				return change(len(b)-1, func(_ *world, p *bth.Packet) {
					bth.PutPlain(p.BTH, bth.RCReadResponseMiddle, false, false, 0, bth.DefaultPKey,
						p.BTH.DestQP(), p.BTH.PSN().Next())
				})(w, b)
			}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, selective := range []bool{false, true} {
				want, _ := arrive(t, &c, selective, false)
				got, n := arrive(t, &c, selective, true)
				if n != c.next && !(selective && n > c.next) {
					t.Errorf("selective %v: HandleNext handled %d packets, want %d", selective, n, c.next)
				}
				if got != want {
					t.Errorf("selective %v: with HandleNext\n%s\nwithout\n%s", selective, got, want)
				}
			}
		})
	}
}

// arrive passes the packets of a message to an engine, and returns a description of its state and
// how many packets HandleNext has handled.
func arrive(t *testing.T, c *arrivalCase, selective, next bool) (state string, n int) {
	w := newWorld(t, 5, func(cfg *Config) { cfg.Congestion, cfg.MaxWindow = CongestionNone, 256 })
	var srq *SRQ
	if c.srq {
		var err error
		srq, err = w.ends[1].NewSRQ(w.ends[1].pd, SRQConfig{Depth: 8, MaxSGE: 2})
		must(t, err)
	}
	a, b := w.pair(c.typ, func(ia *InitAttr, at *Attr) {
		at.PathMTU, at.Selective = 1024, selective && c.typ == RC
		if c.reads > 0 {
			at.MaxRdAtomic = c.reads
		}
		if c.srq && ia.PD == w.ends[1].pd {
			var err error
			ia.PD, err = w.ends[1].mrs.AllocPD()
			must(t, err)
			ia.SRQ = srq
		}
	})
	_, _ = rand.NewChaCha8([32]byte{1}).Read(w.ends[0].mem)
	from, to := w.ends[0], w.ends[1]
	va, key := to.remote(3)
	if c.sges == nil {
		c.sges = func(e *end) []SGE { return []SGE{e.sge(5, 20<<10+1)} }
	}
	for range 3 {
		post := b.PostRecv
		if c.srq {
			post = srq.PostRecv
		}
		if _, err := post([]RecvWR{{SGEs: c.sges(to)}}); err != nil {
			t.Fatal(err)
		}
	}
	sges := []SGE{from.sge(0, 20<<10+1)}
	if c.op != OpRead {
		w.post(a, SendWR{Op: c.earlier, SGEs: sges, RemoteAddr: va, RKey: key})
		for _, p := range w.sent(0) {
			to.HandlePacket(w.now, p)
		}
	}
	if c.op == OpRead {
		sges = c.sges(from)
	}
	w.post(a, SendWR{Op: c.op, SGEs: sges, RemoteAddr: va, RKey: key, Flags: Signaled})
	batch := w.sent(0)
	if c.op == OpRead {
		w.handle(to, batch...)
		batch = w.sent(1)
		to, b = from, a
	}
	w.now += 10_000
	if c.edit != nil {
		batch = c.edit(w, batch)
	}
	if next {
		n = w.handle(to, batch...)
	} else {
		for _, p := range batch {
			to.HandlePacket(w.now, p)
		}
		to.HandleEnd(w.now)
	}
	traffic, _ := b.Traffic()
	state = fmt.Sprint(b.State(), b.epsn, b.ackable, b.msn, b.msg, b.off, b.ackState, b.refused,
		b.una, b.nxt, b.win, b.rec.ackDeadline, b.rec.probeDeadline, b.retries, b.rdUsed,
		b.reorder != nil, traffic, *to.Counters(), to.cq.Len())
	return state + fmt.Sprintf("%x", to.mem[:32<<10]), n
}
