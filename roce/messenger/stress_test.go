package messenger_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/roce/messenger"
)

// Everything at once, with contexts that end at any time, on a good and on a bad link. Nothing gets
// lost or mixed up, and no RNR NAK occurs.
func TestStress(t *testing.T) {
	for _, plan := range []loopback.Plan{{}, {Loss: 0.01, Duplicate: 0.01, Reorder: 0.01}} {
		b := newBed(t, testbed.Config{Plan: plan, Seed: 1})
		c := messenger.Config{Depth: 6, Calls: 5, Workers: 2, MaxMessage: 512}
		x, y := connect(t, b, c, c)
		mr := memory(t, y)
		ctx, stop := context.WithCancel(background(t))
		end := time.Now().Add(300 * time.Millisecond)
		var handlers, wg sync.WaitGroup
		for _, side := range []*messenger.Conn{x, y} {
			handlers.Go(func() { _ = side.Handle(ctx, echo) })
			handlers.Go(func() { receiveAll(ctx, t, side) })
			for g := range 3 {
				wg.Go(func() { callUntil(ctx, t, side, g, end) })
			}
			wg.Go(func() { sendUntil(ctx, t, side, end) })
		}
		for g := range 2 {
			wg.Go(func() { accessUntil(ctx, t, x, mr.Remote(), g, end) })
		}
		wg.Wait()
		stop()
		handlers.Wait()
		for i, d := range b.Dev {
			if n := d.Counters().RcvdRNR; n != 0 {
				t.Errorf("device %d received %d RNR NAKs, want 0", i, n)
			}
		}
		for _, side := range []*messenger.Conn{x, y} {
			if s := side.QP().State(); s != roce.StateRTS {
				t.Errorf("%v: a QP is in state %v", plan, s)
			}
		}
	}
}

// brief returns a context that may end before an operation does.
func brief(ctx context.Context) (context.Context, context.CancelFunc) {
	if rand.IntN(2) == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, rand.N(200*time.Microsecond))
}

// ended reports whether err is that of a context; it fails the test for others.
func ended(t *testing.T, err error) bool {
	if err != nil && !errors.Is(err, context.DeadlineExceeded) &&
		!errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	return err != nil
}

func callUntil(ctx context.Context, t *testing.T, c *messenger.Conn, g int, end time.Time) {
	for i := uint64(g) << 32; time.Now().Before(end); i++ {
		req := binary.BigEndian.AppendUint64(nil, i)
		short, cancel := brief(ctx)
		m, err := c.Call(short, req)
		if !ended(t, err) && !bytes.Equal(m.Bytes(), req) {
			t.Errorf("Call(%x) = %x", req, m.Bytes())
		}
		m.Release()
		cancel()
	}
}

func sendUntil(ctx context.Context, t *testing.T, c *messenger.Conn, end time.Time) {
	for i := uint64(0); time.Now().Before(end); {
		short, cancel := brief(ctx)
		if !ended(t, c.Send(short, binary.BigEndian.AppendUint64(make([]byte, i%200), i))) {
			i++
		}
		cancel()
	}
}

func receiveAll(ctx context.Context, t *testing.T, c *messenger.Conn) {
	for i := uint64(0); ctx.Err() == nil; {
		short, cancel := brief(ctx)
		m, err := c.Recv(short)
		if !ended(t, err) {
			if b := m.Bytes(); len(b) != int(i%200)+8 || binary.BigEndian.Uint64(b[i%200:]) != i {
				t.Errorf("message %d is %x", i, b)
			}
			i++
			m.Release()
		}
		cancel()
	}
}

// accessUntil owns 8 KiB of memory.
func accessUntil(ctx context.Context, t *testing.T, c *messenger.Conn, remote roce.RemoteBuffer,
	g int, end time.Time) {
	off := uint64(g) * 8192
	p, q := make([]byte, 4000), make([]byte, 4000)
	for i := 0; time.Now().Before(end); i++ {
		for j := range p {
			p[j] = byte(i + j)
		}
		if ended(t, c.WriteAt(ctx, p, remote, off)) {
			return
		}
		short, cancel := brief(ctx)
		err := c.ReadAt(short, q, remote, off)
		cancel()
		switch {
		case !ended(t, err) && !bytes.Equal(p, q):
			t.Error("ReadAt returned other bytes than WriteAt wrote")
		case err != nil:
			before := bytes.Clone(q)
			// later than the canceled one
			if ended(t, c.ReadAt(ctx, make([]byte, 8), remote, off)) {
				return
			}
			if !bytes.Equal(before, q) {
				t.Error("a READ changed memory after its context had ended")
			}
		}
	}
}
