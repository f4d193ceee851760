//go:build linux

package xdp

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/xdp/veth"
)

func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("skipped: AF_XDP, XDP programs and network namespaces require root")
	}
}

func newPair(t testing.TB, o veth.Options) *veth.Pair {
	t.Helper()
	needRoot(t)
	pair, err := veth.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pair.Close() })
	return pair
}

func openEnd(t testing.TB, e *veth.End, o Options) *Port {
	t.Helper()
	o.NetNS = e.Fd()
	p, err := Open(e.Iface, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// packet describes a test frame. The zero value is an IPv4 UDP packet to port 4791.
type packet struct {
	v6      bool
	back    bool       // from B to A
	to      netip.Addr // destination instead of the peer's address
	vlans   []uint16   // EtherTypes of VLAN tags
	tci     uint16     // tag control information of the tags; 0 = VLAN ID 7
	proto   byte       // 0 = UDP
	port    uint16     // 0 = 4791
	options bool       // IPv4 options, or a hop-by-hop header in IPv6
	frag    uint16     // IPv4 flags and fragment offset
	dst     bth.MAC    // zero = MAC of the peer
}

var (
	hostA4, hostB4 = netip.MustParseAddr("10.77.0.1"), netip.MustParseAddr("10.77.0.2")
	hostA6, hostB6 = netip.MustParseAddr("fd77::1"), netip.MustParseAddr("fd77::2")
	macA, macB     = bth.MAC{0x02, 0x77, 0, 0, 0, 1}, bth.MAC{0x02, 0x77, 0, 0, 0, 2}
)

// build returns the frame with the given UDP payload.
func (k packet) build(payload []byte) []byte {
	src, dst, mac, peer := hostA4, hostB4, macA, macB
	if k.v6 {
		src, dst = hostA6, hostB6
	}
	if k.back {
		src, dst, mac, peer = dst, src, peer, mac
	}
	if k.to.IsValid() {
		dst = k.to
	}
	if k.dst == (bth.MAC{}) {
		k.dst = peer
	}
	if k.tci == 0 {
		k.tci = 7
	}
	f := append(append([]byte(nil), k.dst[:]...), mac[:]...)
	for _, tag := range k.vlans {
		f = binary.BigEndian.AppendUint16(f, tag)
		f = binary.BigEndian.AppendUint16(f, k.tci)
	}
	if k.proto == 0 {
		k.proto = 17
	}
	if k.port == 0 {
		k.port = 4791
	}
	udp := 8 + len(payload)
	if k.v6 {
		f = append(f, 0x86, 0xdd, 0x60, 0, 0, 0)
		next, hop := k.proto, []byte(nil)
		if k.options {
			next, hop = 0, []byte{k.proto, 0, 1, 4, 0, 0, 0, 0} // PadN
		}
		f = binary.BigEndian.AppendUint16(f, uint16(udp+len(hop)))
		f = append(f, next, 64)
		f = append(f, src.AsSlice()...)
		f = append(f, dst.AsSlice()...)
		f = append(f, hop...)
	} else {
		f = append(f, 0x08, 0x00)
		at := len(f)
		ihl := 20
		if k.options {
			ihl = 24
		}
		f = append(f, 0x40|byte(ihl/4), 0)
		f = binary.BigEndian.AppendUint16(f, uint16(ihl+udp))
		f = append(f, 0, 1)
		f = binary.BigEndian.AppendUint16(f, k.frag)
		f = append(f, 64, k.proto, 0, 0)
		f = append(f, src.AsSlice()...)
		f = append(f, dst.AsSlice()...)
		if k.options {
			f = append(f, 1, 1, 1, 0)
		}
		binary.BigEndian.PutUint16(f[at+10:], checksum(f[at:]))
	}
	f = binary.BigEndian.AppendUint16(f, 0xc000)
	f = binary.BigEndian.AppendUint16(f, k.port)
	f = binary.BigEndian.AppendUint16(f, uint16(udp))
	f = append(f, 0, 0)
	return append(f, payload...)
}

func checksum(b []byte) uint16 {
	var s uint32
	for i := 0; i+1 < len(b); i += 2 {
		s += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for s>>16 != 0 {
		s = s&0xffff + s>>16
	}
	return ^uint16(s)
}

// pattern returns a payload in which misplaced bytes are visible.
func pattern(n, seed int) []byte {
	b := make([]byte, n)
	x := uint32(seed)*2654435761 + 1
	for i := range b {
		x ^= x << 13
		x ^= x >> 17
		x ^= x << 5
		b[i] = byte(x)
	}
	return b
}

// send sends frames in batches as buffers become free.
func send(t testing.TB, p *Port, frames ...[]byte) {
	t.Helper()
	var bufs [32]driver.Buf
	deadline := time.Now().Add(5 * time.Second)
	for len(frames) > 0 {
		n := p.Alloc(bufs[:min(len(bufs), len(frames))])
		if n == 0 && time.Now().After(deadline) {
			t.Fatal("no send buffers for 5 s")
		}
		for i := range n {
			bufs[i].B = bufs[i].B[:copy(bufs[i].B, frames[i])]
			if len(bufs[i].B) != len(frames[i]) {
				t.Fatalf("frame of %d bytes does not fit in a buffer of %d", len(frames[i]),
					len(bufs[i].B))
			}
		}
		if sent, err := p.Send(bufs[:n]); err != nil || sent != n {
			t.Fatalf("Send() = %d of %d, %v", sent, n, err)
		}
		frames = frames[n:]
	}
}

// receive returns n frames, or fewer if no frame arrives for the given time.
func receive(t testing.TB, p *Port, n int, patience time.Duration) [][]byte {
	t.Helper()
	var bufs [64]driver.Buf
	var got [][]byte
	deadline := time.Now().Add(patience)
	for len(got) < n {
		k := p.Receive(bufs[:])
		for _, b := range bufs[:k] {
			got = append(got, bytes.Clone(b.B))
		}
		p.Release(bufs[:k])
		if k > 0 {
			deadline = time.Now().Add(patience)
			continue
		}
		left := time.Until(deadline)
		if left <= 0 {
			break
		}
		if err := p.Wait(left); err != nil {
			t.Fatal(err)
		}
	}
	return got
}

// exchange sends frames from one port and checks that they arrive at the other in order.
func exchange(t testing.TB, from, to *Port, frames ...[]byte) {
	t.Helper()
	send(t, from, frames...)
	got := receive(t, to, len(frames), 2*time.Second)
	if len(got) != len(frames) {
		t.Fatalf("received %d of %d frames (sender %+v, receiver %+v)", len(got), len(frames),
			from.Stats(), to.Stats())
	}
	for i := range got {
		if !bytes.Equal(got[i], frames[i]) {
			t.Fatalf("frame %d of %d bytes arrived as %d bytes, first difference at %d", i,
				len(frames[i]), len(got[i]), differ(got[i], frames[i]))
		}
	}
}

func differ(a, b []byte) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}
