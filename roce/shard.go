package roce

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/internal/clock"
	"github.com/gorxe/gorxe/qp"
)

const (
	// rxBatch is how many frames a turn receives at most, and txBatch how many it sends between two looks at the
	// receive ring, so that ACKs and NAKs are seen in time.
	rxBatch = 64
	txBatch = 64
	// minStock is how many empty transmit buffers a shard goes on with before it gets more.
	minStock = 16
	// minForesight is how many frames there have to be for looking ahead among them.
	minForesight = 4
	// maxPutOff is how many turns that received something leave the chores to the next.
	maxPutOff = 8
	// stallWait is how long a shard sleeps at most while the port has no transmit buffer for it.
	stallWait = 50 * time.Microsecond
	// minSleep is how long a shard blocks at least, if nothing comes, while its connections lose nothing: the first loss after
	// a calm is repaired up to so much later.
	minSleep = 5 * time.Millisecond
	// eventsPerTurn bounds the asynchronous events that a turn hands up.
	eventsPerTurn = 16
)

// shard joins one Port to one engine: it owns both, and every QP of the engine. All fields below "owner" belong to
// whoever holds mu: the progress goroutine for its whole life (auto), or the caller whose TryLock succeeded (manual).
type shard struct {
	dev    *Device
	port   driver.Port
	eng    *qp.Engine
	clock  func() int64 // the owner's
	ticks  *clock.Clock // the same; nil if it is the caller's
	manual bool
	spin   time.Duration

	// What other threads use to get the owner's attention; see drive.go.
	mu       turnLock
	sleeping atomic.Bool // the owner blocks in Port.Wait, or is about to
	stopping atomic.Bool // the progress goroutine shall end
	cmdReady atomic.Bool // cmds is not empty
	cmdMu    sync.Mutex
	cmds     []*command
	dead     bool         // under cmdMu: no further command is taken
	waiters  atomic.Int32 // callers of CQ.Wait that found the shard owned by another
	free     chan struct{}

	// owner
	closed  bool
	last    qp.Time       // the clock as the latest turn read it
	idle    bool          // the latest whole turn found nothing to do
	answer  bool          // the latest whole turn received something: the next post leaves at once
	holder  driver.Holder // port, if it is one
	dec     frame.Decoder
	enc     frame.Encoder
	pkt     bth.Packet
	rx      [rxBatch]driver.Buf
	lent    int                 // frames of rx that the port does not have back yet
	glances [rxBatch][]byte     // of rx: from their BTHs on
	tx      [txBatch]driver.Buf // transmit buffers: ready to be filled are txn from txAt on
	txAt    int
	txn     int
	put     int  // turns that left the chores to the next
	stalled bool // the port had no transmit buffer though there was something to send
	gsi     *gsi
	local   []bth.GID // addresses that packets may be sent to
	ctr     shardCounters
	gather  gatherer
	qps     int
	cqs     map[*qp.CQ]*CQ // to name the objects of events
	srqs    map[*qp.SRQ]*SRQ
}

// shardCounters are what the shard itself counts; the engine has its own.
type shardCounters struct {
	rxFrames, rxBytes, txFrames, txBytes uint64
	txDropped                            uint64 // the port or the kernel did not take them
	foreign                              uint64 // sent to an address that is not ours
	portErrors                           uint64
	turns, waits                         uint64
	drops                                [frame.NumReasons]uint64
}

func newShard(d *Device, port driver.Port, eng *qp.Engine, c *config) *shard {
	s := &shard{
		dev: d, port: port, eng: eng, clock: c.clock, manual: c.progress == Manual, spin: c.spin,
		free: make(chan struct{}, 1),
		cqs:  map[*qp.CQ]*CQ{}, srqs: map[*qp.SRQ]*SRQ{},
	}
	s.holder, _ = port.(driver.Holder)
	s.mu.light = asymmetric()
	if s.clock == nil {
		start := time.Now()
		s.ticks = clock.New(func() int64 { return int64(time.Since(start)) + 1 })
		s.clock = s.ticks.Now
	}
	eng.SetBell(s.bell)
	eng.SetHost(s)
	eng.DeferPayloads()
	return s
}

// setMTU tells the engine what UD messages may carry. Owner only.
func (s *shard) setMTU(device int) {
	if m := bth.MTUFor(device); m != 0 {
		s.eng.SetPortMTU(m)
	}
}

func (s *shard) now() qp.Time {
	if s.ticks != nil {
		return qp.Time(s.ticks.Now())
	}
	return qp.Time(s.clock())
}

// turn is one round of the crank: the n frames that have come, the timers, a batch out. It returns how much it did;
// 0 means that there was nothing to do.
func (s *shard) turn(now qp.Time, n int) int {
	s.ctr.turns++
	work := s.receive(now, n)
	if s.eng.BellPending() {
		s.eng.HandleDoorbells(now)
		s.gather.posted()
		work++
	}
	// What has been posted goes before everything else that there is to do.
	work += s.transmit(now)
	if n > 0 && s.put < maxPutOff {
		s.put++
		return work
	}
	s.put = 0
	return work + s.chores(now)
}

// chores are what a turn does beside moving packets: timers, the connection manager, events.
func (s *shard) chores(now qp.Time) int {
	work := 0
	if t, ok := s.eng.NextTimeout(); ok && t <= now {
		s.eng.HandleTimeout(now)
		work += 1 + s.transmit(now)
	}
	work += s.gsi.mend(now) + s.gsi.timeout(now) + s.gsi.transmit(now)
	return work + s.reportEvents()
}

func (s *shard) receive(now qp.Time, n int) int {
	if n == 0 {
		return 0
	}
	ahead := 0
	if n >= minForesight {
		ahead = s.eng.ForeseeBatch()
	}
	for i := range s.rx[:n] {
		if ahead > 0 && i%ahead == 0 {
			s.foresee(s.rx[i:min(i+ahead, n)])
		}
		s.handleFrame(now, s.rx[i].B)
	}
	s.lent = n
	if s.ticks == nil { // on the caller's clock nobody waits for an answer
		s.giveBack()
	}
	return n
}

// giveBack gives the received frames back to the port. That is not done in the turn that brings them but before the next look at the ring: an
// answer to them leaves some 15 ns sooner.
func (s *shard) giveBack() {
	if s.lent > 0 {
		s.port.Release(s.rx[:s.lent])
		s.lent = 0
	}
}

// foresee lets the engine fetch what a batch of frames will touch.
func (s *shard) foresee(bufs []driver.Buf) {
	for i := range bufs {
		s.glances[i] = frame.PeekBTH(bufs[i].B)
	}
	s.eng.Foresee(s.glances[:len(bufs)])
}

func (s *shard) handleFrame(now qp.Time, b []byte) {
	s.ctr.rxFrames++
	s.ctr.rxBytes += uint64(len(b))
	if r := s.dec.Decode(b, &s.pkt); r != frame.ReasonOK {
		s.ctr.drops[r]++
		return
	}
	if !s.isLocal(&s.pkt.Dst) && (s.pkt.BTH.DestQP() != bth.QPNMulticast || !s.eng.HasGroup(&s.pkt.Dst)) {
		s.ctr.foreign++
		return
	}
	if s.pkt.BTH.DestQP() == bth.QPNGSI {
		s.gsi.handle(now, &s.pkt)
		return
	}
	s.eng.HandlePacket(now, &s.pkt)
	s.gather.handled(&s.pkt)
}

// isLocal keeps the address that came last at the front: traffic comes in runs.
func (s *shard) isLocal(g *bth.GID) bool {
	for i := range s.local {
		if s.local[i] == *g {
			if i > 0 {
				s.local[0], s.local[i] = s.local[i], s.local[0]
			}
			return true
		}
	}
	return false
}

// transmit lets the engine build packets straight into the port's buffers. Buffers that stay empty are kept for the
// next turn and given back when the shard closes.
func (s *shard) transmit(now qp.Time) int {
	s.stalled = false
	if !s.eng.HasTransmit(now) || !s.stock() {
		return 0
	}
	n := s.fill(now)
	if n > 0 {
		s.flush(n)
	}
	return n
}

// stock sees to it that there are transmit buffers, and tells whether there is one.
func (s *shard) stock() bool {
	if s.txn >= minStock {
		return true
	}
	copy(s.tx[:], s.ready())
	s.txAt = 0
	s.txn += s.port.Alloc(s.tx[s.txn:])
	if s.txn == 0 {
		s.stalled = true
	}
	return s.txn > 0
}

// ready are the transmit buffers that can be filled.
func (s *shard) ready() []driver.Buf { return s.tx[s.txAt : s.txAt+s.txn] }

// fill builds packets into the ready buffers, from the first on, and returns how many it built.
func (s *shard) fill(now qp.Time) int {
	n := 0
	for n < s.txn && s.eng.HasTransmit(now) && s.build(now, n) {
		n++
	}
	return n
}

// build makes the next packet in ready buffer i, if there is one.
func (s *shard) build(now qp.Time, i int) bool {
	buf := &s.tx[s.txAt+i]
	tx := s.eng.PollTransmit(now, buf.B[:len(buf.B)-bth.ICRCLen])
	if tx == nil {
		return false
	}
	f := buf.B[:tx.Len+bth.ICRCLen]
	if tx.Payload != nil {
		s.enc.FinishWith(f, tx.NetLen, tx.PayloadAt, tx.Payload)
	} else {
		s.enc.Finish(f, tx.NetLen)
	}
	buf.B = f
	s.ctr.txBytes += uint64(len(f))
	return true
}

// reply is transmit for the QP whose turn it is, alone: what was just posted on it leaves before anything else is looked at, the clock
// included. The packet is built with the time of the turn before, and what the QP has noted of it is put right behind it.
func (s *shard) reply(q *qp.QP) {
	if !s.stock() {
		return
	}
	n, then := 0, s.last
	for n < s.txn && s.eng.Serving() == q && s.build(then, n) {
		n++
	}
	if n > 0 {
		s.flush(n)
	}
	s.last = s.now()
	s.eng.Restamp(q, then, s.last)
}

// flush sends the first n ready buffers, which the port owns from then on.
func (s *shard) flush(n int) {
	sent, err := s.port.Send(s.ready()[:n])
	if err != nil {
		s.ctr.portErrors++
	}
	s.ctr.txFrames += uint64(sent)
	s.ctr.txDropped += uint64(n - sent)
	s.txAt, s.txn = s.txAt+n, s.txn-n
}

// settle sends what is owed, ACKs above all, before a QP goes: else the peer of a program that ends with its last
// message would retry in vain.
func (s *shard) settle() {
	for range 2 { // an ACK waits for the turn after the last data
		if !s.closed {
			s.transmit(s.now())
		}
	}
}

// nextTimeout is when the engine or the connection manager has something to do.
func (s *shard) nextTimeout() (qp.Time, bool) {
	t, ok := s.eng.NextTimeout()
	if c, more := s.gsi.cm.NextTimeout(); more && (!ok || qp.Time(c) < t) {
		return qp.Time(c), true
	}
	return t, ok
}

// untilNext returns how long the owner may sleep: to the next timer, or for ever (negative).
func (s *shard) untilNext(now qp.Time) time.Duration {
	d := time.Duration(-1)
	if t, ok := s.eng.NextTimeout(); ok {
		d = max(0, time.Duration(t-now))
		if s.eng.Calm(now) {
			d = max(d, minSleep)
		}
	}
	if t, ok := s.gsi.cm.NextTimeout(); ok {
		if c := max(0, time.Duration(qp.Time(t)-now)); d < 0 || c < d {
			d = c
		}
	}
	if s.stalled && (d < 0 || d > stallWait) {
		d = stallWait
	}
	return d
}

// shut gives the buffers back and closes the port. Owner only; nothing runs on the shard afterwards.
func (s *shard) shut() error {
	if s.closed {
		return nil
	}
	s.closed = true
	s.giveBack()
	if s.txn > 0 {
		s.port.Free(s.ready())
		s.txn = 0
	}
	return s.port.Close()
}
