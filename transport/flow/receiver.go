package flow

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"net/netip"

	"github.com/gorxe/gorxe/internal/endpoint"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/internal/accept"
	"github.com/gorxe/gorxe/transport/internal/blocks"
)

// Receiver receives the messages of one sender into a channel. Receive must be called by one
// goroutine at a time; the other methods are safe for concurrent use.
type Receiver struct {
	layer *Layer
	id    uint32
	qp    *roce.QP
	conn  *roce.Conn
	ch    *Channel
	class int
	wake  chan struct{}
	// memory is that of the channel, if it belongs to a Listener.
	memory *accept.Memory

	// Guarded by Layer.mu.
	direct *Reader // of Receive; nil if there is another reader
	owed   uint64  // slots that are free and that the sender does not know yet
	sends  int     // SENDs that have not completed
	err    error
	wr     [1]roce.SendWR
	recv   [1]roce.RecvWR
}

// AcceptRequest accepts a request of a sender, for programs that do without a Listener: in virtual
// time, or to decide about requests themselves. A request that is not of this protocol is rejected
// with ErrPeer.
func (l *Layer) AcceptRequest(ctx context.Context, q *roce.Request, c ReceiverConfig) (*Receiver,
	error) {
	if err := c.Channel.check(); err != nil {
		return nil, errors.Join(err, q.RejectWith(roce.RejectNoResources, nil))
	}
	if err := checkRequest(q); err != nil {
		return nil, err
	}
	mr, err := l.pd.AllocMR(c.Channel.memory(), roce.LocalWrite|roce.RemoteWrite)
	if err != nil {
		return nil, errors.Join(err, q.RejectWith(roce.RejectNoResources, nil))
	}
	return l.accept(ctx, q, c, mr)
}

// checkRequest rejects a request of another protocol.
func checkRequest(q *roce.Request) error {
	if _, err := parseHello(q.PrivateData()); err != nil {
		return errors.Join(fmt.Errorf("%w (asked by %v)", err, q.RemoteAddr()),
			q.Reject(putHello(0)))
	}
	return nil
}

// accept accepts a request that was checked. It owns mr.
func (l *Layer) accept(ctx context.Context, q *roce.Request, c ReceiverConfig, mr *roce.MR) (
	*Receiver, error) {
	ch := newChannel(l, c.Channel, mr)
	id, err := l.reserve(2 * len(ch.slots))
	if err != nil {
		return nil, errors.Join(err, mr.Close(), q.RejectWith(roce.RejectNoResources, nil))
	}
	r := &Receiver{layer: l, id: id, ch: ch, wake: make(chan struct{}, 1)}
	ch.recv = r
	r.class, _ = parseHello(q.PrivateData())
	if err := r.create(q.LocalAddr().Addr()); err != nil {
		return nil, errors.Join(err, q.RejectWith(roce.RejectNoResources, nil), r.destroy())
	}
	m := memory{slots: len(ch.slots), size: c.Channel.Size, stride: stride(c.Channel.Size),
		addr: mr.Addr(), rkey: mr.RKey()}
	o := roce.AcceptOptions{ConnectOptions: c.Connect, PrivateData: m.put(r.class)}
	o.Class, o.TrafficClass = classOption(r.class), 0
	conn, err := q.Accept(ctx, r.qp, o)
	if err != nil {
		return nil, errors.Join(err, r.destroy())
	}
	l.mu.Lock()
	r.conn = conn
	l.mu.Unlock()
	return r, nil
}

func (r *Receiver) create(own netip.Addr) (err error) {
	l, n := r.layer, len(r.ch.slots)
	if r.qp, err = l.dev.CreateQP(l.pd, roce.QPConfig{SendCQ: l.cq, SendDepth: n, RecvDepth: n,
		MaxSendSGE: 1, MaxRecvSGE: 1, GIDIndex: blocks.GIDFor(l.dev, own)}); err != nil {
		return err
	}
	r.wr[0] = roce.SendWR{ID: workID(r.id, kindCredit, 0, 0), Op: roce.OpSendImm,
		Flags: roce.Signaled}
	r.recv[0].ID = workID(r.id, kindRecv, 0, 0)
	for range n {
		if err := r.qp.PostRecv(r.recv[:]...); err != nil {
			return err
		}
	}
	if r.direct, err = r.ch.NewReader(Each); err != nil {
		return err
	}
	l.add(r.id, r)
	return nil
}

// Channel returns the channel of the received messages.
func (r *Receiver) Channel() *Channel { return r.ch }

// Class returns the traffic class of the connection, which the sender has chosen.
func (r *Receiver) Class() int { return r.class }

// Remote returns the address of the sender.
func (r *Receiver) Remote() netip.Addr {
	r.layer.mu.Lock()
	defer r.layer.mu.Unlock()
	return r.conn.RemoteAddr().Addr()
}

// Err returns why the connection ended, or nil. It is io.EOF if the sender has closed it.
func (r *Receiver) Err() error {
	r.layer.mu.Lock()
	defer r.layer.mu.Unlock()
	return r.err
}

// Receive waits for the next message. The caller releases it. At the end of the connection Receive
// returns io.EOF, or the error that ended it. If the channel has another reader, it returns
// ErrBusy.
func (r *Receiver) Receive(ctx context.Context) (m *Message, err error) {
	l := r.layer
	wait := l.await(ctx, r.wake, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		if r.direct == nil {
			err = fmt.Errorf("%w: channel %q has another reader", ErrBusy, r.ch.cfg.Name)
			return true
		}
		if m = r.direct.next(); m == nil {
			err = r.err
		}
		return m != nil || err != nil
	})
	if m != nil {
		return m, nil
	}
	if err == nil {
		err = wait
	}
	return nil, err
}

// complete implements conn.
func (r *Receiver) complete(wc *roce.WC) (h happening) {
	kind := field(wc.ID, idKind)
	if kind == kindCredit {
		r.sends--
	}
	switch {
	case wc.Status != roce.Success:
		r.end(r.cause(wc))
	case kind == kindCredit:
		r.sendCredits()
	case r.arrive(wc):
		h.arrived = r.ch
	}
	signal(r.wake)
	return h
}

// cause returns why a work request failed.
func (r *Receiver) cause(wc *roce.WC) error {
	if wc.Status != roce.WRFlushErr {
		return endpoint.StatusError(wc)
	}
	if r.conn == nil || r.conn.Err() == nil {
		return roce.ErrDisconnected
	}
	return r.conn.Err()
}

// arrive checks a message and puts it into the channel.
func (r *Receiver) arrive(wc *roce.WC) bool {
	slot := int(wc.Imm)
	switch {
	case wc.Flags&roce.WCWithImm == 0 || wc.Imm >= uint32(len(r.ch.slots)):
		r.end(fmt.Errorf("%w: it filled slot %d of %d", ErrPeer, wc.Imm, len(r.ch.slots)))
		return false
	case r.ch.slots[slot].filled:
		r.end(fmt.Errorf("%w: it filled slot %d, which is in use", ErrPeer, slot))
		return false
	}
	at := r.ch.offset(slot) - headerLen
	head := parseHeader(r.ch.mr.Bytes()[at:])
	if head.n > r.ch.cfg.Size {
		r.end(fmt.Errorf("%w: a message of %d bytes, at most %d are possible", ErrPeer, head.n,
			r.ch.cfg.Size))
		return false
	}
	// Before the slot can be released: the sender may use it again at once.
	if err := r.qp.PostRecv(r.recv[:]...); err != nil {
		r.end(err)
		return false
	}
	r.ch.fill(slot, head)
	return true
}

// credit tells the sender that a slot is free. The caller holds Layer.mu.
func (r *Receiver) credit(slot int) {
	r.owed |= 1 << slot
	r.sendCredits()
}

// sendCredits sends what the send queue has capacity for.
func (r *Receiver) sendCredits() {
	for r.owed != 0 && r.sends < len(r.ch.slots) && r.err == nil {
		slot := bits.TrailingZeros64(r.owed)
		r.wr[0].Imm = uint32(slot)
		if err := r.qp.PostSend(r.wr[:]...); err != nil {
			r.end(err)
			return
		}
		r.owed &^= 1 << slot
		r.sends++
	}
}

// end records the first error of the connection.
func (r *Receiver) end(err error) {
	if r.err != nil {
		return
	}
	if errors.Is(err, roce.ErrDisconnected) {
		r.err = io.EOF
	} else {
		r.err = fmt.Errorf("%w: the receiver of channel %q: %w", ErrBroken, r.ch.cfg.Name, err)
	}
	signal(r.wake)
}

// Close disconnects and frees the memory of the channel. Messages must not be used afterwards.
// Closing twice is harmless.
func (r *Receiver) Close() error {
	open, used := r.layer.beginClose(r.id, func() bool { return r.direct == nil }, func() {
		r.ch.closed = true
		if r.err == nil {
			r.err = ErrClosed
		}
	})
	switch {
	case !open:
		return nil
	case used:
		return fmt.Errorf("%w: close the scheduler before the receiver of channel %q", ErrBusy,
			r.ch.cfg.Name)
	}
	signal(r.wake)
	return r.destroy()
}

func (r *Receiver) destroy() error {
	var errs []error
	if r.conn != nil {
		errs = append(errs, r.conn.Close())
	}
	if r.qp != nil {
		errs = append(errs, r.qp.Close())
	}
	r.layer.release(r.id, 2*len(r.ch.slots))
	errs = append(errs, r.ch.mr.Close())
	if r.memory != nil {
		errs = append(errs, r.memory.Close())
	}
	return errors.Join(errs...)
}
