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

// 2000 frames sent while the receiver does not look are all there afterwards.
func TestBurstArrivesComplete(t *testing.T) {
	for _, mode := range modesToTest {
		t.Run(mode.String(), func(t *testing.T) {
			pair := newPair(t, veth.Options{})
			a, b := openEnd(t, &pair.A, Options{Mode: mode}), openEnd(t, &pair.B, Options{Mode: mode, Chunks: 2048})
			frames := make([][]byte, 2000)
			for i := range frames {
				frames[i] = packet{}.build(pattern(64, i))
			}
			for range 3 {
				if mode == Generic {
					exchange(t, a, b, frames...)
					continue
				}
				// A native veth hands over through a ring of 256 that its NAPI empties on the sender's core, but now and then
				// later, from a thread of the kernel's: what does not fit is dropped and reported. None may vanish unreported.
				sent := sendCounting(t, a, frames)
				if got := receive(t, b, len(frames), 300*time.Millisecond); len(got) != sent {
					t.Errorf("%d sent, %d arrived (%+v)", sent, len(got), b.Stats())
				}
			}
		})
	}
}

// sendCounting sends frames and returns how many the port says went out.
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

// No buffer gets lost over many times as many frames as there are buffers: long, short, too long, refused and freed.
func TestBuffersGoRound(t *testing.T) {
	for _, mode := range modesFor(12000) {
		t.Run(mode.String(), func(t *testing.T) {
			pair := newPair(t, veth.Options{MTU: 12000})
			small := Options{Mode: mode, RingSize: 64}
			a, b := openEnd(t, &pair.A, small), openEnd(t, &pair.B, small)
			long, short := packet{}.build(pattern(a.Info().MTU-28, 1)), packet{}.build(pattern(10, 2))
			for range 50 {
				exchange(t, a, b, long, short, short, long, short)
				sendUDP(t, &pair.A, "10.77.0.2:4791", make([]byte, 11000)) // three chunks
				if got := receive(t, b, 1, 0); len(got) != 0 {
					t.Fatalf("a frame of %d bytes arrived, more than a buffer holds", len(got[0]))
				}
				var bufs [64]driver.Buf
				n := a.Alloc(bufs[:])
				a.Free(bufs[:n/2])
				for i := n / 2; i < n; i++ {
					bufs[i].B = bufs[i].B[:i%2] // no frame at all
				}
				if sent, err := a.Send(bufs[n/2 : n]); sent != 0 || err != nil {
					t.Fatalf("sent %d, %v", sent, err)
				}
			}
			if s := b.Stats(); s.RxDropped == 0 {
				t.Errorf("frames too long were not counted: %+v", s)
			}
			var bufs [100]driver.Buf
			if n := a.Alloc(bufs[:]); n != 64 {
				t.Errorf("%d transmit buffers are left of 64", n)
			}
			q := b.queues[0]
			if n := q.fill.queued(); n != 64 {
				t.Errorf("the kernel has %d receive buffers of 64", n)
			}
		})
	}
}

// Frames that the receiver's rings have no room for are counted.
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
	if s := b.Stats(); len(got) != 64 || s.RxDropped != 36 || s.RxFrames != 64 || s.RxBytes != uint64(64*len(f)) {
		t.Errorf("%d arrived, %+v", len(got), s)
	}
	if s := a.Stats(); s.TxFrames != 100 || s.TxBytes != uint64(100*len(f)) || s.TxDropped != 0 || s.Kicks == 0 {
		t.Errorf("%+v", s)
	}
	exchange(t, a, b, frames[:64]...) // and it goes on
}

// A frame that the peer's MTU forbids is dropped and reported; the rest of its batch goes out.
func TestPeerWithSmallerMTU(t *testing.T) {
	pair := newPair(t, veth.Options{MTU: 4200})
	a, b := openEnd(t, &pair.A, Options{}), openEnd(t, &pair.B, Options{})
	onLink(t, &pair.B, func(l netlink.Link) error { return netlink.LinkSetMTU(l, 1500) })
	await(t, b, "MTU", func() bool { return b.Info().MTU == 1500 })
	frames := [][]byte{packet{}.build(pattern(100, 1)), packet{}.build(pattern(4000, 2)), packet{}.build(pattern(200, 3))}
	if sent := sendCounting(t, a, frames); sent != 2 || a.Stats().TxDropped != 1 {
		t.Errorf("%d of 3 sent, %+v", sent, a.Stats())
	}
	got := receive(t, b, 2, time.Second)
	if len(got) != 2 || !bytes.Equal(got[0], frames[0]) || !bytes.Equal(got[1], frames[2]) {
		t.Errorf("%d frames arrived", len(got))
	}
}

// The data path allocates nothing.
func TestNoAllocations(t *testing.T) {
	for _, mode := range modesFor(4200) {
		pair := newPair(t, veth.Options{MTU: 4200})
		a, b := openEnd(t, &pair.A, Options{Mode: mode}), openEnd(t, &pair.B, Options{Mode: mode})
		short, long := packet{}.build(pattern(64, 1)), packet{}.build(pattern(min(4096, a.Info().MTU-28), 2))
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
						t.Fatal("frames do not arrive")
					}
					b.Wait(time.Millisecond)
				}
			}
			b.Wait(0)
			a.Info()
		})
		if allocs != 0 {
			t.Errorf("%v: %v allocations a round", mode, allocs)
		}
	}
}

// Wait returns for a frame, for Wake before or during it, and when its time is up.
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
		t.Errorf("returned after %v for no reason", d)
	}
	b.Wake()
	if d := timed(5 * time.Second); d > time.Second {
		t.Errorf("a Wake beforehand was lost (%v)", d)
	}
	if d := timed(30 * time.Millisecond); d < 25*time.Millisecond {
		t.Errorf("one Wake ended two Waits (%v)", d)
	}
	time.AfterFunc(10*time.Millisecond, b.Wake)
	if d := timed(-1); d > 4*time.Second {
		t.Errorf("Wake took %v", d)
	}
	send(t, a, packet{}.build(nil))
	if d := timed(5 * time.Second); d > time.Second {
		t.Errorf("a frame was there and Wait took %v", d)
	}
	receive(t, b, 1, time.Second)
	time.AfterFunc(10*time.Millisecond, func() { send(t, a, packet{}.build(nil)) })
	if d := timed(5 * time.Second); d > 4*time.Second {
		t.Errorf("a frame took %v", d)
	}
}

// No wake-up gets lost in a storm of them.
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
			t.Fatalf("wake-up lost after %d", got)
		}
	}
}

// Close from another goroutine ends a Wait. The frames in the owner's hands stay readable until it gives them
// back; every call afterwards is harmless.
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
	if err := b.Close(); err != nil { // returns when the first Close is through
		t.Error(err)
	}
	if !bytes.Equal(rx[1].B, f) {
		t.Error("a frame changed under Close")
	}
	tx[0].B[0] = 1
	b.Wake()
	if _, err := b.Send(tx[:1]); !errors.Is(err, ErrClosed) {
		t.Errorf("Send: %v", err)
	}
	b.Free(tx[1:])
	b.Release(rx[:1])
	if b.queues[0].umem == nil {
		t.Fatal("memory is gone though a frame is still out")
	}
	b.Release(rx[1:])
	if b.queues[0].umem != nil {
		t.Error("memory is still mapped though all frames are back")
	}
	if b.Receive(rx[:]) != 0 || b.Alloc(tx[:]) != 0 {
		t.Error("a closed port hands out buffers")
	}
	if s := b.Stats(); s.RxFrames != 2 {
		t.Errorf("%+v", s)
	}
	b.Info()
}

// Close against an owner that never stops: no crash, whatever the moment.
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
