package sim

import (
	"context"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/internal/endpoint"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

const (
	attackTime    = 10 * time.Millisecond // virtual
	attackTick    = 2 * time.Microsecond
	attackReorder = 4 << 20 // Expert.MaxReorderMemory
	// attackHeap is how much the live heap may grow, in bytes, without what is held after gaps.
	attackHeap  = 4 << 20
	attackDepth = 16
	attackSize  = 64 << 10
	attackMTU   = 4096
	attackRate  = 62.5e6 // of class 7, bytes per second: a twentieth of the link
)

// duel is a device with an honest peer and a hostile one. WRITEs run in both directions between the
// device and its honest peer.
type duel struct {
	t      *testing.T
	link   *loopback.Link
	dev    [2]*roce.Device // the device and its honest peer
	end    [2]*endpoint.Endpoint
	done   [2]int // WRITEs completed, by sender
	victim *endpoint.Endpoint
	attacker
}

// attacker is the hostile peer. It answers packets of the victim's QP and sends its own.
type attacker struct {
	port  *loopback.Port
	addr  frame.Address
	local roce.Endpoint // of the victim
	grant roce.RemoteBuffer
	rng   *rand.Rand
	enc   frame.Encoder
	dec   frame.Decoder
	pkt   bth.Packet
	n     uint32 // packets received
	psn   uint32 // next request, relative to hostilePSN
}

const hostilePSN = 0x400

// attack is what a hostile peer does.
type attack struct {
	name   string
	work   bool                             // the victim sends WRITEs to the attacker
	class  uint8                            // traffic class that the attacker chooses
	answer func(a *attacker, p *bth.Packet) // to a packet of the victim
	tick   func(a *attacker)                // every attackTick
	check  func(t *testing.T, c *roce.Counters)
}

func newDuel(t *testing.T, a *attack) *duel {
	link, err := loopback.NewLink(loopback.Config{Virtual: true, Ports: 3, Seed: 1, Queue: 1 << 14,
		Plan: loopback.Plan{Bandwidth: 10e9, Delay: 5 * time.Microsecond}})
	if err != nil {
		t.Fatal(err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	d := &duel{t: t, link: link}
	for i := range d.dev {
		r := rand.New(rand.NewPCG(1, uint64(i)))
		d.dev[i], err = roce.New(link.Port(i), roce.WithSelectiveRepeat(true),
			roce.WithClasses([roce.NumClasses]roce.ClassConfig{7: {Rate: attackRate}}),
			roce.WithExpert(roce.Expert{Clock: link.Now, Rand: r.Uint64,
				MaxReorderMemory: attackReorder}))
		must(err)
		t.Cleanup(func() { d.dev[i].Close() })
		d.end[i], err = endpoint.New(d.dev[i], endpoint.Config{
			QP: roce.QPConfig{SendDepth: attackDepth}, Memory: 2 * attackDepth * attackSize})
		must(err)
		must(link.SetPlan(i, 1-i, loopback.Plan{Bandwidth: 10e9, Delay: 5 * time.Microsecond,
			Loss: 0.002}))
	}
	must(endpoint.Connect(context.Background(), d.end[0], d.end[1],
		roce.ConnectOptions{MTU: attackMTU}))

	d.victim, err = endpoint.New(d.dev[0], endpoint.Config{
		QP: roce.QPConfig{SendDepth: attackDepth}, Memory: attackDepth * attackSize})
	must(err)
	port := link.Port(2)
	q := d.victim.QP
	d.attacker = attacker{port: port, local: q.Local(), grant: d.victim.MR.Remote(),
		rng: rand.New(rand.NewPCG(1, 9)), addr: frame.Address{SrcMAC: port.Info().MAC,
			DstMAC: link.Port(0).Info().MAC, SrcPort: 0xc001, HopLimit: 64, Dst: q.Local().GID}}
	for _, a := range port.Addrs() {
		if g := bth.GIDFromAddr(a.Addr()); g.IsIPv4() {
			d.addr.Src = g
		}
	}
	must(q.Connect(context.Background(), roce.Endpoint{QPN: 0x77, PSN: hostilePSN, GID: d.addr.Src,
		MTU: attackMTU, PKey: bth.DefaultPKey, Features: roce.SelectiveRepeat, Class: a.class},
		roce.ConnectOptions{MTU: attackMTU}))
	for i := range attackDepth {
		d.post(0, i)
		d.post(1, i)
		if a.work {
			must(q.PostSend(roce.SendWR{Op: roce.OpWrite, SGEs: []roce.SGE{d.victim.MR.SGE(0,
				attackSize)}}))
		}
	}
	return d
}

// post posts WRITE i of the honest stream from a side.
func (d *duel) post(side, i int) {
	local, remote := d.end[side], d.end[1-side]
	err := local.QP.PostSend(roce.SendWR{ID: uint64(i), Op: roce.OpWrite, Flags: roce.Signaled,
		SGEs:       []roce.SGE{local.MR.SGE(i*attackSize, attackSize)},
		RemoteAddr: remote.MR.Addr() + uint64((attackDepth+i)*attackSize),
		RKey:       remote.MR.RKey()})
	if err != nil {
		d.t.Fatal(err)
	}
}

// run lets the attack go on for a time.
func (d *duel) run(a *attack, during time.Duration) {
	end := d.link.Now() + int64(during)
	tick := d.link.Now()
	for d.link.Now() < end {
		if d.link.Now() >= tick {
			tick += int64(attackTick)
			a.tick(&d.attacker)
		}
		for busy := true; busy; {
			busy = d.receive(a.answer)
			for _, dev := range d.dev {
				busy = dev.Progress() > 0 || busy
			}
			d.reap()
		}
		next := tick
		if at, ok := d.link.NextEvent(); ok {
			next = min(next, at)
		}
		for _, dev := range d.dev {
			if at, ok := dev.NextTimeout(); ok {
				next = min(next, at)
			}
		}
		d.link.AdvanceTo(max(next, d.link.Now()+1))
	}
}

// reap posts the next WRITE for each completed one.
func (d *duel) reap() {
	var wcs [attackDepth]roce.WC
	for side, e := range d.end {
		for _, wc := range wcs[:e.CQ.Poll(wcs[:])] {
			if err := endpoint.StatusError(&wc); err != nil {
				d.t.Fatalf("an honest connection failed: %v", err)
			}
			d.done[side]++
			d.post(side, int(wc.ID))
		}
	}
	d.victim.CQ.Poll(wcs[:])
}

// receive passes the packets of the victim to f.
func (a *attacker) receive(f func(*attacker, *bth.Packet)) bool {
	var bufs [32]driver.Buf
	n := a.port.Receive(bufs[:])
	for _, b := range bufs[:n] {
		if a.dec.Decode(b.B, &a.pkt) == frame.ReasonOK {
			a.n++
			f(a, &a.pkt)
		}
	}
	a.port.Release(bufs[:n])
	return n > 0
}

// send sends a packet to the victim, marked by switches if ce. put writes what follows the BTH, and
// returns its length.
func (a *attacker) send(o bth.Opcode, psn bth.PSN, ce bool, put func(b []byte) int) {
	var bufs [1]driver.Buf
	if a.port.Alloc(bufs[:]) == 0 {
		return // too many packets are in flight
	}
	addr := a.addr
	if ce {
		addr.TrafficClass = 3
	}
	b := bufs[0].B[:cap(bufs[0].B)]
	n := frame.PutHeaders(b, &addr)
	bth.PutBTH(b[n:], &bth.BTHFields{Opcode: o, PKey: bth.DefaultPKey, DestQP: a.local.QPN, PSN: psn,
		AckReq: o.Info().Request, BECN: o == bth.CNP})
	total := n + bth.HeaderLen + put(b[n+bth.HeaderLen:]) + bth.ICRCLen
	a.enc.Finish(b[:total], n)
	bufs[0].B = b[:total]
	a.port.Send(bufs[:])
}

// ack acknowledges everything up to a PSN.
func (a *attacker) ack(psn bth.PSN, ce bool) {
	a.send(bth.RCAck, psn, ce, func(b []byte) int {
		bth.PutAETH(b, bth.ACKNoLimit, 0)
		return bth.AETHLen
	})
}

// write sends a WRITE of n bytes to the memory that the victim grants.
func (a *attacker) write(psn bth.PSN, n int, ce bool) {
	a.send(bth.RCWriteOnly, psn, ce, func(b []byte) int {
		bth.PutRETH(b, a.grant.Addr, a.grant.RKey, uint32(n))
		clear(b[bth.RETHLen : bth.RETHLen+n])
		return bth.RETHLen + n
	})
}

// read requests all memory that the victim grants.
func (a *attacker) read() {
	a.send(bth.RCReadRequest, bth.PSN(hostilePSN).Add(a.psn), false, func(b []byte) int {
		bth.PutRETH(b, a.grant.Addr, a.grant.RKey, attackSize)
		return bth.RETHLen
	})
	a.psn += attackSize / attackMTU
}

func nothing(*attacker, *bth.Packet) {}
func noTick(*attacker)               {}

var attacks = []attack{
	{name: "false selective acknowledgments", work: true, tick: noTick,
		answer: func(a *attacker, p *bth.Packet) {
			if !p.Info.Request {
				return
			}
			// The first missing packet advances slowly, so that the victim never gives up.
			missing := a.local.PSN.Add(a.n / 64)
			words := make([]uint32, a.rng.IntN(bth.MaxSelACKWords+1))
			for i := range words {
				words[i] = a.rng.Uint32() | a.rng.Uint32()
			}
			start := missing.Add(a.rng.Uint32N(600))
			a.send(bth.RCAck, missing, false, func(b []byte) int {
				bth.PutAETH(b, bth.NAKSyndrome(bth.NAKPSNSequence), 0)
				return bth.AETHLen + bth.PutSelACK(b[bth.AETHLen:], start, uint16(a.n), words)
			})
		},
		check: func(t *testing.T, c *roce.Counters) {
			if c.RcvdSeqNAK < 500 || c.Retransmits < 100 {
				t.Errorf("%d NAKs, %d retransmitted packets", c.RcvdSeqNAK, c.Retransmits)
			}
		}},
	{name: "flood of CNPs", work: true,
		answer: func(a *attacker, p *bth.Packet) {
			if p.Info.Request {
				a.ack(p.BTH.PSN(), false)
			}
		},
		tick: func(a *attacker) {
			for range 8 {
				a.send(bth.CNP, 0, false, func(b []byte) int { clear(b[:16]); return 16 })
			}
		},
		check: func(t *testing.T, c *roce.Counters) {
			if c.RcvdCNPs < 20_000 {
				t.Errorf("%d CNPs received", c.RcvdCNPs)
			}
		}},
	{name: "every packet marked", work: true,
		answer: func(a *attacker, p *bth.Packet) {
			switch {
			case p.Info.Request:
				a.ack(p.BTH.PSN(), true)
			case p.Info.Op == bth.OpAck:
				a.psn = max(a.psn, uint32(p.BTH.PSN().Sub(hostilePSN)+1))
			}
		},
		tick: func(a *attacker) {
			a.write(bth.PSN(hostilePSN).Add(a.psn), 1024, true)
			a.psn++
		},
		check: func(t *testing.T, c *roce.Counters) {
			most := uint64(attackTime/(50*time.Microsecond)) + 1
			if c.MarkedPkts < 4000 || c.SentCNPs == 0 || c.SentCNPs > 2*most {
				t.Errorf("%d marked packets, %d CNPs sent", c.MarkedPkts, c.SentCNPs)
			}
		}},
	{name: "packets after gaps", answer: nothing,
		tick: func(a *attacker) {
			for range 2 {
				a.write(bth.PSN(hostilePSN).Add(1+a.rng.Uint32N(1<<a.rng.IntN(21))),
					a.rng.IntN(attackMTU+1)&^3, false)
			}
		},
		check: func(t *testing.T, c *roce.Counters) {
			if c.HeldPkts < 500 || c.ReorderDrops < 500 {
				t.Errorf("%d packets held, %d dropped", c.HeldPkts, c.ReorderDrops)
			}
		}},
	// The victim adopts the class, and its rate limits what lower classes lose.
	{name: "READs in the highest class", class: 7,
		answer: func(a *attacker, p *bth.Packet) {
			if p.Info.Op == bth.OpReadResponse && p.Info.End {
				a.read()
			}
		},
		tick: func(a *attacker) {
			for a.psn < 8*attackSize/attackMTU {
				a.read()
			}
		},
		check: func(t *testing.T, c *roce.Counters) {
			const most = attackRate * float64(attackTime) / float64(time.Second)
			if n := float64(c.Classes[7].SentBytes); n > 1.2*most || n < 0.8*most {
				t.Errorf("%.0f bytes sent in class 7, want about %.0f", n, most)
			}
		}},
}

// A hostile peer slows only its own queue pair, and costs a bounded amount of memory.
func TestHostilePeers(t *testing.T) {
	calm := attack{answer: nothing, tick: noTick}
	base := newDuel(t, &calm)
	base.run(&calm, attackTime)
	t.Logf("without attack: %v WRITEs", base.done)
	for i := range attacks {
		a := &attacks[i]
		t.Run(a.name, func(t *testing.T) {
			d := newDuel(t, a)
			before := liveHeap()
			d.run(a, attackTime)
			grown := int64(liveHeap()) - int64(before)
			c := d.dev[0].Counters()
			t.Logf("%v WRITEs, heap grown by %d KiB, %d bytes held", d.done, grown>>10,
				c.ParkedBytes)
			a.check(t, &c)
			for side, n := range d.done {
				if want := base.done[side]; 100*n < 85*want {
					t.Errorf("side %d: %d WRITEs of an honest connection, want about %d", side, n,
						want)
				}
			}
			if c.ParkedBytes > attackReorder {
				t.Errorf("%d bytes are held after gaps, the limit is %d", c.ParkedBytes,
					attackReorder)
			}
			if grown > attackReorder+attackHeap {
				t.Errorf("the heap grew by %d bytes, want at most %d", grown,
					attackReorder+attackHeap)
			}
			runtime.KeepAlive(d)
		})
	}
}

func liveHeap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
