package loop

import (
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/internal/clock"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/qp"
)

// result is what measure has found.
type result struct {
	longest time.Duration // delay of an urgent message
	urgent  int           // urgent messages sent
	share   float64       // of the time, that the sender's link was busy
	wasted  int           // times at which a timer ran out and nothing was sent
}

// measure writes a bulk message of class 0, or reads one, and sends urgent messages of 1 KiB while
// it is in progress, at random times.
func measure(t *testing.T, p *classPair, size int, op qp.Op) (r result) {
	t.Helper()
	random := rand.New(rand.NewPCG(1, 2))
	initiator := 0
	if op == qp.OpRead { // side 0 sends the responses
		initiator = 1
	}
	start, before := p.link.Now(), p.link.Port(0).Stats().TxBytes
	p.post(t, initiator, bulk, p.rdma(initiator, op, size, qp.Signaled))
	p.wasted = 0
	for {
		p.runFor(time.Duration(50_000 + random.IntN(500_000)))
		if p.completions(t, initiator, bulk) > 0 {
			break
		}
		p.send(t, urgent, urgentSize)
		r.longest = max(r.longest, p.await(t, 1, urgent))
		r.urgent++
	}
	r.wasted = p.wasted
	busy := float64(p.link.Port(0).Stats().TxBytes-before) * 8 / linkRate
	r.share = busy / time.Duration(p.link.Now()-start).Seconds()
	t.Logf("longest delay of %d urgent messages: %v; the link is busy for %.3f of the time", r.urgent,
		r.longest, r.share)
	return r
}

// delayBound is the largest delay of an urgent message with two frames of the bulk message in front
// of it.
func delayBound(mtu int) time.Duration {
	return 2*frameTime(mtu) + frameTime(urgentSize) + propagation
}

// check reports an error unless the longest delay is close to the bound but not above it, and the
// bulk message uses what the link has left.
func (r *result) check(t *testing.T, mtu int, extra time.Duration, share float64) {
	t.Helper()
	bound := delayBound(mtu) + extra
	if r.longest > bound || r.longest < bound*3/4 {
		t.Errorf("the longest delay of %d is %v, want at most %v and at least 3/4 of it", r.urgent,
			r.longest, bound)
	}
	if r.share < share {
		t.Errorf("the link is busy for %.3f of the time, want %.2f", r.share, share)
	}
}

// An urgent message waits for at most two frames of the bulk message, at all times of its arrival,
// and the bulk message uses what the link has left. Without the bound, the urgent message waits for
// everything that the bulk message has queued below the engine.
func TestBacklogBound(t *testing.T) {
	const size = 32 << 20
	for _, mtu := range []int{1024, 4096} {
		config := classConfig{mtu: bth.MTU(mtu), top: 7, size: size}
		t.Run(fmt.Sprintf("MTU %d", mtu), func(t *testing.T) {
			r := measure(t, newClassPair(t, config), size, qp.OpWrite)
			r.check(t, mtu, 0, 0.97)
			if r.wasted > 10 { // of more than 8192 waits for the backlog
				t.Errorf("%d times nothing was sent although the backlog had drained", r.wasted)
			}
		})
		t.Run(fmt.Sprintf("MTU %d without bound", mtu), func(t *testing.T) {
			config.loop = func(c *Config) { c.BacklogLimit = -1 }
			r := measure(t, newClassPair(t, config), size/4, qp.OpWrite)
			if frames := int(r.longest / frameTime(mtu)); frames < 100 {
				t.Errorf("without a bound, the longest delay is that of %d frames, want hundreds",
					frames)
			}
		})
	}
}

// hidden is a Port without optional interfaces.
type hidden struct{ driver.Port }

// rateless is a Port that knows its backlog, but not its rate.
type rateless struct{ driver.Port }

func (r *rateless) Backlog() (int, int64) {
	b, _ := driver.Find[driver.Backlogger](r.Port)
	n, _ := b.Backlog()
	return n, 0
}

func TestBacklogSources(t *testing.T) {
	const mtu = 1024
	for _, c := range []struct {
		name  string
		wrap  func(p driver.Port) driver.Port
		loop  func(c *Config)
		op    qp.Op
		extra time.Duration // of the longest delay
		share float64
	}{
		{name: "READ responses", op: qp.OpRead, share: 0.97},
		{name: "wrappers", op: qp.OpWrite, share: 0.97, wrap: func(p driver.Port) driver.Port {
			return loopback.Tee(loopback.Inject(p, 1, loopback.Plan{}), io.Discard)
		}},
		// Polling finds that the backlog has drained a little late.
		{name: "unknown rate", op: qp.OpWrite, share: 0.97,
			wrap: func(p driver.Port) driver.Port { return &rateless{p} }},
		// The configured rate includes what Ethernet adds to the frames: 1 Gbit/s would be slightly
		// more than the link's rate.
		{name: "configured rate", op: qp.OpWrite, share: 0.97,
			wrap: func(p driver.Port) driver.Port { return hidden{p} },
			loop: func(c *Config) { c.LinkRate = 998_000_000 }},
		{name: "configured rate that is too low", op: qp.OpWrite, share: 0.45,
			wrap:  func(p driver.Port) driver.Port { return hidden{p} },
			loop:  func(c *Config) { c.LinkRate = 500_000_000 },
			extra: -frameTime(mtu)},
		{name: "larger limit", op: qp.OpWrite, share: 0.97,
			loop:  func(c *Config) { c.BacklogLimit = 20 * (mtu + overhead) },
			extra: 18 * frameTime(mtu)},
		{name: "limit of one frame", op: qp.OpWrite, share: 0.97,
			loop: func(c *Config) { c.BacklogLimit = 1 }, extra: -frameTime(mtu)},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newClassPair(t, classConfig{mtu: mtu, top: 7, size: 2 << 20, wrap: c.wrap,
				loop: c.loop})
			r := measure(t, p, 2<<20, c.op)
			r.check(t, mtu, c.extra, c.share)
		})
	}
}

// counting is a Port that counts calls of Backlog, and calls onSend before frames are sent.
type counting struct {
	driver.Port
	backlogs int
	sends    []int // frames per call of Send
	onSend   func(bufs []driver.Buf)
}

func (c *counting) Backlog() (int, int64) {
	c.backlogs++
	return 0, 0
}

func (c *counting) Send(bufs []driver.Buf) (int, error) {
	c.sends = append(c.sends, len(bufs))
	if c.onSend != nil {
		c.onSend(bufs)
	}
	return c.Port.Send(bufs)
}

// newCounting returns a pair whose side 0 has a counting Port.
func newCounting(t *testing.T, top uint8) (*classPair, *counting) {
	t.Helper()
	var ports []*counting
	p := newClassPair(t, classConfig{mtu: 1024, top: top, size: 1 << 20,
		wrap: func(p driver.Port) driver.Port {
			ports = append(ports, &counting{Port: p})
			return ports[len(ports)-1]
		}})
	return p, ports[0]
}

// With QPs of one class, the loop does not ask for the backlog and sends all that the window
// permits, which is 64 packets at first.
func TestOneClassIsNotBounded(t *testing.T) {
	p, port := newCounting(t, 0)
	p.post(t, 0, bulk, p.rdma(0, qp.OpWrite, 1<<17, 0))
	p.s[0].TryStep()
	if port.backlogs > 0 || len(port.sends) != 1 || port.sends[0] != 64 {
		t.Errorf("%d calls of Backlog; calls of Send with %d frames, want one with 64",
			port.backlogs, port.sends)
	}
	if n := testing.AllocsPerRun(10, func() { p.s[0].TryStep() }); n != 0 {
		t.Errorf("a step allocates %v times", n)
	}
}

// A doorbell that rings while a batch of a lower class is being sent is handled before the next two
// frames.
func TestDoorbellBetweenPackets(t *testing.T) {
	p, port := newCounting(t, 7)
	total, rang, found := 0, 0, 0
	port.onSend = func(bufs []driver.Buf) {
		for i := range bufs {
			if rang > 0 && found == 0 && len(bufs[i].B) < 200 {
				found = total
			}
			total++
		}
		if rang == 0 && total >= 7 {
			rang = total
			p.post(t, 0, urgent, p.rdma(0, qp.OpWrite, 100, 0))
		}
	}
	p.post(t, 0, bulk, p.rdma(0, qp.OpWrite, 1<<17, 0))
	p.s[0].TryStep()
	if found != rang {
		t.Errorf("after %d frames an urgent one was posted, and %d were sent before it", rang, found)
	}
	if n := port.sends[1]; n != 2 {
		t.Errorf("%d frames of the lower class are sent together, want 2", n)
	}
}

// The loop does not allocate while it waits for the backlog and sends urgent packets in between.
func TestBoundedLoopDoesNotAllocate(t *testing.T) {
	const size = 1 << 20
	p := newClassPair(t, classConfig{mtu: 1024, top: 7, size: size})
	var wcs [64]qp.WC
	wrs := [2][]qp.SendWR{
		bulk:   {p.rdma(0, qp.OpWrite, size, qp.Signaled)},
		urgent: {p.rdma(0, qp.OpWrite, urgentSize, qp.Signaled)},
	}
	round := func() {
		for k := range wrs {
			_, _ = p.s[0].qps[k].Post(wrs[k])
			p.s[0].qps[k].RingDoorbell()
		}
		for done := 0; done < len(wrs); {
			for k := range wrs {
				done += p.s[0].cqs[k].Poll(wcs[:])
			}
			p.advance(p.link.Now() + int64(time.Millisecond))
		}
	}
	round()
	if n := testing.AllocsPerRun(3, round); n != 0 {
		t.Errorf("sending %d packets allocates %v times", size/1024, n)
	}
}

// stuckPort is a Port that never reports some bytes as sent.
type stuckPort struct {
	driver.Port
	lost int
}

func (s *stuckPort) Backlog() (int, int64) { return s.lost, 0 }

// Bytes that a port never reports as sent delay lower classes by stuckTime, but do not stop them.
func TestStuckBacklog(t *testing.T) {
	var port *stuckPort
	p := newClassPair(t, classConfig{mtu: 1024, top: 7, size: 1 << 20,
		wrap: func(p driver.Port) driver.Port {
			if port == nil {
				port = &stuckPort{Port: p, lost: 5000}
				return port
			}
			return p
		}})
	p.post(t, 0, bulk, p.rdma(0, qp.OpWrite, 1<<20, qp.Signaled))
	if d := p.await(t, 0, bulk); d < time.Duration(stuckTime) || d > time.Duration(stuckTime)*3/2 {
		t.Errorf("with 5000 bytes that are never sent, a WRITE takes %v, want little more than %v", d,
			time.Duration(stuckTime))
	}
	port.lost = 0 // they are sent at last, and others are queued later
	p.post(t, 0, bulk, p.rdma(0, qp.OpWrite, 1<<20, qp.Signaled))
	p.await(t, 0, bulk)
	port.lost = 5000
	p.post(t, 0, bulk, p.rdma(0, qp.OpWrite, 1<<20, qp.Signaled))
	if d := p.await(t, 0, bulk); d < time.Duration(stuckTime) {
		t.Errorf("with 5000 other bytes, a WRITE takes %v, want more than %v", d,
			time.Duration(stuckTime))
	}
}

// While there is one class, nothing keeps the loop from sending more than the configured rate. When
// QPs of a second class appear, lower classes must not wait for all of that.
func TestConfiguredRateExceededBefore(t *testing.T) {
	const size = 4 << 20
	p := newClassPair(t, classConfig{mtu: 1024, top: 0, size: size,
		loop: func(c *Config) { c.LinkRate = linkRate / 10 }})
	p.post(t, 0, bulk, p.rdma(0, qp.OpWrite, size, qp.Signaled))
	p.await(t, 0, bulk)
	q := p.s[0].qps[urgent]
	if err := q.Modify(p.s[0].now(), &qp.Attr{Class: 7}, qp.AttrClass); err != nil {
		t.Fatal(err)
	}
	p.post(t, 0, bulk, p.rdma(0, qp.OpWrite, 1024, qp.Signaled))
	if d, most := p.await(t, 0, bulk), time.Duration(stuckTime)*3/2; d > most {
		t.Errorf("a WRITE of one packet takes %v, want at most %v", d, most)
	}
}

// The owner sleeps until the backlog has drained, however short that is, and spins longer than
// usual.
func TestSleepWhileHeld(t *testing.T) {
	p := newClassPair(t, classConfig{mtu: 1024, top: 7, size: 1 << 20})
	s := p.s[0]
	p.post(t, 0, bulk, p.rdma(0, qp.OpWrite, 1<<20, 0))
	p.link.Advance(time.Millisecond)
	for s.TryStep() > 0 {
	}
	if !s.eng.Idle() {
		t.Error("the engine is busy while packets wait for the backlog")
	}
	n, rate := p.link.Port(0).Backlog()
	exact := time.Duration(float64(n-s.bound.low) * 8e9 / float64(rate))
	if d := s.sleepTime(s.now()); d < exact || d > exact+100 {
		t.Errorf("sleepTime() = %v, want %v", d, exact)
	}
	if at, ok := s.NextTimeout(); !ok || at != s.now()+qp.Time(s.sleepTime(s.now())) {
		t.Errorf("NextTimeout() = %v, %v, want the time at which the backlog has drained", at, ok)
	}
	spin := s.newSpinner()
	spin.spin = 20 * time.Microsecond
	if d := spinTime(spin, s.now()); d != qp.Time(heldSpin) {
		t.Errorf("spins %d ns while packets are held back, want %d", d, heldSpin)
	}
	spin.spin = 0
	if d := spinTime(spin, s.now()); d != 0 {
		t.Errorf("spins %d ns without Spin, want 0", d)
	}
	p.link.Advance(exact + 100)
	before := s.Counters().TxFrames
	if s.TryStep(); s.Counters().TxFrames == before {
		t.Error("nothing is sent when the backlog has drained")
	}
	s.eng.DestroyQP(s.qps[bulk])
	if _, held := s.held(); held {
		t.Error("packets are held back although there is only one class")
	}
}

// With several classes, received frames are not coalesced.
func TestNoCoalescingWithClasses(t *testing.T) {
	for _, top := range []uint8{0, 7} {
		p := newClassPair(t, classConfig{mtu: 1024, top: top, size: 1 << 20})
		for i, s := range p.s {
			if err := p.link.SetBandwidth(i, 0); err != nil {
				t.Fatal(err)
			}
			s.ticks = clock.NewPlain(p.link.Now) // enables receive coalescing
		}
		p.post(t, 0, bulk, p.rdma(0, qp.OpWrite, 1<<20, qp.Signaled))
		coalesced := false
		for p.step(); p.completions(t, 0, bulk) == 0; {
			p.advance(p.link.Now() + int64(time.Millisecond))
			coalesced = coalesced || p.s[1].coalesce.until > 0
		}
		if coalesced != (top == 0) {
			t.Errorf("with classes 0 and %d, frames are coalesced: %v", top, coalesced)
		}
	}
}

// In real time, an owner that does not spin sleeps while it waits for the backlog.
func TestOwnerSleepsWhileHeld(t *testing.T) {
	p := newClassPair(t, classConfig{mtu: 1024, top: 7, size: 1 << 20, real: true,
		loop: func(c *Config) { c.Manual, c.Spin = false, 0 }})
	for i := range p.s {
		if err := p.link.SetBandwidth(i, 10_000_000); err != nil { // 0.9 ms per frame
			t.Fatal(err)
		}
	}
	for _, s := range p.s {
		if err := s.Start(-1); err != nil {
			t.Fatal(err)
		}
	}
	const frames = 20
	p.post(t, 0, bulk, p.rdma(0, qp.OpWrite, frames*1024, qp.Signaled))
	start := time.Now()
	for p.completions(t, 0, bulk) == 0 {
		time.Sleep(time.Millisecond)
		if time.Since(start) > 10*time.Second {
			t.Fatal("the message does not complete")
		}
	}
	var c Counters
	p.s[0].Do(func(qp.Time) { c = *p.s[0].Counters() })
	if c.Steps > 20*frames || c.Sleeps < frames/4 {
		t.Errorf("%d steps and %d sleeps for %d frames, want at most %d steps and some sleeps", c.Steps,
			c.Sleeps, frames, 20*frames)
	}
}

// Before a QP goes away, its pending ACK is sent even if the class waits for the backlog.
func TestSendPendingWhileHeld(t *testing.T) {
	p := newClassPair(t, classConfig{mtu: 1024, top: 7, size: 1 << 20})
	s := p.s[1]
	p.post(t, 1, bulk, p.rdma(1, qp.OpWrite, 1<<20, 0)) // fills the backlog of side 1
	p.runFor(time.Millisecond)
	p.post(t, 0, bulk, p.rdma(0, qp.OpWrite, 100, 0))
	rcvd := s.eng.Counters().RcvdBytes
	for s.eng.Counters().RcvdBytes == rcvd {
		p.advance(p.link.Now() + 1000)
	}
	acks := s.eng.Counters().SentAcks
	for s.TryStep() > 0 {
	}
	if n := s.eng.Counters().SentAcks; n != acks {
		t.Fatalf("the ACK does not wait for the backlog")
	}
	s.Do(func(qp.Time) { s.SendPending(s.qps[bulk]) })
	if n := s.eng.Counters().SentAcks; n != acks+1 {
		t.Errorf("SendPending sends %d ACKs, want 1", n-acks)
	}
	s.Do(func(qp.Time) { s.SendPending(s.qps[bulk]) })
	if n := s.eng.Counters().SentAcks; n != acks+1 {
		t.Errorf("another SendPending sends %d ACKs, want 0", n-acks-1)
	}
	p.runFor(time.Second)
	if n := p.s[0].eng.Counters().Retransmits + s.eng.Counters().Retransmits; n != 0 {
		t.Errorf("%d packets are retransmitted, want 0", n)
	}
}

// The highest class has a limit of its own, which does not slow it down.
func TestBacklogOfHighestClass(t *testing.T) {
	const mtu, size = 1024, 4 << 20
	p := newClassPair(t, classConfig{mtu: mtu, top: 7, size: size})
	p.post(t, 0, urgent, p.rdma(0, qp.OpWrite, size, qp.Signaled))
	p.post(t, 0, bulk, p.rdma(0, qp.OpWrite, size, qp.Signaled))
	most, start := 0, p.link.Now()
	for p.step(); p.completions(t, 0, urgent) == 0; {
		n, _ := p.link.Port(0).Backlog()
		most = max(most, n)
		p.advance(p.link.Now() + int64(time.Millisecond))
	}
	if limit := highFrames * (mtu + overhead); most > limit || most < limit*3/4 {
		t.Errorf("the longest backlog is %d bytes, want at most %d and at least 3/4 of it", most,
			limit)
	}
	if took, ideal := time.Duration(p.link.Now()-start), size/mtu*frameTime(mtu); took > ideal*101/100 {
		t.Errorf("%d MiB take %v, want %v", size>>20, took, ideal)
	}
}
