package rftp

import (
	"context"
	"errors"
	"fmt"

	"github.com/gorxe/gorxe/internal/endpoint"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/rftp/core"
)

// IDs of work requests contain their kind in the top byte, the data QP and an index.
const (
	kindShift = 56
	qpShift   = 32

	wrControlOut = 1
	wrControlIn  = 2 // index: of the receive
	wrWrite      = 3 // index: of the block
	wrFin        = 4
)

// pollAlways handles completions until ctx ends or the device fails.
func (c *Conn) pollAlways(ctx context.Context) {
	for {
		n, err := c.cq.Wait(ctx, c.wcs[:])
		c.mu.Lock()
		if err != nil {
			if ctx.Err() == nil {
				c.m.Kill(fmt.Errorf("%w: %w", ErrLost, err))
				c.pump()
			}
			c.mu.Unlock()
			return
		}
		c.handle(n)
		c.pump()
		due := c.backlogDue()
		c.mu.Unlock()
		if due {
			c.measureBacklog()
		}
	}
}

// expire is called by the timer.
func (c *Conn) expire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.armed = core.Never
	if c.closed {
		return
	}
	c.m.HandleTimeout(core.Time(c.now()))
	c.pump()
}

// Progress handles completions and timers, and returns how much it did. With Manual progress it
// runs the protocol of the device, except in virtual time.
func (c *Conn) Progress() int {
	if !c.manual || !c.turn.TryLock() {
		return 0
	}
	defer c.turn.Unlock()
	n := 0
	if c.cfg.Clock == nil || c.cq.Len() > 0 {
		n = c.cq.Poll(c.wcs[:])
	}
	n, due := c.progress(n)
	if due {
		c.measureBacklog()
	}
	return n
}

// progress handles n completions and timers. It returns how much it did, and backlogDue.
func (c *Conn) progress(n int) (did int, due bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.m == nil || (n == 0 && core.Time(c.now()) < c.m.Timeout()) {
		return 0, false // callers of the machine do what it wants
	}
	c.handle(n)
	c.m.HandleTimeout(core.Time(c.now()))
	did = n + c.pump()
	return did, c.backlogDue()
}

// handle handles n completions.
func (c *Conn) handle(n int) {
	for i := range c.wcs[:n] {
		c.complete(&c.wcs[i])
	}
}

func (c *Conn) complete(wc *roce.WC) {
	ok := wc.Status == roce.Success
	switch wc.ID >> kindShift {
	case wrControlOut:
		if !ok {
			c.lost(wc)
			return
		}
		c.m.ControlDone()
	case wrControlIn:
		if !ok {
			c.lost(wc)
			return
		}
		c.control(int(wc.ID&0xffff), int(wc.ByteLen))
	case wrWrite:
		if !ok {
			c.writeFailed(int(wc.ID>>qpShift&0xff), wc)
			return
		}
		c.m.WriteDone(int(wc.ID & 0xffff))
	case wrFin:
		if ok {
			c.arrived(wc)
		}
	}
}

// lost ends the connection because the control QP failed.
func (c *Conn) lost(wc *roce.WC) {
	if c.m.Err() == nil {
		c.m.Kill(fmt.Errorf("%w: the control QP: %w", ErrLost, c.cause(0, wc)))
	}
}

// cause returns why a work request of QP i failed; 0 is the control QP.
func (c *Conn) cause(i int, wc *roce.WC) error {
	// Flushed work says nothing: its cause is another work request, or the end of the roce.Conn.
	if wc.Status == roce.WRFlushErr && i < len(c.rcs) && c.rcs[i] != nil && c.rcs[i].Err() != nil {
		return c.rcs[i].Err()
	}
	return endpoint.StatusError(wc)
}

// writeFailed handles the failure of a WRITE on a data QP.
func (c *Conn) writeFailed(qp int, wc *roce.WC) {
	switch wc.Status {
	case roce.RemAccessErr, roce.RemInvReqErr, roce.RemOpErr:
		// The same would happen on every QP.
		c.m.Reject(fmt.Sprintf("it refuses a WRITE into a block that it has granted: %v",
			wc.Status))
	default:
		c.m.QPFailed(qp, c.cause(1+qp, wc))
	}
}

// control handles a control message in receive i.
func (c *Conn) control(i, n int) {
	at := (core.ControlDepth + i) * core.MaxControl
	c.m.HandleControl(core.Time(c.now()), c.memory.Bytes()[at:][:min(n, core.MaxControl)])
	if err := c.postControlRecv(i); err != nil && c.m.Err() == nil {
		c.m.Kill(fmt.Errorf("%w: post a receive: %w", ErrLost, err))
	}
}

// arrived handles the WRITE with immediate that announces a block.
func (c *Conn) arrived(wc *roce.WC) {
	if wc.Flags&roce.WCWithImm == 0 || wc.Opcode != roce.WCRecvWriteImm ||
		c.agreed.mode == Paper {
		c.m.Reject("it sends a message on a data QP")
		return
	}
	if err := c.postFinRecv(); err != nil && c.m.Err() == nil {
		c.m.Kill(fmt.Errorf("%w: post a receive: %w", ErrLost, err))
	}
	c.read(wc.Imm, wc.ByteLen)
}

// read copies the header of a block and passes it to the machine. The peer could change the
// original at any time.
func (c *Conn) read(id, length uint32) {
	var none core.Header
	h := &none
	if i := int(id & 0xffff); i < len(c.headers) {
		h = &c.headers[i]
		h.Parse(c.in.header(i, c.agreed.size))
	}
	c.m.Arrived(core.Time(c.now()), id, length, h)
}

func (c *Conn) postControlRecv(i int) error {
	c.sge[0] = c.memory.SGE((core.ControlDepth+i)*core.MaxControl, core.MaxControl)
	c.recv[0] = roce.RecvWR{ID: wrControlIn<<kindShift | uint64(i), SGEs: c.sge[:]}
	return c.ctl.PostRecv(c.recv[:]...)
}

func (c *Conn) postFinRecv() error {
	c.recv[0] = roce.RecvWR{ID: wrFin << kindShift}
	return c.srq.PostRecv(c.recv[:]...)
}

// pump does what the machine wants, and returns how much. The caller holds mu.
func (c *Conn) pump() (n int) {
	for {
		for ; c.m.Poll(core.Time(c.now()), &c.act); n++ {
			c.do(&c.act)
		}
		if len(c.closing) == 0 {
			break
		}
		c.closeQPs()
	}
	c.changes()
	if t := c.m.Timeout(); c.timer != nil && t < c.armed && !c.closed {
		c.armed = t
		c.timer.Reset(c.napOf(t))
	}
	return n
}

// changes wakes those who wait for what has changed.
func (c *Conn) changes() {
	ch := c.m.Changed()
	if ch == 0 {
		return
	}
	for _, e := range [...]struct {
		bit core.Changes
		on  event
	}{
		{core.FreeChanged, onFree}, {core.ReadyChanged, onReady}, {core.MessageChanged, onMessage},
		{core.SpaceChanged, onSpace}, {core.SessionsChanged, onSessions}, {core.EndChanged, onEnd},
	} {
		if ch&e.bit != 0 {
			c.signal(e.on)
		}
	}
	if ch&core.EndChanged != 0 {
		c.signal(onReady)
	}
	if c.m.Err() != nil && !c.ended {
		c.ended = true
		close(c.down)
	}
}

func (c *Conn) do(a *core.Action) {
	switch a.Kind {
	case core.DoControl:
		c.sendControl(a)
	case core.DoWrite:
		c.write(a)
	case core.DoRead:
		c.read(a.Imm, 0)
	case core.DoCloseQP:
		c.closing = append(c.closing, a.QP)
	}
}

func (c *Conn) sendControl(a *core.Action) {
	// SENDs complete in order, and at most ControlDepth are outstanding.
	at := c.sent % core.ControlDepth * core.MaxControl
	c.sent++
	copy(c.memory.Bytes()[at:], a.Msg)
	c.sge[0] = c.memory.SGE(at, len(a.Msg))
	c.wr[0] = roce.SendWR{ID: wrControlOut << kindShift, Op: roce.OpSend, Flags: roce.Signaled,
		SGEs: c.sge[:]}
	if err := c.ctl.PostSend(c.wr[:]...); err != nil && c.m.Err() == nil {
		c.m.Kill(fmt.Errorf("%w: post a control message: %w", ErrLost, err))
	}
}

func (c *Conn) write(a *core.Action) {
	c.sge[0] = c.out.sge(a.Block, c.agreed.size, int(a.Len))
	c.wr[0] = roce.SendWR{
		ID: wrWrite<<kindShift | uint64(a.QP)<<qpShift | uint64(a.Block), Op: roce.OpWrite,
		Flags: roce.Signaled, SGEs: c.sge[:], RemoteAddr: a.Addr, RKey: roce.RKey(a.Key),
	}
	if a.WithImm {
		c.wr[0].Op, c.wr[0].Imm = roce.OpWriteImm, a.Imm
	}
	err := c.data[a.QP].PostSend(c.wr[:]...)
	c.m.Posted(a.Block, err == nil)
	if err != nil {
		c.m.QPFailed(a.QP, err)
	}
}

// closeQPs closes data QPs whose other side has failed. Nothing arrives on them afterwards, and
// everything that has arrived was handled. Only the goroutine that handles completions gets here,
// because a control message is the cause.
func (c *Conn) closeQPs() {
	list := c.closing
	c.closing = c.closing[:0]
	for _, qp := range list {
		if err := c.data[qp].Cancel(); err != nil && !errors.Is(err, roce.ErrClosed) {
			c.m.Kill(fmt.Errorf("%w: close data QP %d: %w", ErrLost, qp, err))
			return
		}
	}
	for c.cq.Len() > 0 {
		c.handle(c.cq.Poll(c.wcs[:]))
	}
	for _, qp := range list {
		c.m.QPFailed(qp, roce.ErrDisconnected)
		c.m.QPClosed(qp)
	}
}
