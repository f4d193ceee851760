//go:build linux

package xdp

import (
	"bytes"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/xdp/veth"
	"github.com/vishvananda/netlink"
)

// A receiver that polls only after 2000 frames were sent gets all of them.
func TestBurstArrivesComplete(t *testing.T) {
	for _, mode := range modesToTest {
		t.Run(mode.String(), func(t *testing.T) {
			pair := newPair(t, veth.Options{})
			a, b := openEnd(t, &pair.A, Options{Mode: mode}), openEnd(t, &pair.B,
				Options{Mode: mode, Chunks: 2048})
			frames := make([][]byte, 2000)
			for i := range frames {
				frames[i] = packet{}.build(pattern(64, i))
			}
			for range 3 {
				if mode == Generic {
					exchange(t, a, b, frames...)
					continue
				}
				// A native veth passes frames through a ring of 256 entries, which its NAPI empties
				// on the sender's core, but occasionally later from a kernel thread. Frames that
				// do not fit are dropped and reported.
				sent := sendCounting(t, a, frames)
				if got := receive(t, b, len(frames), 300*time.Millisecond); len(got) != sent {
					t.Errorf("sent %d frames, received %d (%+v)", sent, len(got), b.Stats())
				}
			}
		})
	}
}

// sendCounting sends frames and returns how many of them Send reported as sent.
func sendCounting(t *testing.T, p *Port, frames [][]byte) (sent int) {
	t.Helper()
	var bufs [32]driver.Buf
	for len(frames) > 0 {
		n := p.Alloc(bufs[:min(len(bufs), len(frames))])
		for i := range n {
			bufs[i].B = bufs[i].B[:copy(bufs[i].B, frames[i])]
		}
		k, err := p.Send(bufs[:n])
		if err != nil {
			t.Fatal(err)
		}
		sent += k
		frames = frames[n:]
	}
	return sent
}

// No buffer is lost while many more frames than buffers pass: short, long, too long, refused and
// freed ones.
func TestNoBufferIsLost(t *testing.T) {
	for _, mode := range modesFor(12000) {
		t.Run(mode.String(), func(t *testing.T) {
			pair := newPair(t, veth.Options{MTU: 12000})
			small := Options{Mode: mode, RingSize: 64}
			a, b := openEnd(t, &pair.A, small), openEnd(t, &pair.B, small)
			long, short := packet{}.build(pattern(a.Info().MTU-28, 1)), packet{}.build(pattern(10,
				2))
			for range 50 {
				exchange(t, a, b, long, short, short, long, short)
				sendUDP(t, &pair.A, "10.77.0.2:4791", make([]byte, 11000)) // three chunks
				if got := receive(t, b, 1, 0); len(got) != 0 {
					t.Fatalf("received a frame of %d bytes, which exceeds a buffer", len(got[0]))
				}
				var bufs [64]driver.Buf
				n := a.Alloc(bufs[:])
				a.Free(bufs[:n/2])
				for i := n / 2; i < n; i++ {
					bufs[i].B = bufs[i].B[:i%2] // too short for a frame
				}
				if sent, err := a.Send(bufs[n/2 : n]); sent != 0 || err != nil {
					t.Fatalf("Send() = %d, %v", sent, err)
				}
			}
			if s := b.Stats(); s.RxDropped == 0 {
				t.Errorf("frames that are too long were not counted: %+v", s)
			}
			var bufs [100]driver.Buf
			if n := a.Alloc(bufs[:]); n != 64 {
				t.Errorf("%d send buffers are left, want 64", n)
			}
			q := b.queues[0]
			if n := q.fill.queued(); n != 64 {
				t.Errorf("the kernel has %d receive buffers, want 64", n)
			}
		})
	}
}

// Frames that exceed the receiver's rings are counted, and nothing but these frames is lost.
func TestOverflowIsCounted(t *testing.T) {
	pair := newPair(t, veth.Options{})
	a, b := openEnd(t, &pair.A, Options{}), openEnd(t, &pair.B, Options{RingSize: 64})
	f := packet{}.build(nil)
	var frames [][]byte
	for range 100 {
		frames = append(frames, f)
	}
	send(t, a, frames...)
	got := receive(t, b, 100, 50*time.Millisecond)
	if s := b.Stats(); len(got) != 64 || s.RxDropped != 36 || s.RxFrames != 64 ||
		s.RxBytes != uint64(64*len(f)) {
		t.Errorf("received %d frames, stats %+v", len(got), s)
	}
	if s := a.Stats(); s.TxFrames != 100 || s.TxBytes != uint64(100*len(f)) || s.TxDropped != 0 ||
		s.Kicks == 0 {
		t.Errorf("Stats() = %+v", s)
	}
	for range 20 {
		send(t, a, frames...)
		if got := receive(t, b, 64, 2*time.Second); len(got) != 64 {
			t.Fatalf("received %d frames, want 64", len(got))
		}
		exchange(t, a, b, frames[:64]...) // the port still works, with all its buffers
	}
	if s := b.Stats(); s.RxDropped != 21*36 {
		t.Errorf("RxDropped = %d, want %d", s.RxDropped, 21*36)
	}
}

// A frame that exceeds the peer's MTU is dropped and reported. The rest of its batch is sent.
func TestPeerWithSmallerMTU(t *testing.T) {
	pair := newPair(t, veth.Options{MTU: 4200})
	a, b := openEnd(t, &pair.A, Options{}), openEnd(t, &pair.B, Options{})
	onLink(t, &pair.B, func(l netlink.Link) error { return netlink.LinkSetMTU(l, 1500) })
	await(t, b, "MTU", func() bool { return b.Info().MTU == 1500 })
	frames := [][]byte{packet{}.build(pattern(100, 1)), packet{}.build(pattern(4000, 2)),
		packet{}.build(pattern(200, 3))}
	if sent := sendCounting(t, a, frames); sent != 2 || a.Stats().TxDropped != 1 {
		t.Errorf("sent %d of 3 frames, stats %+v", sent, a.Stats())
	}
	got := receive(t, b, 2, time.Second)
	if len(got) != 2 || !bytes.Equal(got[0], frames[0]) || !bytes.Equal(got[1], frames[2]) {
		t.Errorf("received %d frames", len(got))
	}
}

// The data path does not allocate.
func TestNoAllocations(t *testing.T) {
	for _, mode := range modesFor(4200) {
		pair := newPair(t, veth.Options{MTU: 4200})
		a, b := openEnd(t, &pair.A, Options{Mode: mode}), openEnd(t, &pair.B, Options{Mode: mode})
		short, long := packet{}.build(pattern(64,
			1)), packet{}.build(pattern(min(4096, a.Info().MTU-28), 2))
		var tx, rx [8]driver.Buf
		lost := 0
		allocs := testing.AllocsPerRun(200, func() {
			n := a.Alloc(tx[:])
			a.Free(tx[n-1 : n])
			n--
			for i := range n {
				f := short
				if i%2 == 1 {
					f = long
				}
				tx[i].B = tx[i].B[:copy(tx[i].B, f)]
			}
			if _, err := a.Send(tx[:n]); err != nil {
				t.Fatal(err)
			}
			b.Wake()
			for got := 0; got < n; {
				k := b.Receive(rx[:])
				b.Release(rx[:k])
				if got += k; k == 0 {
					if lost++; lost > 1000 {
						t.Fatal("no frames arrive")
					}
					b.Wait(time.Millisecond)
				}
			}
			b.Wait(0)
			a.Info()
		})
		if allocs != 0 {
			t.Errorf("%v: %v allocations per round, want 0", mode, allocs)
		}
	}
}

// Wait returns for a frame, for a Wake before or during it, and after the timeout.
func TestWait(t *testing.T) {
	pair := newPair(t, veth.Options{})
	a, b := openEnd(t, &pair.A, Options{}), openEnd(t, &pair.B, Options{})
	timed := func(d time.Duration) time.Duration {
		t.Helper()
		start := time.Now()
		if err := b.Wait(d); err != nil {
			t.Fatal(err)
		}
		return time.Since(start)
	}
	if d := timed(30 * time.Millisecond); d < 25*time.Millisecond {
		t.Errorf("Wait returned after %v without a reason", d)
	}
	b.Wake()
	if d := timed(5 * time.Second); d > time.Second {
		t.Errorf("Wake before Wait had no effect (%v)", d)
	}
	if d := timed(30 * time.Millisecond); d < 25*time.Millisecond {
		t.Errorf("one Wake ended two Waits (%v)", d)
	}
	time.AfterFunc(10*time.Millisecond, b.Wake)
	if d := timed(-1); d > 4*time.Second {
		t.Errorf("Wait took %v to return after Wake", d)
	}
	send(t, a, packet{}.build(nil))
	if d := timed(5 * time.Second); d > time.Second {
		t.Errorf("Wait took %v although a frame was there", d)
	}
	receive(t, b, 1, time.Second)
	time.AfterFunc(10*time.Millisecond, func() { send(t, a, packet{}.build(nil)) })
	if d := timed(5 * time.Second); d > 4*time.Second {
		t.Errorf("Wait took %v to return for a frame", d)
	}
}

// No wake-up is lost under many concurrent ones.
func TestWakeStorm(t *testing.T) {
	pair := newPair(t, veth.Options{})
	b := openEnd(t, &pair.B, Options{})
	const n = 5000
	token := make(chan struct{}, 1)
	go func() {
		for range n {
			token <- struct{}{}
			b.Wake()
		}
	}()
	for got := 0; got < n; {
		start := time.Now()
		select {
		case <-token:
			got++
			continue
		default:
		}
		b.Wait(5 * time.Second)
		if time.Since(start) > 4*time.Second {
			t.Fatalf("lost a wake-up after %d", got)
		}
	}
}

// Close from another goroutine ends a Wait. Frames that the owner holds remain readable until it
// releases them.
func TestCloseWhileInUse(t *testing.T) {
	pair := newPair(t, veth.Options{})
	a, b := openEnd(t, &pair.A, Options{}), openEnd(t, &pair.B, Options{})
	f := packet{}.build(pattern(100, 1))
	send(t, a, f, f)
	var rx, tx [2]driver.Buf
	for n := 0; n < 2; {
		n += b.Receive(rx[n:])
	}
	if n := b.Alloc(tx[:]); n != 2 {
		t.Fatal(n)
	}
	time.AfterFunc(20*time.Millisecond, func() { b.Close() })
	for {
		if err := b.Wait(-1); err != nil {
			if !errors.Is(err, ErrClosed) {
				t.Error(err)
			}
			break
		}
	}
	if err := b.Close(); err != nil { // returns after the first Close has finished
		t.Error(err)
	}
	if !bytes.Equal(rx[1].B, f) {
		t.Error("Close changed a frame in use")
	}
	tx[0].B[0] = 1
	b.Wake()
	if _, err := b.Send(tx[:1]); !errors.Is(err, ErrClosed) {
		t.Errorf("Send after Close: %v", err)
	}
	b.Free(tx[1:])
	b.Release(rx[:1])
	if b.queues[0].umem == nil {
		t.Fatal("memory was unmapped while a frame was in use")
	}
	b.Release(rx[1:])
	if b.queues[0].umem != nil {
		t.Error("memory is still mapped after all frames were returned")
	}
	if b.Receive(rx[:]) != 0 || b.Alloc(tx[:]) != 0 {
		t.Error("Alloc of a closed port returned buffers")
	}
	if s := b.Stats(); s.RxFrames != 2 {
		t.Errorf("Stats() = %+v", s)
	}
	b.Info()
}

// Close at any time does not crash a busy owner.
func TestCloseRace(t *testing.T) {
	pair := newPair(t, veth.Options{})
	a := openEnd(t, &pair.A, Options{})
	for i := range 10 {
		p, err := Open(pair.B.Iface, Options{NetNS: pair.B.Fd(), RingSize: 64})
		if err != nil {
			t.Fatal(err)
		}
		send(t, a, packet{}.build(nil), packet{}.build(nil))
		go func() {
			time.Sleep(time.Duration(i) * 100 * time.Microsecond)
			p.Close()
		}()
		var bufs [4]driver.Buf
		for p.Wait(0) == nil {
			n := p.Alloc(bufs[:])
			for k := range n {
				bufs[k].B = bufs[k].B[:60]
				clear(bufs[k].B)
			}
			p.Send(bufs[:n])
			n = p.Receive(bufs[:])
			p.Release(bufs[:n])
			runtime.Gosched()
		}
		p.Close()
		if p.queues[0].umem != nil {
			t.Fatal("memory is still mapped")
		}
	}
}
