package slidingwindow

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"time"

	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/internal/ends"
)

// Listener waits for senders.
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

// Accept waits for the next sender. One that wants other sizes is refused and gives ErrMismatch.
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

// Receiver is the receiving end of a connection. Receive belongs to one goroutine, Release may be called from any.
type Receiver struct {
	cfg  Config
	end  *ends.End
	conn *roce.Conn
	data *roce.MR

	next uint64 // block that comes next
	wcs  [1]roce.WC
	recv [1]roce.RecvWR // without memory: an immediate needs none

	mu       sync.Mutex // of what follows
	free     []bool     // by place: released, and waiting for those before it
	released uint64     // from the first block on
	acked    uint64     // as the sender was told, or is being told
	posted   int        // ACKs under way
	ack      [ackLen]byte
	wr       [1]roce.SendWR
	sent     [pollBatch]roce.WC
	err      error
	closed   bool
}

func newReceiver(dev *roce.Device, cfg Config, own netip.Addr) (*Receiver, error) {
	r := &Receiver{cfg: cfg, free: make([]bool, cfg.Blocks)}
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
	Seq  uint64
	Data []byte
	r    *Receiver
}

// Poll hands over the next block if it is there.
func (r *Receiver) Poll() (Block, bool, error) {
	if r.end.Recv.Poll(r.wcs[:]) == 0 {
		return Block{}, false, nil
	}
	b, err := r.arrived()
	return b, err == nil, err
}

// Receive hands over the next block, and waits for it. It gives io.EOF once the sender has closed.
func (r *Receiver) Receive(ctx context.Context) (Block, error) {
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
	if place != int(r.next%uint64(r.cfg.Blocks)) || n > r.cfg.BlockSize {
		return Block{}, fmt.Errorf("%w: %d bytes in block %d, where %d is next", ErrPeer, n, place, r.next%uint64(r.cfg.Blocks))
	}
	at := place * stride(r.cfg.BlockSize)
	b := Block{Seq: r.next, Data: r.data.Bytes()[at : at+n : at+n], r: r}
	r.next++
	return b, nil
}

// endTime is how long the reason of a connection's end may come behind the receives that it flushed.
const endTime = 100 * time.Millisecond

// ended says why nothing comes any more.
func (r *Receiver) ended(err error) error {
	if r.end.QP.State() == roce.StateErr {
		late := time.NewTimer(endTime)
		defer late.Stop()
		select {
		case <-r.conn.Done():
		case <-late.C:
		}
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

// Release gives the block back. The sender is told as soon as all blocks before it have been released, too.
func (b Block) Release() error {
	r := b.r
	r.mu.Lock()
	defer r.mu.Unlock()
	n := uint64(r.cfg.Blocks)
	if b.Seq < r.released || r.free[b.Seq%n] || r.closed {
		return r.err // released already
	}
	r.free[b.Seq%n] = true
	for r.free[r.released%n] {
		r.free[r.released%n] = false
		r.released++
	}
	if r.released == r.acked || r.err != nil {
		return r.err
	}
	r.err = r.tell()
	return r.err
}

// tell sends an ACK. If its queue is full it waits for those before it. The caller holds mu.
func (r *Receiver) tell() error {
	r.reap(r.end.CQ.Poll(r.sent[:]))
	for r.posted > 0 && r.posted >= min(r.cfg.SendDepth, r.cfg.SendCQ) && r.err == nil {
		if err := r.wait(context.Background()); err != nil {
			return err
		}
	}
	if r.err != nil {
		return r.err
	}
	binary.BigEndian.PutUint64(r.ack[:], r.released)
	if err := r.end.QP.PostSend(r.wr[:]...); err != nil {
		return r.ended(err)
	}
	r.posted++
	r.acked = r.released
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

// Drain waits until the sender's NIC has all ACKs.
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

// Close disconnects and takes the memory back; Data of blocks must not be used any more.
func (r *Receiver) Close() error {
	r.mu.Lock()
	gone := r.closed
	r.closed = true
	r.mu.Unlock()
	if gone {
		return nil
	}
	return errors.Join(r.conn.Close(), r.end.Close())
}
