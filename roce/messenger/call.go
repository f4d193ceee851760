package messenger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/gorxe/gorxe/roce"
)

// calling is the part of a Conn for calls, in both roles.
type calling struct {
	calls     []call // of this side, by ID
	freeCalls []uint16
	untold    int // calls in state callUntold
}

// call is an outstanding call.
type call struct {
	state callState
	buf   uint32 // the answer
	q     waitq  // of the caller
}

type callState uint8

const (
	callFree      callState = iota
	callWaiting             // for the answer
	callDone                // the answer is here, or the program holds it
	callUntold              // waiting, without a caller, and the peer was not told yet
	callAbandoned           // waiting, without a caller
)

func (c *Conn) initCalling() {
	c.calls, c.freeCalls = make([]call, c.cfg.Calls), make([]uint16, c.cfg.Calls)
	for i := range c.freeCalls {
		c.freeCalls[i] = uint16(c.cfg.Calls - 1 - i)
	}
}

// Call sends a request and waits for the answer of the peer's Handler. Any number of goroutines can
// call at the same time; calls beyond Config.Calls wait for others to end. The caller releases the
// answer.
//
// If ctx is done before the answer has come, Call returns, and the answer is discarded when it
// comes. The call counts as outstanding until then. If the peer's Config.Workers is larger than the
// number of requests that it serves at that time, the context of its Handler is canceled; with 1,
// the default, it is not. A request that was canceled before a Handler was called is not handled.
//
// Errors: a *CallError with the text of the Handler's error; ErrTooLarge, ErrPlain, ctx's error,
// that of the connection.
func (c *Conn) Call(ctx context.Context, req []byte) (Message, error) {
	if len(req) > c.maxSend {
		return Message{}, c.failed("call", tooLarge(len(req), c.maxSend))
	}
	if c.plain {
		return Message{}, c.failed("call", ErrPlain)
	}
	canceled := ctx.Err() // before the lock: a nil ctx panics here
	c.mu.Lock()
	m, err := Message{}, cmp.Or(c.err, canceled)
	if err == nil {
		m, err = c.call(ctx, req)
	}
	c.unlock()
	return m, c.failed("call", err)
}

func (c *Conn) call(ctx context.Context, req []byte) (Message, error) {
	id, err := c.startCall(ctx, req)
	if err != nil {
		return Message{}, err
	}
	k := &c.calls[id]
	for k.state == callWaiting {
		err := c.err
		if err == nil {
			err = c.block(ctx, &k.q)
		}
		if err != nil && k.state == callWaiting {
			c.abandon(id)
			return Message{}, err
		}
	}
	m := c.take(k.buf)
	if b := &c.bufs[k.buf]; b.kind == kindError {
		err := &CallError{Text: string(m.Bytes())}
		c.recycle(k.buf)
		return Message{}, err
	}
	return m, nil
}

// startCall takes a slot for a call and sends the request.
func (c *Conn) startCall(ctx context.Context, req []byte) (id uint16, err error) {
	for len(c.freeCalls) == 0 && c.err == nil {
		if len(c.unposted) > 0 {
			c.mustRepost()
		} else if err := c.block(ctx, &c.callSlot); err != nil {
			return 0, err
		}
	}
	if c.err != nil {
		return 0, c.err
	}
	id = c.freeCalls[len(c.freeCalls)-1]
	c.freeCalls = c.freeCalls[:len(c.freeCalls)-1]
	if err = c.admit(ctx); err != nil {
		c.freeCall(int(id))
		return 0, err
	}
	c.post(kindRequest, id, req)
	k := &c.calls[id]
	k.state, k.q.soon = callWaiting, len(c.freeCalls) == len(c.calls)-1
	return id, nil
}

// abandon ends the wait for an answer, and tells the peer.
func (c *Conn) abandon(id uint16) {
	c.calls[id].state = callUntold
	c.untold++
	c.tellAbandoned()
}

// tellAbandoned tells the peer of abandoned calls, as far as there are credits and slots.
func (c *Conn) tellAbandoned() {
	for i := range c.calls {
		if c.untold == 0 || c.err != nil || c.credits == 0 || c.free() == 0 {
			return
		}
		if k := &c.calls[i]; k.state == callUntold {
			k.state = callAbandoned
			c.untold--
			c.credits--
			c.post(kindCancel, uint16(i), nil)
		}
	}
}

// freeCall frees the slot of a call. A leader that waits for one is woken.
func (c *Conn) freeCall(id int) {
	c.calls[id].state = callFree
	c.freeCalls = append(c.freeCalls, uint16(id))
	c.turn++
	if c.interrupt != nil {
		c.interrupt()
	}
}

// answered handles the answer in buffer i.
func (c *Conn) answered(i uint32, b *buffer) error {
	if int(b.id) >= len(c.calls) {
		return ErrProtocol
	}
	k := &c.calls[b.id]
	b.call = int(b.id)
	switch k.state {
	case callWaiting:
		k.state, k.buf = callDone, i
		c.wake(&k.q)
	case callUntold:
		k.state = callAbandoned
		c.untold--
		c.recycle(i)
	case callAbandoned:
		c.recycle(i)
	default:
		return ErrProtocol
	}
	return nil
}

// Handler answers a request of the peer. It must not use req after it has returned; the answer may
// be a part of req. The peer's Call returns a *CallError with the text of an error. ctx is canceled
// when the connection ends; and when the caller has canceled the call, unless all Config.Workers of
// this side are busy. With 1 worker, the default, they always are.
type Handler func(ctx context.Context, req []byte) (answer []byte, err error)

// Handle answers the peer's calls until the connection ends or ctx is done. It runs up to
// Config.Workers Handlers at the same time, and returns when all have returned. It returns nil if
// the peer has closed the connection.
//
// Errors: roce.ErrInvalid for a nil h, and for several Workers without Config.Go in virtual time;
// ctx's error, that of the connection.
func (c *Conn) Handle(ctx context.Context, h Handler) error {
	if h == nil {
		return c.failed("handle calls", fmt.Errorf("%w: Handle needs a Handler", roce.ErrInvalid))
	}
	if c.virtual && c.cfg.Workers > 1 && c.cfg.Go == nil {
		return c.failed("handle calls", needsGo())
	}
	errs := make([]error, c.cfg.Workers)
	var wg sync.WaitGroup
	var running atomic.Int64 // what wg counts, to wait for it in virtual time
	running.Store(int64(c.cfg.Workers - 1))
	for i := range c.cfg.Workers - 1 {
		wg.Add(1)
		c.cfg.start(func() {
			defer wg.Done()
			errs[i+1] = c.work(ctx, h)
			running.Add(-1)
		})
	}
	errs[0] = c.work(ctx, h)
	if c.virtual {
		errs[0] = errors.Join(errs[0], c.dev.Await(context.Background(), func() bool {
			return running.Load() == 0
		}))
	}
	wg.Wait()
	err := c.failed("handle calls", errs[0])
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// work is a worker of Handle.
type work struct {
	conn   context.Context // ends with the connection
	ctx    context.Context // of the Handler
	cancel context.CancelFunc
}

// work serves requests.
func (c *Conn) work(parent context.Context, h Handler) error {
	ctx, cancel := c.conn.Context(parent) // ends with the connection, also if nobody polls
	defer cancel()
	w := &work{conn: ctx}
	w.ctx, w.cancel = context.WithCancel(ctx)
	defer func() { w.cancel() }()
	for {
		m, canceled, err := c.nextRequest(parent, w)
		if err != nil {
			return err
		}
		var answer []byte
		if canceled {
			err = context.Canceled
		} else {
			answer, err = h(w.ctx, m.Bytes())
		}
		if err := c.answer(parent, m, answer, err); err != nil {
			return err
		}
	}
}

// nextRequest waits for a request.
func (c *Conn) nextRequest(ctx context.Context, w *work) (m Message, canceled bool, err error) {
	c.mu.Lock()
	defer c.unlock()
	for c.err == nil && c.pending.len() == 0 {
		if err := c.block(ctx, &c.requests); err != nil {
			return m, false, err
		}
	}
	if c.err != nil {
		return m, false, c.err
	}
	m = c.take(c.pending.pop())
	c.held++
	b := &c.bufs[m.i]
	if w.ctx.Err() != nil { // the caller of an earlier request has canceled it
		w.ctx, w.cancel = context.WithCancel(w.conn)
	}
	b.from = w
	if c.ungranted+len(c.unposted) > 0 {
		c.grantMore()
	}
	return m, b.canceled, nil
}

// answer sends the answer to a request and releases the request.
func (c *Conn) answer(ctx context.Context, m Message, p []byte, why error) error {
	k := kindAnswer
	if why == nil && len(p) > c.maxSend {
		why = fmt.Errorf("the answer is too large: %w", tooLarge(len(p), c.maxSend))
	}
	if why != nil {
		k, p = kindError, []byte(why.Error())
		p = p[:min(len(p), c.maxSend)]
	}
	c.mu.Lock()
	defer c.unlock()
	b := &c.bufs[m.i]
	b.from = nil
	if err := c.awaitSlot(ctx); err != nil {
		return err
	}
	c.post(k, b.id, p)
	c.recycle(m.i)
	return nil
}

// cancelRequest cancels a request of the peer, if it is not answered yet.
func (c *Conn) cancelRequest(id uint16) {
	for i := range c.bufs {
		b := &c.bufs[i]
		if b.live && b.id == id {
			b.canceled = true
			if b.from != nil {
				b.from.cancel()
			}
			return
		}
	}
}
