package cmconn

import (
	"context"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/roce"
)

// A peer may send its last message and end the connection before the receiver looks.
func TestMessageBeforeEnd(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	bed, err := testbed.New(testbed.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer bed.Close()
	server, client := newConn(t, bed.Dev[1]), newConn(t, bed.Dev[0])
	l, err := bed.Dev[1].Listen(bed.Addr(1, 18515), roce.ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan error, 1)
	go func() {
		r, err := l.Accept(ctx)
		if err == nil {
			err = server.Accept(ctx, r, roce.AcceptOptions{})
		}
		accepted <- err
	}()
	if err := client.Dial(ctx, bed.Addr(1, 18515), roce.DialOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := <-accepted; err != nil {
		t.Fatal(err)
	}
	if err := server.Send(ctx, []byte("last")); err != nil {
		t.Fatal(err)
	}
	if err := server.CM().Close(); err != nil {
		t.Fatal(err)
	}
	<-client.CM().Done()
	b, err := client.Receive(ctx)
	if string(b) != "last" || err != nil {
		t.Fatalf("Receive() = %q, %v; want the last message", b, err)
	}
	if b, err := client.Receive(ctx); err == nil || ctx.Err() != nil {
		t.Fatalf("Receive() after the end = %q, %v; want an error at once", b, err)
	}
}

func newConn(t *testing.T, d *roce.Device) *Conn {
	t.Helper()
	c, err := New(d, Config{Slots: 4, SlotBytes: 64})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}
