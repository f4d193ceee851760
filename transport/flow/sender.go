package flow

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"

	"github.com/gorxe/gorxe/internal/endpoint"
	"github.com/gorxe/gorxe/roce"
)

// Sender sends messages to one receiver. Its methods must be called by one goroutine at a time,
// except Close and those that return values.
type Sender struct {
	layer *Layer
	cfg   SenderConfig
	id    uint32
	qp    *roce.QP
	conn  *roce.Conn
	peer  memory
	head  *roce.MR // headers of messages, used in turn
	wake  chan struct{}

	// Guarded by Layer.mu.
	source *Channel // of the scheduler's task that uses it, or has used it
	used   bool     // by a scheduler
	free   uint64   // the receiver's free slots
	posts  int      // parts that have not completed
	seq    uint64   // of messages that come from no channel
	done   uint64   // messages that have completed
	heads  int      // headers that were used
	err    error
	wr     [1]roce.SendWR
	recv   [1]roce.RecvWR

	task *Task // guarded by Scheduler.mu
}

const (
	// senderQueue is the capacity of a sender's send queue, and senderNeeds what it reserves in the
	// completion queue.
	senderQueue = MaxInFlight
	senderNeeds = senderQueue + MaxSlots
)

// Dial connects to the receiver that listens at addr: the paper's Initialize. Errors: ErrConfig,
// ErrPeer, ErrTooMany, or those of Device.Dial.
func (l *Layer) Dial(ctx context.Context, addr netip.AddrPort, c SenderConfig) (*Sender, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	id, err := l.reserve(senderNeeds)
	if err != nil {
		return nil, err
	}
	s := &Sender{layer: l, cfg: c, id: id, wake: make(chan struct{}, 1)}
	if err := s.connect(ctx, addr); err != nil {
		return nil, errors.Join(err, s.destroy())
	}
	return s, nil
}

func (s *Sender) connect(ctx context.Context, addr netip.AddrPort) (err error) {
	l := s.layer
	if s.qp, err = l.dev.CreateQP(l.pd, roce.QPConfig{SendCQ: l.cq, SendDepth: senderQueue,
		RecvDepth: MaxSlots, MaxSendSGE: 2, MaxRecvSGE: 1}); err != nil {
		return err
	}
	if s.head, err = l.pd.AllocMR(MaxSlots*headerLen, roce.LocalWrite); err != nil {
		return err
	}
	s.recv[0].ID = workID(s.id, kindRecv, 0, 0)
	for range MaxSlots {
		if err := s.qp.PostRecv(s.recv[:]...); err != nil {
			return err
		}
	}
	s.wr[0].SGEs = make([]roce.SGE, 0, 2)
	// A receiver may release a slot as soon as it exists.
	l.add(s.id, s)
	o := roce.DialOptions{ConnectOptions: s.cfg.Connect, PrivateData: putHello(s.cfg.Class)}
	o.Class, o.TrafficClass = classOption(s.cfg.Class), 0
	conn, err := l.dev.Dial(ctx, addr, s.qp, o)
	if err != nil {
		return refused(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s.conn = conn
	if s.peer, err = parseReply(conn.PrivateData()); err != nil {
		return err
	}
	s.free = 1<<s.peer.slots - 1
	s.wr[0].RKey, s.wr[0].Flags = s.peer.rkey, roce.Signaled
	return nil
}

// busy reports whether parts of another channel than c are in flight.
func (s *Sender) busy(c *Channel) bool {
	s.layer.mu.Lock()
	defer s.layer.mu.Unlock()
	return s.posts > 0 && s.source != c
}

// Name returns the name of the sender.
func (s *Sender) Name() string { return s.cfg.Name }

// Size returns the length of the longest message that the receiver takes, in bytes.
func (s *Sender) Size() int { return s.peer.size }

// Err returns why the connection ended, or nil.
func (s *Sender) Err() error {
	s.layer.mu.Lock()
	defer s.layer.mu.Unlock()
	return s.err
}

// Send sends n bytes at offset off of region, which the Layer has allocated, and returns when they
// are in the receiver's memory. Until then the memory must not change. It waits for a free slot of
// the receiver. After the error of ctx the message may or may not arrive, and the memory is in use
// until Close; other errors are final, except ErrTooLong and ErrBusy.
func (s *Sender) Send(ctx context.Context, region *roce.MR, off, n int) error {
	l := s.layer
	l.mu.Lock()
	used := s.used
	l.mu.Unlock()
	switch {
	case used:
		return fmt.Errorf("%w: a scheduler sends: push a message into the channel of its task",
			ErrBusy)
	case n < 0 || n > s.peer.size:
		return fmt.Errorf("%w: %d bytes, the receiver takes %d", ErrTooLong, n, s.peer.size)
	case region == nil || region.PD() != l.pd:
		return fmt.Errorf("%w: the memory of the message is not from Layer.Alloc of its layer",
			ErrConfig)
	case off < 0 || off > region.Len()-n:
		return fmt.Errorf("%w: %d bytes at %d of a region of %d", ErrConfig, n, off, region.Len())
	}
	var failed error
	var goal uint64
	if err := l.await(ctx, s.wake, func() (done bool) {
		goal, done, failed = s.try(region, off, n)
		return done
	}); err != nil {
		return err
	}
	if failed != nil {
		return failed
	}
	if l.manual {
		l.dev.Progress()
	}
	if err := l.await(ctx, s.wake, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		failed = s.err
		return failed != nil || s.done >= goal
	}); err != nil {
		return err
	}
	return failed
}

// try posts a message of Send if the queue and the receiver have space, and returns how many
// messages will have completed when it has.
func (s *Sender) try(region *roce.MR, off, n int) (goal uint64, done bool, err error) {
	l := s.layer
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.err != nil {
		return 0, true, s.err
	}
	if s.free == 0 || s.posts >= senderQueue {
		return 0, false, nil
	}
	s.seq++
	goal = s.done + uint64(s.posts) + 1
	o := outgoing{mr: region, off: off, n: n, local: noSlot, remote: -1,
		head: header{seq: s.seq, time: l.now(), n: n}}
	return goal, true, s.post(&o, n)
}

// outgoing is a message that is being sent.
type outgoing struct {
	mr     *roce.MR
	off, n int
	local  int // slot of a channel, or noSlot
	remote int // the receiver's slot, -1: none yet
	at     int // bytes that were posted
	part   int // parts that were posted
	head   header
}

// post posts the bytes of a message up to end. The caller holds Layer.mu and has checked that there
// is a free slot and space in the send queue.
func (s *Sender) post(o *outgoing, end int) error {
	if o.remote < 0 {
		o.remote = bits.TrailingZeros64(s.free)
		s.free &^= 1 << o.remote
		o.at = 0
	}
	wr := &s.wr[0]
	wr.SGEs = wr.SGEs[:0]
	wr.RemoteAddr = s.peer.addr + uint64(o.remote*s.peer.stride+dataOffset+o.at)
	if o.at == 0 {
		// At most senderQueue headers are in use.
		at := s.heads % MaxSlots * headerLen
		s.heads++
		o.head.put(s.head.Bytes()[at:])
		wr.SGEs = append(wr.SGEs, s.head.SGE(at, headerLen))
		wr.RemoteAddr -= headerLen
	}
	if end > o.at {
		wr.SGEs = append(wr.SGEs, o.mr.SGE(o.off+o.at, end-o.at))
	}
	kind := kindPart
	wr.Op = roce.OpWrite
	if end == o.n {
		kind = kindLast
		wr.Op, wr.Imm = roce.OpWriteImm, uint32(o.remote)
	}
	wr.ID = workID(s.id, kind, o.remote, o.local)
	if err := s.qp.PostSend(s.wr[:]...); err != nil {
		return s.broken(err)
	}
	s.posts++
	o.at = end
	o.part++
	return nil
}

// complete implements conn.
func (s *Sender) complete(wc *roce.WC) (h happening) {
	h.sender = s
	kind := field(wc.ID, idKind)
	if wc.Status != roce.Success {
		// Flushed work says nothing: its cause is another work request, or the end of the Conn.
		if wc.Status != roce.WRFlushErr {
			s.end(endpoint.StatusError(wc))
		} else {
			s.end(s.connErr())
		}
	}
	h.broken = s.err != nil
	if kind == kindRecv {
		if wc.Status == roce.Success {
			h.credit = true
			s.credited(wc)
		}
	} else {
		s.posts--
		h.part, h.last = true, kind == kindLast
		if h.last && wc.Status == roce.Success {
			s.done++
		}
		if local := field(wc.ID, idLocal); local != noSlot {
			s.source.release(local)
		}
	}
	signal(s.wake)
	return h
}

// connErr returns why the Conn ended.
func (s *Sender) connErr() error {
	if s.conn != nil && s.conn.Err() != nil {
		return s.conn.Err()
	}
	return roce.ErrDisconnected
}

// credited takes back a slot that the receiver has released.
func (s *Sender) credited(wc *roce.WC) {
	slot := wc.Imm
	if wc.Flags&roce.WCWithImm == 0 || int(slot) >= s.peer.slots || s.free>>slot&1 != 0 {
		s.end(fmt.Errorf("%w: it released slot %d, which it does not have", ErrPeer, slot))
		return
	}
	s.free |= 1 << slot
	if err := s.qp.PostRecv(s.recv[:]...); err != nil {
		s.end(err)
	}
}

// broken ends the connection because of err, and returns why it ended.
func (s *Sender) broken(err error) error {
	s.end(err)
	return s.err
}

// end records the first error of the connection.
func (s *Sender) end(err error) {
	if s.err == nil {
		if err == nil {
			err = roce.ErrDisconnected
		}
		s.err = fmt.Errorf("%w: sender %q: %w", ErrBroken, s.cfg.Name, err)
		signal(s.wake)
	}
}

// Close disconnects. Messages whose Send has not returned may be lost. Closing twice is harmless.
func (s *Sender) Close() error {
	open, used := s.layer.beginClose(s.id, func() bool { return s.task != nil }, func() {
		if s.err == nil {
			s.err = ErrClosed
		}
	})
	switch {
	case !open:
		return nil
	case used:
		return fmt.Errorf("%w: close the scheduler before sender %q", ErrBusy, s.cfg.Name)
	}
	signal(s.wake)
	return s.destroy()
}

func (s *Sender) destroy() error {
	var errs []error
	if s.conn != nil {
		errs = append(errs, s.conn.Close())
	}
	if s.qp != nil {
		errs = append(errs, s.qp.Close())
	}
	if s.head != nil {
		errs = append(errs, s.head.Close())
	}
	s.layer.release(s.id, senderNeeds)
	return errors.Join(errs...)
}
