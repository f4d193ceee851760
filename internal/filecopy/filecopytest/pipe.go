package filecopytest

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/gorxe/gorxe/internal/filecopy"
)

// ErrClosed is the default error of a connection that has ended.
var ErrClosed = errors.New("the connection was closed")

// Options are properties of a pair of connections.
type Options struct {
	BlockSize int // default 64 KiB
	Blocks    int // of each side; default 8
	// Reorder delivers blocks in a random order that depends on Seed.
	Reorder bool
	Seed    uint64
	// Tamper, if set, is called for each block before it is delivered. It may change the block, or
	// return false to drop it.
	Tamper func(b *filecopy.Block) bool
}

// window is the number of messages that wait for the peer.
const window = 64

// Pipe is one side of a connection in memory. It implements filecopy.Conn.
type Pipe struct {
	o        Options
	peer     *Pipe
	free     chan *filecopy.Block // to fill
	received chan *filecopy.Block // for blocks of the peer
	messages chan []byte
	ready    chan filecopy.Ready
	out      chan filecopy.Ready // in the order of Send
	ended    *end
	sessions atomic.Uint32
	refused  sync.Map // session -> bool

	// Delivered counts blocks that were delivered to this side.
	Delivered atomic.Int64
}

// end is the end of a connection.
type end struct {
	done chan struct{}
	once sync.Once
	err  error
}

// New returns the two sides of a connection.
func New(o Options) (a, b *Pipe) {
	if o.BlockSize == 0 {
		o.BlockSize = 64 << 10
	}
	if o.Blocks == 0 {
		o.Blocks = 8
	}
	e := &end{done: make(chan struct{})}
	a, b = newPipe(o, e), newPipe(o, e)
	a.peer, b.peer = b, a
	go a.pump()
	go b.pump()
	return a, b
}

func newPipe(o Options, e *end) *Pipe {
	p := &Pipe{o: o, free: make(chan *filecopy.Block, o.Blocks),
		received: make(chan *filecopy.Block, o.Blocks), messages: make(chan []byte, window),
		ready: make(chan filecopy.Ready), out: make(chan filecopy.Ready, 1<<16), ended: e}
	for range o.Blocks {
		p.free <- &filecopy.Block{Data: make([]byte, o.BlockSize), Handle: p.free}
		p.received <- &filecopy.Block{Data: make([]byte, o.BlockSize), Handle: p.received}
	}
	return p
}

// Close ends the connection; nil stands for ErrClosed.
func (p *Pipe) Close(err error) {
	p.ended.once.Do(func() {
		p.ended.err = err
		if err == nil {
			p.ended.err = ErrClosed
		}
		close(p.ended.done)
	})
}

// pump delivers what this side sends.
func (p *Pipe) pump() {
	r := rand.New(rand.NewPCG(p.o.Seed, 0))
	for {
		var batch []filecopy.Ready
		select {
		case e := <-p.out:
			batch = append(batch, e)
		case <-p.ended.done:
			return
		}
		if p.o.Reorder && batch[0].Kind == filecopy.Data {
			batch = p.more(batch)
		}
		// Only blocks are swapped: what follows a block in the batch is not a block or the last.
		n := len(batch)
		if n > 1 && batch[n-1].Kind != filecopy.Data {
			n--
		}
		r.Shuffle(n, func(i, j int) { batch[i], batch[j] = batch[j], batch[i] })
		for _, e := range batch {
			if !p.deliver(e) {
				return
			}
		}
	}
}

// more adds blocks that were sent already, up to the first event of another kind.
func (p *Pipe) more(batch []filecopy.Ready) []filecopy.Ready {
	for len(batch) < p.o.Blocks/2 {
		select {
		case e := <-p.out:
			batch = append(batch, e)
			if e.Kind != filecopy.Data {
				return batch
			}
		default:
			return batch
		}
	}
	return batch
}

func (p *Pipe) deliver(e filecopy.Ready) bool {
	if e.Kind == filecopy.Data {
		var to *filecopy.Block
		select {
		case to = <-p.peer.received:
		case <-p.ended.done:
			return false
		}
		b := e.Block
		copy(to.Data, b.Data[:b.Len])
		to.Len, to.Offset, to.CRC, to.Session, to.Seq = b.Len, b.Offset, b.CRC, b.Session, b.Seq
		e.Block = to
		p.PutFree(b)
		_, refused := p.peer.refused.Load(e.Session)
		if refused || p.o.Tamper != nil && !p.o.Tamper(to) {
			p.peer.received <- to
			return true
		}
		p.peer.Delivered.Add(1)
	}
	select {
	case p.peer.ready <- e:
		return true
	case <-p.ended.done:
		return false
	}
}

// SendMessage implements filecopy.Conn.
func (p *Pipe) SendMessage(ctx context.Context, msg []byte) error {
	if len(msg) > filecopy.MaxMessage {
		return errors.New("the message is too long")
	}
	select {
	case p.peer.messages <- append([]byte(nil), msg...):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-p.ended.done:
		return p.ended.err
	}
}

// ReceiveMessage implements filecopy.Conn.
func (p *Pipe) ReceiveMessage(ctx context.Context) ([]byte, error) {
	select {
	case m := <-p.messages:
		return m, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-p.ended.done:
		return nil, p.ended.err
	}
}

// Open implements filecopy.Conn.
func (p *Pipe) Open(_ context.Context, param uint64) (filecopy.Session, error) {
	s := &session{p: p, id: p.sessions.Add(1)}
	return s, s.send(filecopy.Ready{Kind: filecopy.Opened, Session: s.id, Param: param})
}

// GetFree implements filecopy.Conn.
func (p *Pipe) GetFree(ctx context.Context) (*filecopy.Block, error) {
	select {
	case b := <-p.free:
		return b, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-p.ended.done:
		return nil, p.ended.err
	}
}

// GetReady implements filecopy.Conn.
func (p *Pipe) GetReady(ctx context.Context) (filecopy.Ready, error) {
	select {
	case e := <-p.ready:
		return e, nil
	case <-ctx.Done():
		return filecopy.Ready{}, ctx.Err()
	case <-p.ended.done:
		return filecopy.Ready{}, p.ended.err
	}
}

// PutFree implements filecopy.Conn.
func (p *Pipe) PutFree(b *filecopy.Block) { b.Handle.(chan *filecopy.Block) <- b }

// Refuse implements filecopy.Conn.
func (p *Pipe) Refuse(session uint32, _ string) { p.refused.Store(session, true) }

// Idle reports whether all blocks of this side are free.
func (p *Pipe) Idle() bool {
	return len(p.free) == p.o.Blocks && len(p.received) == p.o.Blocks
}

type session struct {
	p   *Pipe
	id  uint32
	seq atomic.Uint32
}

func (s *session) send(e filecopy.Ready) error {
	select {
	case <-s.p.ended.done:
		return s.p.ended.err
	case s.p.out <- e:
		return nil
	}
}

// Send implements filecopy.Session.
func (s *session) Send(b *filecopy.Block) error {
	b.Session, b.Seq = s.id, s.seq.Add(1)-1
	return s.send(filecopy.Ready{Kind: filecopy.Data, Session: s.id, Block: b})
}

// End implements filecopy.Session.
func (s *session) End() error {
	return s.send(filecopy.Ready{Kind: filecopy.Ended, Session: s.id})
}

// Abort implements filecopy.Session.
func (s *session) Abort(string) {
	_ = s.send(filecopy.Ready{Kind: filecopy.Aborted, Session: s.id})
}
