package indirect

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/indirect/core"
)

// IDs of work requests contain what completed: its kind in the top byte, then the connection's
// index, its generation, and a number.
const (
	wrControlOut = iota + 1
	wrControlIn
	wrData  // a receive for a message with immediate
	wrWrite // a WRITE of this side
)

func wrID(kind uint64, c *Conn) uint64 {
	return kind<<56 | uint64(c.index)<<48 | uint64(c.gen)<<32
}

// maxNap bounds how long a waiting driver sleeps without checking.
const maxNap = 100 * time.Millisecond

// Poll makes one step and returns events, up to len(evs). It never blocks and does not allocate.
// While another goroutine drives the Endpoint, Poll only returns events.
func (e *Endpoint) Poll(evs []Event) int {
	e.Progress()
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.events.take(evs)
}

// Progress makes one step without returning events. It returns the number of completions and
// actions processed.
func (e *Endpoint) Progress() (n int) {
	select {
	case e.turn <- struct{}{}:
		n = e.step(e.cq.Poll(e.wcs[:]))
		<-e.turn
	default:
	}
	return n
}

// NextTimeout returns when, on the Endpoint's clock in nanoseconds, Progress must be called even if
// nothing arrives; false: no timer runs. It is for virtual time (Config.Clock).
func (e *Endpoint) NextTimeout() (int64, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	at := e.nextTimer()
	return int64(at), at != core.Never
}

// nextTimer returns the earliest timer of all connections. The caller holds the lock.
func (e *Endpoint) nextTimer() core.Time {
	at := core.Never
	for _, c := range e.conns {
		if c != nil && c.up {
			at = min(at, c.m.Timeout())
		}
	}
	return at
}

// Wait is Poll that blocks until there is an event, ctx is done, or the Endpoint is closed
// (ErrClosed). It allocates only to sleep.
func (e *Endpoint) Wait(ctx context.Context, evs []Event) (n int, err error) {
	err = e.drive(ctx, nil, func() bool {
		n = e.events.take(evs)
		return n > 0
	})
	return n, err
}

// Serve drives the Endpoint until ctx is done (nil) or it is closed (ErrClosed), for programs whose
// transfers all come from peers. Events are dropped.
func (e *Endpoint) Serve(ctx context.Context) error {
	var evs [16]Event
	for {
		if _, err := e.Wait(ctx, evs[:]); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
	}
}

// drive makes steps until enough returns true. enough is called with the lock held. likely, if not
// nil, is closed when enough will probably return true.
func (e *Endpoint) drive(ctx context.Context, likely <-chan struct{}, enough func() bool) error {
	for {
		select {
		case e.turn <- struct{}{}:
		case <-likely:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		err := e.driveTurn(ctx, enough)
		<-e.turn
		if err != errAgain {
			return err
		}
	}
}

var errAgain = errors.New("again")

// driveTurn is drive for the holder of turn. It spins for a while and then sleeps.
func (e *Endpoint) driveTurn(ctx context.Context, enough func() bool) error {
	for spun := time.Now(); ; {
		n := e.cq.Poll(e.wcs[:])
		e.step(n)
		e.mu.Lock()
		done, closed := enough(), e.closed
		e.mu.Unlock()
		switch {
		case done:
			return nil
		case closed:
			return ErrClosed
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case n > 0:
			spun = time.Now()
		case time.Since(spun) > defaultSpin:
			return e.sleep(ctx)
		}
	}
}

// sleep waits for a completion or the next timer.
func (e *Endpoint) sleep(ctx context.Context) error {
	e.mu.Lock()
	at := e.nextTimer()
	nap, cancel := context.WithTimeout(ctx, max(min(time.Duration(at-e.now()), maxNap), 0))
	e.wake, e.wakeAt = cancel, at
	e.mu.Unlock()
	n, err := e.cq.Wait(nap, e.wcs[:])
	cancel()
	e.mu.Lock()
	e.wake = nil
	closed := e.closed
	e.mu.Unlock()
	e.step(n)
	switch {
	case closed:
		return ErrClosed
	case err != nil && ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil && !errors.Is(err, context.DeadlineExceeded) &&
		!errors.Is(err, context.Canceled):
		return wrong("wait for completions", err)
	}
	return errAgain
}

// step processes n completions, handles timers and performs the machines' actions. It returns the
// amount of work. The caller holds turn.
func (e *Endpoint) step(n int) int {
	e.mu.Lock()
	now := e.now()
	for i := range e.wcs[:n] {
		e.complete(now, &e.wcs[i])
	}
	var dead [4]*Conn
	gone := 0
	for _, c := range e.conns {
		if c == nil || !c.up {
			continue
		}
		c.m.HandleTimeout(now)
		n += c.pump(now)
		if err := c.m.Err(); err != nil && gone < len(dead) && c.down(err) {
			dead[gone] = c
			gone++
		}
	}
	e.mu.Unlock()
	for _, c := range dead[:gone] {
		_ = c.dispose() // no caller waits for the error; the device closes what is left
	}
	return n
}

// complete dispatches a completion.
func (e *Endpoint) complete(now core.Time, wc *roce.WC) {
	switch wc.ID >> 56 {
	case wrControlOut:
		e.udOut--
		return
	case wrControlIn:
		e.control(now, wc)
		return
	}
	c := e.conns[wc.ID>>48&0xff]
	if c == nil || c.gen != uint16(wc.ID>>32) || !c.up {
		return
	}
	if wc.Status != roce.Success {
		c.lost(wc.Status)
		return
	}
	switch wc.ID >> 56 {
	case wrData:
		if wc.Flags&roce.WCWithImm != 0 {
			c.m.HandleData(now, wc.Imm, wc.ByteLen)
		}
		if err := c.qp.PostRecv(roce.RecvWR{ID: wrID(wrData, c)}); err != nil {
			c.lost(roce.WRFlushErr)
		}
	case wrWrite:
		c.m.DataDone(now)
	}
}

// lost ends the connection at the end of the step.
func (c *Conn) lost(s roce.Status) {
	if c.m.Err() != nil {
		return
	}
	why := ErrLost
	if c.rc != nil && c.rc.Err() != nil {
		why = fmt.Errorf("%w: %w", ErrLost, c.rc.Err())
	} else if s != roce.WRFlushErr {
		why = fmt.Errorf("%w: %v", ErrLost, s)
	}
	c.m.Kill(why)
}

// control handles a datagram and posts its receive again.
func (e *Endpoint) control(now core.Time, wc *roce.WC) {
	i := int(wc.ID & 0xffff)
	if wc.Status != roce.Success {
		return // flushed
	}
	b := e.ctl.Bytes()[i*controlSize:][:min(int(wc.ByteLen), controlSize)]
	var c *Conn
	if len(b) >= roce.GRHLen {
		b = b[roce.GRHLen:]
		if token, ok := core.Token(b); ok {
			c = e.conns[int(token&0xff)%len(e.conns)]
			if c != nil && (c.own.Token != token || !c.up || c.peer.QPN != wc.SrcQP) {
				c = nil
			}
		}
	}
	if c != nil {
		c.m.HandleControl(now, b)
	} else {
		e.strange++
	}
	_ = e.postControl(i) // fails only when the endpoint is being closed
}

func (e *Endpoint) postControl(i int) error {
	return e.ud.PostRecv(roce.RecvWR{ID: wrControlIn<<56 | uint64(i), SGEs: e.controlSGE(i)})
}

func (e *Endpoint) controlSGE(i int) []roce.SGE {
	e.sge[0] = e.ctl.SGE(i*controlSize, controlSize)
	return e.sge[:]
}

// pump performs the machine's actions and counts them. A connection that has ended sends nothing,
// so its end need not wait for space. The caller holds the lock.
func (c *Conn) pump(now core.Time) (n int) {
	e := c.ep
	for ; (e.udOut < controlDepth || !c.up) && c.m.Poll(now, &e.act); n++ {
		c.do(now, &e.act)
	}
	return n
}

func (c *Conn) do(now core.Time, a *core.Action) {
	switch a.Kind {
	case core.DoControl:
		c.sendControl(a)
	case core.DoWrite:
		c.write(a)
	case core.DoRegister:
		c.register(now, a)
	case core.DoMove:
		to := &c.regions[a.Entry]
		copy(to.MR.Bytes()[to.Off+int(a.Off):][:a.Len],
			c.slots.Bytes()[int(a.Slot)*int(c.own.Slot)+int(a.Off):])
	case core.DoRelease:
		c.ep.cfg.Host.Release(&c.asked[a.Entry], c.regions[a.Entry], a.Delivered)
		c.regions[a.Entry] = Region{}
	case core.DoAcked:
		c.news(Acked, a)
	case core.DoSent:
		c.news(Sent, a)
	case core.DoDone:
		c.ended(a)
	}
}

// news records an event that no caller of Write or Read waits for.
func (c *Conn) news(kind EventKind, a *core.Action) {
	if c.waiters[int(a.TID)&(len(c.waiters)-1)] == nil {
		c.ep.events.push(Event{Kind: kind, Conn: c, Cookie: a.Cookie})
	}
}

// ended wakes the waiter of a transfer, or records an event.
func (c *Conn) ended(a *core.Action) {
	i := int(a.TID) & (len(c.waiters) - 1)
	c.ep.busy--
	if w := c.waiters[i]; w != nil {
		c.waiters[i] = nil
		w.status, w.over = a.Status, true
		close(w.done)
		return
	}
	c.ep.events.push(Event{Kind: Done, Conn: c, Cookie: a.Cookie, Status: a.Status})
}

func (c *Conn) sendControl(a *core.Action) {
	if !c.up {
		return
	}
	e := c.ep
	e.msg = a.Msg
	err := e.ud.PostSend(roce.SendWR{
		ID: wrControlOut << 56, Op: roce.OpSend, Flags: roce.Signaled, Inline: e.msg[:],
		AH: c.ah, RemoteQPN: c.peer.QPN, RemoteQKey: c.peer.QKey,
	})
	if err == nil { // otherwise it is lost, as datagrams may be
		e.udOut++
	}
}

func (c *Conn) write(a *core.Action) {
	e := c.ep
	wr := roce.SendWR{
		ID: wrID(wrWrite, c), Op: roce.OpWrite, Flags: roce.Signaled, SGEs: e.sge[:],
		RemoteAddr: a.RemoteAddr, RKey: roce.RKey(a.RKey),
	}
	if a.WithImm {
		wr.Op, wr.Imm = roce.OpWriteImm, a.Imm
	}
	if e.sge[0] = (roce.SGE{Addr: a.Local.Addr, Length: a.Len,
		LKey: roce.LKey(a.Local.LKey)}); a.Len == 0 {
		wr.SGEs = nil
	}
	if err := c.qp.PostSend(wr); err != nil {
		c.m.Kill(wrong("post a WRITE", err))
	}
}

// register asks the Host, unless Faults makes the registration fail.
func (c *Conn) register(now core.Time, a *core.Action) {
	e := c.ep
	r, attempt := &c.asked[a.Entry], &c.attempts[a.Entry]
	if *attempt++; r.TID != a.TID {
		*attempt = 1
	}
	*r = Request{Conn: c, TID: a.TID, Kind: a.Type, DBA: a.DBA, Len: a.Len}
	ok := e.cfg.Host != nil && !e.cfg.Faults.fails(a.TID, *attempt)
	var m Region
	if ok {
		m, ok = e.cfg.Host.Register(r)
	}
	if ok && (m.MR == nil || m.Off < 0 || m.Off > m.MR.Len() || int(a.Len) > m.MR.Len()-m.Off) {
		e.cfg.Host.Release(r, m, false)
		ok = false
	}
	if !ok {
		c.m.Registered(now, a.Entry, a.TID, false, core.Local{}, 0, 0)
		return
	}
	c.regions[a.Entry] = m
	addr := m.MR.Addr() + uint64(m.Off)
	c.m.Registered(now, a.Entry, a.TID, true, core.Local{Addr: addr, LKey: uint32(m.MR.LKey())},
		addr, uint32(m.MR.RKey()))
}
