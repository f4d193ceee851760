package messenger_test

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/endpoint"
	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/roce/messenger"
)

// verbs is a peer that uses verbs, as a program on libibverbs does.
type verbs struct {
	*endpoint.Endpoint
	conn *roce.Conn
}

const verbsBuffer = 256

// dialVerbs connects a peer with the private data to a Conn.
func dialVerbs(t testing.TB, b *testbed.Testbed, private []byte, c messenger.Config) (
	*messenger.Conn, *verbs) {
	t.Helper()
	e, err := endpoint.New(b.Dev[0], endpoint.Config{Memory: 64 * verbsBuffer})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 64 {
		if err := e.QP.PostRecv(roce.RecvWR{ID: uint64(i),
			SGEs: []roce.SGE{e.MR.SGE(i*verbsBuffer, verbsBuffer)}}); err != nil {
			t.Fatal(err)
		}
	}
	ctx := background(t)
	var conn *roce.Conn
	y := accept(ctx, t, b, c, func(addr netip.AddrPort) (err error) {
		conn, err = b.Dev[0].Dial(ctx, addr, e.QP, roce.DialOptions{PrivateData: private})
		return err
	})
	closeLater(t, func() error { return errors.Join(y.Close(), conn.Close(), e.Close()) })
	return y, &verbs{e, conn}
}

// next returns the next receive completion and its bytes.
func (v *verbs) next(t testing.TB) (roce.WC, []byte) {
	t.Helper()
	var wcs [1]roce.WC
	for {
		if _, err := v.CQ.Wait(background(t), wcs[:]); err != nil {
			t.Fatal(err)
		}
		if wcs[0].Status != roce.Success {
			t.Fatal(wcs[0].Status)
		}
		if wcs[0].Opcode == roce.WCRecv {
			off := int(wcs[0].ID) * verbsBuffer
			return wcs[0], v.MR.Bytes()[off : off+int(wcs[0].ByteLen)]
		}
	}
}

func (v *verbs) send(t testing.TB, wr roce.SendWR) {
	t.Helper()
	if err := v.QP.PostSend(wr); err != nil {
		t.Fatal(err)
	}
}

// A peer without the private data exchanges plain SENDs.
func TestPlainPeer(t *testing.T) {
	y, v := dialVerbs(t, newBed(t, testbed.Config{}), []byte("other"), messenger.Config{Depth: 4})
	ctx := background(t)
	for i := range 20 {
		v.send(t, roce.SendWR{Op: roce.OpSend, Inline: []byte{byte(i)}})
		m, err := y.Recv(ctx)
		if err != nil || len(m.Bytes()) != 1 || m.Bytes()[0] != byte(i) {
			t.Fatalf("Recv() = %v, %v, want [%d]", m.Bytes(), err, i)
		}
		m.Release()
		if err := y.Send(ctx, []byte{byte(i), 1}); err != nil {
			t.Fatal(err)
		}
		wc, got := v.next(t)
		if wc.Flags&roce.WCWithImm != 0 || len(got) != 2 || got[0] != byte(i) {
			t.Fatalf("the peer received %v with flags %v, want a plain SEND", got, wc.Flags)
		}
	}
	if _, err := y.Call(ctx, nil); !errors.Is(err, messenger.ErrPlain) {
		t.Errorf("Call() = %v, want %v", err, messenger.ErrPlain)
	}
	if err := y.WriteAt(ctx, []byte("x"), v.MR.Remote(), 7); err != nil || v.MR.Bytes()[7] != 'x' {
		t.Errorf("WriteAt() = %v and wrote %q", err, v.MR.Bytes()[7])
	}
}

// helloBytes is the private data of the package comment.
func helloBytes(credits uint16, maxMessage uint32) []byte {
	b := append([]byte("gMSG"), 1, 0)
	b = binary.BigEndian.AppendUint16(b, credits)
	return binary.BigEndian.AppendUint32(b, maxMessage)
}

func imm(kind, credits, id uint32) uint32 { return kind<<28 | credits<<16 | id }

// A program on verbs follows the description of the wire in the package comment.
func TestVerbsPeer(t *testing.T) {
	y, v := dialVerbs(t, newBed(t, testbed.Config{}), helloBytes(2, 100),
		messenger.Config{Depth: 4})
	ctx := background(t)
	if got, want := v.conn.PrivateData()[:12], helloBytes(4,
		messenger.DefaultMaxMessage); string(got) != string(want) {
		t.Errorf("the private data of the reply is %x, want %x", got, want)
	}
	// It calls.
	v.send(t, roce.SendWR{Op: roce.OpSendImm, Imm: imm(1, 0, 77), Inline: []byte("hi")})
	go func() { _ = y.Handle(ctx, echo) }()
	wc, got := v.next(t)
	if wc.Imm&^imm(0, 0xfff, 0) != imm(2, 0, 77) || string(got) != "hi" {
		t.Errorf("the answer is %q with immediate %#x", got, wc.Imm)
	}
	// It answers, and grants credits with that.
	answer := make(chan error, 1)
	go func() {
		m, err := y.Call(ctx, []byte("question"))
		if err == nil && string(m.Bytes()) != "yes" {
			err = errors.New(string(m.Bytes()))
		}
		m.Release()
		answer <- err
	}()
	wc, got = v.next(t)
	if wc.Imm>>28 != 1 || string(got) != "question" {
		t.Errorf("the request is %q with immediate %#x", got, wc.Imm)
	}
	v.send(t, roce.SendWR{Op: roce.OpSendImm, Imm: imm(2, 1, wc.Imm&0xffff), Inline: []byte("yes")})
	if err := <-answer; err != nil {
		t.Error(err)
	}
	// It has granted 3 credits so far.
	for range 2 {
		if err := y.Send(ctx, nil); err != nil {
			t.Fatal(err)
		}
	}
	short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	if err := y.Send(short, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Send() without a credit = %v, want %v", err, context.DeadlineExceeded)
	}
	v.send(t, roce.SendWR{Op: roce.OpSendImm, Imm: imm(4, 1, 0)})
	if err := y.Send(ctx, nil); err != nil {
		t.Error(err)
	}
	if err := y.Send(ctx, make([]byte, 101)); !errors.Is(err, messenger.ErrTooLarge) {
		t.Errorf("Send() = %v, want %v", err, messenger.ErrTooLarge)
	}
}

// A peer that violates the protocol loses the connection.
func TestForged(t *testing.T) {
	b := newBed(t, testbed.Config{})
	for name, wrs := range map[string][]roce.SendWR{
		"more credits than announced": {{Op: roce.OpSendImm, Imm: imm(4, 1, 0)}},
		"answer without request":      {{Op: roce.OpSendImm, Imm: imm(2, 0, 1)}},
		"answer of no ID":             {{Op: roce.OpSendImm, Imm: imm(3, 0, 0xffff)}},
		"kind":                        {{Op: roce.OpSendImm, Imm: imm(6, 0, 0)}},
		"more messages than credits":  {{Op: roce.OpSend}, {Op: roce.OpSend}, {Op: roce.OpSend}},
	} {
		y, v := dialVerbs(t, b, helloBytes(2, 100), messenger.Config{Depth: 2})
		v.send(t, roce.SendWR{Op: roce.OpSend})
		for _, wr := range wrs {
			v.send(t, wr)
		}
		err := error(nil)
		for n := 0; err == nil && n < 5; n++ {
			_, err = y.Recv(background(t)) // holds the messages
		}
		if !errors.Is(err, messenger.ErrProtocol) {
			t.Errorf("%s: Recv() = %v, want %v", name, err, messenger.ErrProtocol)
		}
		select {
		case <-v.conn.Done():
		case <-time.After(10 * time.Second):
			t.Errorf("%s: the peer is still connected", name)
		}
	}
}

// FuzzPeer lets a peer send any messages with any immediates. Whatever they are, nothing panics,
// and the Conn can be closed.
func FuzzPeer(f *testing.F) {
	f.Add(helloBytes(2, 100), []byte{0, 0, 0, 0, 1, 'x'})
	f.Add(helloBytes(4, 8), []byte{0x10, 0, 0, 7, 0, 0x50, 0, 0, 7, 0, 0x40, 1, 0, 0, 3})
	f.Add([]byte("plain"), []byte{0, 0, 0, 0, 200, 1, 2, 3})
	f.Add(helloBytes(0, 8), []byte{0x20, 0, 0, 0, 9})
	bed, err := testbed.New(testbed.Config{})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = bed.Close() })
	f.Fuzz(func(t *testing.T, private, data []byte) {
		private = private[:min(len(private), 48)]
		if len(private) > 5 && string(private[:4]) == "gMSG" && (private[4] != 1 ||
			binary.BigEndian.Uint16(append(private, make([]byte, 12)...)[6:]) == 0) {
			private[4] = 'x' // Accept would refuse it
		}
		fuzzPeer(t, bed, private, data)
	})
}

func fuzzPeer(t *testing.T, bed *testbed.Testbed, private, data []byte) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	l, err := bed.Dev[1].Listen(netip.AddrPort{}, roce.ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	served := make(chan error, 1)
	go func() {
		r, err := l.Accept(ctx)
		if err != nil {
			served <- err
			return
		}
		y, err := messenger.Accept(ctx, bed.Dev[1], r, messenger.Config{Depth: 4, MaxMessage: 64})
		if err != nil {
			served <- nil // refused
			return
		}
		go func() { _ = y.Handle(ctx, echo) }()
		go func() { _, _ = y.Call(ctx, []byte("question")) }()
		for {
			m, err := y.Recv(ctx)
			if err != nil {
				break
			}
			_ = m.Bytes()
			m.Release()
		}
		served <- y.Close()
	}()
	e, err := endpoint.New(bed.Dev[0], endpoint.Config{Memory: 64 * verbsBuffer})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for i := range 64 {
		if err := e.QP.PostRecv(roce.RecvWR{SGEs: []roce.SGE{e.MR.SGE(i*verbsBuffer,
			verbsBuffer)}}); err != nil {
			t.Fatal(err)
		}
	}
	conn, err := bed.Dev[0].Dial(ctx, l.Addr(), e.QP, roce.DialOptions{PrivateData: private})
	if err == nil {
		for n := 0; len(data) >= 5 && n < 40; n++ {
			size := min(int(data[4]), len(data)-5, 64)
			wr := roce.SendWR{Op: roce.OpSendImm, Imm: binary.BigEndian.Uint32(data),
				Inline: data[5 : 5+size]}
			if data[4] == 255 {
				wr.Op, wr.Imm = roce.OpSend, 0
			}
			data = data[5+size:]
			if e.QP.PostSend(wr) != nil {
				break // the peer has ended the connection
			}
		}
		short, stop := context.WithTimeout(ctx, 20*time.Millisecond)
		_ = e.QP.Drain(short) // the peer's receives may be used up
		stop()
		_ = conn.Close()
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}
