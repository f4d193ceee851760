package loopback

import (
	"sync/atomic"

	"github.com/gorxe/gorxe/driver"
)

// Receive implements driver.Port.
func (p *Port) Receive(bufs []driver.Buf) int {
	if p.closed.Load() {
		return 0
	}
	n, bytes := 0, 0
	switch {
	case p.idle && p.delayed.len() == 0 && p.egress == nil:
	case p.egress != nil:
		n = p.receiveQueued(bufs)
	case p.timed:
		n = p.receiveDue(bufs)
	default:
		n = p.receiveNow(bufs)
	}
	for i := range bufs[:n] {
		bytes += len(bufs[i].B)
	}
	p.stats.received(n, bytes)
	return n
}

// receiveNow receives frames that have no due time directly from the rings, starting at a different
// ring each time.
func (p *Port) receiveNow(bufs []driver.Buf) int {
	n := 0
	for i := range p.in {
		d := p.in[(p.nextIn+i)%len(p.in)]
		if d == nil {
			continue
		}
		for n < len(bufs) {
			a, ok := d.frames.take()
			if !ok {
				break
			}
			if a.due != 0 {
				p.delayed.push(a) // from now on, receive by due time
				return n + p.receiveDue(bufs[n:])
			}
			bufs[n] = p.deliver(&a)
			n++
		}
		d.frames.done()
	}
	p.nextIn++
	return n
}

// receiveDue sorts the arrived frames by due time and delivers those that are due.
func (p *Port) receiveDue(bufs []driver.Buf) int {
	now, n := p.drain(), 0
	for n < len(bufs) && p.delayed.len() > 0 {
		if due, _ := p.delayed.next(); due > now {
			break
		}
		a := p.delayed.pop()
		bufs[n] = p.deliver(&a)
		n++
	}
	p.timed = p.delayed.len() > 0
	return n
}

// drain moves arrivals from the rings to the queue of delayed frames and returns the time. Arrivals
// without a due time are queued after those that are already due.
func (p *Port) drain() (now int64) {
	now = p.link.clock()
	if p.idle {
		return now
	}
	p.idle = p.link.virtual
	for _, d := range p.in {
		if d == nil {
			continue
		}
		for {
			a, ok := d.frames.take()
			if !ok {
				break
			}
			if a.due == 0 {
				a.due = now
			}
			p.delayed.push(a)
		}
		d.frames.done()
	}
	return now
}

func (p *Port) deliver(a *arrival) driver.Buf {
	from := p.link.ports[a.from]
	from.transition(a.buf, bufWire, bufRead)
	b := from.bytes(a.buf)[:a.n]
	p.link.note(0, int(a.from), p.index, b)
	return driver.Buf{B: b, Token: uint64(a.from)<<32 | uint64(a.buf)}
}

// nextArrival returns when the next frame can be received.
func (p *Port) nextArrival() (int64, bool) {
	if p.closed.Load() {
		return 0, false
	}
	if p.egress != nil {
		return p.nextQueued()
	}
	p.drain()
	t, ok := p.delayed.next()
	p.timed = ok
	return t, ok
}

// Release implements driver.Port.
func (p *Port) Release(bufs []driver.Buf) {
	for i := range bufs {
		d := p.in[bufs[i].Token>>32]
		buf := uint32(bufs[i].Token)
		d.from.transition(buf, bufRead, bufBack)
		d.back.stage(buf) // never full: it has space for all frames in flight
	}
	for _, d := range p.in {
		if d != nil {
			d.back.publish()
		}
	}
}

// Stats returns the counters since the Port was created. It is safe for concurrent use.
func (p *Port) Stats() driver.Stats {
	s := &p.stats
	return driver.Stats{
		RxFrames: s.rxFrames.Load(), RxBytes: s.rxBytes.Load(),
		TxFrames: s.txFrames.Load(), TxBytes: s.txBytes.Load(),
		RxDropped: s.rxDropped.Load(), TxDropped: s.txDropped.Load(), Waits: s.waits.Load(),
	}
}

// sharedStats is updated once per batch. The senders update rxDropped.
type sharedStats struct {
	rxFrames, rxBytes, waits     atomic.Uint64
	_                            [cacheLine]byte
	txFrames, txBytes, txDropped atomic.Uint64
	_                            [cacheLine]byte
	rxDropped                    atomic.Uint64
}

func (s *sharedStats) sent(frames, bytes, dropped int) {
	if frames > 0 {
		s.txFrames.Add(uint64(frames))
		s.txBytes.Add(uint64(bytes))
	}
	if dropped > 0 {
		s.txDropped.Add(uint64(dropped))
	}
}

func (s *sharedStats) received(frames, bytes int) {
	if frames > 0 {
		s.rxFrames.Add(uint64(frames))
		s.rxBytes.Add(uint64(bytes))
	}
}
