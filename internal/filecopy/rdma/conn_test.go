package rdma

import (
	"errors"
	"testing"

	"github.com/gorxe/gorxe/internal/filecopy"
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
