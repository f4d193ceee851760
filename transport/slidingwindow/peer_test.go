package slidingwindow

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/endpoint"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/internal/blocks"
)

func devices(t testing.TB, opts ...roce.Option) (devs [2]*roce.Device) {
	t.Helper()
	link, err := loopback.NewLink(loopback.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range devs {
		if devs[i], err = roce.New(link.Port(i), opts...); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = devs[i].Close() })
	}
	return devs
}

func testAddr(d *roce.Device) netip.AddrPort { return netip.AddrPortFrom(d.GIDs()[0].Addr, 7481) }

// rogueSender performs the handshake and then sends what it likes.
type rogueSender struct {
	t    *testing.T
	e    *endpoint.Endpoint
	m    memory
	conn *roce.Conn
	mr   *roce.MR
}

// newRogueSender posts the given number of receives for ACKs, each once.
func newRogueSender(t *testing.T, cfg Config, receives int) (*rogueSender, *Receiver) {
	t.Helper()
	devs := devices(t)
	l, err := Listen(devs[1], testAddr(devs[1]), cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx := within(t)
	var r *Receiver
	accepted := make(chan error, 1)
	go func() {
		var err error
		r, err = l.Accept(ctx)
		accepted <- err
	}()
	g := &rogueSender{t: t}
	if g.e, err = blocks.NewEndpoint(devs[0],
		blocks.Depths{Send: 16, SendCQ: 16, Recv: 16, RecvCQ: 16}); err != nil {
		t.Fatal(err)
	}
	if g.mr, err = g.e.AddMR(4096, roce.LocalWrite); err != nil {
		t.Fatal(err)
	}
	for range receives {
		if err := g.e.QP.PostRecv(roce.RecvWR{SGEs: []roce.SGE{g.mr.SGE(2048,
			ackLen)}}); err != nil {
			t.Fatal(err)
		}
	}
	if g.conn, err = devs[0].Dial(ctx, l.Addr(), g.e.QP,
		roce.DialOptions{PrivateData: protocol.Put(nil, cfg.sizes())}); err != nil {
		t.Fatal(err)
	}
	if err := <-accepted; err != nil {
		t.Fatal(err)
	}
	if g.m, err = parseMemory(g.conn.PrivateData()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _, _ = g.conn.Close(), r.Close(), g.e.Close() })
	return g, r
}

// block writes n bytes to an index and announces imm.
func (g *rogueSender) block(place, n int, imm uint32) {
	g.t.Helper()
	g.post(roce.SendWR{
		Op: roce.OpWriteImm, Flags: roce.Signaled, SGEs: []roce.SGE{g.mr.SGE(0, n)}, Imm: imm,
		RemoteAddr: g.m.addr + uint64(place*g.m.stride), RKey: g.m.rkey,
	})
}

// post returns when the peer has the data.
func (g *rogueSender) post(wr roce.SendWR) {
	g.t.Helper()
	if err := g.e.QP.PostSend(wr); err != nil {
		g.t.Fatal(err)
	}
	var wcs [1]roce.WC
	if _, err := g.e.CQ.Wait(within(g.t), wcs[:]); err != nil || wcs[0].Status != roce.Success {
		g.t.Fatal(err, wcs[0].Status)
	}
}

// A sender that violates the protocol gets a final error, and no byte that it may not write is
// handed over.
func TestSenderViolatesProtocol(t *testing.T) {
	for name, f := range map[string]func(g *rogueSender, r *Receiver){
		"a place that is not next": func(g *rogueSender,
			r *Receiver) {
			g.block(1, 10, immediate(1, 10))
		},
		"a place that is not there": func(g *rogueSender,
			r *Receiver) {
			g.block(0, 10, immediate(63, 10))
		},
		"longer than a block": func(g *rogueSender,
			r *Receiver) {
			g.block(0, 101, immediate(0, 101))
		},
		"longer than what it wrote": func(g *rogueSender,
			r *Receiver) {
			g.block(0, 10, immediate(0, 11))
		},
		"shorter than what it wrote": func(g *rogueSender,
			r *Receiver) {
			g.block(0, 10, immediate(0, 9))
		},
		"a SEND": func(g *rogueSender,
			r *Receiver) {
			g.post(roce.SendWR{Op: roce.OpSend, Flags: roce.Signaled})
		},
		"a SEND with an immediate": func(g *rogueSender,
			r *Receiver) {
			g.post(roce.SendWR{Op: roce.OpSendImm, Flags: roce.Signaled})
		},
		"a block that the program has": func(g *rogueSender, r *Receiver) {
			for i := range 3 {
				g.block(i%2, 1, immediate(i%2, 1))
				if i == 2 {
					break
				}
				if _, err := r.Receive(within(g.t)); err != nil {
					g.t.Fatal(err)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			g, r := newRogueSender(t, Config{Blocks: 2, BlockSize: 100}, 0)
			f(g, r)
			if _, err := r.Receive(within(t)); !errors.Is(err, ErrPeer) {
				t.Fatal(err)
			}
			g.block(0, 1, immediate(0, 1))
			if _, again := r.Receive(within(t)); !errors.Is(again, ErrPeer) {
				t.Errorf("Receive() after the violation: %v, want ErrPeer", again)
			}
			if _, ok, again := r.Poll(); ok || !errors.Is(again, ErrPeer) {
				t.Errorf("Poll() after the violation: %v, %v, want ErrPeer", ok, again)
			}
		})
	}
}

// Data that arrived before the sender closed is handed over before the end, and released without
// error.
func TestEndAfterData(t *testing.T) {
	g, r := newRogueSender(t, Config{Blocks: 2, BlockSize: 100}, 2)
	g.block(0, 7, immediate(0, 7))
	if err := g.conn.Close(); err != nil {
		t.Fatal(err)
	}
	<-r.conn.Done()
	b, err := r.Receive(within(t))
	if err != nil || len(b.Data) != 7 {
		t.Fatalf("%d bytes, %v", len(b.Data), err)
	}
	if err := b.Release(); err != nil {
		t.Errorf("Release: %v", err)
	}
	if _, err := r.Receive(within(t)); err != io.EOF {
		t.Errorf("%v, want io.EOF", err)
	}
}

// A sender that takes no ACKs blocks Release. Close ends that.
func TestCloseEndsRelease(t *testing.T) {
	g, r := newRogueSender(t, Config{Blocks: 4, BlockSize: 100, SendDepth: 1}, 0)
	released := make(chan error, 1)
	var blocks []Block
	for i := range 2 {
		g.block(i, 1, immediate(i, 1))
		b, err := r.Receive(within(t))
		if err != nil {
			t.Fatal(err)
		}
		blocks = append(blocks, b)
	}
	if err := blocks[0].Release(); err != nil { // its ACK is refused with RNR NAKs forever
		t.Fatal(err)
	}
	go func() { released <- blocks[1].Release() }()
	select {
	case err := <-released:
		t.Fatalf("Release did not wait: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	if err := r.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	select {
	case err := <-released:
		if !errors.Is(err, ErrClosed) {
			t.Errorf("Release: %v", err)
		}
	case <-time.After(testTime):
		t.Fatal("Release still waits")
	}
	if err := blocks[1].Release(); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// rogueReceiver answers a Sender's connection request and then sends what it likes.
type rogueReceiver struct {
	t    *testing.T
	e    *endpoint.Endpoint
	mr   *roce.MR
	conn *roce.Conn
}

func newRogueReceiver(t *testing.T, cfg Config) (*rogueReceiver, *Sender) {
	t.Helper()
	devs := devices(t)
	l, err := devs[1].Listen(testAddr(devs[1]), roce.ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ctx := within(t)
	g := &rogueReceiver{t: t}
	accepted := make(chan error, 1)
	go func() { accepted <- g.accept(ctx, devs[1], l, cfg) }()
	s, err := Init(ctx, devs[0], l.Addr(), cfg)
	if err := errors.Join(err, <-accepted); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.linger = 0
		_, _, _ = g.conn.Close(), s.Close(), g.e.Close()
	})
	return g, s
}

func (g *rogueReceiver) accept(ctx context.Context, dev *roce.Device, l *roce.Listener,
	cfg Config) error {
	q, err := l.Accept(ctx)
	if err != nil {
		return err
	}
	if g.e, err = blocks.NewEndpoint(dev,
		blocks.Depths{Send: 16, SendCQ: 16, Recv: 16, Inline: 64}); err != nil {
		return err
	}
	if g.mr, err = g.e.AddMR(cfg.Blocks*stride(cfg.BlockSize),
		roce.LocalWrite|roce.RemoteWrite); err != nil {
		return err
	}
	for range 16 {
		if err := g.e.QP.PostRecv(roce.RecvWR{}); err != nil {
			return err
		}
	}
	m := memory{Sizes: cfg.sizes(), stride: stride(cfg.BlockSize), addr: g.mr.Addr(),
		rkey: g.mr.RKey()}
	g.conn, err = q.Accept(ctx, g.e.QP, roce.AcceptOptions{PrivateData: m.put(nil)})
	return err
}

func ackOf(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

// A receiver that violates the protocol ends the connection. Every further call returns the error.
func TestReceiverViolatesProtocol(t *testing.T) {
	for name, wr := range map[string]roce.SendWR{
		"more than was sent":        {Op: roce.OpSend, Inline: ackOf(3)},
		"far more than was sent":    {Op: roce.OpSend, Inline: ackOf(1<<64 - 1)},
		"a short ACK":               {Op: roce.OpSend, Inline: ackOf(0)[:7]},
		"an empty ACK":              {Op: roce.OpSend},
		"a WRITE with immediate":    {Op: roce.OpWriteImm, Imm: 1},
		"an ACK that is too long":   {Op: roce.OpSend, Inline: make([]byte, 9)},
		"less than was said before": {Op: roce.OpSend, Inline: ackOf(0)},
	} {
		t.Run(name, func(t *testing.T) {
			g, s := newRogueReceiver(t, Config{Blocks: 2, BlockSize: 100})
			ctx := within(t)
			if err := s.Write(ctx, []byte{1}); err != nil {
				t.Fatal(err)
			}
			if name == "less than was said before" {
				if err := g.e.QP.PostSend(roce.SendWR{Op: roce.OpSend,
					Inline: ackOf(1)}); err != nil {
					t.Fatal(err)
				}
				if err := s.Flush(ctx); err != nil {
					t.Fatal(err)
				}
			}
			if err := g.e.QP.PostSend(wr); err != nil {
				t.Fatal(err)
			}
			var err error
			for err == nil {
				err = s.Write(ctx, []byte{2})
			}
			if name == "an ACK that is too long" { // the NIC itself refuses that
				if !errors.Is(err, ErrBroken) {
					t.Fatal(err)
				}
				return
			}
			if !errors.Is(err, ErrPeer) || !errors.Is(err, ErrBroken) {
				t.Fatal(err)
			}
			if err := s.Flush(ctx); !errors.Is(err, ErrPeer) {
				t.Errorf("Flush: %v", err)
			}
		})
	}
}

// The reported reason is the WRITE that failed, not the receives that were flushed after it.
func TestReasonOfFailure(t *testing.T) {
	g, s := newRogueReceiver(t, Config{Blocks: 2, BlockSize: 100})
	if err := g.mr.Close(); err != nil {
		t.Fatal(err)
	}
	ctx := within(t)
	var err error
	for err == nil {
		err = s.Write(ctx, []byte{1})
	}
	if !errors.Is(err, ErrBroken) ||
		!containsAll(err.Error(), "RDMA_WRITE failed", "refused access to its memory") {
		t.Errorf("%v", err)
	}
}

// A Sender whose receiver keeps a block forever can be closed and reports what was not released.
func TestCloseWithUnreleasedData(t *testing.T) {
	s, r := pair(t, loopback.Config{}, Config{Blocks: 3, BlockSize: 64})
	s.linger = 30 * time.Millisecond
	ctx := within(t)
	for range 3 {
		if err := s.Write(ctx, []byte{1}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.Receive(ctx); err != nil { // and never release it
		t.Fatal(err)
	}
	if err := s.Close(); !errors.Is(err, ErrBroken) ||
		!containsAll(err.Error(), "did not release 3 blocks") {
		t.Errorf("Close: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("a second Close: %v", err)
	}
	_, err := s.Fill(ctx)
	for name, err := range map[string]error{"Fill": err, "Write": s.Write(ctx, nil),
		"Post": s.Post(ctx, 0), "Flush": s.Flush(ctx)} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s after Close: %v", name, err)
		}
	}
	// The receiver gets what had arrived, then the end.
	for range 2 {
		if _, err := r.Receive(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.Receive(ctx); err != io.EOF {
		t.Errorf("%v, want io.EOF", err)
	}
}

// A receiver that disappears during a stream is an error of the sender, which does not wait for its
// context.
func TestReceiverDisappears(t *testing.T) {
	s, r := pair(t, loopback.Config{}, Config{Blocks: 3, BlockSize: 5000})
	time.AfterFunc(20*time.Millisecond, func() { _ = r.Close() })
	ctx := within(t)
	go func() {
		for {
			b, err := r.Receive(ctx)
			if err != nil {
				if !errors.Is(err, ErrClosed) {
					t.Errorf("Receive: %v", err)
				}
				return
			}
			_ = b.Release()
		}
	}()
	var err error
	for err == nil {
		err = s.Write(ctx, content(4, 5000))
	}
	if !errors.Is(err, ErrBroken) {
		t.Errorf("%v", err)
	}
}

// A receive is posted again before its block or ACK allows the peer to send more. So with
// sufficient queues no RNR NAK is ever sent.
func TestNoRNRNAKs(t *testing.T) {
	for _, blocks := range []int{1, 2, 3} {
		s, r := pair(t, loopback.Config{}, Config{Blocks: blocks, BlockSize: 64})
		ctx := within(t)
		go func() {
			for range 3000 {
				if s.Write(ctx, []byte{1}) != nil {
					return
				}
			}
		}()
		for range 3000 {
			b, err := r.Receive(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if err := b.Release(); err != nil {
				t.Fatal(err)
			}
		}
		for name, d := range map[string]*roce.Device{"sender": s.ep.Dev, "receiver": r.ep.Dev} {
			if n := d.Counters().SentRNR; n != 0 {
				t.Errorf("%d blocks: the %s was not ready %d times", blocks, name, n)
			}
		}
	}
}
