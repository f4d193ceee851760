package perf

import (
	"context"
	"errors"
	"runtime"
	"time"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/session"
	"github.com/gorxe/gorxe/roce"
)

const (
	// A bandwidth test's client sends the second message without waiting for an answer to the first, a latency
	// test's does not. So long is the wait for a second one.
	secondMessage = 20 * time.Millisecond
	// Where the peer wants nothing for long, looking gets cheaper step by step.
	longestNap = time.Millisecond
	// Of the buffer searched for the first message at one time.
	searchBytes = 64 << 10
	// A client that sends nothing for so long at the start of a run waits for this end: it is write-lat's.
	clientWaits = 500 * time.Millisecond
	// A client of write-lat answers the first message in less.
	clientAnswers = 3 * time.Second
)

// errImpatient: a latency test's client has one message under way, and acknowledges an answer before its next message.
var errImpatient = errors.New("the client does not wait for answers: start both ends with the same test")

// errTooLarge: the client's SENDs do not fit.
var errTooLarge = errors.New("the client sends messages larger than this server's buffers: start it with the client's -s")

// guess is what the client's messages look like.
type guess uint8

const (
	unknown   guess = iota
	streaming       // they come without answers: bandwidth, or nothing that this end sees
	echoing         // each waits for its answer
)

// attendant looks after the messages of one client: it counts them, gives receives back, and answers where the
// client waits for it. It belongs to one goroutine.
type attendant struct {
	*stockServer
	manual bool
	guess  guess
	wcs    [pollBatch]roce.WC
	wr     []roce.SendWR // the answer
	sge    [1]roce.SGE
	sends  int      // answers that have not completed
	owed   []int    // a QP: receives to be posted again
	qp     *roce.QP // that answers, and whom: valid in busy
	peer   roce.RemoteBuffer
	memory *written  // watched; nil: not any more
	since  time.Time // when watching began, or when this end opened
	opened bool      // this end has sent write-lat's first message
	fresh  bool      // and those of the sizes beyond a page

	idle int // looks in a row that found nothing
	naps time.Duration

	// of the run that goes on
	bytes    int // of a message
	count    int64
	first    time.Time // the first message's
	last     time.Time // the last one's
	answered time.Time
	trips    *cli.Latency
}

func newAttendant(v *stockServer) *attendant {
	return &attendant{
		stockServer: v, manual: v.h.Dev.Info().Progress == roce.Manual, owed: make([]int, stockQPs),
		wr: make([]roce.SendWR, 1), trips: cli.NewLatency(),
	}
}

// attend works until the client has ended.
func (a *attendant) attend(ctx context.Context) error {
	if w := a.h.Want; w != nil {
		switch w.op.echo {
		case echoNone:
			a.guess = streaming
		case echoSend:
			a.guess = echoing
		}
	}
	err := a.calm(ctx)
	if err == nil && ctx.Err() == nil {
		err = a.busy(ctx)
	}
	if err != nil && !errors.Is(err, errTooLarge) {
		// A client that ends takes its queue pairs apart before its connection.
		select {
		case <-a.ended:
		case <-time.After(grace):
		}
	}
	if a.done.Load() && !errors.Is(err, errTooLarge) {
		// All that the client sent has come; what its end flushed is no failure of this end.
		for err = nil; err == nil; {
			n := a.s.CQ.Poll(a.wcs[:])
			if n == 0 {
				break
			}
			err = a.take(n)
		}
		err = nil
	}
	a.endRun()
	if err == nil && ctx.Err() != nil && !a.done.Load() {
		err = context.Cause(ctx)
	}
	return err
}

// calm waits for completions and sleeps between them, until the client is about to begin a run with one queue pair, or
// to its end.
func (a *attendant) calm(ctx context.Context) error {
	waiting, cancel := untilDone(ctx, a.goOn)
	defer cancel()
	for waiting.Err() == nil {
		n, err := a.s.CQ.Wait(waiting, a.wcs[:])
		if err != nil && waiting.Err() == nil {
			return err
		}
		if err := a.take(n); err != nil {
			return err
		}
	}
	return nil
}

// busy looks without sleeping, as far as there is something to see.
func (a *attendant) busy(ctx context.Context) error {
	if a.manual {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
	}
	a.begin()
	a.since = time.Now()
	if w := a.h.Want; a.memory != nil && w != nil && w.op.echo == echoWrite {
		if err := a.open(); err != nil {
			return err
		}
	}
	for !a.done.Load() && ctx.Err() == nil {
		n := a.s.CQ.Poll(a.wcs[:])
		if err := a.take(n); err != nil {
			return err
		}
		if a.memory != nil && a.memory.look() {
			n++
			if err := a.writeBack(); err != nil {
				return err
			}
		}
		if err := a.rest(n); err != nil {
			return err
		}
	}
	return nil
}

// begin readies what answering needs of the one queue pair.
func (a *attendant) begin() {
	if a.qp != nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.qp, a.peer, a.memory = a.s.QPs[0], a.s.Peer[0].Buffer, a.stockServer.memory
}

// rest lets others have the core after looks in vain, and for the longer the longer nothing comes.
func (a *attendant) rest(found int) error {
	if found > 0 {
		a.idle, a.naps = 0, 0
		return nil
	}
	if a.idle++; a.idle%lookEvery != 0 {
		return nil
	}
	if a.guess == unknown && a.count == 1 && time.Since(a.first) > secondMessage {
		a.guess = echoing
		return a.sendBack()
	}
	if a.memory != nil && a.memory.size == 0 {
		if err := a.searchOn(); err != nil {
			return err
		}
	}
	if a.idle < spinTurns {
		return nil
	}
	a.idle = 0
	if a.manual {
		runtime.Gosched()
		return nil
	}
	a.naps = min(max(nap, a.naps+a.naps/4), longestNap)
	time.Sleep(a.naps)
	return nil
}

// searchOn is for a client that has not written yet, or whose size is an odd one.
func (a *attendant) searchOn() error {
	if err := a.memory.search(); err != nil || a.memory.size > 0 {
		return err
	}
	waited := time.Since(a.since)
	switch {
	case !a.opened && waited > clientWaits:
		return a.open()
	case a.opened && waited > clientAnswers:
		return errNoWrite
	}
	return nil
}

// open sends the first message of write-lat, whatever its size.
func (a *attendant) open() error {
	a.opened, a.since = true, time.Now()
	ones, n := a.s.Out(0)+a.stockServer.bytes, max(pageBytes, a.h.Size)
	for off := 0; off < n; off++ {
		a.s.MR.Store8(ones+off, 1)
	}
	a.sends++
	a.sge[0] = a.s.MR.SGE(ones, n)
	a.wr[0] = roce.SendWR{Op: roce.OpWrite, Flags: roce.Signaled, SGEs: a.sge[:], RemoteAddr: a.peer.Addr, RKey: a.peer.RKey}
	return a.qp.PostSend(a.wr...)
}

// openRest sends the first messages of the sizes that the first one did not reach, to a client that runs all sizes.
func (a *attendant) openRest() error {
	a.fresh = true
	one := a.s.MR.SGE(a.s.Out(0)+a.stockServer.bytes, 1)
	var wrs []roce.SendWR
	for n := 2 * max(pageBytes, a.h.Size); n <= a.stockServer.bytes; n *= 2 {
		wrs = append(wrs, roce.SendWR{
			Op: roce.OpWrite, SGEs: []roce.SGE{one}, RemoteAddr: a.peer.Addr + uint64(n) - 1, RKey: a.peer.RKey,
		})
	}
	return a.qp.PostSend(wrs...)
}

// take takes note of n completions.
func (a *attendant) take(n int) error {
	now := time.Time{}
	for i := range a.wcs[:n] {
		wc := &a.wcs[i]
		switch {
		case wc.Status == roce.WRFlushErr && (a.done.Load() || a.parted.Load()):
			return nil
		case wc.Status != roce.Success:
			return a.failed(wc)
		case wc.ID&recvFlag == 0:
			a.sends--
			continue
		}
		if now.IsZero() {
			now = time.Now()
		}
		if err := a.received(wc, now); err != nil {
			return err
		}
	}
	return nil
}

// failed says what a failed completion means here.
func (a *attendant) failed(wc *roce.WC) error {
	if wc.Status == roce.LocLenErr {
		return errTooLarge
	}
	return session.StatusError(wc)
}

// received takes note of a message.
func (a *attendant) received(wc *roce.WC, now time.Time) error {
	i := int(wc.ID &^ recvFlag >> idQPShift)
	if n := int(wc.ByteLen); n != a.bytes {
		a.endRun() // the next size of a test of all sizes
		a.bytes = n
	}
	if a.count == 0 {
		a.first = a.begun(now)
	}
	a.count++
	a.last = now
	a.seen.Store(now.UnixNano())
	a.memory = nil
	if a.guess == unknown && a.count > 1 {
		a.guess = streaming
	}
	if a.owed[i]++; a.owed[i] >= maxBatch || a.guess == echoing {
		a.mu.Lock()
		err := a.postRecvs(i, a.owed[i])
		a.mu.Unlock()
		if err != nil {
			return err
		}
		a.owed[i] = 0
	}
	if a.guess == echoing {
		return a.sendBack()
	}
	return nil
}

// begun is when the run began of which the first messages were seen now: at the barrier in front of it, if there was one.
func (a *attendant) begun(now time.Time) time.Time {
	if t := time.Unix(0, a.barrier.Load()); t.After(a.last) && t.Before(now) {
		return t
	}
	return now
}

// sendBack answers a SEND with one of the same size.
func (a *attendant) sendBack() error {
	a.wr[0] = roce.SendWR{Op: roce.OpSend, Flags: roce.Signaled, SGEs: a.out(max(1, a.bytes))}
	return a.answer(time.Now())
}

// writeBack answers a WRITE with one like it.
func (a *attendant) writeBack() error {
	size := a.memory.size
	if size != a.bytes {
		a.endRun()
		a.bytes = size
	}
	a.count++
	if a.memory.more && !a.fresh {
		if err := a.openRest(); err != nil {
			return err
		}
	}
	a.wrote.Store(true)
	a.s.MR.Store8(a.s.Out(0)+size-1, a.memory.number+1) // the next one: this end has begun
	a.wr[0] = roce.SendWR{
		Op: roce.OpWrite, Flags: roce.Signaled, SGEs: a.out(size), RemoteAddr: a.peer.Addr, RKey: a.peer.RKey,
	}
	return a.answer(time.Now())
}

func (a *attendant) out(n int) []roce.SGE {
	a.sge[0] = a.s.MR.SGE(a.s.Out(0), n)
	return a.sge[:]
}

// answer posts the answer, and notes how long the client took since the last one.
func (a *attendant) answer(now time.Time) error {
	a.guess = echoing
	a.begin() // the first message may be here before busy
	if a.sends == stockSends {
		return errImpatient
	}
	if a.count > 1 {
		a.trips.Record(now.Sub(a.answered) / 2)
	}
	a.answered = now
	a.seen.Store(now.UnixNano())
	a.sends++
	return a.qp.PostSend(a.wr...)
}

// endRun shows what the run that goes on has brought, and forgets it.
func (a *attendant) endRun() {
	switch {
	case a.count == 0:
		return
	case a.trips.Count() > 0:
		t := newLatTimes(a.trips)
		a.row(a.bytes, a.count, nil, &t.latColumns)
	case !a.first.IsZero():
		// Where this end looked so late that it saw all at once, there is no time to divide by, and the rates are 0.
		r := result{Messages: a.count, Time: a.last.Sub(a.first)}
		c := &bwColumns{
			Average: cli.Round(r.rate(a.bytes)/mega, 3), MsgRate: cli.Round(r.rate(1)/1e6, 6), Unit: unitMB,
		}
		c.Peak = c.Average
		a.row(a.bytes, a.count, c, nil)
	}
	a.count, a.first, a.trips = 0, time.Time{}, cli.NewLatency()
}
