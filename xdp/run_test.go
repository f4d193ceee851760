//go:build linux

package xdp

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/xdp/veth"
	"golang.org/x/sys/unix"
)

// runSender is a UDP socket that sends runs.
type runSender struct {
	t  testing.TB
	fd int
	to unix.Sockaddr
}

// newRunSender makes a socket at end A of a pair that sends to end B.
func newRunSender(t testing.TB, pair *veth.Pair, v6 bool) *runSender {
	t.Helper()
	s := &runSender{t: t}
	domain, level, discover := unix.AF_INET, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER
	var from unix.Sockaddr = &unix.SockaddrInet4{Port: bth.Port, Addr: pair.A.IPv4.Addr().As4()}
	s.to = &unix.SockaddrInet4{Port: bth.Port, Addr: pair.B.IPv4.Addr().As4()}
	if v6 {
		domain, level, discover = unix.AF_INET6, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER
		from = &unix.SockaddrInet6{Port: bth.Port, Addr: pair.A.IPv6.Addr().As16()}
		s.to = &unix.SockaddrInet6{Port: bth.Port, Addr: pair.B.IPv6.Addr().As16()}
	}
	err := pair.A.Do(func() (err error) {
		s.fd, err = unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(s.fd) })
	if err := unix.SetsockoptInt(s.fd, level, discover, unix.IP_PMTUDISC_PROBE); err != nil {
		t.Fatal(err)
	}
	if err := unix.Bind(s.fd, from); err != nil {
		t.Fatal(err)
	}
	return s
}

// send sends data, cut into packets of the given size.
func (s *runSender) send(data []byte, size int) error {
	if err := unix.SetsockoptInt(s.fd, unix.SOL_UDP, unix.UDP_SEGMENT, size); err != nil {
		s.t.Fatal(err)
	}
	return unix.Sendto(s.fd, data, 0, s.to)
}

// roce builds RoCEv2 packets from A to B as the kernel sends them.
type roce struct {
	v6     bool
	sameID bool // all IPv4 packets have identification 0
}

// packet returns a packet with the headers in front, and its length after them. It is number id of
// a run.
func (r roce) packet(op bth.Opcode, qpn bth.QPN, psn, n, id int) (b []byte, length int) {
	a := frame.Address{SrcMAC: macA, DstMAC: macB, Src: bth.GIDFromAddr(hostA4),
		Dst: bth.GIDFromAddr(hostB4), SrcPort: bth.Port, HopLimit: 64}
	if r.v6 {
		a.Src, a.Dst = bth.GIDFromAddr(hostA6), bth.GIDFromAddr(hostB6)
	}
	info := op.Info()
	pad := -n & 3
	length = int(info.HeaderLen) + n + pad + bth.ICRCLen
	b = make([]byte, maxHeader+length)
	at := frame.PutHeaders(b, &a)
	b = b[:at+length]
	bth.PutBTH(b[at:], &bth.BTHFields{Opcode: op, PKey: bth.DefaultPKey, DestQP: qpn,
		PSN: bth.PSN(psn) & 0xffffff, PadCount: uint8(pad)})
	if info.RETH != 0 {
		bth.PutRETH(b[at+int(info.RETH):], 0x1000, 1, uint32(n))
	}
	copy(b[at+int(info.HeaderLen):], pattern(n, psn))
	e := new(frame.Encoder)
	if !r.sameID {
		e.ID = uint16(id)
	}
	e.Finish(b, at)
	return b, length
}

// run returns a run of packets: its bytes without headers, the frames that should arrive, and the
// length of the packets.
func (r roce) run(ops []bth.Opcode, qpns int, sizes ...int) (data []byte, want [][]byte, size int) {
	for i, op := range ops {
		b, length := r.packet(op, bth.QPN(17+i%qpns), 1000+i/qpns, sizes[min(i, len(sizes)-1)], i)
		data = append(data, b[len(b)-length:]...)
		want = append(want, b)
		if i == 0 {
			size = length
		}
	}
	return data, want, size
}

// several returns n times the same opcode, and then others.
func several(n int, op bth.Opcode, then ...bth.Opcode) (ops []bth.Opcode) {
	for range n {
		ops = append(ops, op)
	}
	return append(ops, then...)
}

// expect receives frames and compares them, except for the parts that the ICRC does not cover.
func expect(t *testing.T, p *Port, want [][]byte) {
	t.Helper()
	d, pkt := new(frame.Decoder), new(bth.Packet)
	got := receive(t, p, len(want), 3*time.Second)
	if len(got) != len(want) {
		t.Fatalf("received %d packets of %d (%+v)", len(got), len(want), p.Stats())
	}
	for i := range got {
		if r := d.Decode(got[i], pkt); r != frame.ReasonOK {
			t.Fatalf("packet %d of %d, %d bytes: Decode() = %v", i, len(got), len(got[i]), r)
		}
		if !bytes.Equal(payloadOf(got[i]), payloadOf(want[i])) {
			t.Fatalf("packet %d of %d bytes arrived as %d bytes", i, len(want[i]), len(got[i]))
		}
	}
}

// payloadOf returns a frame without its headers up to UDP.
func payloadOf(b []byte) []byte {
	if b[etherLen]>>4 == 6 {
		return b[etherLen+ipv6Len+udpLen:]
	}
	return b[etherLen+ipv4Len+udpLen:]
}

// Runs from a UDP socket arrive as packets.
func TestRunsArrive(t *testing.T) {
	for _, mtu := range []int{1500, 4500} {
		pair := newPair(t, veth.Options{MTU: mtu, Offloads: true})
		b := openEnd(t, &pair.B, Options{Mode: Generic})
		m := int(bth.MTUFor(mtu))
		for _, v6 := range []bool{false, true} {
			s, r := newRunSender(t, pair, v6), roce{v6: v6}
			for _, c := range []struct {
				name  string
				ops   []bth.Opcode
				qpns  int
				sizes []int
			}{
				{"middle", several(60000/(m+16), bth.RCWriteMiddle), 1, []int{m}},
				{"two", several(1, bth.RCWriteMiddle, bth.RCWriteLast), 1, []int{m, m - 16}},
				{"last", several(7, bth.RCSendMiddle, bth.RCSendLast), 1,
					append(sizes(7, m), 1)},
				{"first", several(9, bth.RCWriteFirst), 9, []int{m}},
				{"writes", several(64, bth.RCWriteOnly), 1, []int{64}},
				{"odd writes", several(64, bth.RCWriteOnly), 4, []int{61}},
				{"sends", several(15, bth.RCSendOnly), 1, []int{m - 4}},
				{"empty sends", several(40, bth.RCSendOnly), 1, []int{0}},
				{"datagrams", several(50, bth.UDSendOnly), 50, []int{200}},
				{"acknowledgments", several(30, bth.RCAck), 10, []int{0}},
				{"responses", several(12, bth.RCReadResponseMiddle, bth.RCReadResponseLast), 1,
					append(sizes(12, m), 100)},
				{"one", several(1, bth.RCSendOnly), 1, []int{m}},
			} {
				t.Run(fmt.Sprintf("mtu%d/v6=%v/%s", mtu, v6, c.name), func(t *testing.T) {
					for range 3 {
						data, want, size := r.run(c.ops, c.qpns, c.sizes...)
						if err := s.send(data, size); err != nil {
							t.Fatal(err)
						}
						expect(t, b, want)
					}
				})
			}
		}
		if st := b.Stats(); st.RxDropped != 0 {
			t.Errorf("Stats() = %+v, want no drops", st)
		}
	}
}

// sizes returns n times the same size.
func sizes(n, size int) (s []int) {
	for range n {
		s = append(s, size)
	}
	return s
}

// Runs of all sizes and single frames arrive in order, also if the owner takes few frames at a
// time.
func TestRunsAndFrames(t *testing.T) {
	pair := newPair(t, veth.Options{MTU: 4500, Offloads: true})
	d, err := Probe(pair.B.Iface, pair.B.Fd())
	if err != nil {
		t.Fatal(err)
	}
	b := openEnd(t, &pair.B, Options{Chunks: 2048})
	if !d.Runs || !b.Info().Runs {
		t.Errorf("Probe().Runs = %v, Info().Runs = %v, want true", d.Runs, b.Info().Runs)
	}
	s, r := newRunSender(t, pair, false), roce{}
	random := rand.New(rand.NewPCG(21, 7))
	var want [][]byte
	for range 60 {
		n := random.IntN(4097)
		count := 1 + random.IntN(min(64, 65000/(n+40)))
		op := []bth.Opcode{bth.RCWriteOnly, bth.RCSendOnly, bth.RCReadResponseOnly}[random.IntN(3)]
		data, frames, size := r.run(several(count, op), 1+random.IntN(3), n)
		if err := s.send(data, size); err != nil {
			t.Fatal(err)
		}
		want = append(want, frames...)
	}
	dec, pkt := new(frame.Decoder), new(bth.Packet)
	var bufs [7]driver.Buf
	deadline := time.Now().Add(10 * time.Second)
	split := 0
	for at := 0; at < len(want); {
		n := b.Receive(bufs[:1+random.IntN(len(bufs))])
		for i := range n {
			if reason := dec.Decode(bufs[i].B, pkt); reason != frame.ReasonOK ||
				!bytes.Equal(payloadOf(bufs[i].B), payloadOf(want[at])) {
				t.Fatalf("packet %d: Decode() = %v, %d bytes, want %d", at, reason,
					len(bufs[i].B), len(want[at]))
			}
			at++
			if queue, _ := untoken(bufs[i].Token); queue == splitQueue {
				split++
			}
		}
		b.Release(bufs[:n])
		if n == 0 && time.Now().After(deadline) {
			t.Fatalf("received %d packets, want %d (%+v)", at, len(want), b.Stats())
		}
	}
	if split < len(want)*9/10 {
		t.Errorf("%d of %d packets were in runs, want nearly all", split, len(want))
	}
	checkBuffers(t, b)
}
