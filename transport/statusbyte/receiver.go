package statusbyte

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"
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

// Listen makes dev accept senders at addr. Each sender gets its own memory, as cfg describes. In
// virtual time it returns roce.ErrVirtualTime.
func Listen(dev *roce.Device, addr netip.AddrPort, cfg Config) (*Listener, error) {
	if cfg.Blocks == 0 {
		cfg.Blocks = DefaultBlocks
	}
	if cfg.BlockSize == 0 {
		cfg.BlockSize = DefaultBlockSize
	}
	if err := cfg.check(); err != nil {
		return nil, err
	}
	cfg.setDefaults()
	l, err := blocks.Listen(dev, addr, blocks.ListenConfig[*Receiver]{
		Protocol: &protocol, Have: blocks.Sizes{Blocks: cfg.Blocks, Size: cfg.BlockSize},
		Memory: cfg.Blocks*stride(cfg.BlockSize) + arrayLen(cfg.Blocks),
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
	m *accept.Memory) (*Receiver, error) {
	r, err := newReceiver(dev, cfg, q.LocalAddr().Addr(), m)
	if err != nil {
		return nil, errors.Join(err, q.RejectWith(roce.RejectNoResources, nil))
	}
	o := roce.AcceptOptions{ConnectOptions: cfg.Connect, PrivateData: r.memory().put(nil)}
	o.Access = roce.RemoteWrite | roce.RemoteRead
	if r.conn, err = q.Accept(ctx, r.ep.QP, o); err != nil {
		return nil, errors.Join(err, r.destroy())
	}
	return r, nil
}

// Receiver is the receiving side of a connection. It reads only its own memory.
type Receiver struct {
	cfg    Config
	ep     *endpoint.Endpoint
	conn   *roce.Conn
	mem    *accept.Memory
	data   *roce.MR // the receive blocks
	status *roce.MR // the third array
	manual bool
	taken  [256]bool // devices whose packets are accepted

	mu    sync.Mutex // guards the fields below
	slots []slot
	turns []uint64 // how often each slot's block was handed over
	ready []packet // found and not yet handed over, in order
	from  int      // index into ready: earlier ones have been handed over
	flows [256]flow
	stats ReceiverStats
	gone  bool // closed
}

// slot is the receiver's own state of a block.
type slot uint8

const (
	slotIdle   slot = iota // as the status byte says
	slotFound              // in ready
	slotHanded             // held by the program
	slotKept               // held by the program and marked unavailable
)

// ReceiverStats are a Receiver's counters besides DeviceStats.
type ReceiverStats struct {
	BadStatus  uint64 // invalid status values written by the sender; the block is empty again
	BadHeader  uint64 // blocks with an impossible length; not handed over
	Unknown    uint64 // packets of unregistered devices; not handed over
	Overwrites uint64 // status bytes that the peer wrote while the program held the block
}

// DeviceStats are a Receiver's counters of one device.
type DeviceStats struct {
	Packets    uint64 // handed over
	Bytes      uint64 // of data in them
	Gaps       uint64 // packets missing between those handed over
	Duplicates uint64 // packets that came again or too late; not handed over
}

func newReceiver(dev *roce.Device, cfg Config, own netip.Addr,
	m *accept.Memory) (*Receiver, error) {
	r := &Receiver{cfg: cfg, mem: m, manual: dev.Info().Progress == roce.Manual,
		slots: make([]slot, cfg.Blocks), turns: make([]uint64, cfg.Blocks),
		ready: make([]packet, 0, cfg.Blocks)}
	for _, d := range cfg.Devices {
		r.taken[d] = true
	}
	if cfg.Devices == nil {
		for d := range r.taken {
			r.taken[d] = true
		}
	}
	var err error
	if r.ep, err = blocks.NewEndpoint(dev,
		blocks.Depths{Send: 1, SendCQ: 1, Recv: 1, GID: blocks.GIDFor(dev, own)}); err != nil {
		return nil, err
	}
	mem, size := m.Bytes(), cfg.Blocks*stride(cfg.BlockSize)
	clear(mem[size:])
	if r.data, err = r.ep.PD.RegisterMR(mem[:size],
		roce.LocalWrite|roce.RemoteWrite); err == nil {
		r.status, err = r.ep.PD.RegisterMR(mem[size:],
			roce.LocalWrite|roce.RemoteWrite|roce.RemoteRead)
	}
	if err != nil {
		return nil, errors.Join(err, r.destroy())
	}
	return r, nil
}

// free destroys everything but the memory.
func (r *Receiver) destroy() error {
	var errs []error
	for _, mr := range []*roce.MR{r.status, r.data} {
		if mr != nil {
			errs = append(errs, mr.Close())
		}
	}
	return errors.Join(append(errs, r.ep.Close())...)
}

func (r *Receiver) memory() *memory {
	return &memory{
		Sizes:  blocks.Sizes{Blocks: r.cfg.Blocks, Size: r.cfg.BlockSize},
		stride: stride(r.cfg.BlockSize),
		data:   r.data.Addr(), dataKey: r.data.RKey(), status: r.status.Addr(),
		statKey: r.status.RKey(),
	}
}

// Blocks returns the number of blocks of each side.
func (r *Receiver) Blocks() int { return r.cfg.Blocks }

// BlockSize returns the number of data bytes per block.
func (r *Receiver) BlockSize() int { return r.cfg.BlockSize }

// Remote returns the sender's address.
func (r *Receiver) Remote() netip.AddrPort { return r.conn.RemoteAddr() }

// Block is a packet that the program holds until it calls Release.
type Block struct {
	Device uint8
	Packet uint16 // its number in the device's stream, which wraps around
	Seq    uint64 // the same without wrap-around; missing packets count
	Last   bool   // the sender marked it as the end of the device's stream
	Data   []byte // in the receive block's memory; invalid after Release or Receiver.Close
	r      *Receiver
	slot   int
	turn   uint64 // of the slot: a Block of an earlier turn is stale
}

// Poll returns the next packet if one is there. With Manual progress it drives the device for one
// step.
func (r *Receiver) Poll() (Block, bool) {
	if r.manual {
		r.ep.Dev.Progress()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.from == len(r.ready) && !r.gone {
		r.gather()
	}
	if r.from == len(r.ready) {
		return Block{}, false
	}
	p := &r.ready[r.from]
	r.from++
	r.slots[p.slot] = slotHanded
	r.turns[p.slot]++
	f := &r.flows[p.device]
	f.stats.Packets++
	f.stats.Bytes += uint64(p.length)
	at := p.slot*stride(r.cfg.BlockSize) + HeaderLen
	return Block{
		Device: p.device, Packet: p.packet, Seq: p.seq, Last: p.flags&FlagLast != 0,
		Data: r.data.Bytes()[at : at+int(p.length) : at+int(p.length)], r: r, slot: p.slot,
		turn: r.turns[p.slot],
	}, true
}

// Receive waits for the next packet. It returns io.EOF once the sender has closed and all packets
// were handed over, ctx's error, or the error that ended the connection.
func (r *Receiver) Receive(ctx context.Context) (Block, error) {
	var until time.Time
	for look := 0; ; look++ {
		// Check before scanning: data that was written before the connection ended must still be
		// found.
		ended := r.ended()
		if b, ok := r.Poll(); ok {
			return b, nil
		}
		if ended != nil {
			return Block{}, ended
		}
		if look%spinLook != 0 {
			continue
		}
		if err := ctx.Err(); err != nil {
			return Block{}, err
		}
		now := time.Now()
		switch {
		case until.IsZero():
			until = now.Add(r.cfg.Spin)
		case now.After(until) && !r.manual: // the device makes progress by itself meanwhile
			time.Sleep(r.cfg.Idle)
		}
	}
}

// ended returns nil while the connection lasts.
func (r *Receiver) ended() error {
	select {
	case <-r.conn.Done():
	default:
		return nil
	}
	switch err := r.conn.Err(); {
	case errors.Is(err, roce.ErrDisconnected):
		return io.EOF
	case errors.Is(err, roce.ErrClosed):
		return ErrClosed
	default:
		return fmt.Errorf("%w: %w", ErrBroken, err)
	}
}

// Release returns the block's memory to the sender by setting its status byte to 0. Calling it
// twice, or after Close, has no effect.
func (b Block) Release() {
	r := b.r
	r.mu.Lock()
	defer r.mu.Unlock()
	want := byte(HasData)
	switch r.slots[b.slot] {
	case slotKept:
		want = Unavailable
	case slotHanded:
	default:
		return // released already
	}
	if r.gone || r.turns[b.slot] != b.turn {
		return
	}
	if r.status.Load8(b.slot) != want {
		r.stats.Overwrites++
	}
	// Under the same lock as gather, which must not see the block as held by the program and filled
	// again.
	r.status.Store8(b.slot, Empty)
	r.slots[b.slot] = slotIdle
}

// Retain sets the status byte to 2 until Release, so the sender skips the block.
func (b Block) Retain() {
	r := b.r
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.slots[b.slot] != slotHanded || r.turns[b.slot] != b.turn || r.gone {
		return
	}
	if r.status.Load8(b.slot) != HasData {
		r.stats.Overwrites++
	}
	r.status.Store8(b.slot, Unavailable)
	r.slots[b.slot] = slotKept
}

// Device returns the counters of device d.
func (r *Receiver) Device(d uint8) DeviceStats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.flows[d].stats
}

// Stats returns the remaining counters.
func (r *Receiver) Stats() ReceiverStats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stats
}

// Stop disconnects and keeps the memory: the sender's WRITEs fail from now on. Receive returns what
// arrived before, then ErrClosed. To stop without losing what the sender considers delivered, call
// Stop, receive the rest, then call Close.
func (r *Receiver) Stop() error { return r.conn.Close() }

// Close disconnects and frees the memory. Data of blocks must not be used afterwards. Closing twice
// has no effect.
func (r *Receiver) Close() error {
	r.mu.Lock()
	gone := r.gone
	r.gone = true
	r.ready, r.from = r.ready[:0], 0
	r.mu.Unlock()
	if gone {
		return nil
	}
	return errors.Join(r.conn.Close(), r.destroy(), r.mem.Close())
}
