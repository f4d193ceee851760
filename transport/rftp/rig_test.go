package rftp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/roce"
)

const testPort = 1919

// rig is two devices and a connection between them.
type rig struct {
	*testing.T
	*testbed.Testbed
	ctx  context.Context
	stop []func()   // drivers of devices with Manual progress
	mrs  []*roce.MR // memory of forged messages
	l    *Listener
	conn [2]*Conn // the dialer's and the listener's side
}

// newRig creates two devices.
func newRig(t *testing.T, bed testbed.Config) *rig {
	t.Helper()
	b, err := testbed.New(bed)
	if testbed.Unavailable(err) {
		t.Skipf("no AF_XDP on a veth pair here (needs root): %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	g := &rig{T: t, Testbed: b}
	var cancel context.CancelFunc
	g.ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(func() {
		cancel()
		for _, mr := range g.mrs {
			g.must(mr.Close())
		}
		for _, c := range g.conn {
			if c != nil {
				g.must(c.Close())
			}
		}
		for _, stop := range g.stop {
			stop()
		}
		if g.l != nil {
			g.must(g.l.Close())
		}
		g.must(b.Close())
	})
	return g
}

func (g *rig) must(err error) {
	g.Helper()
	if err != nil {
		g.Errorf("%v", err)
	}
}

// listen makes device 1 listen.
func (g *rig) listen(c ListenConfig) {
	g.Helper()
	l, err := Listen(g.Dev[1], g.Addr(1, testPort), c)
	if err != nil {
		g.Fatal(err)
	}
	g.l = l
}

// connect connects both sides, in real time.
func (g *rig) connect(dialer, listener Config) {
	g.Helper()
	g.listen(ListenConfig{Config: listener})
	accepted := make(chan error, 1)
	go func() {
		var err error
		g.conn[1], err = g.l.Accept(g.ctx)
		accepted <- err
	}()
	c, err := Dial(g.ctx, g.Dev[0], g.Addr(1, testPort), dialer)
	if err != nil {
		g.Fatal(err)
	}
	g.conn[0] = c
	if err := <-accepted; err != nil {
		g.Fatal(err)
	}
}

// fill writes a pattern into the payload of a block.
func fill(b []byte, session, seq uint32) {
	for i := range b {
		b[i] = byte(int(session)*31 + int(seq)*7 + i + i>>8)
	}
}

// errPattern means that a block has the wrong contents.
var errPattern = errors.New("the block has the wrong contents")

func verify(b *Block) error {
	for i := range b.Data {
		if b.Data[i] != byte(int(b.Session)*31+int(b.Seq)*7+i+i>>8) {
			return fmt.Errorf("byte %d of block %d of session %d: %w", i, b.Seq, b.Session,
				errPattern)
		}
	}
	return nil
}

// send sends a session of n blocks of size bytes and waits until the peer has consumed it.
func send(ctx context.Context, c *Conn, n, size int) error {
	s, err := c.Open(ctx, []byte("test"))
	if err != nil {
		return err
	}
	for i := range n {
		b, err := s.GetFree(ctx)
		if err != nil {
			return err
		}
		b.Len, b.Offset, b.Tag = size, uint64(i*size), uint32(i)
		b.Meta[23] = byte(i)
		fill(b.Data[:size], s.ID(), uint32(i))
		if err := s.Send(b); err != nil {
			return err
		}
	}
	s.End()
	return s.Wait(ctx)
}

// receive consumes what comes until the peer has finished, and returns the number of blocks by
// session.
func receive(ctx context.Context, c *Conn) (map[uint32]int, error) {
	got := map[uint32]int{}
	for {
		r, err := c.GetReady(ctx)
		if errors.Is(err, io.EOF) {
			return got, nil
		}
		if err != nil {
			return got, err
		}
		switch r.Kind {
		case Opened:
			if string(r.Params) != "test" {
				return got, fmt.Errorf("session %d was opened with %q", r.Session, r.Params)
			}
			got[r.Session] = 0
		case Data:
			b := r.Block
			if err := verify(b); err != nil {
				return got, err
			}
			if b.Offset != uint64(b.Seq)*uint64(b.Len) || b.Tag != b.Seq ||
				b.Meta[23] != byte(b.Seq) {
				return got, fmt.Errorf("block %d has offset %d, tag %d", b.Seq, b.Offset, b.Tag)
			}
			got[r.Session]++
			if err := c.PutFree(b); err != nil {
				return got, err
			}
		case Ended:
			if got[r.Session] != int(r.Blocks) {
				return got, fmt.Errorf("session %d ends after %d blocks, %d came", r.Session,
					r.Blocks, got[r.Session])
			}
		}
	}
}
