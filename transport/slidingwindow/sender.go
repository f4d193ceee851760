package slidingwindow

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorxe/gorxe/internal/endpoint"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/internal/blocks"
)

// Sender is the sending side of a connection. Its methods must be called by one goroutine; the ACK
// poller is another. Methods with a context return its error when it ends, and the Sender remains
// usable. All other errors except ErrTooLong are final.
type Sender struct {
	cfg  Config
	ep   *endpoint.Endpoint
	conn *roce.Conn
	peer memory
	data *roce.MR

	head  uint64        // blocks sent
	done  uint64        // blocks whose WRITE has completed
	sent  atomic.Uint64 // head, for the poller
	tail  atomic.Uint64 // blocks acknowledged; written by the poller
	work  chan struct{} // blocks were sent while none was outstanding
	moved chan struct{} // the tail has moved or the poller has ended
	fail  atomic.Pointer[error]

	manual bool // device with Manual progress
	closed bool
	asked  bool          // failed has looked for the reason
	linger time.Duration // time limit of Close
	cancel context.CancelFunc
	poller sync.WaitGroup
	acks   *roce.MR
	ackWCs [pollBatch]roce.WC
	recv   [1]roce.RecvWR

	wr  [1]roce.SendWR
	wcs [pollBatch]roce.WC
}

const (
	pollBatch = 16
	ackLen    = 8 // an ACK: blocks released since the start; big endian
	spinLook  = 16
	// closeTime is how long Close waits for the receiver to release what was sent.
	closeTime = 5 * time.Second
)

// Init connects to the receiver that listens at addr and allocates the ring: the paper's RmInit. It
// starts the ACK poller, which Close ends. The device stays the caller's. Errors: ErrConfig,
// ErrMismatch, ErrPeer, or those of Device.Dial.
func Init(ctx context.Context, dev *roce.Device, addr netip.AddrPort, cfg Config) (*Sender, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	cfg.setDefaults()
	s := &Sender{cfg: cfg, linger: closeTime, manual: dev.Info().Progress == roce.Manual,
		moved: make(chan struct{}, 1), work: make(chan struct{}, 1)}
	if err := s.build(ctx, dev, addr); err != nil {
		if s.conn != nil {
			err = errors.Join(err, s.conn.Close())
		}
		if s.ep != nil {
			err = errors.Join(err, s.ep.Close())
		}
		return nil, err
	}
	poll, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	s.poller.Add(1)
	go s.pollACKs(poll)
	return s, nil
}

func (s *Sender) build(ctx context.Context, dev *roce.Device, addr netip.AddrPort) (err error) {
	cfg := &s.cfg
	depths := blocks.Depths{Send: cfg.SendDepth, SendCQ: cfg.SendCQ, Recv: cfg.RecvDepth,
		RecvCQ: cfg.RecvCQ}
	if s.ep, err = blocks.NewEndpoint(dev, depths); err != nil {
		return err
	}
	if s.data, err = s.ep.AddMR(cfg.Blocks*stride(cfg.BlockSize), roce.LocalWrite); err != nil {
		return err
	}
	if s.acks, err = s.ep.AddMR(cfg.RecvDepth*ackLen, roce.LocalWrite); err != nil {
		return err
	}
	s.recv[0].SGEs = make([]roce.SGE, 1)
	for i := range cfg.RecvDepth {
		if err := s.postRecv(uint64(i)); err != nil {
			return err
		}
	}
	want := cfg.sizes()
	o := roce.DialOptions{ConnectOptions: cfg.Connect, PrivateData: protocol.Put(nil, want)}
	if s.conn, err = dev.Dial(ctx, addr, s.ep.QP, o); err != nil {
		return protocol.Refused(err, want)
	}
	if s.peer, err = parseMemory(s.conn.PrivateData()); err != nil {
		return err
	}
	if err := protocol.Agree(s.peer.Sizes, want); err != nil {
		return err
	}
	s.wr[0] = roce.SendWR{Op: roce.OpWriteImm, Flags: roce.Signaled, SGEs: make([]roce.SGE, 1),
		RKey: s.peer.rkey}
	return nil
}

func (s *Sender) postRecv(i uint64) error {
	s.recv[0].ID = i
	s.recv[0].SGEs[0] = s.acks.SGE(int(i)*ackLen, ackLen)
	return s.ep.QP.PostRecv(s.recv[:]...)
}

// BlockSize returns the number of bytes per block.
func (s *Sender) BlockSize() int { return s.cfg.BlockSize }

// Fill returns the memory of the next block, BlockSize bytes. It waits until the window has space.
// The memory belongs to the caller until Send or Post.
func (s *Sender) Fill(ctx context.Context) ([]byte, error) {
	if err := s.space(ctx); err != nil {
		return nil, err
	}
	at := int(s.head%uint64(s.cfg.Blocks)) * stride(s.cfg.BlockSize)
	return s.data.Bytes()[at : at+s.cfg.BlockSize : at+s.cfg.BlockSize], nil
}

// Send sends the first n bytes of the memory that Fill returned and returns when they are posted.
// Flush waits for the receiver. After an error the block has not been sent.
func (s *Sender) Send(ctx context.Context, n int) error { return s.send(ctx, n, 0) }

// Post is Send for a program that sends more at once: with Manual progress a block of less than 16
// KiB leaves in one batch with others, when the window is full or the ACK poller drives the device.
// With Auto progress there is no difference. No further call is needed for the block to leave.
func (s *Sender) Post(ctx context.Context, n int) error {
	return s.send(ctx, n, blocks.TransmitFrom)
}

// send posts a block and transmits it now if it has at least atOnce bytes.
func (s *Sender) send(ctx context.Context, n, atOnce int) error {
	if n < 0 || n > s.cfg.BlockSize {
		return fmt.Errorf("%w: %d bytes, at most %d fit: split the data", ErrTooLong, n,
			s.cfg.BlockSize)
	}
	if err := s.space(ctx); err != nil {
		return err
	}
	place := int(s.head % uint64(s.cfg.Blocks))
	wr := &s.wr[0]
	wr.SGEs[0] = s.data.SGE(place*stride(s.cfg.BlockSize), n)
	wr.RemoteAddr = s.peer.addr + uint64(place)*uint64(s.peer.stride)
	wr.Imm = immediate(place, n)
	// Before the post: an ACK of the block may arrive at once.
	s.head++
	s.sent.Store(s.head)
	if err := s.ep.QP.PostSend(s.wr[:]...); err != nil {
		return s.broken(err)
	}
	if s.manual {
		notify(s.work)
	}
	if n >= atOnce {
		s.ep.Dev.Progress() // with Manual progress nothing else transmits it now
	}
	return nil
}

// Write copies data into the next block and sends it: the paper's RmWrite.
func (s *Sender) Write(ctx context.Context, data []byte) error {
	if len(data) > s.cfg.BlockSize {
		return fmt.Errorf("%w: %d bytes, at most %d fit: split the data", ErrTooLong, len(data),
			s.cfg.BlockSize)
	}
	b, err := s.Fill(ctx)
	if err != nil {
		return err
	}
	copy(b, data)
	return s.Send(ctx, len(data))
}

// space waits until the receiver has acknowledged the next block of the ring and the queues have
// space.
func (s *Sender) space(ctx context.Context) error {
	n := uint64(s.cfg.Blocks)
	if err := s.until(ctx, func() bool { return s.head-s.tail.Load() < n }); err != nil {
		return err
	}
	under := min(n, uint64(s.cfg.SendDepth), uint64(s.cfg.SendCQ))
	for s.head-s.done >= under {
		if err := s.reap(ctx); err != nil {
			return err
		}
	}
	return nil
}

// until waits for a condition that the ACK poller establishes.
func (s *Sender) until(ctx context.Context, ok func() bool) error {
	if s.fail.Load() != nil {
		return s.failed()
	}
	if ok() {
		return nil
	}
	if s.cfg.Spin > 0 {
		for end := time.Now().Add(s.cfg.Spin); time.Now().Before(end); {
			for range spinLook {
				if ok() {
					return nil
				}
				if s.manual {
					s.ep.Dev.Progress()
				}
			}
			runtime.Gosched() // the ACK poller may share this thread
		}
	}
	for !ok() {
		select {
		case <-s.moved:
		case <-ctx.Done():
			return ctx.Err()
		}
		if s.fail.Load() != nil {
			return s.failed()
		}
	}
	return nil
}

// failed returns what broke the connection. A failed WRITE says more than the flushed receives,
// which are all that the poller sees.
func (s *Sender) failed() error {
	for !s.asked {
		n := s.ep.CQ.Poll(s.wcs[:])
		for i := range s.wcs[:n] {
			if wc := &s.wcs[i]; wc.Status != roce.Success && wc.Status != roce.WRFlushErr {
				err := fmt.Errorf("%w: %w", ErrBroken, endpoint.StatusError(wc))
				s.fail.Store(&err)
			}
		}
		s.asked = n == 0
	}
	return *s.fail.Load()
}

// reap waits for completions of WRITEs.
func (s *Sender) reap(ctx context.Context) error {
	n, err := s.ep.CQ.Wait(ctx, s.wcs[:])
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return s.broken(err)
	}
	for i := range s.wcs[:n] {
		if s.wcs[i].Status != roce.Success {
			return s.broken(endpoint.StatusError(&s.wcs[i]))
		}
	}
	s.done += uint64(n)
	return nil
}

// Flush waits until the receiver has released everything that was sent and the sender knows it.
func (s *Sender) Flush(ctx context.Context) error {
	if err := s.until(ctx, func() bool { return s.tail.Load() == s.head }); err != nil {
		return err
	}
	for s.done < s.head {
		if err := s.reap(ctx); err != nil {
			return err
		}
	}
	return nil
}

// broken records the first error.
func (s *Sender) broken(err error) error {
	if why := s.conn.Err(); why != nil {
		err = fmt.Errorf("%w (%w)", err, why)
	}
	err = fmt.Errorf("%w: %w", ErrBroken, err)
	s.fail.CompareAndSwap(nil, &err)
	return *s.fail.Load()
}

// Close flushes, disconnects, ends the poller and frees the memory. All later calls return
// ErrClosed. It waits at most 5 s for the receiver to release what was sent and returns an error if
// that did not suffice. Closing twice has no effect.
func (s *Sender) Close() error {
	if s.closed {
		return nil
	}
	s.closed = true
	ctx, cancel := context.WithTimeout(context.Background(), s.linger)
	defer cancel()
	err := s.Flush(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("%w: the receiver did not release %d blocks within %v", ErrBroken,
			s.head-s.tail.Load(), s.linger)
	}
	s.cancel()
	err = errors.Join(err, s.conn.Close())
	s.poller.Wait()
	s.fail.Store(&errClosed)
	return errors.Join(err, s.ep.Close())
}

// errClosed is for Sender.fail.
var errClosed error = ErrClosed
