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
	if p.timed {
		n = p.receiveDue(bufs)
	} else {
		n = p.receiveNow(bufs)
	}
	for i := range bufs[:n] {
		bytes += len(bufs[i].B)
	}
	p.stats.received(n, bytes)
	return n
}

// receiveNow serves a wire without delays: straight from the rings, a
// different one first each time.
func (p *Port) receiveNow(bufs []driver.Buf) int {
	n := 0
	for i := range p.in {
		d := p.in[(p.turn+i)%len(p.in)]
		if d == nil {
			continue
		}
		for n < len(bufs) {
			a, ok := d.frames.take()
			if !ok {
				break
			}
			if a.due != 0 {
				p.late.push(a) // from here on by instants
				return n + p.receiveDue(bufs[n:])
			}
			bufs[n] = p.deliver(&a)
			n++
		}
		d.frames.done()
	}
	p.turn++
	return n
}

// receiveDue sorts what has come by its instant and delivers what is due.
func (p *Port) receiveDue(bufs []driver.Buf) int {
	now, n := p.drain(), 0
	for n < len(bufs) && p.late.len() > 0 {
		if due, _ := p.late.next(); due > now {
			break
		}
		a := p.late.pop()
		bufs[n] = p.deliver(&a)
		n++
	}
	p.timed = p.late.len() > 0
	return n
}

// drain moves arrivals from the rings to the queue of those that wait, and
// returns the time. What arrives at once stands behind what is due already.
func (p *Port) drain() (now int64) {
	now = p.link.clock()
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
			p.late.push(a)
		}
		d.frames.done()
	}
	return now
}

func (p *Port) deliver(a *arrival) driver.Buf {
	from := p.link.ports[a.from]
	from.claim(a.buf, bufWire, bufRead)
	b := from.bytes(a.buf)[:a.n]
	p.link.note(0, int(a.from), p.index, b)
	return driver.Buf{B: b, Token: uint64(a.from)<<32 | uint64(a.buf)}
}

// nextArrival is when the next frame can be received.
func (p *Port) nextArrival() (int64, bool) {
	if p.closed.Load() {
		return 0, false
	}
	p.drain()
	t, ok := p.late.next()
	p.timed = ok
	return t, ok
}

// Release implements driver.Port.
func (p *Port) Release(bufs []driver.Buf) {
	for i := range bufs {
		d := p.in[bufs[i].Token>>32]
		buf := uint32(bufs[i].Token)
		d.from.claim(buf, bufRead, bufBack)
		d.back.stage(buf) // as large as the bound of frames under way
	}
	for _, d := range p.in {
		if d != nil {
			d.back.publish()
		}
	}
}

// Stats counts frames since the Port was made. Any goroutine.
func (p *Port) Stats() driver.Stats {
	s := &p.stats
	return driver.Stats{
		RxFrames: s.rxFrames.Load(), RxBytes: s.rxBytes.Load(),
		TxFrames: s.txFrames.Load(), TxBytes: s.txBytes.Load(),
		RxDropped: s.rxDropped.Load(), TxDropped: s.txDropped.Load(), Waits: s.waits.Load(),
	}
}

// sharedStats is written once per batch. rxDropped is the senders'.
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
