package messenger_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"

	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/roce/messenger"
)

// Messages of all lengths arrive in order, in both directions, many more than there are buffers.
func TestSendRecv(t *testing.T) {
	x, y := pair(t, messenger.Config{MaxMessage: 3000, Depth: 8})
	ctx := background(t)
	const count = 500
	send := func(c *messenger.Conn) error {
		for i := range count {
			if err := c.Send(ctx, bytes.Repeat([]byte{byte(i)}, i*6)); err != nil {
				return err
			}
		}
		return c.Flush(ctx)
	}
	recv := func(c *messenger.Conn) error {
		for i := range count {
			m, err := c.Recv(ctx)
			if err != nil {
				return err
			}
			if !bytes.Equal(m.Bytes(), bytes.Repeat([]byte{byte(i)}, i*6)) {
				return fmt.Errorf("message %d has %d bytes, want %d of value %d", i, len(m.Bytes()),
					i*6, i)
			}
			m.Release()
			m.Release()
			if m.Bytes() != nil {
				return errors.New("Bytes() is not nil after Release")
			}
		}
		return nil
	}
	var wg sync.WaitGroup
	for _, f := range []func() error{
		func() error { return send(x) }, func() error { return recv(x) },
		func() error { return send(y) }, func() error { return recv(y) },
	} {
		wg.Go(func() {
			if err := f(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// Many goroutines call, on both sides.
func TestCall(t *testing.T) {
	for _, workers := range []int{1, 4} {
		x, y := pair(t, messenger.Config{Depth: 16, Calls: 7, Workers: workers})
		ctx, cancel := context.WithCancel(background(t))
		var handlers, callers sync.WaitGroup
		for _, c := range []*messenger.Conn{x, y} {
			handlers.Go(func() {
				err := c.Handle(ctx, func(_ context.Context, req []byte) ([]byte, error) {
					if len(req) == 0 {
						return nil, errors.New("empty request")
					}
					return append([]byte("re: "), req...), nil
				})
				if !errors.Is(err, context.Canceled) {
					t.Errorf("Handle() = %v, want %v", err, context.Canceled)
				}
			})
			for g := range 20 {
				callers.Go(func() {
					for i := range 50 {
						req := fmt.Sprintf("%d %d", g, i)
						m, err := c.Call(ctx, []byte(req))
						if err != nil {
							t.Error(err)
							return
						}
						if got := string(m.Bytes()); got != "re: "+req {
							t.Errorf("Call(%q) = %q", req, got)
						}
						m.Release()
					}
					var remote *messenger.CallError
					if _, err := c.Call(ctx, nil); !errors.As(err, &remote) ||
						remote.Text != "empty request" {
						t.Errorf("Call() = %v, want the error of the Handler", err)
					}
				})
			}
		}
		callers.Wait()
		cancel()
		handlers.Wait()
	}
}

func TestOneSided(t *testing.T) {
	x, y := pair(t, messenger.Config{MaxMessage: 1000, Depth: 16})
	ctx := background(t)
	mr := memory(t, y)
	remote := mr.Remote()
	for _, n := range []int{0, 1, 64, 65, 1000, 1001, 300_000} {
		p := make([]byte, n)
		for i := range p {
			p[i] = byte(i * 7)
		}
		if err := x.WriteAt(ctx, p, remote, 8); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(mr.Bytes()[8:8+n], p) {
			t.Errorf("WriteAt of %d bytes wrote other bytes", n)
		}
		q := make([]byte, n)
		if err := x.ReadAt(ctx, q, remote, 8); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(q, p) {
			t.Errorf("ReadAt of %d bytes read other bytes", n)
		}
	}
	mr.Store64(16, 5)
	if v, err := x.FetchAdd(ctx, remote, 16, 3); v != 5 || err != nil {
		t.Errorf("FetchAdd() = %d, %v, want 5", v, err)
	}
	if v, err := x.CompareAndSwap(ctx, remote, 16, 8, 100); v != 8 || err != nil {
		t.Errorf("CompareAndSwap() = %d, %v, want 8", v, err)
	}
	if v, err := x.CompareAndSwap(ctx, remote, 16, 8, 1); v != 100 || err != nil {
		t.Errorf("CompareAndSwap() = %d, %v, want 100", v, err)
	}
	if got := mr.Load64(16); got != 100 {
		t.Errorf("the memory is %d, want 100", got)
	}
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			for range 30 {
				if _, err := x.FetchAdd(ctx, remote, 16, 1); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if got := mr.Load64(16); got != 400 {
		t.Errorf("the memory is %d, want 400", got)
	}
	for _, err := range []error{
		x.ReadAt(ctx, make([]byte, 9), remote, remote.Len-8),
		x.WriteAt(ctx, nil, remote, remote.Len+1),
		x.Do(ctx, []messenger.Op{{Op: roce.OpFetchAdd, Remote: remote, Offset: 1}}),
	} {
		if !errors.Is(err, messenger.ErrRange) {
			t.Errorf("got %v, want %v", err, messenger.ErrRange)
		}
	}
}

// A list of operations of all kinds, also without copies.
func TestDo(t *testing.T) {
	x, y := pair(t, messenger.Config{Depth: 16})
	ctx := background(t)
	mr, local := memory(t, y), memory(t, x)
	copy(mr.Bytes(), "remote")
	copy(local.Bytes(), "local")
	var ops []messenger.Op
	for i := range 100 {
		ops = append(ops,
			messenger.Op{Op: roce.OpWrite, Remote: mr.Remote(), Offset: uint64(1000 + i),
				Local: []byte{byte(i)}},
			messenger.Op{Op: roce.OpFetchAdd, Remote: mr.Remote(), Offset: 2000, Value: 1})
	}
	dst := make([]byte, 6)
	ops = append(ops, messenger.Op{Op: roce.OpRead, Remote: mr.Remote(), Local: dst},
		messenger.Op{Op: roce.OpRead, Remote: mr.Remote(), SGE: local.SGE(100, 6)},
		messenger.Op{Op: roce.OpWrite, Remote: mr.Remote(), Offset: 100, SGE: local.SGE(0, 5)})
	if err := x.Do(ctx, ops); err != nil {
		t.Fatal(err)
	}
	if string(dst) != "remote" || string(local.Bytes()[100:106]) != "remote" ||
		string(mr.Bytes()[100:105]) != "local" {
		t.Errorf("READs returned %q and %q, WRITE wrote %q", dst, local.Bytes()[100:106],
			mr.Bytes()[100:105])
	}
	for i := range 100 {
		if mr.Bytes()[1000+i] != byte(i) || ops[2*i+1].Result != uint64(i) {
			t.Errorf("operation %d: memory %d, Result %d", i, mr.Bytes()[1000+i], ops[2*i+1].Result)
		}
	}
}

// The end of a connection is an end of file for the peer, after all messages.
func TestEOF(t *testing.T) {
	x, y := pair(t, messenger.Config{})
	ctx := background(t)
	for range 3 {
		if err := x.Send(ctx, []byte("m")); err != nil {
			t.Fatal(err)
		}
	}
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	n := 0
	for m, err := range y.Messages(ctx) {
		if err != nil || string(m.Bytes()) != "m" {
			t.Errorf("got %q, %v", m.Bytes(), err)
		}
		n++
	}
	if n != 3 {
		t.Errorf("got %d messages, want 3", n)
	}
	_, err := y.Recv(ctx)
	var e *messenger.Error
	if !errors.Is(err, io.EOF) || !errors.Is(err, roce.ErrDisconnected) || !errors.As(err, &e) ||
		e.Peer != y.RemoteAddr() {
		t.Errorf("Recv() = %v, want io.EOF and roce.ErrDisconnected", err)
	}
	if err := x.Send(ctx, nil); !errors.Is(err, roce.ErrClosed) {
		t.Errorf("Send() = %v, want %v", err, roce.ErrClosed)
	}
}

// Send and one-sided operations fail as soon as the connection has ended, also if the program does
// not receive. Messages that arrived before can be received nevertheless.
func TestSendAfterEnd(t *testing.T) {
	x, y := pair(t, messenger.Config{})
	ctx := background(t)
	if err := x.Send(ctx, []byte("last")); err != nil {
		t.Fatal(err)
	}
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	<-y.Done()
	for _, err := range []error{
		y.Send(ctx, nil), y.WriteAt(ctx, []byte{1}, roce.RemoteBuffer{Len: 1}, 0),
	} {
		if !errors.Is(err, io.EOF) {
			t.Errorf("got %v, want %v", err, io.EOF)
		}
	}
	m, err := y.Recv(ctx)
	if err != nil || string(m.Bytes()) != "last" {
		t.Errorf("Recv() = %q, %v, want the last message", m.Bytes(), err)
	}
	m.Release()
	if _, err := y.Recv(ctx); !errors.Is(err, io.EOF) {
		t.Errorf("Recv() = %v, want %v", err, io.EOF)
	}
}
