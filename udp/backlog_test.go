package udp_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/udp"
)

// While frames wait in a queue of the kernel, the port reports them as its backlog.
func TestBacklog(t *testing.T) {
	p := open(t, testbed.Config{UDP: true, Veth: true, MTU: 4200, Rate: 2_000_000})
	a := addrs(t, p, netip.Addr.Is4)
	from, to := p.Port[0].(*udp.Port), p.Port[1]
	path := frame.Address{Src: a[0], Dst: a[1], HopLimit: 64}
	const size, frames = 1000, 40
	const length = size + 58 // with all headers and the ICRC
	start := time.Now()
	for range frames {
		send(t, from, &path, size)
	}
	received := 0
	if n, _ := from.Backlog(); n < frames*length/4 && time.Since(start) < 50*time.Millisecond {
		t.Errorf("Backlog() = %d after %d bytes were sent at 2 Mb/s, want at least a quarter", n,
			frames*length)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		left := (frames - received) * length
		n, _ := from.Backlog()
		if n > left+left/4+length { // the kernel reports memory instead of lengths
			t.Fatalf("Backlog() = %d, want at most %d after %d frames were received", n, left, received)
		}
		received += drain(to)
		if n == 0 && received == frames {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("Backlog() = %d, and %d of %d frames were received", n, received, frames)
		}
	}
	if testing.AllocsPerRun(100, func() { from.Backlog() }) != 0 {
		t.Error("Backlog allocates")
	}
}

// drain receives all frames that have arrived, and returns their number.
func drain(p driver.Port) (n int) {
	var bufs [16]driver.Buf
	for {
		got := p.Receive(bufs[:])
		if got == 0 {
			return n
		}
		p.Release(bufs[:got])
		n += got
	}
}
