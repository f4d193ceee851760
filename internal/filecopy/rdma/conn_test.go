package rdma

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/gorxe/gorxe/internal/filecopy"
	"github.com/gorxe/gorxe/internal/filecopy/sink"
	"github.com/gorxe/gorxe/transport/rftp"
)

// When the sink refuses a session, the source learns the reason without words of the protocol.
func TestRefuse(t *testing.T) {
	g := newRig(t)
	served := make(chan error, 1)
	go func() {
		served <- func() error {
			c, err := g.l.Accept(g.ctx)
			if err != nil {
				return err
			}
			if err := c.Grant(); err != nil {
				return errors.Join(err, c.Close())
			}
			k := newConn(c)
			for {
				r, err := k.GetReady(g.ctx)
				if err != nil { // the client has closed
					return c.Close()
				}
				if r.Kind == filecopy.Data {
					k.Refuse(r.Session, "no space left on device")
					k.PutFree(r.Block)
				}
			}
		}()
	}()
	c, err := Dial(g.ctx, g.Dev[0], g.addr(), nil, testConfig)
	if err != nil {
		t.Fatal(err)
	}
	conn := newConn(c.conn)
	s, err := conn.Open(g.ctx, 1)
	for err == nil {
		var b *filecopy.Block
		if b, err = conn.GetFree(g.ctx); err == nil {
			b.Len = len(b.Data)
			err = s.Send(b)
		}
	}
	const want = "receiver: no space left on device"
	if !errors.Is(err, filecopy.ErrStopped) || err.Error() != want {
		t.Errorf("Send() = %v, want ErrStopped with the text %q", err, want)
	}
	if err := errors.Join(c.Close(), <-served); err != nil {
		t.Error(err)
	}
}

// When the server ends the connection, the client learns the reason without words of the protocol.
func TestAbort(t *testing.T) {
	g := newRig(t)
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	from := t.TempDir()
	fill(t, from, 1)
	served := g.serve(&Server{Root: root, MaxFiles: 3})
	err = g.push(from+"/", "")
	var abort *rftp.AbortError
	const want = "receiver: limit reached: the receiver accepts at most 3 files"
	if !errors.As(err, &abort) || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("push: %v, want %q", err, want)
	}
	if err := <-served; !errors.Is(err, sink.ErrLimit) {
		t.Errorf("Serve() = %v, want ErrLimit", err)
	}
}
