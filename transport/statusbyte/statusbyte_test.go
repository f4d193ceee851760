package statusbyte

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

const (
	testPort = 7480
	testTime = 20 * time.Second
)

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testTime)
	t.Cleanup(cancel)
	return ctx
}

// devices creates two devices on a link in memory.
func devices(t testing.TB, c loopback.Config, opts ...roce.Option) (a, b *roce.Device) {
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
	return devs[0], devs[1]
}

func listen(t testing.TB, dev *roce.Device, cfg Config) *Listener {
	t.Helper()
	l, err := Listen(dev, testAddr(dev), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func testAddr(dev *roce.Device) netip.AddrPort { return netip.AddrPortFrom(addrOf(dev), testPort) }

func addrOf(dev *roce.Device) netip.Addr {
	for _, g := range dev.GIDs() {
		if g.Addr.Is4() {
			return g.Addr
		}
	}
	return netip.Addr{}
}

// pair connects a sender on a and a receiver on b.
func pair(t testing.TB, a, b *roce.Device, send, recv Config) (*Sender, *Receiver) {
	t.Helper()
	s, r, errS, errR := try(t, a, b, send, recv)
	if err := errors.Join(errS, errR); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = s.Close(), r.Close() })
	return s, r
}

func try(t testing.TB, a, b *roce.Device, send, recv Config) (
	s *Sender, r *Receiver, errS, errR error) {
	t.Helper()
	refused := make(chan error, 1)
	recv.Refused = func(_ netip.AddrPort, err error) { refused <- err }
	l := listen(t, b, recv)
	ctx, cancel := context.WithCancel(within(t))
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		r, errR = l.Accept(ctx)
	}()
	if s, errS = Init(ctx, a, l.Addr(), send); errS != nil {
		cancel()
	}
	<-done
	select {
	case errR = <-refused: // the Listener continues
	default:
	}
	return s, r, errS, errR
}

// TestTransfer checks that many packets of several devices, with losses, arrive once each and in
// order. Under the race detector it checks the hand-over of blocks.
func TestTransfer(t *testing.T) {
	for _, c := range []struct {
		name          string
		blocks, depth int
		size          int
		loss          float64
	}{
		{"3 blocks", 3, 0, 5000, 0}, {"1 block", 1, 0, 5000, 0}, {"64 blocks", 64, 0, 5000, 0},
		{"least queues", 3, 2, 5000, 0}, {"loss", 8, 0, 5000, 0.01},
		// With large blocks, synchronization starts before the last block's data is sent.
		{"large", 3, 0, 2 * largeBlock, 0}, {"2 large blocks", 2, 0, 2 * largeBlock, 0},
		{"1 large block", 1, 0, 2 * largeBlock, 0},
		{"large, least queues", 3, 2, 2 * largeBlock, 0},
		{"large, loss", 3, 0, 2 * largeBlock, 0.005},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := devices(t, loopback.Config{Seed: 7, Plan: loopback.Plan{Loss: c.loss}})
			cfg := Config{Blocks: c.blocks, BlockSize: c.size}
			send := cfg
			if c.depth > 0 {
				send.SendDepth, send.CQDepth = c.depth, 1
			}
			s, r := pair(t, a, b, send, cfg)
			transfer(t, s, r, 5, min(150, 3000_000/c.size))
		})
	}
}

// largeBlock takes several batches of frames.
const largeBlock = 4 * earlyFrom

// A Fill that was sent or dropped does nothing: its block may belong to another one.
func TestFillOnce(t *testing.T) {
	a, b := devices(t, loopback.Config{})
	s, r := pair(t, a, b, Config{}, Config{Blocks: 2, BlockSize: 16})
	ctx := within(t)
	fill := func() Fill {
		t.Helper()
		f, err := s.Fill(ctx, 1)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	sent := fill()
	if err := sent.Send(ctx, copy(sent.Data, "one"), false); err != nil {
		t.Fatal(err)
	}
	if err := s.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	failed, next := fill(), fill() // the two blocks
	if err := failed.Send(ctx, 17, false); !errors.Is(err, ErrTooLong) {
		t.Errorf("Send(17) = %v, want ErrTooLong", err)
	}
	for _, f := range []Fill{sent, failed} {
		f.Drop()
		if err := f.Send(ctx, 3, false); !errors.Is(err, ErrBlock) {
			t.Errorf("a second Send() = %v, want ErrBlock", err)
		}
	}
	if err := next.Send(ctx, copy(next.Data, "two"), false); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	var got []string
	for {
		b, err := r.Receive(ctx)
		if err != nil {
			break
		}
		got = append(got, string(b.Data))
		b.Release()
	}
	if want := []string{"one", "two"}; !slices.Equal(got, want) {
		t.Errorf("received %q, want %q", got, want)
	}
}

// A block takes two work requests, so a shorter queue could never send.
func TestSendDepthOne(t *testing.T) {
	a, _ := devices(t, loopback.Config{})
	if s, err := Init(within(t), a, testAddr(a), Config{SendDepth: 1}); !errors.Is(err, ErrConfig) {
		t.Errorf("Init() = %v, %v, want ErrConfig", s, err)
	}
}

// Accept answers several requests at a time, by goroutines, which virtual time does not know.
func TestVirtualTime(t *testing.T) {
	link, err := loopback.NewLink(loopback.Config{Virtual: true})
	if err != nil {
		t.Fatal(err)
	}
	expert := roce.Expert{Clock: link.Now, Wait: loopback.NewSim(link).Wait}
	dev, err := roce.New(link.Port(1), roce.WithExpert(expert))
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	if _, err := Listen(dev, testAddr(dev), Config{}); !errors.Is(err, roce.ErrVirtualTime) {
		t.Errorf("Listen() = %v, want ErrVirtualTime", err)
	}
}

// transfer sends packets of devs devices concurrently and checks what arrives.
func transfer(t *testing.T, s *Sender, r *Receiver, devs, packets int) {
	t.Helper()
	ctx := within(t)
	var senders sync.WaitGroup
	for d := range devs {
		senders.Add(1)
		go func() {
			defer senders.Done()
			for n := range packets {
				if err := s.Write(ctx, uint8(d), content(d, n, s.BlockSize())); err != nil {
					t.Errorf("device %d, packet %d: %v", d, n, err)
					return
				}
			}
		}()
	}
	go func() {
		senders.Wait()
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}()
	var next [256]int
	for {
		b, err := r.Receive(ctx)
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		n := next[b.Device]
		if int(b.Packet) != n || b.Seq != uint64(n) {
			t.Fatalf("device %d: packet %d (%d) instead of %d", b.Device, b.Packet, b.Seq, n)
		}
		if !bytes.Equal(b.Data, content(int(b.Device), n, r.BlockSize())) {
			t.Fatalf("device %d, packet %d: wrong data", b.Device, n)
		}
		next[b.Device]++
		b.Release()
	}
	for d := range devs {
		st := r.Device(uint8(d))
		if next[d] != packets || st.Packets != uint64(packets) || st.Gaps+st.Duplicates != 0 {
			t.Errorf("device %d: %d packets, %+v", d, next[d], st)
		}
	}
	if st := r.Stats(); st != (ReceiverStats{}) {
		t.Errorf("%+v", st)
	}
}

// content is the data of packet n of device d, of varying length, sometimes empty.
func content(d, n, size int) []byte {
	b := make([]byte, (d*7919+n*977)%(size+1))
	for i := range b {
		b[i] = byte(d + n + i)
	}
	return b
}
