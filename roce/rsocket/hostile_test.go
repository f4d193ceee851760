package rsocket

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"testing"

	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/roce/rsocket/core"
)

// hostile is a peer that is connected to a Conn and sends what it likes.
type hostile struct {
	*endpoint
	rc    *roce.Conn
	hello core.Hello // of the Conn
}

// newHostile dials a listener.
func newHostile(t *testing.T, bed *testbed.Testbed, l *Listener) (*hostile, *Conn) {
	t.Helper()
	cfg, err := Config{}.complete()
	check(t, err)
	e, err := newEndpoint(bed.Dev[0], &cfg)
	check(t, err)
	own := e.newStream(&cfg).Hello()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	rc, err := bed.Dev[0].Dial(ctx, l.l.Addr(), e.qp, roce.DialOptions{PrivateData: own.Append(nil)})
	check(t, err)
	h := &hostile{endpoint: e, rc: rc}
	h.hello, err = core.ParseHello(rc.PrivateData())
	check(t, err)
	c, err := l.AcceptConn()
	check(t, err)
	t.Cleanup(func() {
		_ = c.Close() // the test may have closed it
		check(t, rc.Close())
		check(t, e.close())
	})
	return h, c
}

// write writes n bytes to memory of a peer, with an immediate, and returns the status.
func (h *hostile) write(t *testing.T, to core.Buffer, n int, imm uint32) roce.Status {
	t.Helper()
	wr := roce.SendWR{Op: roce.OpWriteImm, Flags: roce.Signaled, Imm: imm, RemoteAddr: to.Addr,
		RKey: roce.RKey(to.Key)}
	if n > 0 {
		wr.SGEs = []roce.SGE{h.send.SGE(0, n)}
	}
	check(t, h.qp.PostSend(wr))
	for {
		var wcs [1]roce.WC
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		_, err := h.cq.Wait(ctx, wcs[:])
		cancel()
		check(t, err)
		if wcs[0].ID&recvID == 0 {
			return wcs[0].Status
		}
	}
}

// A peer that breaks the protocol loses its connection, and no other.
func TestHostilePeer(t *testing.T) {
	bed := newTestbed(t, testbed.Config{})
	l := listenOn(t, bed, Config{})
	client, server := dial(t, bed, l, Config{})
	h, c := newHostile(t, bed, l)
	if st := h.write(t, h.hello.Ring, 1, 2); st != roce.Success { // reports 2 bytes
		t.Fatalf("WRITE: %v", st)
	}
	if _, err := c.Read(make([]byte, 2)); !errors.Is(err, ErrProtocol) {
		t.Errorf("Read() = %v, want %v", err, ErrProtocol)
	}
	if _, err := c.Write(make([]byte, 2)); !errors.Is(err, ErrProtocol) {
		t.Errorf("Write() = %v, want %v", err, ErrProtocol)
	}
	write(t, client, "x")
	if _, err := io.ReadFull(server, make([]byte, 1)); err != nil {
		t.Errorf("another connection: %v", err)
	}
}

// A peer cannot write into the memory of another connection, nor read any.
func TestPeersAreIsolated(t *testing.T) {
	bed := newTestbed(t, testbed.Config{})
	l := listenOn(t, bed, Config{})
	victim, c := newHostile(t, bed, l)
	h, _ := newHostile(t, bed, l)
	if st := h.write(t, victim.hello.Ring, 1, 1); st != roce.RemAccessErr {
		t.Errorf("WRITE into another connection: %v, want %v", st, roce.RemAccessErr)
	}
	check(t, victim.qp.PostSend(roce.SendWR{Op: roce.OpRead, RemoteAddr: victim.hello.Ring.Addr,
		RKey: roce.RKey(victim.hello.Ring.Key), SGEs: []roce.SGE{victim.send.SGE(0, 1)}}))
	if _, err := c.Read(make([]byte, 1)); err == nil || err == io.EOF {
		t.Errorf("Read() after a READ of the peer = %v, want an error", err)
	}
}

// A program that does not use rsockets is refused, and told why.
func TestNotAnRsocket(t *testing.T) {
	bed := newTestbed(t, testbed.Config{})
	refused := make(chan error, 1)
	l := listenOn(t, bed, Config{Refused: func(_ netip.AddrPort, err error) { refused <- err }})
	cfg, err := Config{}.complete()
	check(t, err)
	e, err := newEndpoint(bed.Dev[0], &cfg)
	check(t, err)
	defer e.close()
	_, err = bed.Dev[0].Dial(context.Background(), l.l.Addr(), e.qp,
		roce.DialOptions{PrivateData: []byte("hello")})
	var no *roce.RejectError
	if !errors.As(err, &no) || no.Reason != roce.RejectUnsupported {
		t.Errorf("Dial() = %v, want %v", err, roce.RejectUnsupported)
	}
	if err := <-refused; !errors.Is(err, ErrProtocol) {
		t.Errorf("Refused got %v, want %v", err, ErrProtocol)
	}
}
