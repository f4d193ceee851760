//go:build linux

package xdp

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/xdp/veth"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ringQueue returns a queue whose kernel side is the caller: it completes descriptors by adding to
// comp.producer.
func ringQueue(size int, start uint32) *queue {
	q := &queue{}
	tx, _ := twoSides(size, start)
	comp, _ := twoSides(2*size, start)
	q.tx = ring[unix.XDPDesc]{producer: tx.producer, consumer: tx.consumer, flags: tx.flags,
		slots: make([]unix.XDPDesc, size), mask: uint32(size - 1), own: start, seen: start}
	q.comp = *comp
	return q
}

// The sum follows random sends and completions, also if the backlog is rarely looked at and the
// ring wraps.
func TestOutstanding(t *testing.T) {
	const size = 16
	r := rand.New(rand.NewPCG(1, 2))
	for _, start := range []uint32{0, math.MaxUint32 - 100} {
		q := ringQueue(size, start)
		q.backlog.from, q.backlog.to = start, start
		var lengths []int
		total := 0
		for range 20_000 {
			for range r.IntN(size + 1 - len(lengths)) {
				n := 60 + r.IntN(4000)
				q.tx.put(unix.XDPDesc{Len: uint32(n)})
				lengths = append(lengths, n)
				total += n
			}
			if r.IntN(4) == 0 {
				if n := q.outstanding(); n != total {
					t.Fatalf("outstanding() = %d, want %d in %d descriptors", n, total,
						len(lengths))
				}
			}
			for range r.IntN(len(lengths) + 1) {
				q.comp.producer.Add(1)
				total -= lengths[0]
				lengths = lengths[1:]
			}
		}
	}
}

// Numbers that cannot be right do not block the sender.
func TestOutstandingWithMiscount(t *testing.T) {
	q := ringQueue(16, 0)
	q.tx.put(unix.XDPDesc{Len: 100})
	q.comp.producer.Store(2)
	if n := q.outstanding(); n != 0 {
		t.Errorf("outstanding() = %d after more completions than descriptors, want 0", n)
	}
}

// With more descriptors than the transmit ring has slots, the sum is right again when they fit.
func TestOutstandingBeyondRing(t *testing.T) {
	q := ringQueue(16, 0)
	for range 20 {
		q.tx.put(unix.XDPDesc{Len: 100})
		q.outstanding()
	}
	q.comp.producer.Store(15)
	if n := q.outstanding(); n != 500 {
		t.Errorf("outstanding() = %d with 5 descriptors, want 500", n)
	}
	q.comp.producer.Store(20)
	if n := q.outstanding(); n != 0 {
		t.Errorf("outstanding() = %d with 0 descriptors, want 0", n)
	}
}

// On a veth pair, frames are completed when the peer's kernel has processed them.
func TestBacklogDrains(t *testing.T) {
	pair := newPair(t, veth.Options{})
	a, b := openEnd(t, &pair.A, Options{}), openEnd(t, &pair.B, Options{})
	frame := packet{}.build(pattern(1000, 1))
	for range 100 {
		exchange(t, a, b, frame)
	}
	send(t, a, slices.Repeat([][]byte{frame}, 32)...)
	if !drains(a) {
		t.Error("the backlog does not drain")
	}
	if testing.AllocsPerRun(100, func() { a.Backlog() }) != 0 {
		t.Error("Backlog allocates")
	}
	a.Close()
	if n, rate := a.Backlog(); n != 0 || rate != 0 {
		t.Errorf("Backlog() = %d, %d of a closed Port, want 0, 0", n, rate)
	}
}

// While the interface is down, the frames that are stuck are not counted, so that the owner notices
// by sending.
func TestBacklogWhileDown(t *testing.T) {
	pair := newPair(t, veth.Options{})
	a := openEnd(t, &pair.A, Options{})
	onLink(t, &pair.A, netlink.LinkSetDown)
	await(t, a, "down", func() bool { return !a.Info().Up })
	var bufs [4]driver.Buf
	for range 2 {
		for i := range bufs[:a.Alloc(bufs[:])] {
			bufs[i].B = bufs[i].B[:copy(bufs[i].B, packet{}.build([]byte("stale")))]
		}
		_, _ = a.Send(bufs[:])
		if n, _ := a.Backlog(); n != 0 {
			t.Errorf("Backlog() = %d while the interface is down, want 0", n)
		}
	}
	onLink(t, &pair.A, netlink.LinkSetUp)
	await(t, a, "up", func() bool { return a.Info().Up })
	send(t, a, packet{}.build([]byte("fresh")))
	if !drains(a) {
		t.Error("the backlog does not drain after the interface is up again")
	}
}

// A queueing discipline below the interface holds frames back, and Backlog counts them: AF_XDP on a
// macvlan device sends through the queue of the lower device.
func TestBacklogOfQueueingDiscipline(t *testing.T) {
	needRoot(t)
	pair, err := veth.New(veth.Options{Rate: 8e6})
	if errors.Is(err, veth.ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pair.Close() })
	a := openEnd(t, &pair.A, Options{})
	frame := packet{}.build(pattern(1000-42, 1))
	const count = 20
	send(t, a, slices.Repeat([][]byte{frame}, count)...)
	n, _ := a.Backlog()
	if n > count*len(frame) || n < count*len(frame)/2 {
		t.Errorf("Backlog() = %d just after %d bytes were sent at 1 byte per us, want most of them",
			n, count*len(frame))
	}
	last, steps := n, 0
	for deadline := time.Now().Add(5 * time.Second); last > 0 && time.Now().Before(deadline); {
		if n, _ := a.Backlog(); n < last {
			last = n
			steps++
		} else if n > last {
			t.Fatalf("Backlog() grows from %d to %d", last, n)
		}
		time.Sleep(100 * time.Microsecond)
	}
	if last > 0 || steps < count/4 {
		t.Errorf("Backlog() shrinks in %d steps to %d, want several steps to 0", steps, last)
	}
}

// drains waits until the backlog is 0.
func drains(p *Port) bool {
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); {
		if n, _ := p.Backlog(); n == 0 {
			return true
		}
		time.Sleep(100 * time.Microsecond)
	}
	return false
}
