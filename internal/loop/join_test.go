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

// overlapPort is a driver.Overlapper. It carries whole frames over a link, and takes the headers
// away from those that may lack them.
type overlapPort struct {
	driver.Port
	t        *testing.T
	overlap  bool
	header   []byte   // of the latest frame
	removed  [][]byte // of received frames, in order
	received []byte   // the packets of a call of Receive, after room for headers
	original []byte   // the same, as received
	joined   int      // frames that were sent without headers

	overlapping int // frames that were received without headers
}

// overlapHeaders is the length of the headers before the BTH: the link has IPv6 addresses.
const overlapHeaders = 62

func (p *overlapPort) Info() driver.Info {
	i := p.Port.Info()
	i.SourcePort = bth.Port
	return i
}

func (p *overlapPort) OverlapHeaders() (send bool) {
	p.overlap = true
	return true
}

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

// Receive copies all packets but the first to adjacent memory without headers.
func (p *overlapPort) Receive(bufs []driver.Buf) int {
	n := p.Port.Receive(bufs)
	if !p.overlap || n < 2 {
		return n
	}
	p.received, p.removed = make([]byte, overlapHeaders, n*2048), nil
	for i := range bufs[1:n] {
		b := &bufs[1+i]
		p.removed = append(p.removed, bytes.Clone(b.B[:overlapHeaders]))
		at := len(p.received)
		p.received = append(p.received, b.B[overlapHeaders:]...)
		b.B = p.received[at-overlapHeaders:]
		b.Token |= driver.NoHeaders
	}
	p.original = bytes.Clone(p.received)
	return n
}

func (p *overlapPort) WriteHeaders(b *driver.Buf) {
	copy(b.B, p.removed[0])
	p.removed = p.removed[1:]
	p.overlapping++
}

func (p *overlapPort) Release(bufs []driver.Buf) {
	for i := range bufs {
		bufs[i].Token &^= driver.NoHeaders
	}
	p.Port.Release(bufs)
}

// Middle packets are sent without headers to a port that permits it, unless a tracer needs them,
// and frames are received without headers.
func TestOverlapper(t *testing.T) {
	for _, traced := range []bool{false, true} {
		var ports [2]*overlapPort
		a, b := newPair(t, pairConfig{selective: true, wrap: func(i int, p driver.Port) driver.Port {
			ports[i] = &overlapPort{Port: p, t: t}
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
		if ports[1].overlapping < 20*20 {
			t.Errorf("%d frames were received without headers", ports[1].overlapping)
		}
	}
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
		port = &overlapPort{Port: p, t: t}
		return port
	}})
	b.SetGuest(&payloadGuest{lateGuest{side: b}, func() {
		if !bytes.Equal(port.received, port.original) {
			t.Error("payloads have changed before the end of the step")
		}
	}}, -1)
	b.SetTracer(func(out bool, _ bth.QPN, p *bth.Packet) {
		if !out && (len(p.NetHeader) != 40 || bth.GID(p.NetHeader[8:24]) != p.Src) {
			t.Errorf("the IP header is % x, want one from %v", p.NetHeader, p.Src.Addr())
		}
	})
	const n = 40 * 1024
	_, _ = rand.NewChaCha8([32]byte{}).Read(a.mem[:n])
	a.write(t, b, n, 0)
	driveUntil(t, a, b, func() bool { return bytes.Equal(a.mem[:n], b.mem[:n]) })
	if port.overlapping < 20 || a.sent() != 40 {
		t.Errorf("%d frames were received without headers, %d packets were sent", port.overlapping,
			a.sent())
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

// lookingPort is a wrapper that looks at frames.
type lookingPort struct{ driver.Port }

func (p lookingPort) Unwrap() driver.Port { return p.Port }

// Wrappers of a driver.Overlapper get frames with headers.
func TestNoOverlapWithWrapper(t *testing.T) {
	var ports [2]*overlapPort
	a, b := newPair(t, pairConfig{selective: true, wrap: func(i int, p driver.Port) driver.Port {
		ports[i] = &overlapPort{Port: p, t: t}
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
