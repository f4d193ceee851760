package loop

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/mr"
	"github.com/gorxe/gorxe/qp"
)

const (
	linkRate    = 978_000_000 // bits per second, of class rigs
	propagation = 5 * time.Microsecond
	urgentSize  = 1024
	// longest headers of a WRITE over IPv6, ICRC included
	overhead = 14 + 40 + 8 + bth.HeaderLen + bth.RETHLen + bth.ICRCLen
)

// frameTime returns how long the link sends a frame with n bytes of payload.
func frameTime(n int) time.Duration {
	return time.Duration(int64(n+overhead) * 8 * int64(time.Second) / linkRate)
}

// classPair is two loops in virtual time on a link with a bandwidth, each with a QP of class 0 and
// one of class 7.
type classPair struct {
	link   *loopback.Link
	s      [2]*classSide
	wasted int // calls of advance after which there was nothing to do
}

type classSide struct {
	*Loop
	eng *qp.Engine
	mem []byte
	mr  *mr.MR
	qps [2]*qp.QP // class 0, class 7
	cqs [2]*qp.CQ // their completions
}

// The QPs of a classSide.
const (
	bulk   = 0
	urgent = 1
)

// classConfig holds the parameters of newClassPair.
type classConfig struct {
	mtu  bth.MTU
	size int                             // of each side's memory, bytes
	top  uint8                           // class of the urgent QP
	loop func(c *Config)                 // changes the configuration of the loops; may be nil
	wrap func(p driver.Port) driver.Port // wraps the ports; may be nil
	real bool                            // real time
}

func newClassPair(t testing.TB, c classConfig) *classPair {
	t.Helper()
	link, err := loopback.NewLink(loopback.Config{Virtual: !c.real, NoTrace: true, MTU: 9000,
		Queue: 4096, TxBufs: 4096, Plan: loopback.Plan{Delay: propagation}})
	if err != nil {
		t.Fatal(err)
	}
	p := &classPair{link: link}
	for i := range p.s {
		if err := link.SetBandwidth(i, linkRate); err != nil {
			t.Fatal(err)
		}
		p.s[i] = newClassSide(t, link, i, &c)
	}
	for i := range p.s {
		for k := range p.s[i].qps {
			toRTS(t, p.s[i].Loop, link, i, p.s[i].qps[k], qp.Attr{PathMTU: c.mtu,
				DestQPN: p.s[1-i].qps[k].QPN(), Class: uint8(k) * c.top})
		}
	}
	return p
}

func newClassSide(t testing.TB, link *loopback.Link, i int, c *classConfig) *classSide {
	t.Helper()
	random := rand.New(rand.NewPCG(1, uint64(i))).Uint64
	table, err := mr.NewTable(mr.Config{Rand: random})
	must(t, err)
	s := &classSide{mem: make([]byte, max(c.size, urgentSize))}
	s.eng, err = qp.NewEngine(qp.Config{MRs: table, Rand: random})
	must(t, err)
	s.eng.SetPortMTU(4096)
	config := Config{Port: link.Port(i), Engine: s.eng, Host: noHost{}, Manual: true}
	if !c.real {
		config.Clock = link.Now
	}
	if c.wrap != nil {
		config.Port = c.wrap(config.Port)
	}
	if c.loop != nil {
		c.loop(&config)
	}
	s.Loop = New(config)
	s.SetLocal([]bth.GID{gidOf(link, i)}, NewSources(link.Port(i).Addrs(), nil))
	t.Cleanup(func() { must(t, s.Stop()) })

	pd, err := table.AllocPD()
	must(t, err)
	s.mr, err = table.Register(pd, s.mem, 0, memAccess)
	must(t, err)
	for k := range s.qps {
		s.cqs[k], err = qp.NewCQ(1024)
		must(t, err)
		s.qps[k], err = s.eng.CreateQP(qp.InitAttr{Type: qp.RC, PD: pd, SendCQ: s.cqs[k],
			RecvCQ: s.cqs[k], SQDepth: 512, RQDepth: 16, MaxSendSGE: 1, MaxRecvSGE: 1})
		must(t, err)
	}
	return s
}

// rdma returns a WRITE or READ of n bytes by side i.
func (p *classPair) rdma(i int, op qp.Op, n int, flags qp.SendFlags) qp.SendWR {
	return qp.SendWR{Op: op, Flags: flags, SGEs: p.s[i].sge(n),
		RKey: bth.RKey(p.s[1-i].mr.RKey())}
}

// send posts a SEND of n bytes on QP k of side 0 and a RECV for it on side 1.
func (p *classPair) send(t testing.TB, k, n int) {
	t.Helper()
	if _, err := p.s[1].qps[k].PostRecv([]qp.RecvWR{{SGEs: p.s[1].sge(n)}}); err != nil {
		t.Fatal(err)
	}
	p.post(t, 0, k, qp.SendWR{Op: qp.OpSend, SGEs: p.s[0].sge(n)})
}

func (p *classPair) post(t testing.TB, i, k int, wr qp.SendWR) {
	t.Helper()
	if _, err := p.s[i].qps[k].Post([]qp.SendWR{wr}); err != nil {
		t.Fatal(err)
	}
	p.s[i].qps[k].RingDoorbell()
}

// sge describes the first n bytes of the side's memory.
func (s *classSide) sge(n int) []qp.SGE {
	return []qp.SGE{{Length: uint32(n), LKey: bth.LKey(s.mr.LKey())}}
}

// step does what is due on both sides, and reports whether there was anything.
func (p *classPair) step() (some bool) {
	for p.s[0].TryStep()+p.s[1].TryStep() > 0 {
		some = true
	}
	return some
}

// next returns the time of the next arrival or timer; false: there is none.
func (p *classPair) next() (at int64, ok bool) {
	at, ok = p.link.NextEvent()
	for _, s := range p.s {
		if t, have := s.NextTimeout(); have && (!ok || int64(t) < at) {
			at, ok = int64(t), true
		}
	}
	return at, ok
}

// advance moves the time to the next arrival or timer, but not beyond limit, and does what is due.
// It returns false if limit is reached.
func (p *classPair) advance(limit int64) bool {
	next, ok := p.next()
	if !ok || next > limit {
		p.link.AdvanceTo(limit)
		p.step()
		return false
	}
	p.link.AdvanceTo(max(next, p.link.Now()+1))
	if !p.step() {
		p.wasted++
	}
	return true
}

// runFor moves the time and does what is due on the way.
func (p *classPair) runFor(d time.Duration) {
	p.step()
	for limit := p.link.Now() + int64(d); p.advance(limit); {
	}
}

// await runs until a work request of QP k of side i completes and returns how long that took.
func (p *classPair) await(t testing.TB, i, k int) time.Duration {
	t.Helper()
	const limit = 10 * time.Second
	start := p.link.Now()
	for p.step(); p.completions(t, i, k) == 0; {
		if !p.advance(start + int64(limit)) {
			t.Fatalf("QP %d of side %d completes nothing in %v", k, i, limit)
		}
	}
	return time.Duration(p.link.Now() - start)
}

// completions returns how many work requests of QP k of side i have completed since the last call.
func (p *classPair) completions(t testing.TB, i, k int) int {
	t.Helper()
	var wcs [64]qp.WC
	n := p.s[i].cqs[k].Poll(wcs[:])
	for _, wc := range wcs[:n] {
		if wc.Status != qp.Success {
			t.Fatalf("a work request of QP %d of side %d ends with %v", k, i, wc.Status)
		}
	}
	return n
}
