package statusbyte

import (
	"context"

	"github.com/gorxe/gorxe/transport/slidingwindow"
	"github.com/gorxe/gorxe/transport/statusbyte"
)

// The names of the transports.
const (
	statusByte    = "statusbyte"
	slidingWindow = "slidingwindow"
)

var transports = []string{statusByte, slidingWindow}

// shape configures a connection of either transport.
type shape struct {
	blocks, size int
	// Capacities of the queues of the sender and of the receiver; 0 means ample.
	sendSQ, sendSCQ, sendRQ, sendRCQ int
	recvSQ, recvSCQ, recvRQ, recvRCQ int
}

// sender is the sending side of either transport.
type sender interface {
	// send sends the next block with n bytes. device is the number of a camera.
	send(ctx context.Context, device uint8, n int) error
	// post is send for a block that others follow at once.
	post(ctx context.Context, n int) error
	// sync waits until the sender knows of an empty block.
	sync(ctx context.Context) error
	// Flush waits until all blocks have been transmitted.
	Flush(ctx context.Context) error
	Close() error
}

// receiver is the receiving side of either transport.
type receiver interface {
	// poll takes the next block if there is one. The error is io.EOF after the sender has closed.
	poll() (bool, error)
	// wait waits for the next block and takes it.
	wait(ctx context.Context) error
	// bytes returns the length of the taken block.
	bytes() int
	// release gives the taken block back.
	release() error
	// retain keeps the taken block until the returned function is called.
	retain() (release func() error)
	// Drain waits until what release sent has arrived.
	Drain(ctx context.Context) error
	Close() error
}

// listener accepts connections of either transport.
type listener struct {
	accept func(ctx context.Context) (receiver, error)
	close  func() error
}

// listen creates the receiving side of a transport.
func (d *devices) listen(transport string, s shape, port uint16) (*listener, error) {
	if transport == statusByte {
		c := statusbyte.Config{Blocks: s.blocks, BlockSize: s.size}
		l, err := statusbyte.Listen(d.Dev[1], d.Addr(1, port), c)
		return &listener{close: l.Close, accept: func(ctx context.Context) (receiver, error) {
			r, err := l.Accept(ctx)
			return &statusReceiver{Receiver: r}, err
		}}, err
	}
	l, err := slidingwindow.Listen(d.Dev[1], d.Addr(1, port), slidingwindow.Config{
		Blocks: s.blocks, BlockSize: s.size,
		SendDepth: s.recvSQ, SendCQ: s.recvSCQ, RecvDepth: s.recvRQ, RecvCQ: s.recvRCQ,
	})
	return &listener{close: l.Close, accept: func(ctx context.Context) (receiver, error) {
		r, err := l.Accept(ctx)
		return &windowReceiver{Receiver: r}, err
	}}, err
}

// dial creates the sending side of a transport.
func (d *devices) dial(ctx context.Context, transport string, s shape, port uint16) (
	sender, error) {
	if transport == statusByte {
		x, err := statusbyte.Init(ctx, d.Dev[0], d.Addr(1, port), statusbyte.Config{
			Blocks: s.blocks, BlockSize: s.size, SendDepth: s.sendSQ, CQDepth: s.sendSCQ,
		})
		return &statusSender{x}, err
	}
	x, err := slidingwindow.Init(ctx, d.Dev[0], d.Addr(1, port), slidingwindow.Config{
		Blocks: s.blocks, BlockSize: s.size,
		SendDepth: s.sendSQ, SendCQ: s.sendSCQ, RecvDepth: s.sendRQ, RecvCQ: s.sendRCQ,
	})
	return &windowSender{x}, err
}

type statusSender struct{ *statusbyte.Sender }

func (s *statusSender) send(ctx context.Context, device uint8, n int) error {
	f, err := s.Fill(ctx, device)
	if err != nil {
		return err
	}
	return f.Send(ctx, n, false)
}

func (s *statusSender) post(ctx context.Context, n int) error {
	f, err := s.Fill(ctx, 0)
	if err != nil {
		return err
	}
	return f.Post(ctx, n, false)
}

func (s *statusSender) sync(ctx context.Context) error {
	for {
		if n, err := s.Free(ctx); n > 0 || err != nil {
			return err
		}
	}
}

type windowSender struct{ *slidingwindow.Sender }

func (s *windowSender) send(ctx context.Context, _ uint8, n int) error { return s.Send(ctx, n) }
func (s *windowSender) post(ctx context.Context, n int) error          { return s.Post(ctx, n) }
func (s *windowSender) sync(ctx context.Context) error {
	_, err := s.Fill(ctx)
	return err
}

type statusReceiver struct {
	*statusbyte.Receiver
	b statusbyte.Block
}

func (r *statusReceiver) poll() (ok bool, err error) {
	r.b, ok = r.Poll()
	return ok, nil
}

func (r *statusReceiver) wait(ctx context.Context) (err error) {
	r.b, err = r.Receive(ctx)
	return err
}

func (r *statusReceiver) bytes() int { return len(r.b.Data) }

func (r *statusReceiver) release() error {
	r.b.Release()
	return nil
}

func (r *statusReceiver) retain() func() error {
	b := r.b
	b.Retain()
	return func() error {
		b.Release()
		return nil
	}
}

// Drain does nothing: the release of a block sends nothing.
func (r *statusReceiver) Drain(context.Context) error { return nil }

type windowReceiver struct {
	*slidingwindow.Receiver
	b slidingwindow.Block
}

func (r *windowReceiver) poll() (ok bool, err error) {
	r.b, ok, err = r.Poll()
	return ok, err
}

func (r *windowReceiver) wait(ctx context.Context) (err error) {
	r.b, err = r.Receive(ctx)
	return err
}

func (r *windowReceiver) bytes() int     { return len(r.b.Data) }
func (r *windowReceiver) release() error { return r.b.Release() }

func (r *windowReceiver) retain() func() error {
	b := r.b
	return b.Release
}
