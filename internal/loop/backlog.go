package loop

import (
	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/internal/wire"
	"github.com/gorxe/gorxe/qp"
)

// bound limits the backlog, the bytes that were passed to the port and have not left it, while QPs
// of several traffic classes exist. The order of classes ends at the port, so an urgent packet
// waits for all that was passed to the port before.
//
// A frame of a class below the highest one in use is sent only if the backlog afterwards is at most
// the limit: two frames of these classes. While one of them is being sent, the loop has time to
// pass on the next. Nothing more urgent can follow packets of the highest class. Their limit is
// larger, so that few system calls send them, but below a window: otherwise a message that is
// limited by its window would be overtaken by later ones of its class, and its round-trip time
// would be that of its own queue.
type bound struct {
	on     bool
	port   driver.Backlogger // used unless output has a rate
	output wire.Output       // models the link if its rate was configured
	limit  int               // bytes; 0: two frames
	low    int               // longest frame of a lower class so far, bytes
	high   int               // longest frame of the highest class so far, bytes
	resume qp.Time           // when packets that are held back may be sent; 0: there are none

	// A port may never report some frames as sent. Bytes that have not moved for stuckTime while
	// packets were held back no longer count, so that classes cannot starve.
	stuck int
	last  int     // the latest backlog
	moved qp.Time // when it changed
}

// etherOverhead is what Ethernet transmits in addition to each frame as the port sees it: preamble,
// FCS and gap between frames, in bytes. Shorter frames are padded to etherMin bytes.
const (
	etherOverhead = 24
	etherMin      = 60
)

// init sets the limit according to the configuration.
func (b *bound) init(c *Config) {
	b.output.Rate, b.limit = c.LinkRate, c.BacklogLimit
	b.port, _ = driver.Find[driver.Backlogger](c.Port)
	b.on = b.limit >= 0 && (b.port != nil || b.output.Rate > 0)
}

// size returns the length of a frame of n bytes in the units of the backlog.
func (b *bound) size(n int) int {
	if b.output.Rate > 0 {
		return max(n, etherMin) + etherOverhead
	}
	return n
}

// mostLow returns the largest backlog with which another frame of a lower class may be sent.
func (b *bound) mostLow() int {
	if b.limit == 0 {
		return b.low
	}
	return max(b.limit-b.low, 0)
}

// mostHigh returns the largest backlog with which another frame of the highest class may be sent to
// a port with the given rate.
func (b *bound) mostHigh(rate int64) int {
	frames := highFrames
	if rate == 0 { // completions may be late and come several at a time
		frames = highFramesUnknown
	}
	return max(b.limit, frames*max(b.low, b.high)) - b.high
}

// backlog returns the backlog in bytes and the rate at which it shrinks, in bits per second; 0: the
// rate is not known.
func (l *Loop) backlog() (bytes int, rate int64) {
	b := &l.bound
	if b.output.Rate > 0 {
		return b.output.Backlog(int64(l.now())), b.output.Rate
	}
	bytes, rate = b.port.Backlog()
	b.stuck = min(b.stuck, bytes)
	return bytes - b.stuck, rate
}

// watch notices if the backlog does not shrink. waited reports whether nothing was sent since it
// was called last.
func (b *bound) watch(now qp.Time, backlog int, waited bool) {
	switch {
	case !waited || backlog != b.last:
		b.last, b.moved = backlog, now
	case now-b.moved >= stuckTime:
		b.stuck += backlog
	}
}

// passed adds frames to the model of the link. They are about to be passed to the port. With one
// class the loop may send more than the configured rate, and bytes that are not sent after
// stuckTime do not count, as with those that the port reports.
func (l *Loop) passed(bufs []driver.Buf) {
	now, o := int64(l.now()), &l.bound.output
	for i := range bufs {
		if bufs[i].Token&driver.NoHeaders == 0 {
			o.Send(now, l.bound.size(len(bufs[i].B)))
			continue
		}
		// The length of the headers is that of the latest run, which is nearly right if paths of
		// both IP versions are in use.
		for range bufs[i].Packets() {
			o.Send(now, l.bound.size(l.joiner.netLen+bufs[i].Size))
		}
	}
	if !l.eng.Bounded() {
		o.Busy = min(o.Busy, now+int64(stuckTime))
	}
}

// transmitBounded is transmit while QPs of several classes exist.
func (l *Loop) transmitBounded(now qp.Time) int {
	_, held := l.held()
	l.stalled, l.bound.resume = false, 0
	sent := 0
	for sent < txBatch {
		n := l.buildBounded(now, txBatch-sent)
		if n == 0 {
			break
		}
		l.flush(n, n)
		sent += n
	}
	l.holdBack(now, held && sent == 0)
	return sent
}

// buildBounded builds as many packets as may be passed to the port now, at most a number. It
// handles doorbells in between, so that a packet of a higher class is built next.
func (l *Loop) buildBounded(now qp.Time, most int) (n int) {
	b := &l.bound
	backlog, rate := l.backlog()
	for ; n < most && backlog <= b.mostHigh(rate); n++ {
		if l.eng.DoorbellPending() {
			l.eng.HandleDoorbells(now)
		}
		l.eng.SetBacklogged(backlog > b.mostLow())
		if !l.eng.HasTransmit(now) || !l.allocate(n) {
			break
		}
		tx := l.build(now, n)
		if tx == nil {
			break
		}
		size := b.size(tx.Len + bth.ICRCLen)
		if int(tx.Class) < l.eng.TopClass() {
			b.low = max(b.low, size)
		} else {
			b.high = max(b.high, size)
		}
		backlog += size
	}
	return n
}

// holdBack determines when packets that must wait for the backlog are sent. waited reports whether
// this step found them waiting and has sent nothing.
func (l *Loop) holdBack(now qp.Time, waited bool) {
	b := &l.bound
	l.eng.SetBacklogged(false)
	if l.stalled || !l.eng.HasTransmit(now) {
		return
	}
	backlog, rate := l.backlog()
	b.watch(now, backlog, waited)
	excess := backlog - b.mostLow()
	if excess > 0 {
		if l.eng.SetBacklogged(true); l.eng.HasTransmit(now) { // the highest class waits
			excess = backlog - b.mostHigh(rate)
		}
	}
	switch {
	case excess <= 0:
		b.resume = now
	case rate > 0:
		b.resume = now + qp.Time(wire.DrainTime(excess, rate))
	default:
		b.resume = now + backlogPoll
	}
}

// held reports whether packets wait for the backlog, and until when.
func (l *Loop) held() (until qp.Time, ok bool) {
	return l.bound.resume, l.bound.resume != 0 && l.eng.Bounded()
}
