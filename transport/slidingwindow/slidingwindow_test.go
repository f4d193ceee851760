package slidingwindow

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/internal/drive"
)

const testTime = 20 * time.Second

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testTime)
	t.Cleanup(cancel)
	return ctx
}

func try(t testing.TB, c loopback.Config, send, recv Config, opts ...roce.Option) (
	s *Sender, r *Receiver, errS, errR error) {
	t.Helper()
	link, err := loopback.NewLink(c)
	if err != nil {
		t.Fatal(err)
	}
	var devs [2]*roce.Device
	for i := range devs {
		if devs[i], err = roce.New(link.Port(i), opts...); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = devs[i].Close() })
	}
	refused := make(chan error, 1)
	recv.Refused = func(_ netip.AddrPort, err error) { refused <- err }
	l, err := Listen(devs[1], netip.AddrPortFrom(devs[1].GIDs()[0].Addr, 7481), recv)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(within(t))
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		r, errR = l.Accept(ctx)
	}()
	if s, errS = Init(ctx, devs[0], l.Addr(), send); errS != nil {
		cancel()
	}
	<-done
	select {
	case errR = <-refused: // the Listener continues
	default:
	}
	return s, r, errS, errR
}

func pair(t testing.TB, c loopback.Config, cfg Config, opts ...roce.Option) (*Sender, *Receiver) {
	t.Helper()
	s, r, errS, errR := try(t, c, cfg, cfg, opts...)
	if err := errors.Join(errS, errR); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = s.Close(), r.Close() })
	return s, r
}

func containsAll(s string, parts ...string) bool {
	for _, p := range parts {
		if !strings.Contains(s, p) {
			return false
		}
	}
	return true
}

func content(n, size int) []byte {
	b := make([]byte, n*977%(size+1))
	for i := range b {
		b[i] = byte(n + i)
	}
	return b
}

// TestTransfer checks that blocks arrive once each and in order, with and without loss. Under the
// race detector it checks the hand-over of blocks.
func TestTransfer(t *testing.T) {
	for _, c := range []struct {
		name   string
		blocks int
		loss   float64
	}{{"3 blocks", 3, 0}, {"1 block", 1, 0}, {"64 blocks", 64, 0}, {"loss", 8, 0.01}} {
		t.Run(c.name, func(t *testing.T) {
			s, r := pair(t, loopback.Config{Seed: 7, Plan: loopback.Plan{Loss: c.loss}},
				Config{Blocks: c.blocks, BlockSize: 5000})
			ctx := within(t)
			const packets = 500
			go func() {
				for n := range packets {
					if err := s.Write(ctx, content(n, 5000)); err != nil {
						t.Errorf("block %d: %v", n, err)
						return
					}
				}
				if err := s.Close(); err != nil {
					t.Errorf("Close: %v", err)
				}
			}()
			for n := 0; ; n++ {
				b, err := r.Receive(ctx)
				if err == io.EOF && n == packets {
					return
				}
				if err != nil {
					t.Fatalf("block %d: %v", n, err)
				}
				if b.Seq != uint64(n) || !bytes.Equal(b.Data, content(n, 5000)) {
					t.Fatalf("block %d: wrong data", n)
				}
				if err := b.Release(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// A block that is not released keeps the window closed, even if later blocks are released. Its
// release frees all of them at once.
func TestReleaseInOrder(t *testing.T) {
	s, r := pair(t, loopback.Config{}, Config{Blocks: 3, BlockSize: 64})
	ctx := within(t)
	var blocks []Block
	for n := range 3 {
		if err := s.Write(ctx, []byte{byte(n)}); err != nil {
			t.Fatal(err)
		}
		b, err := r.Receive(ctx)
		if err != nil {
			t.Fatal(err)
		}
		blocks = append(blocks, b)
	}
	_ = blocks[2].Release()
	_ = blocks[1].Release()
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if err := s.Write(short, []byte{3}); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("a kept block did not hold up the window: %v", err)
	}
	_ = blocks[0].Release()
	if err := s.Flush(ctx); err != nil {
		t.Fatal(err)
	}
}

func TestMismatch(t *testing.T) {
	_, _, errS, errR := try(t, loopback.Config{}, Config{Blocks: 3, BlockSize: 64},
		Config{Blocks: 4, BlockSize: 64})
	if !errors.Is(errS, ErrMismatch) || !errors.Is(errR, ErrMismatch) {
		t.Errorf("sender: %v; receiver: %v", errS, errR)
	}
}

func TestBadConfig(t *testing.T) {
	for _, c := range []Config{{Blocks: 0, BlockSize: 1}, {Blocks: 65, BlockSize: 1},
		{Blocks: 1, BlockSize: 1 << 26}, {Blocks: 1, BlockSize: 0},
		{Blocks: 1, BlockSize: 1, RecvCQ: -1}, {Blocks: 1, BlockSize: 1, SendDepth: maxDepth + 1},
		{Blocks: 1, BlockSize: 1, Spin: MaxSpin + 1}} {
		if err := c.check(); !errors.Is(err, ErrConfig) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestNoAllocations covers a block written, transferred, received, released and acknowledged, with
// Auto and Manual progress.
func TestNoAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	for _, p := range []roce.Progress{roce.Auto, roce.Manual} {
		t.Run(p.String(), func(t *testing.T) {
			s, r := manualPair(t, p, Config{Blocks: 3, BlockSize: 256})
			if p == roce.Manual {
				defer drive.Device(s.ep.Dev)()
				defer drive.Device(r.ep.Dev)()
			}
			ctx := within(t)
			data := make([]byte, 256)
			if n := testing.AllocsPerRun(100, func() {
				if err := s.Write(ctx, data); err != nil {
					t.Fatal(err)
				}
				b, err := r.Receive(ctx)
				if err != nil {
					t.Fatal(err)
				}
				if err := b.Release(); err != nil {
					t.Fatal(err)
				}
			}); n != 0 {
				t.Errorf("a block allocates %v times", n)
			}
			// While the receiver is driven, whose last ACK may be outstanding.
			if err := s.Flush(ctx); err != nil {
				t.Error(err)
			}
		})
	}
}

// manualPair is pair on devices with the given progress, driven while they connect.
func manualPair(t *testing.T, p roce.Progress, cfg Config) (*Sender, *Receiver) {
	return pair(t, loopback.Config{}, cfg, roce.WithProgress(p))
}

// With Manual progress no further call is needed: what Post or Write has posted reaches the
// receiver, and its ACK the sender, while the sender's program does something else.
func TestManualSenderProgress(t *testing.T) {
	s, r := manualPair(t, roce.Manual, Config{Blocks: 3, BlockSize: 5000})
	ctx := within(t)
	for n := range 3 {
		if _, err := s.Fill(ctx); err != nil {
			t.Fatal(err)
		}
		if err := s.Post(ctx, 5000); err != nil {
			t.Fatal(err)
		}
		if n < 2 {
			continue
		}
		for range 3 {
			b, err := r.Receive(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if err := b.Release(); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.Drain(ctx); err != nil {
			t.Fatal(err)
		}
	}
	for s.tail.Load() < 3 { // only the poller does it
		if ctx.Err() != nil {
			t.Fatal("the ACK never came")
		}
		r.ep.Dev.Progress()
		time.Sleep(time.Millisecond)
	}
	stop := drive.Device(r.ep.Dev) // the sender disconnects
	defer stop()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
