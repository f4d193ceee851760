package slidingwindow

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorxe/gorxe/internal/endpoint"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/internal/accept"
	"github.com/gorxe/gorxe/transport/internal/blocks"
)

// Listener accepts senders. Its methods are safe for concurrent use.
type Listener struct {
	l *blocks.Listener[*Receiver]
}

// Listen makes dev accept senders at addr. Each gets its own ring. In virtual time it returns
// roce.ErrVirtualTime.
func Listen(dev *roce.Device, addr netip.AddrPort, cfg Config) (*Listener, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	cfg.setDefaults()
	l, err := blocks.Listen(dev, addr, blocks.ListenConfig[*Receiver]{
		Protocol: &protocol, Have: cfg.sizes(), Memory: cfg.Blocks * stride(cfg.BlockSize),
		Open: func(ctx context.Context, q *roce.Request, m *accept.Memory) (*Receiver, error) {
			return accepted(ctx, dev, cfg, q, m)
		},
		Peers: cfg.Peers, Permits: cfg.Permits, Refused: cfg.Refused,
	})
	if err != nil {
		return nil, err
	}
	return &Listener{l}, nil
}

// Addr returns the address that the Listener listens on.
func (l *Listener) Addr() netip.AddrPort { return l.l.Addr() }

// Close stops listening. Receivers that Accept has returned continue.
func (l *Listener) Close() error { return l.l.Close() }

// Accept waits for the next sender. Its error is that of ctx, roce.ErrClosed, or that of a device
// that failed. Requests with other sizes or of another protocol are rejected, and several requests
// are answered at a time, so that a sender that does not exist keeps nobody waiting; see
// Config.Refused. Senders that connect while nobody calls Accept wait.
func (l *Listener) Accept(ctx context.Context) (*Receiver, error) { return l.l.Accept(ctx) }

// accepted accepts a request.
func accepted(ctx context.Context, dev *roce.Device, cfg Config, q *roce.Request,
	mem *accept.Memory) (*Receiver, error) {
	r, err := newReceiver(dev, cfg, q.LocalAddr().Addr(), mem)
	if err != nil {
		return nil, errors.Join(err, q.RejectWith(roce.RejectNoResources, nil))
	}
	m := memory{Sizes: cfg.sizes(), stride: stride(cfg.BlockSize), addr: r.data.Addr(),
		rkey: r.data.RKey()}
	if r.conn, err = q.Accept(ctx, r.ep.QP,
		roce.AcceptOptions{ConnectOptions: cfg.Connect, PrivateData: m.put(nil)}); err != nil {
		return nil, errors.Join(err, r.destroy())
	}
	return r, nil
}

// free destroys everything but the memory.
func (r *Receiver) destroy() error {
	var err error
	if r.data != nil {
		err = r.data.Close()
	}
	return errors.Join(err, r.ep.Close())
}

// Receiver is the receiving side of a connection. Receive and Poll must be called by one goroutine.
// Release, Drain and Close may be called by any.
//
// With Manual progress these calls drive the device. ACKs leave with the next Poll, Receive or
// Drain. A receiver that is not polled does not acknowledge.
type Receiver struct {
	cfg    Config
	ep     *endpoint.Endpoint
	conn   *roce.Conn
	mem    *accept.Memory
	data   *roce.MR
	manual bool

	next uint64 // the next block
	wcs  [1]roce.WC
	recv [1]roce.RecvWR // without memory: an immediate needs none
	bad  error          // the sender's protocol violation

	released atomic.Uint64 // blocks, from the first one on; changed under mu
	closed   atomic.Bool

	mu     sync.Mutex // guards the fields below
	free   []bool     // by index: released, waiting for earlier blocks
	acked  uint64     // released blocks for which an ACK was posted
	posted int        // outstanding ACKs
	ack    [ackLen]byte
	wr     [1]roce.SendWR
	sent   [pollBatch]roce.WC
	err    error // why no more ACKs are sent
}

func newReceiver(dev *roce.Device, cfg Config, own netip.Addr,
	m *accept.Memory) (*Receiver, error) {
	r := &Receiver{cfg: cfg, mem: m, free: make([]bool, cfg.Blocks),
		manual: dev.Info().Progress == roce.Manual}
	r.wr[0] = roce.SendWR{Op: roce.OpSend, Flags: roce.Signaled, Inline: r.ack[:]}
	var err error
	depths := blocks.Depths{Send: cfg.SendDepth, SendCQ: cfg.SendCQ, Recv: cfg.RecvDepth,
		RecvCQ: cfg.RecvCQ, Inline: ackLen, GID: blocks.GIDFor(dev, own)}
	if r.ep, err = blocks.NewEndpoint(dev, depths); err != nil {
		return nil, err
	}
	r.data, err = r.ep.PD.RegisterMR(m.Bytes(), roce.LocalWrite|roce.RemoteWrite)
	for i := 0; i < cfg.RecvDepth && err == nil; i++ {
		err = r.ep.QP.PostRecv(r.recv[:]...)
	}
	if err != nil {
		return nil, errors.Join(err, r.destroy())
	}
	return r, nil
}

// Block is a received block that the program holds until it calls Release.
type Block struct {
	Seq  uint64 // its number in the stream, from 0 on
	Data []byte // in the ring's memory; invalid after Release or Receiver.Close
	r    *Receiver
}

// Poll returns the next block if it is there. It returns the errors of Receive. With Manual
// progress it drives the device for one step.
func (r *Receiver) Poll() (Block, bool, error) {
	if r.bad != nil {
		return Block{}, false, r.bad
	}
	if r.ep.RecvCQ.Poll(r.wcs[:]) == 0 {
		return Block{}, false, nil
	}
	b, err := r.arrived()
	return b, err == nil, err
}

// Receive waits for the next block. It returns io.EOF once the sender has closed and all blocks
// were handed over, ctx's error, ErrClosed, ErrBroken with the cause, or ErrPeer if the sender
// violates the protocol: a block at the wrong index, with another length than announced, or before
// its memory was released. ErrBroken and ErrPeer are final.
func (r *Receiver) Receive(ctx context.Context) (Block, error) {
	if r.bad != nil {
		return Block{}, r.bad
	}
	for end := time.Now().Add(r.cfg.Spin); r.cfg.Spin > 0; {
		for range spinLook {
			if b, ok, err := r.Poll(); ok || err != nil {
				return b, err
			}
		}
		if time.Now().After(end) {
			break
		}
	}
	if _, err := r.ep.RecvCQ.Wait(ctx, r.wcs[:]); err != nil {
		if ctx.Err() != nil {
			return Block{}, ctx.Err()
		}
		return Block{}, r.ended(err)
	}
	return r.arrived()
}

// arrived processes the completion in wcs.
func (r *Receiver) arrived() (Block, error) {
	wc := &r.wcs[0]
	if wc.Status != roce.Success {
		return Block{}, r.ended(endpoint.StatusError(wc))
	}
	// The next one may arrive before this one is processed.
	if err := r.ep.QP.PostRecv(r.recv[:]...); err != nil {
		return Block{}, r.ended(err)
	}
	place, n := placeOf(wc.Imm), lengthOf(wc.Imm)
	want := int(r.next % uint64(r.cfg.Blocks))
	switch {
	case wc.Opcode != roce.WCRecvWriteImm:
		r.bad = fmt.Errorf("%w: it sent %v instead of a WRITE with immediate", ErrPeer, wc.Opcode)
	case place != want || n > r.cfg.BlockSize || n != int(wc.ByteLen):
		r.bad = fmt.Errorf("%w: it announced %d bytes in block %d and wrote %d; the next block is %d with at most %d bytes", ErrPeer, n, place, wc.ByteLen, want, r.cfg.BlockSize)
	case r.next-r.released.Load() >= uint64(r.cfg.Blocks):
		r.bad = fmt.Errorf("%w: it wrote to block %d before the block was released", ErrPeer, place)
	}
	if r.bad != nil {
		return Block{}, r.bad
	}
	at := place * stride(r.cfg.BlockSize)
	b := Block{Seq: r.next, Data: r.data.Bytes()[at : at+n : at+n], r: r}
	r.next++
	return b, nil
}

// endTime bounds the wait for the reason of a connection's end, which may follow the receives that
// it flushed.
const (
	endTime  = 100 * time.Millisecond
	endPause = 50 * time.Microsecond
)

// ended returns why nothing arrives anymore.
func (r *Receiver) ended(err error) error {
	if r.ep.QP.State() == roce.StateErr {
		r.awaitEnd()
	}
	switch why := r.conn.Err(); {
	case errors.Is(why, roce.ErrDisconnected):
		return io.EOF
	case errors.Is(why, roce.ErrClosed):
		return ErrClosed
	case why != nil:
		return fmt.Errorf("%w: %w (%w)", ErrBroken, err, why)
	}
	return fmt.Errorf("%w: %w", ErrBroken, err)
}

// awaitEnd waits for the reason.
func (r *Receiver) awaitEnd() {
	late := time.NewTimer(endTime)
	defer late.Stop()
	for {
		if r.manual {
			r.ep.Dev.Progress()
		}
		select {
		case <-r.conn.Done():
			return
		case <-late.C:
			return
		default:
		}
		time.Sleep(endPause)
	}
}

// Release returns the block. The sender is notified as soon as all earlier blocks have been
// released too. It waits only while the queue is full of ACKs. The error is what keeps ACKs from
// the sender; a sender that has closed needs none. Releasing twice has no effect.
func (b Block) Release() error {
	r := b.r
	r.mu.Lock()
	defer r.mu.Unlock()
	n, released := uint64(r.cfg.Blocks), r.released.Load()
	if b.Seq < released || r.free[b.Seq%n] || r.closed.Load() {
		return r.lost()
	}
	r.free[b.Seq%n] = true
	for r.free[released%n] {
		r.free[released%n] = false
		released++
	}
	r.released.Store(released)
	if released == r.acked || r.err != nil {
		return r.lost()
	}
	r.err = r.tell()
	return r.lost()
}

// lost returns why ACKs do not reach the sender, if there is a reason.
func (r *Receiver) lost() error {
	if r.err == io.EOF {
		return nil
	}
	return r.err
}

// tell sends an ACK. It waits if its queue is full. The caller holds mu.
func (r *Receiver) tell() error {
	r.reap(r.ep.CQ.Poll(r.sent[:]))
	for r.posted > 0 && r.posted >= min(r.cfg.SendDepth, r.cfg.SendCQ) && r.err == nil {
		if err := r.wait(context.Background()); err != nil { // Close ends it at the latest
			return err
		}
	}
	if r.err != nil {
		return r.err
	}
	binary.BigEndian.PutUint64(r.ack[:], r.released.Load())
	if err := r.ep.QP.PostSend(r.wr[:]...); err != nil {
		return r.ended(err)
	}
	r.posted++
	r.acked = r.released.Load()
	return nil
}

func (r *Receiver) reap(n int) {
	for i := range r.sent[:n] {
		r.posted--
		if r.sent[i].Status != roce.Success && r.err == nil {
			r.err = r.ended(endpoint.StatusError(&r.sent[i]))
		}
	}
}

func (r *Receiver) wait(ctx context.Context) error {
	n, err := r.ep.CQ.Wait(ctx, r.sent[:])
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return r.ended(err)
	}
	r.reap(n)
	return r.err
}

// Drain waits until the sender's NIC has all ACKs. Release in other goroutines waits meanwhile.
func (r *Receiver) Drain(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.posted > 0 && r.err == nil {
		if n := r.ep.CQ.Poll(r.sent[:]); n > 0 {
			r.reap(n)
			continue
		}
		if err := r.wait(ctx); err != nil {
			return err
		}
	}
	return r.err
}

// Close disconnects and frees the memory. Data of blocks must not be used afterwards. Waiting calls
// return ErrClosed. Closing twice has no effect.
func (r *Receiver) Close() error {
	if r.closed.Swap(true) {
		return nil
	}
	// this flushes the queues: goroutines that wait for them holding mu return
	err := r.conn.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	return errors.Join(err, r.destroy(), r.mem.Close())
}
