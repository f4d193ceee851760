//go:build linux

package xdp

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/xdp/veth"
)

// sendJoined sends two messages with one call of Send, each a frame and a run of n packets behind
// it. The PSNs begin with psn. It returns the number of packets.
func sendJoined(t *testing.T, p *Port, r roce, psn, n int) int {
	t.Helper()
	var bufs [4]driver.Buf
	if got := p.Alloc(bufs[:]); got != len(bufs) {
		t.Fatalf("Alloc() = %d, want %d", got, len(bufs))
	}
	for i := 0; i < len(bufs); i += 2 {
		first, _ := r.packet(bth.RCWriteFirst, 17, psn, 1024, 60_000)
		bufs[i].B = bufs[i].B[:copy(bufs[i].B, first)]
		run := &bufs[i+1]
		run.B, run.Token = nil, run.Token|driver.NoHeaders
		for k := range n {
			f, length := r.packet(bth.RCWriteMiddle, 17, psn+1+k, 1024, k)
			run.B = append(run.B, f[len(f)-length:]...)
			run.Size = length
		}
		psn += 1 + n
	}
	packets := 2 * (1 + n)
	if got, err := p.Send(bufs[:]); got != packets || err != nil {
		t.Fatalf("Send() = %d, %v; want %d", got, err, packets)
	}
	return packets
}

// expectPSNs receives packets with consecutive PSNs from psn on.
func expectPSNs(t *testing.T, p *Port, psn, n int) {
	t.Helper()
	d, pkt := new(frame.Decoder), new(bth.Packet)
	got := receive(t, p, n, 3*time.Second)
	if len(got) != n {
		t.Fatalf("received %d frames of %d", len(got), n)
	}
	for _, f := range got {
		if reason := d.Decode(f, pkt); reason != frame.ReasonOK || pkt.BTH.PSN() != bth.PSN(psn) {
			t.Fatalf("Decode() = %v, PSN %v, want %d", reason, pkt.BTH.PSN(), psn)
		}
		psn++
	}
}

// sendFrames sends a long run of frames, so that the port accepts runs afterwards.
func sendFrames(t *testing.T, from, to *Port, r roce, psn int) int {
	t.Helper()
	frames := make([][]byte, 40)
	for i := range frames {
		frames[i], _ = r.packet(bth.RCWriteMiddle, 17, psn+i, 1024, 0)
	}
	sendAll(t, from, frames)
	expectPSNs(t, to, psn, len(frames))
	return len(frames)
}

// Runs are accepted after a long run of frames, and arrive in order. They are not accepted while
// the owner wants to know the backlog.
func TestSendRuns(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		pair := newPair(t, veth.Options{MTU: 1500, Offloads: true})
		a := openEnd(t, &pair.A, Options{Mode: Generic, Runs: true})
		b := openEnd(t, &pair.B, Options{Mode: Generic})
		r := roce{v6: v6}
		if n := a.LeastRun(); n != 0 {
			t.Errorf("LeastRun() = %d at first, want 0", n)
		}
		psn := sendFrames(t, a, b, r, 0)
		if n := a.LeastRun(); n != bulkBytes {
			t.Errorf("LeastRun() = %d, want %d", n, bulkBytes)
		}
		before := a.Stats()
		n := 0
		for range 3 {
			n += sendJoined(t, a, r, psn+n, 40)
			expectPSNs(t, b, psn+n-82, 82)
		}
		after := a.Stats()
		if after.TxFrames-before.TxFrames != uint64(n) || after.TxDropped != 0 ||
			after.TxRuns == before.TxRuns || after.Kicks-before.Kicks > 6 {
			t.Errorf("statistics before %+v, after %d packets %+v", before, n, after)
		}
		free := len(a.queues[0].txFree)
		if _, _ = a.Backlog(); a.LeastRun() != 0 {
			t.Error("LeastRun() is not 0 after Backlog")
		}
		sendFrames(t, a, b, r, psn+n)
		if sendFrames(t, a, b, r, psn+n+40); a.LeastRun() == 0 {
			t.Error("LeastRun() is 0 again although nobody asks for the backlog")
		}
		a.queues[0].reap()
		if got := len(a.queues[0].txFree); got < free {
			t.Errorf("%d free buffers, want at least %d", got, free)
		}
	}
}

// The packets of a run that the kernel refuses arrive through the ring, and so do those of runs
// that are sent during the pause.
func TestRefusedRuns(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		t.Run(fmt.Sprintf("v6=%v", v6), func(t *testing.T) {
			pair := newPair(t, veth.Options{MTU: 1500, Offloads: true})
			a := openEnd(t, &pair.A, Options{Mode: Generic, Runs: true})
			b := openEnd(t, &pair.B, Options{Mode: Generic})
			r := roce{v6: v6}
			psn := sendFrames(t, a, b, r, 0)
			undo, err := pair.A.Refuse()
			if errors.Is(err, veth.ErrUnsupported) {
				t.Skip(err)
			}
			if err != nil {
				t.Fatal(err)
			}
			for range 3 {
				n := sendJoined(t, a, r, psn, 40)
				expectPSNs(t, b, psn, n)
				psn += n
				if n := a.LeastRun(); n != 0 {
					t.Errorf("LeastRun() = %d after a refusal, want 0", n)
				}
				a.bulk.open = true // as if another peer had got a run
			}
			if s := a.Stats(); s.TxDropped != 0 {
				t.Errorf("%d packets dropped", s.TxDropped)
			}
			if err := undo(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// A port accepts no runs while it has too few buffers for the packets of one that is refused.
func TestRunsNeedBuffers(t *testing.T) {
	pair := newPair(t, veth.Options{MTU: 1500, Offloads: true})
	a := openEnd(t, &pair.A, Options{Mode: Generic, Runs: true})
	b := openEnd(t, &pair.B, Options{Mode: Generic})
	sendFrames(t, a, b, roce{}, 0)
	a.LeastRun() // reaps
	bufs := make([]driver.Buf, len(a.queues[0].txFree)-maxRun)
	a.Alloc(bufs)
	if n := a.LeastRun(); n == 0 {
		t.Errorf("LeastRun() = 0 with %d buffers", len(a.queues[0].txFree))
	}
	a.Alloc(bufs[:1])
	if n := a.LeastRun(); n != 0 {
		t.Errorf("LeastRun() = %d with %d buffers, want 0", n, len(a.queues[0].txFree))
	}
}

func TestSendRunsDoesNotAllocate(t *testing.T) {
	pair := newPair(t, veth.Options{MTU: 1500, Offloads: true})
	a := openEnd(t, &pair.A, Options{Mode: Generic, Runs: true})
	b := openEnd(t, &pair.B, Options{Mode: Generic})
	sendFrames(t, a, b, roce{}, 0)
	first, length := roce{}.packet(bth.RCWriteMiddle, 17, 0, 1024, 0)
	memory := make([]byte, 40*length)
	var bufs [2]driver.Buf
	if n := testing.AllocsPerRun(50, func() {
		if a.Alloc(bufs[:]) != len(bufs) {
			t.Fatal("no buffers")
		}
		bufs[0].B = bufs[0].B[:copy(bufs[0].B, first)]
		bufs[1].B, bufs[1].Size = memory, length
		bufs[1].Token |= driver.NoHeaders
		if _, err := a.Send(bufs[:]); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
