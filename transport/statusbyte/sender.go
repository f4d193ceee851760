package statusbyte

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/internal/ends"
)

// Sender is the sending end of a connection. All devices share its queue pair. Its methods may be called from any goroutine. Those with a
// context give its error when it ends, and the Sender can go on; ErrBroken and ErrClosed are for good.
type Sender struct {
	cfg  Config
	end  *ends.End
	conn *roce.Conn
	peer memory
	data *roce.MR // the send blocks
	look *roce.MR // the second array

	// turn is held by who posts, polls completions, or looks at what follows.
	turn chan struct{}
	// moved wakes one who waits for a send block while nothing is under way.
	moved chan struct{}

	own      []byte // the first array
	view     []byte // the second array, in look
	packets  [256]uint16
	fillAt   int  // where the search for an empty send block begins
	sendAt   int  // where the search for an empty receive block begins
	used     int  // work requests in the send queue
	signaled int  // completions that are to come
	reading  bool // a READ of the array is under way: the view is the NIC's
	behind   int  // receive block whose WRITEs follow that READ, which cannot tell of it; -1: none
	pause    time.Duration
	linger   time.Duration // of Close
	err      error         // what broke the connection
	stats    SenderStats

	wrs [1 + blockWRs]roce.SendWR // the READ of the array, a block's WRITEs
	one [1]byte
	wcs [pollBatch]roce.WC
}

// SenderStats are what a Sender has counted.
type SenderStats struct {
	Packets uint64 // posted
	Bytes   uint64 // of data in them
	Syncs   uint64 // READs of the receiver's array
	Idle    uint64 // those of them that found no empty block
	// BadStatus counts values other than 0 to 2 in the receiver's array; such a block is not used.
	BadStatus uint64
}

const (
	pollBatch = 16
	syncID    = ^uint64(0)
	// closeTime is how long Close waits for what is under way, a Write in another goroutine included.
	closeTime = 5 * time.Second
	// minPause is the first sleep after READs that find nothing; each doubles it, up to Config.Idle.
	minPause = 5 * time.Microsecond
)

// Init connects to the receiver that listens at addr, and makes the send blocks and the status bytes: the paper's RmInit.
// The Sender keeps to the device, which stays the caller's. It gives ErrConfig, ErrMismatch, ErrPeer, or what Device.Dial gives.
func Init(ctx context.Context, dev *roce.Device, addr netip.AddrPort, cfg Config) (*Sender, error) {
	want := ends.Sizes{Blocks: cfg.Blocks, Size: cfg.BlockSize}
	// Where the receiver decides, the queues are made before its answer is there: for the most that it may have.
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
	s := &Sender{turn: make(chan struct{}, 1), moved: make(chan struct{}, 1), behind: -1, linger: closeTime}
	var err error
	if s.end, err = ends.New(dev, ends.Depths{Send: guess.SendDepth, SendCQ: guess.CQDepth, Recv: 1, Inline: 1, GID: ends.GIDFor(dev, addr.Addr())}); err != nil {
		return nil, err
	}
	if err := s.connect(ctx, addr, guess, want); err != nil {
		if s.conn != nil {
			err = errors.Join(err, s.conn.Close())
		}
		return nil, errors.Join(err, s.end.Close())
	}
	return s, nil
}

func (s *Sender) connect(ctx context.Context, addr netip.AddrPort, cfg Config, want ends.Sizes) (err error) {
	o := roce.DialOptions{ConnectOptions: cfg.Connect, PrivateData: protocol.Put(nil, want)}
	if s.conn, err = s.end.Dev.Dial(ctx, addr, s.end.QP, o); err != nil {
		return protocol.Refused(err, want)
	}
	if s.peer, err = parseMemory(s.conn.PrivateData()); err != nil {
		return err
	}
	if err := protocol.Agree(s.peer.Sizes, want); err != nil {
		return err
	}
	cfg.Blocks, cfg.BlockSize = s.peer.Blocks, s.peer.Size
	s.cfg = cfg
	if s.data, err = s.end.Alloc(cfg.Blocks*stride(cfg.BlockSize), roce.LocalWrite); err != nil {
		return err
	}
	if s.look, err = s.end.Alloc(arrayLen(cfg.Blocks), roce.LocalWrite); err != nil {
		return err
	}
	s.own, s.view = make([]byte, cfg.Blocks), s.look.Bytes()[:cfg.Blocks]
	s.prepare()
	return nil
}

// prepare makes the work requests, of which only addresses change.
func (s *Sender) prepare() {
	s.one[0] = HasData
	s.wrs[0] = roce.SendWR{
		ID: syncID, Op: roce.OpRead, Flags: roce.Signaled, SGEs: []roce.SGE{s.look.SGE(0, s.cfg.Blocks)},
		RemoteAddr: s.peer.status, RKey: s.peer.statKey,
	}
	s.wrs[1] = roce.SendWR{Op: roce.OpWrite, SGEs: make([]roce.SGE, 1), RKey: s.peer.dataKey}
	s.wrs[2] = roce.SendWR{Op: roce.OpWrite, Flags: roce.Signaled, Inline: s.one[:], RKey: s.peer.statKey}
}

// Blocks is how many blocks each end has.
func (s *Sender) Blocks() int { return s.cfg.Blocks }

// BlockSize is how many bytes of data a block holds.
func (s *Sender) BlockSize() int { return s.cfg.BlockSize }

// Stats tells what the Sender has counted. It waits for a call that sends at the moment, as long as that waits itself.
func (s *Sender) Stats() SenderStats {
	s.turn <- struct{}{}
	defer s.release()
	return s.stats
}

// lock takes the turn.
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

// Fill is an empty send block, to be filled by its holder and sent.
type Fill struct {
	// Data is the block's memory, BlockSize bytes.
	Data   []byte
	s      *Sender
	block  int
	device uint8
}

// Fill takes an empty send block for a packet of a device, and waits for one if there is none. The holder writes to Data, then
// calls Send or Drop.
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
			return Fill{Data: s.data.Bytes()[at : at+s.cfg.BlockSize : at+s.cfg.BlockSize], s: s, block: i, device: device}, nil
		}
		// Others are filling all blocks, and need the turn to send them.
		select {
		case <-s.moved:
		case <-ctx.Done():
			return Fill{}, ctx.Err()
		}
	}
}

// empty finds an empty send block and marks it. It waits while blocks are under way; -1 if none is and none is empty.
func (s *Sender) empty(ctx context.Context) (int, error) {
	for {
		if s.err != nil {
			s.stir() // there may be another one who waits
			return 0, s.err
		}
		for k := range s.own {
			i := (s.fillAt + k) % len(s.own)
			if s.own[i] == Empty {
				s.own[i], s.fillAt = HasData, (i+1)%len(s.own)
				s.stir() // there may be another one for another who waits
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

// stir wakes who waits in Fill.
func (s *Sender) stir() {
	select {
	case s.moved <- struct{}{}:
	default:
	}
}

// Drop gives the block back unsent. It waits for a call that sends at the moment.
func (f Fill) Drop() {
	f.s.turn <- struct{}{}
	f.s.own[f.block] = Empty
	f.s.stir()
	f.s.release()
}

// Send sends the first n bytes of Data as the device's next packet. It waits for an empty receive block, synchronising
// as needed, and returns when the WRITEs are posted; Flush waits until they are done. After an error the packet has not
// been sent and never will be, and the block is given back. last marks the end of the device's stream. See the package's
// documentation for Manual progress.
func (f Fill) Send(ctx context.Context, n int, last bool) error {
	err := f.post(ctx, n, last, true)
	if err == nil {
		f.s.end.Dev.Progress() // with Manual progress nobody else would transmit it now
	}
	return err
}

// Post is Send for a program that has more to send at once. With Manual progress small packets (less than 16 KiB) leave when somebody drives
// the device, with the next synchronisation at the latest, in one batch; after the last Post the program calls Flush. And where Send
// has used the last empty receive block for a small packet, it begins to synchronise at once, so that the next one finds it done; Post leaves
// that to the next one.
func (f Fill) Post(ctx context.Context, n int, last bool) error {
	err := f.post(ctx, n, last, false)
	if err == nil && n >= ends.TurnFrom {
		f.s.end.Dev.Progress() // so that the receiver has it while the next one is built
	}
	return err
}

func (f Fill) post(ctx context.Context, n int, last, ahead bool) error {
	if n < 0 || n > f.s.cfg.BlockSize {
		f.Drop()
		return fmt.Errorf("%w: %d bytes instead of at most %d: split them", ErrTooLong, n, f.s.cfg.BlockSize)
	}
	if err := f.s.lock(ctx); err != nil {
		f.Drop()
		return err
	}
	defer f.s.release()
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
	f.s.stir()
	return err
}

// Write copies data into a send block and sends it as the device's next packet: the paper's RmWrite. See Fill.Send.
func (s *Sender) Write(ctx context.Context, device uint8, data []byte) error {
	if len(data) > s.cfg.BlockSize {
		return fmt.Errorf("%w: %d bytes instead of at most %d: split them", ErrTooLong, len(data), s.cfg.BlockSize)
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

// Free synchronises: it READs the receiver's whole array once, and returns how many receive blocks are empty. This is the
// paper's RmFree. Sending calls it when it has to.
func (s *Sender) Free(ctx context.Context) (int, error) {
	if err := s.lock(ctx); err != nil {
		return 0, err
	}
	defer s.release()
	if s.reading { // from before
		if _, err := s.sync(ctx); err != nil {
			return 0, err
		}
	}
	return s.sync(ctx)
}

// Flush waits until the receiver's NIC has acknowledged all that was sent: it is in the receiver's memory. Whether the receiving program
// has taken it, only Free can tell.
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

// Close flushes, disconnects, and gives the memory back; all calls give ErrClosed afterwards. What Flush would have said, it says. A Write or
// Flush in another goroutine that does not come back within 5 s, because the receiver has no empty block or does not answer, is ended
// with ErrBroken. Closing twice is harmless.
func (s *Sender) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), s.linger)
	defer cancel()
	var stuck error
	if s.lock(ctx) != nil {
		stuck = fmt.Errorf("%w: another call still waited for the receiver after %v", ErrBroken, s.linger)
		stuck = errors.Join(stuck, s.conn.Close()) // its work requests are flushed
		s.turn <- struct{}{}
	}
	defer s.release()
	if errors.Is(s.err, ErrClosed) {
		return nil
	}
	err := stuck
	if err == nil {
		if err = s.drain(ctx); errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("%w: what was sent last was not acknowledged within %v", ErrBroken, s.linger)
		}
	}
	s.err = ErrClosed
	s.stir()
	return errors.Join(err, s.conn.Close(), s.end.Close())
}
