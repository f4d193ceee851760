package soak

import (
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

// attacker owns a port of the link and sends arbitrary frames. It has addresses of its own.
type attacker struct {
	mu    sync.Mutex
	port  *loopback.Port
	macs  [2]bth.MAC // of the devices
	addrs [2][]netip.Prefix
	dec   frame.Decoder
	pkt   bth.Packet
	enc   frame.Encoder
}

func newAttacker(mine *loopback.Port, ports ...*loopback.Port) *attacker {
	a := &attacker{port: mine}
	for i, p := range ports {
		a.macs[i], a.addrs[i] = p.Info().MAC, p.Addrs()
	}
	return a
}

// address returns headers from the attacker's own address to a device, with IPv4 or IPv6.
func (a *attacker) address(r *rand.Rand, dev int) frame.Address {
	i := r.IntN(len(a.addrs[dev]))
	return frame.Address{
		SrcMAC: a.port.Info().MAC, DstMAC: a.macs[dev], HopLimit: 64,
		SrcPort: uint16(0xc000 + r.IntN(0x4000)),
		Src:     bth.GIDFromAddr(a.port.Addrs()[i].Addr()),
		Dst:     bth.GIDFromAddr(a.addrs[dev][i].Addr()),
	}
}

// send sends n frames, and then calls answer for each packet that has arrived.
func (a *attacker) send(n int, next func() []byte, answer func(*bth.Packet)) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	sent := 0
	for range n {
		var bufs [1]driver.Buf
		if a.port.Alloc(bufs[:]) == 0 {
			break // the receiver is slow
		}
		bufs[0].B = bufs[0].B[:copy(bufs[0].B, next())]
		k, err := a.port.Send(bufs[:])
		if err != nil {
			return sent, err
		}
		sent += k
	}
	a.drain(answer)
	return sent, nil
}

func (a *attacker) drain(answer func(*bth.Packet)) {
	for {
		var bufs [32]driver.Buf
		n := a.port.Receive(bufs[:])
		if n == 0 {
			return
		}
		for _, b := range bufs[:n] {
			if a.dec.Decode(b.B, &a.pkt) == frame.ReasonOK && answer != nil {
				answer(&a.pkt)
			}
		}
		a.port.Release(bufs[:n])
	}
}

// replays holds recent RC packets and MADs of honest peers.
type replays struct {
	mu     sync.Mutex
	seen   uint64
	data   [64][]byte
	mads   [16][]byte
	places [2]int
}

// every is how many frames pass between two that are kept.
const every = 17

// filter keeps a copy of some frames. It runs on the goroutines of both devices.
func (s *replays) filter(f []byte) loopback.Action {
	const minimum = 14 + 20 + 8 + bth.HeaderLen
	if len(f) < minimum {
		return loopback.Pass
	}
	at := 14 + 20 + 8
	if f[14]>>4 == 6 {
		at += 20
	}
	mad := f[at+5] == 0 && f[at+6] == 0 && f[at+7] == 1
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen++
	switch {
	case mad:
		keep(s.mads[:], &s.places[1], f)
	case s.seen%every == 0 && bth.Opcode(f[at])&0xe0 == 0: // RC
		keep(s.data[:], &s.places[0], f)
	}
	return loopback.Pass
}

func keep(list [][]byte, at *int, f []byte) {
	list[*at] = append(list[*at][:0], f...)
	*at = (*at + 1) % len(list)
}

// get copies a kept frame, or nothing, to b.
func (s *replays) get(r *rand.Rand, mad bool, b []byte) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if mad {
		return append(b[:0], s.mads[r.IntN(len(s.mads))]...)
	}
	return append(b[:0], s.data[r.IntN(len(s.data))]...)
}

// targets are what the attacker knows about honest peers.
type targets struct {
	mu   sync.Mutex
	qp   *roce.QP // of the long-lived connection
	busy atomic.Int32
}

func (t *targets) set(q *roce.QP) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.qp = q
}

func (t *targets) get() *roce.QP {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.qp
}
