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

	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/internal/ends"
)

// Listener waits for senders. Its methods are safe for concurrent use.
type Listener struct {
	cfg Config
	l   *ends.Listener
}

// Listen makes a device accept senders at addr. Each gets a ring of its own.
func Listen(dev *roce.Device, addr netip.AddrPort, cfg Config) (*Listener, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	cfg.setDefaults()
	l, err := protocol.Listen(dev, addr, cfg.sizes())
	if err != nil {
		return nil, err
	}
	return &Listener{cfg: cfg, l: l}, nil
}

// Addr is where the Listener listens.
func (l *Listener) Addr() netip.AddrPort { return l.l.Addr() }

// Close stops listening. Receivers go on.
func (l *Listener) Close() error { return l.l.Close() }

// Accept waits for the next sender. One that wants other sizes, or speaks something else, is refused and gives
// ErrMismatch or ErrPeer; the Listener can go on after that.
func (l *Listener) Accept(ctx context.Context) (*Receiver, error) {
	q, err := l.l.Next(ctx)
	if err != nil {
		return nil, err
	}
	r, err := newReceiver(l.l.Dev, l.cfg, q.LocalAddr().Addr())
	if err != nil {
		return nil, errors.Join(err, q.Reject(nil))
	}
	m := memory{Sizes: l.cfg.sizes(), stride: stride(l.cfg.BlockSize), addr: r.data.Addr(), rkey: r.data.RKey()}
	if r.conn, err = q.Accept(ctx, r.end.QP, roce.AcceptOptions{ConnectOptions: l.cfg.Connect, PrivateData: m.put(nil)}); err != nil {
		return nil, errors.Join(err, r.end.Close())
	}
	return r, nil
}

// Receiver is the receiving end of a connection. Receive and Poll belong to one goroutine; Release, Drain and Close may be called from
// any.
//
// With Manual progress these calls drive the device; ACKs leave with the next Poll, Receive or Drain, and a receiver that nobody polls
// answers nobody.
type Receiver struct {
	cfg    Config
	end    *ends.End
	conn   *roce.Conn
	data   *roce.MR
	manual bool

	next uint64 // block that comes next
	wcs  [1]roce.WC
	recv [1]roce.RecvWR // without memory: an immediate needs none
	bad  error          // what the sender did that it must not

	released atomic.Uint64 // blocks, from the first on; changed under mu
	closed   atomic.Bool

	mu     sync.Mutex // of what follows
	free   []bool     // by place: released, and waiting for those before it
	acked  uint64     // released, as the sender was told, or is being told
	posted int        // ACKs under way
	ack    [ackLen]byte
	wr     [1]roce.SendWR
	sent   [pollBatch]roce.WC
	err    error // why there are no further ACKs
}

func newReceiver(dev *roce.Device, cfg Config, own netip.Addr) (*Receiver, error) {
	r := &Receiver{cfg: cfg, free: make([]bool, cfg.Blocks), manual: dev.Info().Progress == roce.Manual}
	r.wr[0] = roce.SendWR{Op: roce.OpSend, Flags: roce.Signaled, Inline: r.ack[:]}
	var err error
	depths := ends.Depths{Send: cfg.SendDepth, SendCQ: cfg.SendCQ, Recv: cfg.RecvDepth, RecvCQ: cfg.RecvCQ, Inline: ackLen, GID: ends.GIDFor(dev, own)}
	if r.end, err = ends.New(dev, depths); err != nil {
		return nil, err
	}
	r.data, err = r.end.Alloc(cfg.Blocks*stride(cfg.BlockSize), roce.LocalWrite|roce.RemoteWrite)
	for i := 0; i < cfg.RecvDepth && err == nil; i++ {
		err = r.end.QP.PostRecv(r.recv[:]...)
	}
	if err != nil {
		return nil, errors.Join(err, r.end.Close())
	}
	return r, nil
}

// Block is what the program has until it calls Release.
type Block struct {
	Seq  uint64 // its number in the stream, from 0 on
	Data []byte // in the ring's memory; gone after Release or Receiver.Close
	r    *Receiver
}

// Poll hands over the next block if it is there. Errors are Receive's. With Manual progress it drives the device for one turn.
func (r *Receiver) Poll() (Block, bool, error) {
	if r.bad != nil {
		return Block{}, false, r.bad
	}
	if r.end.Recv.Poll(r.wcs[:]) == 0 {
		return Block{}, false, nil
	}
	b, err := r.arrived()
	return b, err == nil, err
}

// Receive hands over the next block, and waits for it. It gives io.EOF once the sender has closed and all blocks have been handed over,
// ctx's error, ErrClosed, what broke the connection (ErrBroken), or ErrPeer, wrapped, for good, if the sender breaks the
// protocol: a block in the wrong place, of another length than it says, or before there was room for it.
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
	if _, err := r.end.Recv.Wait(ctx, r.wcs[:]); err != nil {
		if ctx.Err() != nil {
			return Block{}, ctx.Err()
		}
		return Block{}, r.ended(err)
	}
	return r.arrived()
}

// arrived takes the completion in wcs.
func (r *Receiver) arrived() (Block, error) {
	wc := &r.wcs[0]
	if wc.Status != roce.Success {
		return Block{}, r.ended(ends.Failed(wc))
	}
	// The next one may come before this one is looked at.
	if err := r.end.QP.PostRecv(r.recv[:]...); err != nil {
		return Block{}, r.ended(err)
	}
	place, n := placeOf(wc.Imm), lengthOf(wc.Imm)
	want := int(r.next % uint64(r.cfg.Blocks))
	switch {
	case wc.Opcode != roce.WCRecvWriteImm:
		r.bad = fmt.Errorf("%w: it sent %v where WRITEs with immediate belong", ErrPeer, wc.Opcode)
	case place != want || n > r.cfg.BlockSize || n != int(wc.ByteLen):
		r.bad = fmt.Errorf("%w: it announced %d bytes in block %d and wrote %d, where block %d of at most %d bytes is next", ErrPeer, n, place, wc.ByteLen, want, r.cfg.BlockSize)
	case r.next-r.released.Load() >= uint64(r.cfg.Blocks):
		r.bad = fmt.Errorf("%w: it wrote to block %d before that was released", ErrPeer, place)
	}
	if r.bad != nil {
		return Block{}, r.bad
	}
	at := place * stride(r.cfg.BlockSize)
	b := Block{Seq: r.next, Data: r.data.Bytes()[at : at+n : at+n], r: r}
	r.next++
	return b, nil
}

// endTime is how long the reason of a connection's end may come behind the receives that it flushed.
const (
	endTime  = 100 * time.Millisecond
	endPause = 50 * time.Microsecond
)

// ended says why nothing comes any more.
func (r *Receiver) ended(err error) error {
	if r.end.QP.State() == roce.StateErr {
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
			r.end.Dev.Progress()
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

// Release gives the block back. The sender is told as soon as all blocks before it have been released, too. It waits only if as many
// ACKs as the queue holds are still under way. The error is what keeps ACKs from the sender; a sender that has
// closed needs none. Releasing twice is harmless.
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

// lost is why ACKs do not reach the sender, if there is one.
func (r *Receiver) lost() error {
	if r.err == io.EOF {
		return nil
	}
	return r.err
}

// tell sends an ACK. If its queue is full it waits for those before it. The caller holds mu.
func (r *Receiver) tell() error {
	r.reap(r.end.CQ.Poll(r.sent[:]))
	for r.posted > 0 && r.posted >= min(r.cfg.SendDepth, r.cfg.SendCQ) && r.err == nil {
		if err := r.wait(context.Background()); err != nil { // ends at the latest with Close
			return err
		}
	}
	if r.err != nil {
		return r.err
	}
	binary.BigEndian.PutUint64(r.ack[:], r.released.Load())
	if err := r.end.QP.PostSend(r.wr[:]...); err != nil {
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
			r.err = r.ended(ends.Failed(&r.sent[i]))
		}
	}
}

func (r *Receiver) wait(ctx context.Context) error {
	n, err := r.end.CQ.Wait(ctx, r.sent[:])
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
		if n := r.end.CQ.Poll(r.sent[:]); n > 0 {
			r.reap(n)
			continue
		}
		if err := r.wait(ctx); err != nil {
			return err
		}
	}
	return r.err
}

// Close disconnects and takes the memory back; Data of blocks must not be used any more. Calls that wait give ErrClosed. Closing twice
// is harmless.
func (r *Receiver) Close() error {
	if r.closed.Swap(true) {
		return nil
	}
	err := r.conn.Close() // it flushes the queues: whoever waits for them holding mu comes back
	r.mu.Lock()
	defer r.mu.Unlock()
	return errors.Join(err, r.end.Close())
}
