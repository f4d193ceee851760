package statusbyte

import (
	"context"
	"errors"
	"io"

	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/slidingwindow"
	"github.com/gorxe/gorxe/transport/statusbyte"
)

// The names of the lanes.
const (
	laneStatus = "statusbyte"
	laneWindow = "slidingwindow"
)

var laneNames = []string{laneStatus, laneWindow}

// shape is what a connection of either transport has.
type shape struct {
	blocks, size int
	// Sizes of queues, 0 for ample: of the sender and of the receiver.
	sendSQ, sendSCQ, sendRQ, sendRCQ int
	recvSQ, recvSCQ, recvRQ, recvRCQ int
}

// sender is the sending end of either transport.
type sender interface {
	// send sends the next block of a device, n bytes, as its memory is.
	send(ctx context.Context, device uint8, n int) error
	// post is send where more follows at once.
	post(ctx context.Context, n int) error
	// sync makes sure that the sender knows of an empty block.
	sync(ctx context.Context) error
	flush(ctx context.Context) error
	close() error
}

// receiver is the receiving end.
type receiver interface {
	// poll takes the next block if it is there, wait waits for it; io.EOF: the sender has closed.
	poll() (bool, error)
	wait(ctx context.Context) error
	// bytes is the length of the block that was taken, release gives it back.
	bytes() int
	release() error
	// keep keeps it instead, until the function that it returns is called.
	keep() func() error
	// drain waits until what release sent has arrived.
	drain(ctx context.Context) error
	close() error
}

// listener makes receivers.
type listener interface {
	accept(ctx context.Context) (receiver, error)
	close() error
}

// listen makes the receiving side of a lane, dial its sending side.
func (w *world) listen(lane string, s shape, port uint16) (listener, error) {
	if lane == laneStatus {
		l, err := statusbyte.Listen(w.dev[1], w.addr(port), statusbyte.Config{Blocks: s.blocks, BlockSize: s.size})
		return statusListener{l}, err
	}
	c := s.window()
	c.SendDepth, c.SendCQ, c.RecvDepth, c.RecvCQ = s.recvSQ, s.recvSCQ, s.recvRQ, s.recvRCQ
	l, err := slidingwindow.Listen(w.dev[1], w.addr(port), c)
	return windowListener{l}, err
}

func (w *world) dial(ctx context.Context, lane string, s shape, port uint16) (sender, error) {
	if lane == laneStatus {
		c := statusbyte.Config{Blocks: s.blocks, BlockSize: s.size, SendDepth: s.sendSQ, CQDepth: s.sendSCQ}
		x, err := statusbyte.Init(ctx, w.dev[0], w.addr(port), c)
		return &statusSender{x}, err
	}
	c := s.window()
	c.SendDepth, c.SendCQ, c.RecvDepth, c.RecvCQ = s.sendSQ, s.sendSCQ, s.sendRQ, s.sendRCQ
	x, err := slidingwindow.Init(ctx, w.dev[0], w.addr(port), c)
	return &windowSender{x, w.dev[0]}, err
}

func (s *shape) window() slidingwindow.Config {
	return slidingwindow.Config{Blocks: s.blocks, BlockSize: s.size}
}

type statusListener struct{ l *statusbyte.Listener }

func (l statusListener) accept(ctx context.Context) (receiver, error) {
	r, err := l.l.Accept(ctx)
	return &statusReceiver{r: r}, err
}
func (l statusListener) close() error { return l.l.Close() }

type statusSender struct{ s *statusbyte.Sender }

func (s *statusSender) send(ctx context.Context, device uint8, n int) error {
	f, err := s.s.Fill(ctx, device)
	if err != nil {
		return err
	}
	return f.Send(ctx, n, false)
}

func (s *statusSender) post(ctx context.Context, n int) error {
	f, err := s.s.Fill(ctx, 0)
	if err != nil {
		return err
	}
	return f.Post(ctx, n, false)
}

func (s *statusSender) sync(ctx context.Context) error {
	for {
		if n, err := s.s.Free(ctx); n > 0 || err != nil {
			return err
		}
	}
}

func (s *statusSender) flush(ctx context.Context) error { return s.s.Flush(ctx) }
func (s *statusSender) close() error                    { return s.s.Close() }

type statusReceiver struct {
	r *statusbyte.Receiver
	b statusbyte.Block
}

func (r *statusReceiver) poll() (ok bool, err error) {
	r.b, ok = r.r.Poll()
	return ok, nil
}

func (r *statusReceiver) wait(ctx context.Context) (err error) {
	r.b, err = r.r.Receive(ctx)
	return err
}

func (r *statusReceiver) bytes() int { return len(r.b.Data) }

func (r *statusReceiver) release() error {
	r.b.Release()
	return nil
}

func (r *statusReceiver) keep() func() error {
	b := r.b
	b.Retain()
	return func() error {
		b.Release()
		return nil
	}
}

func (r *statusReceiver) drain(context.Context) error { return nil }
func (r *statusReceiver) close() error                { return r.r.Close() }

type windowListener struct{ l *slidingwindow.Listener }

func (l windowListener) accept(ctx context.Context) (receiver, error) {
	r, err := l.l.Accept(ctx)
	return &windowReceiver{r: r}, err
}
func (l windowListener) close() error { return l.l.Close() }

type windowSender struct {
	s   *slidingwindow.Sender
	dev *roce.Device
}

func (s *windowSender) send(ctx context.Context, _ uint8, n int) error { return s.s.Send(ctx, n) }
func (s *windowSender) post(ctx context.Context, n int) error          { return s.s.Post(ctx, n) }
func (s *windowSender) sync(ctx context.Context) error {
	_, err := s.s.Fill(ctx)
	return err
}
func (s *windowSender) flush(ctx context.Context) error { return s.s.Flush(ctx) }
func (s *windowSender) close() error                    { return s.s.Close() }

type windowReceiver struct {
	r *slidingwindow.Receiver
	b slidingwindow.Block
}

func (r *windowReceiver) poll() (ok bool, err error) {
	r.b, ok, err = r.r.Poll()
	return ok, err
}

func (r *windowReceiver) wait(ctx context.Context) (err error) {
	r.b, err = r.r.Receive(ctx)
	return err
}

func (r *windowReceiver) bytes() int     { return len(r.b.Data) }
func (r *windowReceiver) release() error { return r.b.Release() }

func (r *windowReceiver) keep() func() error {
	b := r.b
	return b.Release
}

func (r *windowReceiver) drain(ctx context.Context) error { return r.r.Drain(ctx) }
func (r *windowReceiver) close() error                    { return r.r.Close() }

// over tells whether an error is the proper end of a stream.
func over(err error) bool { return errors.Is(err, io.EOF) }
