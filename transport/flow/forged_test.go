package flow

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"testing"

	"github.com/gorxe/gorxe/internal/endpoint"
	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/roce"
)

// forger is a program on bare verbs that pretends to be a sender or a receiver.
type forger struct {
	*endpoint.Endpoint
	t testing.TB
}

func newForger(t testing.TB, dev *roce.Device) *forger {
	t.Helper()
	e, err := endpoint.New(dev, endpoint.Config{Memory: 1 << 16})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	return &forger{e, t}
}

// write writes a message of n bytes, according to its header, into slot, and says that it is in
// slot imm.
func (f *forger) write(m memory, slot int, n int, imm uint32) {
	f.t.Helper()
	h := header{seq: 1, time: 1, n: n}
	h.put(f.MR.Bytes())
	f.post(roce.SendWR{Op: roce.OpWriteImm, Flags: roce.Signaled, Imm: imm, RKey: m.rkey,
		SGEs:       []roce.SGE{f.MR.SGE(0, headerLen)},
		RemoteAddr: m.addr + uint64(slot*m.stride+dataOffset-headerLen)})
}

func (f *forger) post(wr roce.SendWR) {
	f.t.Helper()
	if err := f.QP.PostSend(wr); err != nil {
		f.t.Fatal(err)
	}
	var wcs [1]roce.WC
	if _, err := f.CQ.Wait(within(f.t), wcs[:]); err != nil {
		f.t.Fatal(err)
	}
}

// A sender that violates the protocol loses its connection and harms nothing else.
func TestForgedSender(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(f *forger, m memory)
		ok   int // messages that arrive before the violation
	}{
		{"slot number", func(f *forger, m memory) { f.write(m, 0, 10, 99) }, 0},
		{"length", func(f *forger, m memory) { f.write(m, 0, 101, 0) }, 0},
		{"negative length", func(f *forger, m memory) { f.write(m, 0, -1, 0) }, 0},
		{"slot in use", func(f *forger, m memory) {
			f.write(m, 1, 10, 1)
			f.write(m, 1, 10, 1)
		}, 1},
		{"send without slot", func(f *forger, m memory) {
			f.post(roce.SendWR{Op: roce.OpSend, Flags: roce.Signaled})
		}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBed(t, testbed.Config{})
			f := newForger(t, b.Dev[0])
			l, err := b.layer[1].Listen(b.Addr(1, 7777), ReceiverConfig{
				Channel: ChannelConfig{Name: "target", Size: 100, Slots: 2, Overflow: Refuse}})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = l.Close() }()
			ctx := within(t)
			conns := make(chan *roce.Conn, 1)
			go func() {
				conn, err := f.Dev.Dial(ctx, l.Addr(), f.QP,
					roce.DialOptions{PrivateData: putHello(3)})
				if err != nil {
					t.Errorf("Dial() = %v", err)
				}
				conns <- conn
			}()
			r, err := l.Accept(ctx)
			if err != nil {
				t.Fatal(err)
			}
			b.conns = append(b.conns, r)
			conn := <-conns
			m, err := parseReply(conn.PrivateData())
			if err != nil {
				t.Fatal(err)
			}
			c.do(f, m)
			for range c.ok {
				if m, err := r.Receive(ctx); err != nil || len(m.Data) != 10 {
					t.Errorf("Receive() = %+v, %v", m, err)
				}
			}
			if _, err := r.Receive(ctx); !errors.Is(err, ErrPeer) {
				t.Errorf("Receive() = %v, want ErrPeer", err)
			}
			if err := conn.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A request or reply of another protocol is refused.
func TestForgedHello(t *testing.T) {
	b := newBed(t, testbed.Config{})
	refusals := make(chan error, 1)
	l, err := b.layer[1].Listen(b.Addr(1, 7777), ReceiverConfig{
		Channel: ChannelConfig{Size: 100},
		Refused: func(_ netip.AddrPort, err error) { refusals <- err }})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	ctx, stop := context.WithCancel(within(t))
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = l.Accept(ctx)
	}()
	f := newForger(t, b.Dev[0])
	_, err = f.Dev.Dial(ctx, l.Addr(), f.QP, roce.DialOptions{PrivateData: []byte("GXSB\x01")})
	var r *roce.RejectError
	if !errors.As(err, &r) || r.Reason != roce.RejectConsumer {
		t.Errorf("Dial() = %v, want a rejection", err)
	}
	if err := <-refusals; !errors.Is(err, ErrPeer) {
		t.Errorf("refused because of %v, want ErrPeer", err)
	}
	stop()
	<-done
}

// forgedReceiver accepts one sender with a reply and returns the sender, or its error.
func forgedReceiver(t *testing.T, reply []byte) (*bed, *forger, *Sender, error) {
	t.Helper()
	b := newBed(t, testbed.Config{})
	f := newForger(t, b.Dev[1])
	l, err := b.Dev[1].Listen(b.Addr(1, 7777), roce.ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	ctx := within(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		q, err := l.Accept(ctx)
		if err != nil {
			t.Errorf("Accept() = %v", err)
			return
		}
		if _, err := q.Accept(ctx, f.QP, roce.AcceptOptions{PrivateData: reply}); err != nil {
			t.Errorf("Request.Accept() = %v", err)
		}
	}()
	s, err := b.layer[0].Dial(ctx, l.Addr(), SenderConfig{Name: "victim"})
	<-done
	if err == nil {
		b.conns = append(b.conns, s)
	}
	return b, f, s, err
}

func TestForgedReply(t *testing.T) {
	good := memory{slots: 2, size: 100, stride: stride(100), addr: 1 << 20, rkey: 1}
	for name, change := range map[string]func(m *memory){
		"no slots":       func(m *memory) { m.slots = 0 },
		"too many slots": func(m *memory) { m.slots = MaxSlots + 1 },
		"no size":        func(m *memory) { m.size = 0 },
		"huge size":      func(m *memory) { m.size = 1<<32 - 1 },
		"short stride":   func(m *memory) { m.stride = 100 },
	} {
		m := good
		change(&m)
		if _, err := parseReply(m.put(0)); !errors.Is(err, ErrPeer) {
			t.Errorf("%s: parseReply() = %v, want ErrPeer", name, err)
		}
	}
	if _, err := parseReply(good.put(3)[:replyLen-1]); !errors.Is(err, ErrPeer) {
		t.Errorf("short reply: %v, want ErrPeer", err)
	}
	if m, err := parseReply(good.put(3)); err != nil || m != good {
		t.Errorf("parseReply() = %+v, %v, want %+v", m, err, good)
	}
	for n := range helloLen {
		if _, err := parseHello(putHello(7)[:n]); !errors.Is(err, ErrPeer) {
			t.Errorf("hello of %d bytes: %v, want ErrPeer", n, err)
		}
	}
	if _, err := parseHello(putHello(8)); !errors.Is(err, ErrPeer) {
		t.Errorf("class 8: %v, want ErrPeer", err)
	}
	if _, _, _, err := forgedReceiver(t, []byte("something else")); !errors.Is(err, ErrPeer) {
		t.Errorf("Dial() = %v, want ErrPeer", err)
	}
}

// A receiver that releases slots that it does not have loses its connection.
func TestForgedCredit(t *testing.T) {
	m := memory{slots: 2, size: 100, stride: stride(100), addr: 1 << 20, rkey: 1}
	for name, imm := range map[string]uint32{"free slot": 1, "slot number": 2, "huge": 1<<32 - 1} {
		t.Run(name, func(t *testing.T) {
			_, f, s, err := forgedReceiver(t, m.put(0))
			if err != nil {
				t.Fatal(err)
			}
			f.post(roce.SendWR{Op: roce.OpSendImm, Flags: roce.Signaled, Imm: imm})
			mr := must(s.layer.Alloc(100))(t)
			defer func() { _ = mr.Close() }()
			ctx := within(t)
			// The credit may arrive after the first message.
			for err = nil; err == nil; {
				err = s.Send(ctx, mr, 0, 1)
			}
			if !errors.Is(err, ErrBroken) || !errors.Is(s.Err(), ErrBroken) {
				t.Errorf("Send() = %v, want ErrBroken", err)
			}
		})
	}
}

// The receiver sees the end of the connection after all messages.
func TestEndOfConnection(t *testing.T) {
	b := newBed(t, testbed.Config{})
	s, r := b.connect(SenderConfig{}, ReceiverConfig{Channel: ChannelConfig{Size: 100}})
	mr := must(b.layer[0].Alloc(100))(t)
	defer func() { _ = mr.Close() }()
	ctx := within(t)
	if err := s.Send(ctx, mr, 0, 7); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if m, err := r.Receive(ctx); err != nil || len(m.Data) != 7 {
		t.Errorf("Receive() = %+v, %v", m, err)
	}
	if _, err := r.Receive(ctx); err != io.EOF {
		t.Errorf("Receive() = %v, want io.EOF", err)
	}
	if err := s.Send(ctx, mr, 0, 7); !errors.Is(err, ErrClosed) {
		t.Errorf("Send() after Close() = %v, want ErrClosed", err)
	}
}
