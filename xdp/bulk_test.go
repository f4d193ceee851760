//go:build linux

package xdp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/xdp/veth"
	"golang.org/x/sys/unix"
)

// sendAll sends frames with one call of Send.
func sendAll(t *testing.T, p *Port, frames [][]byte) {
	t.Helper()
	bufs := make([]driver.Buf, len(frames))
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		n := p.Alloc(bufs)
		if n == len(bufs) {
			break
		}
		p.Free(bufs[:n])
		if time.Now().After(deadline) {
			t.Fatalf("%d send buffers, want %d", n, len(bufs))
		}
	}
	for i := range bufs {
		bufs[i].B = bufs[i].B[:copy(bufs[i].B, frames[i])]
	}
	if n, err := p.Send(bufs); n != len(frames) || err != nil {
		t.Fatalf("Send() = %d, %v; want %d", n, err, len(frames))
	}
}

// Long runs leave through a socket, and short ones through the ring. All packets arrive in order,
// at a port in generic mode as runs and at one in native mode one by one.
func TestBulk(t *testing.T) {
	for _, c := range []struct {
		name     string
		offloads bool
		mode     Mode
	}{{"runs", true, Generic}, {"cut by the kernel", false, Generic}, {"native", true, Native}} {
		for _, v6 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/v6=%v", c.name, v6), func(t *testing.T) {
				pair := newPair(t, veth.Options{MTU: 1500, Offloads: c.offloads})
				a := openEnd(t, &pair.A, Options{Mode: Generic, Runs: true})
				b := openEnd(t, &pair.B, Options{Mode: c.mode})
				testBulk(t, a, b, v6)
			})
		}
	}
}

func testBulk(t *testing.T, from, to *Port, v6 bool) {
	r, other := roce{v6: v6}, roce{v6: !v6}
	d, pkt := new(frame.Decoder), new(bth.Packet)
	psn := 0
	for round := range 40 {
		n, size := []int{64, 3, 20, 64, 40}[round%5], []int{1024, 1024, 1000, 0, 64}[round%5]
		frames := make([][]byte, n)
		for i := range frames {
			op := bth.RCWriteMiddle
			if size < 1024 {
				op = bth.RCWriteOnly
			}
			if i == n-1 {
				size /= 2 // the last one is shorter
			}
			frames[i], _ = r.packet(op, 17, psn, size, 60_000+psn)
			psn++
		}
		// A packet to another address does not change the order.
		foreign, _ := other.packet(bth.RCSendOnly, 18, 0, 8, 0)
		frames = append(frames[:2], append([][]byte{foreign}, frames[2:]...)...)
		before := from.stats
		sendAll(t, from, frames)
		if calls := from.stats.Kicks - before.Kicks; calls > 8 {
			t.Errorf("round %d: %d system calls for %d frames", round, calls, n)
		}
		got := receive(t, to, len(frames), 3*time.Second)
		if len(got) != len(frames) {
			t.Fatalf("round %d: received %d frames of %d (%+v)", round, len(got), len(frames),
				from.Stats())
		}
		next := psn - n
		for _, f := range got {
			if reason := d.Decode(f, pkt); reason != frame.ReasonOK {
				t.Fatalf("round %d: Decode() = %v", round, reason)
			}
			if pkt.BTH.DestQP() == 18 {
				continue
			}
			if pkt.BTH.PSN() != bth.PSN(next) {
				t.Fatalf("round %d: PSN %v, want %v", round, pkt.BTH.PSN(), bth.PSN(next))
			}
			next++
			if want := pattern(len(pkt.Payload), next-1); !bytes.Equal(pkt.Payload, want) {
				t.Fatalf("round %d: wrong payload of %d bytes", round, len(pkt.Payload))
			}
			if ring := pkt.SrcPort == bth.Port; ring != (n == 3) {
				t.Fatalf("round %d, run of %d: source port %d", round, n, pkt.SrcPort)
			}
		}
	}
	if s := from.Stats(); s.TxDropped != 0 {
		t.Errorf("TxDropped = %d, want 0", s.TxDropped)
	}
}

// Short packets before, in and after a long run keep their place.
func TestBulkOrder(t *testing.T) {
	pair := newPair(t, veth.Options{MTU: 1500, Offloads: true})
	a := openEnd(t, &pair.A, Options{Mode: Generic, Runs: true})
	b := openEnd(t, &pair.B, Options{Mode: Generic})
	d, pkt := new(frame.Decoder), new(bth.Packet)
	for _, v6 := range []bool{false, true} {
		frames := make([][]byte, 30)
		for psn := range frames {
			op, size := bth.RCWriteMiddle, 1024
			if psn == 0 || psn == 12 || psn == len(frames)-1 {
				op, size = bth.RCSendOnly, 8
			}
			frames[psn], _ = roce{v6: v6}.packet(op, 17, psn, size, 0)
		}
		runs := a.stats.TxRuns
		sendAll(t, a, frames)
		if a.stats.TxRuns == runs {
			t.Errorf("v6=%v: no run was sent", v6)
		}
		got := receive(t, b, len(frames), 3*time.Second)
		if len(got) != len(frames) {
			t.Fatalf("v6=%v: received %d frames of %d", v6, len(got), len(frames))
		}
		for psn, f := range got {
			if reason := d.Decode(f, pkt); reason != frame.ReasonOK ||
				pkt.BTH.PSN() != bth.PSN(psn) {
				t.Fatalf("v6=%v: frame %d: Decode() = %v, PSN %v", v6, psn, reason, pkt.BTH.PSN())
			}
		}
	}
}

// If a firewall refuses the packets of the socket, the port says why, and all frames arrive through
// the ring, in order. The firewall needs Linux 6.4.
func TestBulkRefused(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		t.Run(fmt.Sprintf("v6=%v", v6), func(t *testing.T) {
			pair := newPair(t, veth.Options{MTU: 1500, Offloads: true})
			a := openEnd(t, &pair.A, Options{Mode: Generic, Runs: true})
			b := openEnd(t, &pair.B, Options{Mode: Generic})
			undo, err := pair.A.Refuse()
			if errors.Is(err, veth.ErrUnsupported) {
				t.Skip(err)
			}
			if err != nil {
				t.Fatal(err)
			}
			testBulkRefused(t, a, b, v6)
			if note := a.Info().Note; !strings.Contains(note, unix.EPERM.Error()) {
				t.Errorf("Info().Note = %q, want the error %q", note, unix.EPERM)
			}
			if err := undo(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func testBulkRefused(t *testing.T, a, b *Port, v6 bool) {
	d, pkt := new(frame.Decoder), new(bth.Packet)
	psn := 0
	for round := range 5 {
		frames := make([][]byte, 60) // more than a run
		for i := range frames {
			op, size := bth.RCWriteMiddle, 1024
			if i == 30 { // between two runs
				op, size = bth.RCSendOnly, 8
			}
			frames[i], _ = roce{v6: v6}.packet(op, 17, psn+i, size, 60_000+i)
		}
		sendAll(t, a, frames)
		got := receive(t, b, len(frames), 3*time.Second)
		if len(got) != len(frames) {
			t.Fatalf("round %d: received %d frames of %d", round, len(got), len(frames))
		}
		for _, f := range got {
			if reason := d.Decode(f, pkt); reason != frame.ReasonOK {
				t.Fatalf("round %d: Decode() = %v", round, reason)
			}
			if pkt.BTH.PSN() != bth.PSN(psn) {
				t.Fatalf("round %d: PSN %v, want %v", round, pkt.BTH.PSN(), psn)
			}
			psn++
		}
	}
	if s := a.Stats(); s.TxDropped != 0 || s.TxRuns != 0 {
		t.Errorf("Stats() = %+v, want no dropped packets and no runs", s)
	}
}

func TestBulkDoesNotAllocate(t *testing.T) {
	pair := newPair(t, veth.Options{MTU: 1500, Offloads: true})
	a := openEnd(t, &pair.A, Options{Mode: Generic, Runs: true})
	openEnd(t, &pair.B, Options{Mode: Generic})
	bufs := make([]driver.Buf, 32)
	f, length := roce{}.packet(bth.RCWriteMiddle, 17, 0, 1024, 0)
	psn := uint32(0)
	if n := testing.AllocsPerRun(50, func() {
		n := a.Alloc(bufs)
		for i := range bufs[:n] {
			bufs[i].B = bufs[i].B[:copy(bufs[i].B, f)]
			binary.BigEndian.PutUint32(bufs[i].B[len(f)-length+8:], psn)
			psn++
		}
		before := a.stats.Kicks
		if _, err := a.Send(bufs[:n]); err != nil {
			t.Fatal(err)
		}
		if a.stats.Kicks-before != 1 {
			t.Errorf("%d system calls", a.stats.Kicks-before)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
