package packetfuzz

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/fuzz/packets"
	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/internal/endpoint"
	"github.com/gorxe/gorxe/internal/rping"
	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

// host is a device with an rping server, and a port from which it is attacked.
type host struct {
	*testbed.Ports
	dev *roce.Device
	l   *roce.Listener
}

func newHost(t *testing.T) *host {
	t.Helper()
	p, err := testbed.OpenPorts(testbed.Config{})
	if err != nil {
		t.Fatal(err)
	}
	dev, err := roce.New(p.Port[0])
	if err != nil {
		t.Fatal(err)
	}
	s := &rping.Server{Dev: dev}
	l, err := s.Listen(rping.DefaultPort)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(ctx, l) // ends with an error when ctx is canceled
	}()
	t.Cleanup(func() {
		cancel()
		l.Close()
		<-done
		if err := errors.Join(dev.Close(), p.Close()); err != nil {
			t.Error(err)
		}
	})
	return &host{p, dev, l}
}

func (h *host) addr() netip.Addr {
	for _, g := range h.dev.GIDs() {
		if g.Kind == roce.GIDIPv4 {
			return g.Addr
		}
	}
	return netip.Addr{}
}

func (h *host) config() Config {
	return Config{Port: h.Port[1], Target: h.addr(), GID: device.AnyGID, Seed: 1, Count: 300,
		Rate: 100000, CheckEvery: 150}
}

// gorxe serves an honest peer during all cases. The cases reach its queue pairs: it refuses some
// packets, and connections end.
func TestRun(t *testing.T) {
	h := newHost(t)
	c := h.config()
	progress := 0
	c.Progress = func() { progress++ }
	r, err := Run(context.Background(), c)
	if err != nil {
		t.Fatalf("Run() = %v; %+v", err, r)
	}
	if !r.Serving || r.Checks != 3 || r.LastCheck != 300 || r.Cases != 300 || progress != 300 {
		t.Errorf("%d checks, the last good one after %d of %d cases, serving: %v; progress %d",
			r.Checks, r.LastCheck, r.Cases, r.Serving, progress)
	}
	if r.Frames < 300 || r.Bytes == 0 || r.Sessions < 300/sessionCases || r.Ended == 0 {
		t.Errorf("%d frames, %d bytes, %d connections, %d ended", r.Frames, r.Bytes, r.Sessions,
			r.Ended)
	}
	cases, frames := uint64(0), uint64(0)
	for _, k := range r.Kinds {
		cases += k.Cases
		frames += k.Frames
	}
	if cases != 300 || frames > r.Frames+r.NotSent || len(r.Kinds) != len(packets.Classes())+1 {
		t.Errorf("%d cases with %d frames of %d kinds; %d frames sent, %d not", cases, frames,
			len(r.Kinds), r.Frames, r.NotSent)
	}
	seen := map[string]uint64{}
	for _, a := range r.Answers {
		seen[a.Name] = a.Packets
	}
	for _, k := range []answerKind{answerACK, answerInvalid, answerRequest} {
		if seen[answerNames[k]] == 0 {
			t.Errorf("the host sent no %s: %v", answerNames[k], seen)
		}
	}
}

// If the host stops serving, the run ends at the next check, and the report says after which cases.
func TestStops(t *testing.T) {
	h := newHost(t)
	c := h.config()
	c.CheckEvery, c.Patience = 50, 4*time.Second // with short pauses between attempts
	n := 0
	c.Progress = func() {
		if n++; n == 70 {
			h.l.Close()
		}
	}
	r, err := Run(context.Background(), c)
	if !errors.Is(err, ErrStopped) || r.Serving || r.LastCheck != 50 || r.Cases != 100 {
		t.Errorf("Run() = %v, serving: %v, last check after %d of %d cases; want %v, 50 of 100",
			err, r.Serving, r.LastCheck, r.Cases, ErrStopped)
	}
}

// A host that does not serve before the first case is not attacked.
func TestNotServing(t *testing.T) {
	h := newHost(t)
	c := h.config()
	c.CheckPort, c.Patience = 1, 4*time.Second
	r, err := Run(context.Background(), c)
	if !errors.Is(err, ErrNotServing) || r.Frames != 0 {
		t.Errorf("Run() = %v with %d frames, want %v and none", err, r.Frames, ErrNotServing)
	}
}

// A canceled run ends soon, with the cause and a report.
func TestCanceled(t *testing.T) {
	h := newHost(t)
	c := h.config()
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(context.Background())
	c.Progress = func() { cancel(cause) }
	r, err := Run(ctx, c)
	if !errors.Is(err, cause) || r.Cases != 1 {
		t.Errorf("Run() = %v after %d cases, want %v after 1", err, r.Cases, cause)
	}
}

// A case depends only on the seed and its number, and each number has another case.
func TestCasesReplay(t *testing.T) {
	to := packets.Target{QPN: 5, PSN: 7, MTU: 1024}
	frames := func(seed, n uint64) (all []byte) {
		newPlan(seed, n).make(to, func(f []byte) { all = append(all, f...) })
		return all
	}
	for n := range uint64(200) {
		a := frames(3, n)
		if !bytes.Equal(a, frames(3, n)) {
			t.Fatalf("case %d is another one the second time", n)
		}
		if bytes.Equal(a, frames(4, n)) || bytes.Equal(a, frames(3, n+1)) {
			t.Fatalf("case %d equals that of another seed or number", n)
		}
	}
}

// The packets of an aim have its numbers, and no connection is opened.
func TestAim(t *testing.T) {
	h := newHost(t)
	c := h.config()
	const qpn = 0x123456
	c.Aim = &Aim{QPN: qpn, PSN: 9, MTU: 512, Addr: 0x10000, RKey: 0x77, Len: 4096}
	c.Count, c.Skip = 200, []string{"VLAN tags", "IP fragments"}
	var aimed, remote atomic.Int64
	var d frame.Decoder
	var p bth.Packet
	h.Link.SetFilter(1, 0, func(f []byte) loopback.Action {
		if d.Decode(f, &p) == frame.ReasonOK && p.BTH.DestQP() == qpn {
			aimed.Add(1)
			if p.Info.RETH != 0 && p.RETH().RKey() == 0x77 {
				remote.Add(1)
			}
		}
		return loopback.Pass
	})
	r, err := Run(context.Background(), c)
	if err != nil || r.Sessions != 0 || aimed.Load() < 50 || remote.Load() == 0 {
		t.Errorf("Run() = %v, %d connections, %d packets to the QPN, %d with the key", err,
			r.Sessions, aimed.Load(), remote.Load())
	}
	for _, k := range r.Kinds {
		if slices.Contains(c.Skip, k.Name) {
			t.Errorf("%d cases of %s, which was to be skipped", k.Cases, k.Name)
		}
	}
	if r.Cases != 200 || r.Skipped == 0 || r.Skipped > 100 {
		t.Errorf("%d cases, %d skipped", r.Cases, r.Skipped)
	}
}

// With the numbers of a real queue pair and its memory, packets are executed: they change the
// memory.
func TestAimReachesMemory(t *testing.T) {
	h := newHost(t)
	const size = 4096
	e, err := endpoint.New(h.dev, endpoint.Config{QP: roce.QPConfig{Type: roce.UC}, Memory: size})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	network, _ := driver.Find[driver.Network](h.Port[1])
	var from bth.GID
	for _, a := range network.Addrs() {
		if a.Addr().Is4() {
			from = bth.GIDFromAddr(a.Addr())
		}
	}
	err = e.QP.Connect(context.Background(), roce.Endpoint{QPN: 5, GID: from, MTU: 1024,
		PKey: roce.DefaultPKey}, roce.ConnectOptions{MTU: 1024})
	if err != nil {
		t.Fatal(err)
	}
	c := h.config()
	c.Aim = &Aim{QPN: e.QP.QPN(), MTU: 1024, Addr: e.MR.Addr(), RKey: e.MR.RKey(), Len: size}
	if r, err := Run(context.Background(), c); err != nil {
		t.Fatalf("Run() = %v; %+v", err, r)
	}
	if bytes.Equal(e.MR.Bytes(), make([]byte, size)) {
		t.Error("no packet changed the memory")
	}
}

// Frames that the interface cannot carry are counted, and do not block others.
func TestTapCountsFrames(t *testing.T) {
	link, err := loopback.NewLink(loopback.Config{MTU: 1500})
	if err != nil {
		t.Fatal(err)
	}
	defer link.Close()
	port := newTap(link.Port(0))
	frames := [][]byte{make([]byte, 100), make([]byte, 4000), {}, make([]byte, 200)}
	for _, f := range frames {
		port.send(f)
	}
	var bufs [1]driver.Buf
	port.Receive(bufs[:])
	if s, n := port.sent.Load(), port.notSent.Load(); s != 2 || n != 2 || !port.flush(0) {
		t.Errorf("%d frames sent, %d not; want 2 and 2", s, n)
	}
}

// The rate is kept.
func TestPace(t *testing.T) {
	f := &fuzzer{Config: Config{Rate: 1000}}
	start := time.Now()
	const count = 300
	for range count {
		if err := f.pace(context.Background(), 1); err != nil {
			t.Fatal(err)
		}
	}
	// 100 ms may be caught up
	if d := time.Since(start); d < (count-1)*time.Millisecond-100*time.Millisecond {
		t.Errorf("%d frames took %v, which is more than 1000 per second", count, d)
	}
}
