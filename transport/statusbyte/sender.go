package statusbyte

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/gorxe/gorxe/internal/endpoint"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/internal/blocks"
)

// Sender is the sending side of a connection. All devices share its queue pair. Its methods may be
// called from any goroutine. Methods with a context return its error when it ends, and the Sender
// remains usable. ErrBroken and ErrClosed are final.
type Sender struct {
	cfg  Config
	ep   *endpoint.Endpoint
	conn *roce.Conn
	peer memory
	data *roce.MR // the send blocks
	look *roce.MR // the second array

	// turn is held by the goroutine that posts, polls completions or accesses the fields below.
	turn chan struct{}
	// moved wakes a goroutine that waits for a send block while no block is being sent.
	moved chan struct{}

	own      []byte   // the first array
	uses     []uint64 // how many Fills of each send block have been sent or dropped
	view     []byte   // the second array, in look
	packets  [256]uint16
	fillAt   int  // where the search for an empty send block begins
	sendAt   int  // where the search for an empty receive block begins
	used     int  // work requests in the send queue
	signaled int  // completions to come
	reading  bool // a READ of the array is outstanding: the NIC is writing to view
	// receive block whose WRITEs follow that READ, which does not report on it; -1: none
	behind int
	pause  time.Duration
	linger time.Duration // time limit of Close
	err    error         // what broke the connection
	stats  SenderStats

	wrs [1 + blockWRs]roce.SendWR // the READ of the array and a block's WRITEs
	one [1]byte
	wcs [pollBatch]roce.WC
}

// SenderStats are a Sender's counters.
type SenderStats struct {
	Packets uint64 // posted
	Bytes   uint64 // of data in them
	Syncs   uint64 // READs of the receiver's array
	Idle    uint64 // those that found no empty block
	// BadStatus counts values other than 0 to 2 in the receiver's array. Such blocks are not used.
	BadStatus uint64
}

const (
	pollBatch = 16
	syncID    = ^uint64(0)
	// closeTime is how long Close waits for outstanding work, including a Write in another
	// goroutine.
	closeTime = 5 * time.Second
	// minPause is the first sleep after READs that find no empty block. Each further one doubles
	// it, up to Config.Idle.
	minPause = 5 * time.Microsecond
)

// Init connects to the receiver that listens at addr and allocates the send blocks and status
// bytes: the paper's RmInit. The device stays the caller's. Errors: ErrConfig, ErrMismatch,
// ErrPeer, or those of Device.Dial.
func Init(ctx context.Context, dev *roce.Device, addr netip.AddrPort, cfg Config) (*Sender, error) {
	want := blocks.Sizes{Blocks: cfg.Blocks, Size: cfg.BlockSize}
	// Where the receiver decides, the queues are created before its answer arrives, for the largest
	// sizes.
	guess := cfg
	if guess.Blocks == 0 {
		guess.Blocks = DefaultBlocks
	}
	if guess.BlockSize == 0 {
		guess.BlockSize = 1
	}
	if err := guess.check(); err != nil {
		return nil, err
	}
	if guess.Spin == 0 && dev.Info().Progress == roce.Auto {
		guess.Spin = -1
	}
	guess.setDefaults()
	s := &Sender{turn: make(chan struct{}, 1), moved: make(chan struct{}, 1), behind: -1,
		linger: closeTime}
	var err error
	if s.ep, err = blocks.NewEndpoint(dev,
		blocks.Depths{Send: guess.SendDepth, SendCQ: guess.CQDepth, Recv: 1, Inline: 1}); err != nil {
		return nil, err
	}
	if err := s.connect(ctx, addr, guess, want); err != nil {
		if s.conn != nil {
			err = errors.Join(err, s.conn.Close())
		}
		return nil, errors.Join(err, s.ep.Close())
	}
	return s, nil
}

func (s *Sender) connect(ctx context.Context, addr netip.AddrPort, cfg Config,
	want blocks.Sizes) (err error) {
	o := roce.DialOptions{ConnectOptions: cfg.Connect, PrivateData: protocol.Put(nil, want)}
	if s.conn, err = s.ep.Dev.Dial(ctx, addr, s.ep.QP, o); err != nil {
		return protocol.Refused(err, want)
	}
	if s.peer, err = parseMemory(s.conn.PrivateData()); err != nil {
		return err
	}
	if err := protocol.Agree(s.peer.Sizes, want); err != nil {
		return err
	}
	if n := s.peer.Blocks * stride(s.peer.Size); (want.Blocks == 0 || want.Size == 0) &&
		n > MaxOffered {
		return fmt.Errorf("%w: it has %v, which take %d bytes: set both sizes here to allow that",
			ErrMismatch, s.peer.Sizes, n)
	}
	cfg.Blocks, cfg.BlockSize = s.peer.Blocks, s.peer.Size
	s.cfg = cfg
	if s.data, err = s.ep.AddMR(cfg.Blocks*stride(cfg.BlockSize), roce.LocalWrite); err != nil {
		return err
	}
	if s.look, err = s.ep.AddMR(arrayLen(cfg.Blocks), roce.LocalWrite); err != nil {
		return err
	}
	s.own, s.uses = make([]byte, cfg.Blocks), make([]uint64, cfg.Blocks)
	s.view = s.look.Bytes()[:cfg.Blocks]
	s.prepare()
	return nil
}

// prepare builds the work requests, of which only addresses change later.
func (s *Sender) prepare() {
	s.one[0] = HasData
	s.wrs[0] = roce.SendWR{
		ID: syncID, Op: roce.OpRead, Flags: roce.Signaled,
		SGEs:       []roce.SGE{s.look.SGE(0, s.cfg.Blocks)},
		RemoteAddr: s.peer.status, RKey: s.peer.statKey,
	}
	s.wrs[1] = roce.SendWR{Op: roce.OpWrite, SGEs: make([]roce.SGE, 1), RKey: s.peer.dataKey}
	s.wrs[2] = roce.SendWR{Op: roce.OpWrite, Flags: roce.Signaled, Inline: s.one[:],
		RKey: s.peer.statKey}
}

// Blocks returns the number of blocks of each side.
func (s *Sender) Blocks() int { return s.cfg.Blocks }

// BlockSize returns the number of data bytes per block.
func (s *Sender) BlockSize() int { return s.cfg.BlockSize }

// Stats returns the counters. It waits for a call that is sending.
func (s *Sender) Stats() SenderStats {
	s.turn <- struct{}{}
	defer s.release()
	return s.stats
}

// lock acquires turn.
func (s *Sender) lock(ctx context.Context) error {
	select {
	case s.turn <- struct{}{}:
		return nil
	default:
	}
	select {
	case s.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Sender) release() { <-s.turn }

// Fill is an empty send block, filled and sent by its holder.
type Fill struct {
	// Data is the block's memory, BlockSize bytes.
	Data   []byte
	s      *Sender
	block  int
	use    uint64 // of the block: after Send, Post or Drop the Fill is stale
	device uint8
}

// Fill returns an empty send block for a packet of a device and waits for one if necessary. The
// holder writes to Data and then calls Send or Drop.
func (s *Sender) Fill(ctx context.Context, device uint8) (Fill, error) {
	for {
		if err := s.lock(ctx); err != nil {
			return Fill{}, err
		}
		i, err := s.empty(ctx)
		s.release()
		if err != nil {
			return Fill{}, err
		}
		if i >= 0 {
			at := i*stride(s.cfg.BlockSize) + HeaderLen
			return Fill{Data: s.data.Bytes()[at : at+s.cfg.BlockSize : at+s.cfg.BlockSize], s: s,
				block: i, use: s.uses[i], device: device}, nil
		}
		// Other goroutines are filling all blocks and need turn to send them.
		select {
		case <-s.moved:
		case <-ctx.Done():
			return Fill{}, ctx.Err()
		}
	}
}

// empty finds an empty send block and marks it. It waits while blocks are being sent, and returns
// -1 if none is being sent and none is empty.
func (s *Sender) empty(ctx context.Context) (int, error) {
	for {
		if s.err != nil {
			s.signalMoved() // another goroutine may be waiting
			return 0, s.err
		}
		for k := range s.own {
			i := (s.fillAt + k) % len(s.own)
			if s.own[i] == Empty {
				s.own[i], s.fillAt = HasData, (i+1)%len(s.own)
				s.signalMoved() // pass the signal on to another waiter
				return i, nil
			}
		}
		if s.signaled == 0 {
			return -1, nil
		}
		if err := s.await(ctx); err != nil {
			return 0, err
		}
	}
}

// signalMoved wakes a goroutine that waits in Fill.
func (s *Sender) signalMoved() {
	select {
	case s.moved <- struct{}{}:
	default:
	}
}

// Drop returns the block unsent. It waits for a call that is sending. After Send, Post or Drop it
// has no effect.
func (f Fill) Drop() {
	f.s.turn <- struct{}{}
	if f.take() == nil {
		f.s.own[f.block] = Empty
		f.s.signalMoved()
	}
	f.s.release()
}

// take ends the holder's use of the block, or returns ErrBlock if it has ended. The caller holds
// turn.
func (f Fill) take() error {
	if f.s.uses[f.block] != f.use {
		return fmt.Errorf("%w: call Fill again", ErrBlock)
	}
	f.s.uses[f.block]++
	return nil
}

// Send sends the first n bytes of Data as the device's next packet. It waits for an empty receive
// block, synchronizing as needed, and returns when the WRITEs are posted. Flush waits for their
// completion. After an error the packet has not been sent and never will be, and the block is free
// again: to send it later, fill another one. A second Send or Post returns ErrBlock. last marks the
// end of the device's stream. See the package documentation about Manual progress.
func (f Fill) Send(ctx context.Context, n int, last bool) error {
	err := f.post(ctx, n, last, true)
	if err == nil {
		f.s.ep.Dev.Progress() // with Manual progress nothing else transmits it now
	}
	return err
}

// Post is Send for a program that sends more at once. With Manual progress packets of less than 16
// KiB leave in one batch when the device is driven, at the latest with the next synchronization.
// The program calls Flush after the last Post. Where Send has used the last empty receive block for
// a small packet it starts to synchronize at once; Post leaves that to the next call.
func (f Fill) Post(ctx context.Context, n int, last bool) error {
	err := f.post(ctx, n, last, false)
	if err == nil && n >= blocks.TransmitFrom {
		f.s.ep.Dev.Progress() // the receiver processes it while the next one is built
	}
	return err
}

func (f Fill) post(ctx context.Context, n int, last, ahead bool) error {
	if n < 0 || n > f.s.cfg.BlockSize {
		f.Drop()
		return fmt.Errorf("%w: %d bytes, at most %d fit: split the data", ErrTooLong, n,
			f.s.cfg.BlockSize)
	}
	if err := f.s.lock(ctx); err != nil {
		f.Drop()
		return err
	}
	defer f.s.release()
	if err := f.take(); err != nil {
		return err
	}
	h := header{device: f.device, packet: f.s.packets[f.device], length: uint32(n)}
	if last {
		h.flags = FlagLast
	}
	err := f.s.send(ctx, f.block, &h)
	if err == nil && ahead {
		err = f.s.lookAhead()
	} else if err != nil {
		f.s.own[f.block] = Empty
	}
	f.s.signalMoved()
	return err
}

// Write copies data into a send block and sends it as the device's next packet: the paper's
// RmWrite. See Fill.Send.
func (s *Sender) Write(ctx context.Context, device uint8, data []byte) error {
	if len(data) > s.cfg.BlockSize {
		return fmt.Errorf("%w: %d bytes, at most %d fit: split the data", ErrTooLong, len(data),
			s.cfg.BlockSize)
	}
	f, err := s.Fill(ctx, device)
	if err != nil {
		return err
	}
	copy(f.Data, data)
	return f.Send(ctx, len(data), false)
}

// End sends an empty packet that ends the device's stream.
func (s *Sender) End(ctx context.Context, device uint8) error {
	f, err := s.Fill(ctx, device)
	if err != nil {
		return err
	}
	return f.Send(ctx, 0, true)
}

// Free synchronizes: it READs the receiver's array once and returns the number of empty receive
// blocks. This is the paper's RmFree. Sending calls it when necessary.
func (s *Sender) Free(ctx context.Context) (int, error) {
	if err := s.lock(ctx); err != nil {
		return 0, err
	}
	defer s.release()
	if s.reading { // from an earlier call
		if _, err := s.sync(ctx); err != nil {
			return 0, err
		}
	}
	return s.sync(ctx)
}

// Flush waits until the receiver's NIC has acknowledged everything sent: the data is in the
// receiver's memory. Only Free shows whether the receiving program has taken it.
func (s *Sender) Flush(ctx context.Context) error {
	if err := s.lock(ctx); err != nil {
		return err
	}
	defer s.release()
	return s.drain(ctx)
}

func (s *Sender) drain(ctx context.Context) error {
	for s.err == nil && s.signaled > 0 {
		if err := s.await(ctx); err != nil {
			return err
		}
	}
	return s.err
}

// Close flushes, disconnects and frees the memory. All later calls return ErrClosed. It returns the
// error of the flush. A Write or Flush in another goroutine that does not return within 5 s,
// because the receiver has no empty block or does not answer, ends with ErrBroken. Closing twice
// has no effect.
func (s *Sender) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), s.linger)
	defer cancel()
	var stuck error
	if s.lock(ctx) != nil {
		stuck = fmt.Errorf("%w: another call was still waiting for the receiver after %v",
			ErrBroken, s.linger)
		stuck = errors.Join(stuck, s.conn.Close()) // this flushes its work requests
		s.turn <- struct{}{}
	}
	defer s.release()
	if errors.Is(s.err, ErrClosed) {
		return nil
	}
	err := stuck
	if err == nil {
		if err = s.drain(ctx); errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("%w: the last packets were not acknowledged within %v", ErrBroken,
				s.linger)
		}
	}
	s.err = ErrClosed
	s.signalMoved()
	return errors.Join(err, s.conn.Close(), s.ep.Close())
}
