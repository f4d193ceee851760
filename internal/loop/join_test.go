package loop

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/internal/wire"
	"github.com/gorxe/gorxe/qp"
)

// overlapPort is a driver.Overlapper. It carries whole frames over a link, and makes runs of those
// that it receives.
type overlapPort struct {
	driver.Port
	t       *testing.T
	overlap bool
	least   int
	header  []byte // of the latest frame that was sent
	runs    []receivedRun
	joined  int            // packets that were sent without headers
	inRuns  int            // packets that were received without headers
	framed  int            // of them, those that got headers
	corrupt func(b []byte) // changes a received run; may be nil
}

// receivedRun is a run of the latest call of Receive.
type receivedRun struct {
	headers  [][]byte
	memory   []byte // room for headers, packets
	original []byte // the same, as received
}

// overlapHeaders is the length of the headers before the BTH: the link has IPv6 addresses.
const overlapHeaders = 62

func (p *overlapPort) Info() driver.Info {
	i := p.Port.Info()
	i.SourcePort = bth.Port
	return i
}

func (p *overlapPort) OverlapHeaders() { p.overlap = true }

func (p *overlapPort) LeastRun() int { return p.least }

func (p *overlapPort) Send(bufs []driver.Buf) (n int, err error) {
	for _, b := range bufs {
		if b.Token&driver.NoHeaders == 0 {
			p.header = bytes.Clone(b.B[:overlapHeaders])
			sent, failed := p.Port.Send([]driver.Buf{b})
			n, err = n+sent, errors.Join(err, failed)
			continue
		}
		p.Port.Free([]driver.Buf{{Token: b.Token &^ driver.NoHeaders}})
		for i := 0; i*b.Size < len(b.B); i++ {
			var one [1]driver.Buf
			if p.Port.Alloc(one[:]) == 0 {
				p.t.Fatal("no buffer for a packet of a run")
			}
			full := one[0].B[:overlapHeaders+b.Size]
			copy(full[copy(full, p.header):], b.B[i*b.Size:])
			icrc := [4]byte(full[len(full)-4:])
			if (&frame.Encoder{}).Finish(full, overlapHeaders); [4]byte(full[len(full)-4:]) != icrc {
				p.t.Errorf("wrong ICRC in packet %d of a run", i)
			}
			one[0].B = full
			sent, failed := p.Port.Send(one[:])
			n, err = n+sent, errors.Join(err, failed)
			p.joined++
		}
	}
	return n, err
}

// Receive makes runs of frames of the same length, and perhaps a shorter one after them.
func (p *overlapPort) Receive(bufs []driver.Buf) int {
	n := p.Port.Receive(bufs)
	if !p.overlap {
		return n
	}
	p.runs = nil
	used := 0
	for i := 0; i < n; {
		k, length := i+1, len(bufs[i].B)
		for k < n && len(bufs[k].B) == length {
			k++
		}
		if k < n && len(bufs[k].B) < length {
			k++
		}
		if k == i+1 {
			bufs[used] = bufs[i]
		} else {
			r := receivedRun{memory: make([]byte, overlapHeaders)}
			for _, b := range bufs[i:k] {
				r.headers = append(r.headers, bytes.Clone(b.B[:overlapHeaders]))
				r.memory = append(r.memory, b.B[overlapHeaders:]...)
			}
			r.original = bytes.Clone(r.memory)
			p.inRuns += k - i
			p.Port.Release(bufs[i:k])
			bufs[used] = driver.Buf{B: r.memory[overlapHeaders:], Size: length - overlapHeaders,
				Token: uint64(len(p.runs)) | driver.NoHeaders}
			if p.corrupt != nil {
				p.corrupt(bufs[used].B)
			}
			p.runs = append(p.runs, r)
		}
		used, i = used+1, k
	}
	return used
}

func (p *overlapPort) Frame(b *driver.Buf, i int) []byte {
	r := &p.runs[b.Token&^driver.NoHeaders]
	f := r.memory[i*b.Size : min(len(r.headers[i])+(i+1)*b.Size, len(r.memory))]
	copy(f, r.headers[i])
	p.framed++
	return f
}

func (p *overlapPort) Release(bufs []driver.Buf) {
	for i := range bufs {
		if bufs[i].Token&driver.NoHeaders == 0 {
			p.Port.Release(bufs[i : i+1])
		}
	}
}

// Middle packets are sent without headers to a port that permits it, unless a tracer needs them,
// and most of those that are received get no headers.
func TestOverlapper(t *testing.T) {
	for _, traced := range []bool{false, true} {
		var ports [2]*overlapPort
		a, b := newPair(t, pairConfig{selective: true, wrap: func(i int, p driver.Port) driver.Port {
			ports[i] = &overlapPort{Port: p, t: t, least: 1}
			return ports[i]
		}})
		sent := 0
		if traced {
			a.SetTracer(func(out bool, _ bth.QPN, _ *bth.Packet) {
				if out {
					sent++
				}
			})
		}
		random := rand.NewChaCha8([32]byte{})
		const n = 40 * 1024
		for round := range 20 {
			if round < 10 { // for a smaller MTU
				a.joiner.b = make([]byte, bth.MaxNetHeader+2048)
			}
			_, _ = random.Read(a.mem[:n])
			a.write(t, b, n, 0)
			driveUntil(t, a, b, func() bool { return bytes.Equal(a.mem[:n], b.mem[:n]) })
		}
		if got, want := ports[0].joined > 20*30, !traced; got != want {
			t.Errorf("traced %v: %d frames were sent without headers", traced, ports[0].joined)
		}
		if n := a.sent(); n != 20*40 || traced && sent != 20*40 {
			t.Errorf("%d packets sent and %d traced, want %d", n, sent, 20*40)
		}
		most := 2*bth.MaxNetHeader + 2048 + txBatch*ports[0].Info().MaxFrame
		if got := len(a.joiner.b); got > most {
			t.Errorf("%d bytes of memory for joined packets, want at most %d", got, most)
		}
		if got, want := a.ctr.TxBytes, 20*(n+40*(overlapHeaders+bth.HeaderLen+bth.ICRCLen)+
			bth.RETHLen); got != uint64(want) {
			t.Errorf("%d bytes sent, want %d", got, want)
		}
		if in, framed := ports[1].inRuns, ports[1].framed; in < 20*20 || framed > in/2 {
			t.Errorf("%d packets were received in runs, %d of them got headers", in, framed)
		}
	}
}

// Short runs are sent as frames if the port does not accept them.
func TestLeastRun(t *testing.T) {
	for _, c := range []struct {
		least int
		want  bool
	}{{0, false}, {8 << 10, true}, {64 << 10, false}} {
		var ports [2]*overlapPort
		a, b := newPair(t, pairConfig{selective: true, wrap: func(i int, p driver.Port) driver.Port {
			ports[i] = &overlapPort{Port: p, t: t, least: c.least}
			return ports[i]
		}})
		const n = 40 * 1024
		a.mem[n-1] = 1
		a.write(t, b, n, 0)
		driveUntil(t, a, b, func() bool { return b.mem[n-1] == 1 })
		if got := ports[0].joined; got > 0 != c.want {
			t.Errorf("LeastRun %d: %d packets were sent without headers, want any: %v", c.least, got,
				c.want)
		}
	}
}

// The end of a forged run may be too short for a BTH.
func TestPrefetchShortRun(t *testing.T) {
	a, _ := newPair(t, pairConfig{})
	bufs := make([]driver.Buf, minPrefetch)
	for i := range bufs {
		bufs[i] = driver.Buf{B: make([]byte, 1), Size: 64, Token: driver.NoHeaders}
	}
	a.prefetch(bufs)
}

// payloadGuest calls a function when it needs the payloads of a step.
type payloadGuest struct {
	lateGuest
	settle func()
}

func (g *payloadGuest) Settle(qp.Time) { g.settle() }

// A Guest finds the payloads at the end of a step as they were received.
func TestGuestNeedsPayloads(t *testing.T) {
	var port *overlapPort
	a, b := newPair(t, pairConfig{selective: true, wrap: func(_ int, p driver.Port) driver.Port {
		port = &overlapPort{Port: p, t: t, least: 1}
		return port
	}})
	b.SetGuest(&payloadGuest{lateGuest{side: b}, func() {
		for _, r := range port.runs {
			if !bytes.Equal(r.memory[overlapHeaders:], r.original[overlapHeaders:]) {
				t.Error("payloads have changed before the end of the step")
			}
		}
	}}, -1)
	const n = 40 * 1024
	for round := range uint64(2) {
		if round == 1 {
			b.SetTracer(func(out bool, _ bth.QPN, p *bth.Packet) {
				if !out && (len(p.NetHeader) != 40 || bth.GID(p.NetHeader[8:24]) != p.Src) {
					t.Errorf("the IP header is % x, want one from %v", p.NetHeader, p.Src.Addr())
				}
			})
		}
		_, _ = rand.NewChaCha8([32]byte{byte(round)}).Read(a.mem[:n])
		a.write(t, b, n, 0)
		driveUntil(t, a, b, func() bool { return bytes.Equal(a.mem[:n], b.mem[:n]) })
		if port.inRuns < 20 || a.sent() != 40*(round+1) {
			t.Errorf("%d packets were received in runs, %d were sent", port.inRuns, a.sent())
		}
		if all := port.framed == port.inRuns; all != (round == 1) {
			t.Errorf("round %d: %d of %d packets got headers", round, port.framed, port.inRuns)
		}
		port.inRuns, port.framed = 0, 0
	}
}

// A packet of a run whose ICRC is wrong is dropped, and those after it are not executed before it.
func TestCorruptPacketInRun(t *testing.T) {
	var port *overlapPort
	a, b := newPair(t, pairConfig{selective: true, wrap: func(_ int, p driver.Port) driver.Port {
		port = &overlapPort{Port: p, t: t, least: 1}
		return port
	}})
	const n, size = 40 * 1024, bth.HeaderLen + 1024 + bth.ICRCLen
	bad := 0
	port.corrupt = func(run []byte) {
		if at := 9*size + 700; len(run) > 12*size && bad == 0 {
			run[at] ^= 1
			bad++
		}
	}
	_, _ = rand.NewChaCha8([32]byte{}).Read(a.mem[:n])
	a.write(t, b, n, 0)
	driveUntil(t, a, b, func() bool { return bytes.Equal(a.mem[:n], b.mem[:n]) })
	if bad != 1 || b.ctr.Drops[frame.ReasonICRC] != 1 {
		t.Errorf("%d packets corrupted, %d dropped; want 1, 1", bad, b.ctr.Drops[frame.ReasonICRC])
	}
	received := int(b.ctr.RxFrames)
	if want := a.sent(); received != int(want) {
		t.Errorf("%d frames counted, want %d", received, want)
	}
}

// The headers of frames that are passed to the port without them count for the model of the link.
func TestJoinedBacklog(t *testing.T) {
	a, _ := newPair(t, pairConfig{})
	const n = 1000
	whole := make([]byte, n)
	for _, joined := range []bool{false, true} {
		a.bound.output = wire.Output{Rate: linkRate}
		bufs := []driver.Buf{{B: whole}, {B: whole}, {B: whole}}
		if joined {
			a.joiner.netLen = overlapHeaders
			const size = n - overlapHeaders
			bufs = append(bufs[:1], driver.Buf{B: make([]byte, 2*size), Size: size,
				Token: driver.NoHeaders})
		}
		a.passed(bufs)
		if got, want := a.bound.output.Backlog(int64(a.now())), 3*(n+etherOverhead); got != want {
			t.Errorf("joined %v: backlog of %d bytes, want %d", joined, got, want)
		}
	}
}

// The packets of a run over IPv4 have consecutive identifications. The headers that are needed for
// the ICRC leave the packet before unchanged if there is a Guest.
func TestPartsOverIPv4(t *testing.T) {
	a, _ := newPair(t, pairConfig{})
	a.dec, a.guest = frame.Decoder{}, &lateGuest{}
	path := frame.Address{Src: bth.GIDFromIPv4([4]byte{192, 0, 2, 1}), HopLimit: 64,
		Dst: bth.GIDFromIPv4([4]byte{192, 0, 2, 2})}
	const n, first, packets = 100, 65_534, 5
	const size = bth.HeaderLen + n + bth.ICRCLen
	h := make([]byte, bth.MaxNetHeader)
	h = h[:frame.PutHeaders(h, &path)]
	e := &frame.Encoder{SourcePort: bth.Port}
	e.FinishHeaders(h, len(h), len(h)+size)
	run := &driver.Buf{Size: size}
	for i := range packets {
		f := make([]byte, len(h)+size)
		copy(f, h)
		bth.PutBTH(f[len(h):], &bth.BTHFields{Opcode: bth.RCWriteMiddle, PSN: bth.PSN(i)})
		e.FinishPart(f, len(h), len(h)+bth.HeaderLen, make([]byte, n), first+i)
		if run.B = append(run.B, f[len(h):]...); i == 0 {
			a.runHeader = append(a.runHeader, f[:len(h)]...)
		}
	}
	before := bytes.Clone(run.B)
	for i := 1; i < packets; i++ {
		h := bytes.Clone(a.runHeader)
		if !a.checkPart(run, i) {
			t.Errorf("packet %d is wrong with the next identification", i)
		}
		right := bytes.Clone(a.runHeader)
		if frame.NextID(h); !bytes.Equal(h, right) {
			t.Errorf("packet %d has the headers % x, want % x", i, right, h)
		}
		if a.checkPart(run, i) {
			t.Errorf("packet %d is right with another identification", i)
		}
		copy(a.runHeader, right)
		if !bytes.Equal(run.B, before) {
			t.Error("the packet before has changed")
		}
	}
}

// lookingPort is a wrapper that looks at frames.
type lookingPort struct{ driver.Port }

func (p lookingPort) Unwrap() driver.Port { return p.Port }

// Wrappers of a driver.Overlapper get frames with headers.
func TestNoOverlapWithWrapper(t *testing.T) {
	var ports [2]*overlapPort
	a, b := newPair(t, pairConfig{selective: true, wrap: func(i int, p driver.Port) driver.Port {
		ports[i] = &overlapPort{Port: p, t: t, least: 1}
		return lookingPort{ports[i]}
	}})
	const n = 40 * 1024
	a.mem[n-1] = 1
	a.write(t, b, n, 0)
	driveUntil(t, a, b, func() bool { return b.mem[n-1] == 1 })
	if ports[0].joined > 0 || ports[1].overlap {
		t.Errorf("%d frames sent without headers, overlap = %v", ports[0].joined, ports[1].overlap)
	}
}
