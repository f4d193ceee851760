package qp

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/gorxe/gorxe/bth"
)

// The randomized test compares a selective QP, which receives packets in any order, some of them
// again and some never, with a QP that receives them once and in order. Both must end with the same
// memory, completions and results of atomics.

// Memory of a randomized conversation, as offsets.
const (
	mixWrites = 0        // WRITEs and atomics; 8 KiB, so that they overlap
	mixReads  = 16 << 10 // nothing writes here
	mixRecvs  = 512 << 10
	mixSize   = 8 << 10
	mixRecv   = 3 << 10 // length of a receive

	maxMixMessages = 20
	maxMixRecvs    = maxMixMessages
)

// mixPacket is a packet of a randomized conversation.
type mixPacket struct {
	pkt
	off  int  // of the remote memory
	next int  // the PSN after it
	rd   bool // READ or atomic: limited by MaxDestRdAtomic
}

// mix returns the packets of n random messages and the number of receives that they take.
func mix(r *rand.Rand, n int) (ps []mixPacket, recvs int) {
	psn := 0
	add := func(p mixPacket, packets int) {
		p.psn = psn
		psn += packets
		p.next = psn
		p.noAck = r.IntN(4) > 0
		ps = append(ps, p)
	}
	data := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		return b
	}
	long := r.IntN(2) == 0 // mostly long messages
	for range n {
		kind := r.IntN(12)
		if long && r.IntN(5) > 0 {
			kind = r.IntN(7)
		}
		switch kind {
		case 0, 1, 2, 3, 4, 5, 6, 7:
			send := kind >= 6
			size := r.IntN(200)
			if long || r.IntN(2) == 0 {
				size = r.IntN(11 * talkMTU)
			}
			imm := r.IntN(3) == 0
			if send || imm {
				recvs++
			}
			op := bth.OpWrite
			if send {
				op = bth.OpSend
			}
			off := r.IntN(mixSize - size)
			if r.IntN(3) == 0 {
				off = 0 // the same buffer again and again
			}
			b := data(size)
			for at := 0; at == 0 || at < size; at += talkMTU {
				end := min(at+talkMTU, size)
				last := end == size
				p := pkt{op: bth.RequestOpcode(bth.RC, op, at == 0, last, imm && last, false),
					n: uint32(size), data: b[at:end], imm: uint32(psn)}
				add(mixPacket{pkt: p, off: mixWrites + off}, 1)
			}
		case 8:
			size := r.IntN(4 * talkMTU)
			add(mixPacket{pkt: pkt{op: bth.RCReadRequest, n: uint32(size)},
				off: mixReads + r.IntN(mixSize), rd: true}, max(1, (size+talkMTU-1)/talkMTU))
		case 9:
			add(mixPacket{pkt: pkt{op: bth.RCAtomicWrite, n: 8, data: data(8)},
				off: mixWrites + 8*r.IntN(mixSize/8), rd: true}, 1)
		case 10:
			add(mixPacket{pkt: pkt{op: bth.RCFetchAdd, swap: r.Uint64()},
				off: mixWrites + 8*r.IntN(mixSize/8), rd: true}, 1)
		default:
			add(mixPacket{pkt: pkt{op: bth.RCFlush, n: 64, placement: PlaceGlobal},
				off: mixWrites}, 1)
		}
	}
	return ps, recvs
}

// mixPeer is the requester of a randomized conversation.
type mixPeer struct {
	*talk
	ps      []mixPacket
	una     int            // PSN before which everything is acknowledged
	held    map[int]bool   // PSNs that the responder has reported as held
	atomics map[int]uint64 // results by PSN
	reads   map[int][]byte // READ responses by PSN
	posted  int            // receives
	wcs     []WC           // completions
	sent    map[int]bool   // PSNs that have arrived
}

func newMixPeer(k *talk, selective bool, ps []mixPacket, fill []byte) *mixPeer {
	k.renew(RC, func(ia *InitAttr, at *Attr) {
		ia.RQDepth = 128
		at.Selective = selective
	})
	clear(k.mem[mixRecvs : mixRecvs+maxMixRecvs*mixRecv])
	copy(k.mem, fill)
	k.end.evs = nil
	return &mixPeer{talk: k, ps: ps, held: map[int]bool{}, atomics: map[int]uint64{},
		reads: map[int][]byte{}, sent: map[int]bool{}}
}

func (m *mixPeer) postRecv() {
	m.world.recv(m.q, RecvWR{ID: uint64(m.posted), SGEs: []SGE{
		m.sge(mixRecvs+m.posted*mixRecv, 1000), m.sge(mixRecvs+m.posted*mixRecv+1000, mixRecv-1000)}})
	m.posted++
}

// give passes a packet to the QP and reads the answers.
func (m *mixPeer) give(p *mixPacket) {
	x := p.pkt
	x.va, x.key = m.at(p.off), m.rkey()
	m.say(x)
	m.sent[p.psn] = true
}

// hear processes what the QP sends.
func (m *mixPeer) hear() {
	m.t.Helper()
	for _, p := range m.listen() {
		psn := int(p.BTH.PSN().Sub(m.base))
		switch p.Info.Op {
		case bth.OpAtomicAck:
			v := p.AtomicAckETH().Original()
			if old, ok := m.atomics[psn]; ok && old != v {
				m.t.Fatalf("atomic %d has the results %d and %d", psn, old, v)
			}
			m.atomics[psn] = v
		case bth.OpReadResponse:
			m.reads[psn] = bytes.Clone(p.Payload)
		case bth.OpAck:
			m.hearAck(psn, p)
		}
	}
	m.advance()
	m.wcs = append(m.wcs, m.end.wcs...)
	m.end.wcs = nil
}

func (m *mixPeer) hearAck(psn int, p *bth.Packet) {
	m.t.Helper()
	switch s := p.AETH().Syndrome(); {
	case s.Kind() == bth.SyndromeACK:
		m.una = max(m.una, psn+1)
	case s.Kind() == bth.SyndromeRNR:
		m.una = max(m.una, psn)
		delete(m.held, psn)
		m.postRecv()
	case s.NAKCode() == bth.NAKPSNSequence:
		m.una = max(m.una, psn)
	default:
		m.t.Fatalf("the QP answers %s", m.heard(p))
	}
	h, ok := bth.ParseSelACK(p.Payload)
	if !ok {
		return
	}
	start := int(h.Start().Sub(m.base))
	for a, b := h.Run(0); a < b; a, b = h.Run(b) {
		for i := start + a; i < start+b; i++ {
			if !m.sent[i] {
				m.t.Fatalf("packet %d is reported as held and was not sent", i)
			}
			m.held[i] = true
		}
	}
}

// advance moves una over READs and atomics that were answered.
func (m *mixPeer) advance() {
	for i := range m.ps {
		p := &m.ps[i]
		if p.next <= m.una || p.psn != m.una || !p.alone() || !m.answered(p) {
			continue
		}
		m.una = p.next
	}
}

// alone reports whether only its response completes the packet.
func (p *mixPacket) alone() bool { return p.rd || p.op == bth.RCFlush }

func (m *mixPeer) answered(p *mixPacket) bool {
	if p.op == bth.RCFetchAdd {
		_, ok := m.atomics[p.psn]
		return ok
	}
	for i := p.psn; i < p.next; i++ {
		if _, ok := m.reads[i]; !ok {
			return false
		}
	}
	return true
}

// inOrder gives all packets once, in order.
func (m *mixPeer) inOrder(recvs int) {
	for range recvs {
		m.postRecv()
	}
	for i := range m.ps {
		m.give(&m.ps[i])
		m.hear()
	}
	m.now += ackLate
	m.hear()
}

// shuffled gives the packets until all are acknowledged, in random order or as a network that loses
// some. It calls check after each packet.
func (m *mixPeer) shuffled(r *rand.Rand, recvs int, check func()) {
	m.t.Helper()
	window, lossy := 1+r.IntN(40), r.IntN(3) > 0
	behind, last := 0, -1
	end := m.ps[len(m.ps)-1].next
	for steps := 0; m.una < end; steps++ {
		if steps > 200_000 {
			m.t.Fatalf("no progress at PSN %d of %d", m.una, end)
		}
		var open []*mixPacket
		rds := 0
		for i := range m.ps {
			p := &m.ps[i]
			if p.next <= m.una-behind {
				continue
			}
			if p.alone() && p.next > m.una {
				rds++
			}
			if len(open) == window || rds > int(m.q.attr.MaxDestRdAtomic) {
				break
			}
			if !m.held[p.psn] || r.IntN(20) == 0 {
				open = append(open, p)
			}
		}
		behind = 0
		if r.IntN(10) == 0 {
			behind = r.IntN(30)
		}
		if len(open) == 0 { // what is held waits for the answer queue
			m.now += ackLate
			m.hear()
			behind, m.held = 1, map[int]bool{}
			continue
		}
		next := open[r.IntN(len(open))]
		if lossy { // the next one, but one out of 5 is lost
			next = open[0]
			for _, p := range open {
				if p.psn > last && r.IntN(5) > 0 {
					next = p
					break
				}
			}
			last = next.psn
		}
		m.give(next)
		check()
		if r.IntN(3) > 0 {
			m.hear()
		}
		if m.posted < recvs && r.IntN(30) == 0 {
			m.postRecv()
		}
	}
}

func (m *mixPeer) results() string {
	var b bytes.Buffer
	for _, wc := range m.wcs {
		fmt.Fprintln(&b, wcText(wc))
	}
	for i := range m.ps {
		p := &m.ps[i]
		for psn := p.psn; psn < p.next; psn++ {
			switch p.op {
			case bth.RCFetchAdd:
				fmt.Fprintln(&b, "atomic", psn, m.atomics[psn])
			case bth.RCReadRequest:
				fmt.Fprintf(&b, "read %d %x\n", psn, m.reads[psn])
			}
		}
	}
	return b.String()
}

// memory returns the memory that packets may have changed.
func (m *mixPeer) memory() [][]byte {
	return [][]byte{m.mem[:mixReads+2*mixSize], m.mem[mixRecvs : mixRecvs+maxMixRecvs*mixRecv]}
}

func TestRandomOrderEqualsInOrder(t *testing.T) {
	ordered, mixed := newTalk(t, RC), newTalk(t, RC)
	fill := make([]byte, mixReads+2*mixSize)
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 17))
		ps, recvs := mix(r, 1+r.IntN(maxMixMessages))
		for i := range fill {
			fill[i] = byte(i>>4) ^ byte(seed)
		}
		a, b := newMixPeer(ordered, false, ps, fill), newMixPeer(mixed, true, ps, fill)
		b.pool.limit = DefaultReorderMemory
		if r.IntN(4) == 0 {
			b.pool.limit = 5000 + r.IntN(10_000)
		}
		b.fills.most = 1 + r.IntN(8)*r.IntN(2) // packets that are executed in a row
		a.inOrder(recvs)
		b.shuffled(r, recvs, func() {})
		for b.posted < recvs {
			b.postRecv()
		}
		if got, want := b.results(), a.results(); got != want {
			t.Fatalf("seed %d: results\n%s\nwant\n%s", seed, got, want)
		}
		for i, got := range b.memory() {
			if want := a.memory()[i]; !bytes.Equal(got, want) {
				j := 0
				for got[j] == want[j] {
					j++
				}
				t.Fatalf("seed %d: memory %d differs at offset %d: %#x, want %#x", seed, i, j,
					got[j], want[j])
			}
		}
		if n := b.Counters().ParkedBytes; n != 0 {
			t.Fatalf("seed %d: ParkedBytes = %d at the end, want 0", seed, n)
		}
		a.DestroyQP(a.q)
		b.DestroyQP(b.q)
	}
	c := mixed.Counters()
	if c.PlacedPkts < 5000 || c.HeldPkts < c.PlacedPkts+5000 || c.ReorderDrops < 1000 {
		t.Errorf("HeldPkts = %d, PlacedPkts = %d, ReorderDrops = %d: the test is too tame",
			c.HeldPkts, c.PlacedPkts, c.ReorderDrops)
	}
}

// Rule 2 of mr's memory model: a program that sees the last byte of a WRITE sees all of that WRITE
// and of the ones before. The packets arrive in random order, and the test looks after each one.
func TestFlagIsNeverVisibleBeforeData(t *testing.T) {
	k := newTalk(t, RC)
	for seed := range uint64(1000) {
		r := rand.New(rand.NewPCG(seed, 18))
		var ps []mixPacket
		var ends []int // of the messages in memory, one after the other
		for off := 0; len(ends) < 2+r.IntN(8); {
			size := 1 + r.IntN(6*talkMTU)
			if r.IntN(3) == 0 {
				size = 1 + r.IntN(8) // a flag
			}
			data := bytes.Repeat([]byte{byte(len(ends) + 1)}, size)
			for _, p := range k.writeParts(len(ps), 0, data) {
				p.noAck = true
				ps = append(ps, mixPacket{pkt: p, off: off, next: p.psn + 1})
			}
			off += size
			ends = append(ends, off)
		}
		k.fills.most = 1 + r.IntN(8)
		m := newMixPeer(k, true, ps, make([]byte, 16<<10))
		end := func() int { // of the data before the first missing byte
			return bytes.IndexByte(m.mem, 0)
		}
		m.shuffled(r, 0, func() {
			complete := end()
			for i, e := range ends {
				if m.mem[e-1] != 0 && e > complete {
					t.Fatalf("seed %d: the last byte of WRITE %d is visible, byte %d is not", seed, i,
						complete)
				}
			}
		})
		if got, want := end(), ends[len(ends)-1]; got != want {
			t.Fatalf("seed %d: %d bytes are written, want %d", seed, got, want)
		}
		m.DestroyQP(m.q)
	}
	if c := k.Counters(); c.PlacedPkts < 500 {
		t.Errorf("PlacedPkts = %d: the test is too tame", c.PlacedPkts)
	}
}
