package roce

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"

	"github.com/gorxe/gorxe/loopback"
)

// Stats describes a connection over a lossy link.
func TestQPStats(t *testing.T) {
	a, b := newRig(t, rigConfig{link: loopback.Config{Seed: 1, Plan: loopback.Plan{Loss: 0.1}},
		opts: []Option{WithSelectiveRepeat(true), WithCongestionControl(CongestionDCQCN)}})
	const size = 32 << 10
	var s QPStats
	for i := 0; s.Retransmits == 0; i++ {
		if i == 100 {
			t.Fatalf("no retransmission after %d WRITEs of 32 KiB: %+v", i, s)
		}
		must(t, a.qp.PostSend(SendWR{Op: OpWrite, Flags: Signaled, SGEs: []SGE{a.mr.SGE(0, size)},
			RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}))
		pollOK(t, 0, WCWrite, a.cq)
		var err error
		s, err = a.qp.Stats()
		must(t, err)
	}
	if !s.SelectiveRepeat || s.Congestion != CongestionDCQCN || s.RTT <= 0 || s.RTTVar <= 0 ||
		s.Window == 0 || s.InFlight != 0 {
		t.Errorf("Stats() = %+v", s)
	}
	if n := a.Counters().Get("retransmits"); n != s.Retransmits {
		t.Errorf("the device counts %d retransmissions, its only QP %d", n, s.Retransmits)
	}
	if s.QPN != a.qp.QPN() || s.Remote != b.qp.Local().GID {
		t.Errorf("Stats() of QP %v to %v, want %v to %v", s.QPN, s.Remote, a.qp.QPN(),
			b.qp.Local().GID)
	}
	text, err := json.Marshal(s)
	must(t, err)
	var m map[string]any
	must(t, json.Unmarshal(text, &m))
	if m["congestion"] != "dcqcn" || m["selective_repeat"] != true ||
		m["retransmits"] != float64(s.Retransmits) {
		t.Errorf("JSON %s", text)
	}
	var got QPStats
	must(t, json.Unmarshal(text, &got))
	if got != s {
		t.Errorf("from JSON: %+v, want %+v", got, s)
	}
}

// Device.QPStats has the connected QPs.
func TestDeviceQPStats(t *testing.T) {
	a, b := newRig(t, rigConfig{})
	want := []QPN{a.qp.QPN()}
	for i := range 2 * statsBatch {
		q, err := a.CreateQP(a.pd, QPConfig{Type: QPType(i % 3), SendCQ: a.cq, SendDepth: 1,
			RecvDepth: 1})
		must(t, err)
		if i%4 == 0 && q.Type() != UD { // others are not connected
			must(t, q.Connect(within(t), b.qp.Local(), ConnectOptions{}))
			want = append(want, q.QPN())
		}
	}
	slices.Sort(want)
	var got []QPN
	for _, s := range a.QPStats() {
		got = append(got, s.QPN)
	}
	if !slices.Equal(got, want) {
		t.Errorf("QPStats() of %v, want %v", got, want)
	}
	must(t, a.qp.Close())
	if n := len(a.QPStats()); n != len(want)-1 {
		t.Errorf("QPStats() returns %d QPs after Close, want %d", n, len(want)-1)
	}
}

// Stats of QPs without acknowledgments has what was sent and what failed.
func TestUnreliableQPStats(t *testing.T) {
	a, b := newRig(t, rigConfig{typ: UC})
	const writes, size = 5, 8 << 10
	for range writes {
		must(t, a.qp.PostSend(SendWR{Op: OpWrite, Flags: Signaled, SGEs: []SGE{a.mr.SGE(0, size)},
			RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}))
		pollOK(t, 0, WCWrite, a.cq)
	}
	must(t, a.qp.PostRecv(RecvWR{}, RecvWR{}))
	must(t, a.qp.Cancel())
	got, err := a.qp.Stats()
	must(t, err)
	const packets = writes * size / 4096
	if want := (QPStats{QPN: a.qp.QPN(), Remote: b.qp.Local().GID, Requested: packets,
		Acked: packets, SentBytes: writes * size, Metered: true, Flushed: 2}); got != want {
		t.Errorf("UC: Stats() = %+v, want %+v", got, want)
	}
	d, _ := newRig(t, rigConfig{typ: UD})
	got, err = d.qp.Stats()
	must(t, err)
	if want := (QPStats{QPN: d.qp.QPN(), Metered: true}); got != want {
		t.Errorf("UD: Stats() = %+v, want %+v", got, want)
	}
}

func TestQPStatsErrors(t *testing.T) {
	a, _ := newRig(t, rigConfig{})
	must(t, a.qp.Close())
	if _, err := a.qp.Stats(); !errors.Is(err, ErrClosed) {
		t.Errorf("Stats() of a closed QP = %v, want ErrClosed", err)
	}
	_, err := New(newLink(t, loopback.Config{}).Port(0),
		WithExpert(Expert{MaxReorderMemory: -1}))
	if !errors.Is(err, ErrInvalid) {
		t.Errorf("New() with MaxReorderMemory -1 = %v, want ErrInvalid", err)
	}
}

// With one QP on a device, its counts are those of the device, with both methods of recovery.
func TestQPStatsCount(t *testing.T) {
	for _, selective := range []bool{false, true} {
		a, b := newRig(t, rigConfig{
			link: loopback.Config{Seed: 3, Plan: loopback.Plan{Loss: 0.05, Duplicate: 0.05}},
			opts: []Option{WithSelectiveRepeat(selective)}})
		const writes, size = 40, 32 << 10
		must(t, a.qp.PostSend(SendWR{ID: 9, Op: OpSend, Flags: Signaled})) // no receive yet
		eventually(t, "an RNR NAK", func() bool { return a.Counters().RcvdRNR > 0 })
		must(t, b.qp.PostRecv(RecvWR{}))
		pollOK(t, 9, WCSend, a.cq)
		for range writes {
			must(t, a.qp.PostSend(SendWR{Op: OpWrite, Flags: Signaled,
				SGEs: []SGE{a.mr.SGE(0, size)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}))
			pollOK(t, 0, WCWrite, a.cq)
		}
		const packets = 1 + writes*size/4096
		for _, e := range []*end{a, b} {
			s, err := e.qp.Stats()
			must(t, err)
			c := e.Counters()
			got := []uint64{s.Duplicates, s.OutOfSeq, s.SentRNR, s.RcvdRNR, s.SentSeqNAK,
				s.RcvdSeqNAK, s.Timeouts}
			want := []uint64{c.DuplicateRequest, c.OutOfSeqRequest, c.SentRNR, c.RcvdRNR,
				c.SentSeqNAK, c.RcvdSeqNAK, c.AckTimeouts}
			if !slices.Equal(got, want) {
				t.Errorf("counts of the QP: %d, of the device: %d", got, want)
			}
			if s.SentBytes != c.SentBytes || e == a && s.SentBytes < writes*size ||
				e == b && s.RcvdBytes < writes*size {
				t.Errorf("the QP has sent %d bytes, received %d; the device sent %d", s.SentBytes,
					s.RcvdBytes, c.SentBytes)
			}
			if e == a && (s.Requested != packets || s.Acked != packets || s.Accepted != 0 ||
				s.RcvdRNR == 0) {
				t.Errorf("sender: %+v, want %d packets", s, packets)
			}
			if e == b && (s.Requested != 0 || s.Accepted != packets || s.SentRNR == 0 ||
				s.Duplicates == 0 || s.OutOfSeq == 0) {
				t.Errorf("receiver: %+v, want %d packets", s, packets)
			}
			if s.Errors != 0 || s.Flushed != 0 || s.Cause != Success {
				t.Errorf("failed completions: %+v", s)
			}
		}
	}
	a, b := newRig(t, rigConfig{})
	bad := SendWR{Op: OpWrite, SGEs: []SGE{a.mr.SGE(0, 8)}, RemoteAddr: b.mr.Addr(), RKey: 1}
	must(t, a.qp.PostRecv(RecvWR{}, RecvWR{}))
	must(t, a.qp.PostSend(bad))
	poll(t, 3, a.cq, b.cq)
	s, err := a.qp.Stats()
	must(t, err)
	if s.Errors != 1 || s.Flushed != 2 || s.Cause != RemAccessErr {
		t.Errorf("%d errors, %d flushed, cause %v; want 1, 2, %v", s.Errors, s.Flushed, s.Cause,
			RemAccessErr)
	}
}
