package udp_test

import (
	"bytes"
	"context"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/internal/udpmsg"
	"github.com/gorxe/gorxe/udp"
	"golang.org/x/sys/unix"
)

// provider is a udp.Provider with one address.
type provider struct {
	addr netip.Addr
	slot uint8
}

func (p provider) State() (udp.Provided, error) {
	return udp.Provided{Info: driver.Info{Name: "test", MTU: 4200, Up: true}, Index: 1,
		Addrs: []netip.Prefix{netip.PrefixFrom(p.addr, p.addr.BitLen())}, Slot: p.slot}, nil
}

func (provider) Changed() <-chan struct{} { return nil }

func (provider) Open(a netip.Addr) (int, error) {
	l, err := udpmsg.Listen(a, 0, false)
	return l.FD, err
}

func (provider) Closed(netip.Addr) {}
func (provider) Mixed()            {}

func (provider) Resolve(context.Context, netip.Addr, netip.Addr) (driver.Hop, error) {
	return driver.Hop{}, driver.ErrClosed
}

func (provider) Close() {}

// lineRig has a port that receives the runs of a socket.
type lineRig struct {
	t    *testing.T
	port *udp.Port
	fd   int
	to   netip.Addr
	path frame.Address
	d    frame.Decoder
	psn  bth.PSN // of the next packet to send
}

// lineSlot is the slot of the port.
const lineSlot = 3

func newLineRig(t *testing.T) *lineRig {
	t.Helper()
	from, to := udp.RandomLoopback(), udp.RandomLoopback()
	port, err := udp.OpenProvided(provider{to, lineSlot})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { port.Close() })
	l, err := udpmsg.Listen(from, 0, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(l.FD) })
	port.OverlapHeaders()
	return &lineRig{t: t, port: port, fd: l.FD, to: to, path: frame.Address{HopLimit: 64,
		Src: bth.GIDFromAddr(from), Dst: bth.GIDFromAddr(to), SrcPort: bth.Port}}
}

// send sends a run of packets with n bytes of payload each, to the QP that slots returns for each.
// It returns the PSN of the first one.
func (r *lineRig) send(packets, n int, slots func(i int) uint8) bth.PSN {
	r.t.Helper()
	var data []byte
	for i := range packets {
		f := make([]byte, bth.MaxNetHeader+bth.HeaderLen+n+bth.ICRCLen)
		at := frame.PutHeaders(f, &r.path)
		bth.PutBTH(f[at:], &bth.BTHFields{Opcode: bth.RCSendMiddle, PKey: bth.DefaultPKey,
			DestQP: bth.QPN(uint32(slots(i))<<16 | 7), PSN: r.psn.Add(uint32(i))})
		copy(f[at+bth.HeaderLen:], counting(n))
		f = f[:at+bth.HeaderLen+n+bth.ICRCLen]
		(&frame.Encoder{ID: uint16(i)}).Finish(f, at)
		data = append(data, f[at:]...)
	}
	if err := unix.SetsockoptInt(r.fd, unix.SOL_UDP, unix.UDP_SEGMENT,
		bth.HeaderLen+n+bth.ICRCLen); err != nil {
		r.t.Skipf("the kernel does not support UDP_SEGMENT: %v", err)
	}
	if err := unix.Sendto(r.fd, data, 0, &unix.SockaddrInet4{Port: bth.Port,
		Addr: r.to.As4()}); err != nil {
		r.t.Fatal(err)
	}
	psn := r.psn
	r.psn = r.psn.Add(uint32(packets))
	return psn
}

// take waits for packets, at most as many as bufs has, and returns them.
func (r *lineRig) take(bufs []driver.Buf) []driver.Buf {
	r.t.Helper()
	for end := time.Now().Add(10 * time.Second); ; {
		if n := r.port.Receive(bufs); n > 0 {
			return bufs[:n]
		}
		if time.Now().After(end) {
			r.t.Fatal("no packet arrives")
		}
		if err := r.port.Wait(time.Second); err != nil {
			r.t.Fatal(err)
		}
	}
}

// check expects packets with PSNs from psn on, and n bytes of payload each, in received buffers. It
// returns their number.
func (r *lineRig) check(bufs []driver.Buf, psn bth.PSN, n int) (packets int) {
	r.t.Helper()
	for f := range frames(r.port, bufs) {
		pkt := new(bth.Packet)
		if reason := r.d.Decode(f, pkt); reason != frame.ReasonOK || pkt.BTH.PSN() != psn ||
			pkt.Src != r.path.Src || !bytes.Equal(pkt.Payload, counting(n)) {
			r.t.Fatalf("Decode() = %v, PSN %v of %d bytes from %v; want PSN %v of %d bytes", reason,
				pkt.BTH.PSN(), len(pkt.Payload), pkt.Src, psn, n)
		}
		psn = psn.Add(1)
		packets++
	}
	return packets
}

// expect receives packets with the PSNs from psn on, checks and releases them. It returns how many
// of them came in runs.
func (r *lineRig) expect(psn bth.PSN, packets, n int) (inRuns int) {
	r.t.Helper()
	for packets > 0 {
		var bufs [48]driver.Buf
		got := r.take(bufs[:])
		k := r.check(got, psn, n)
		psn = psn.Add(uint32(k))
		packets -= k
		inRuns += runPackets(got)
		r.port.Release(got)
	}
	return inRuns
}

// own sends a run to the port and returns how many packets of it came as a run.
func (r *lineRig) own(packets, n int) int {
	r.t.Helper()
	return r.expect(r.send(packets, n, ownSlot), packets, n)
}

func ownSlot(int) uint8 { return lineSlot }

// close expects that all buffers were returned.
func (r *lineRig) close() {
	r.t.Helper()
	if rx, lines := r.port.FreeBuffers(); rx != udp.RxBuffers || lines != udp.LineCount {
		r.t.Errorf("%d of %d buffers for packets and %d of %d for runs are free", rx,
			udp.RxBuffers, lines, udp.LineCount)
	}
}

// Packets of all lengths arrive in runs.
func TestLines(t *testing.T) {
	r := newLineRig(t)
	const size, packets = 512, 40
	r.own(packets, size)
	length := packets * (udpmsg.LenV4 + bth.HeaderLen + size + bth.ICRCLen)
	for _, n := range []int{0, 4, 44, 48, 52, 512, 1600} {
		length += (packets + 1) * (udpmsg.LenV4 + bth.HeaderLen + n + bth.ICRCLen)
		want := packets
		if bth.HeaderLen+n+bth.ICRCLen < udp.LineMin {
			want = 0
		}
		if got := r.own(packets, n); got != want {
			t.Errorf("payloads of %d bytes: %d packets in runs, want %d", n, got, want)
		}
		r.own(1, n)
	}
	if s := r.port.Stats(); s.RxDropped != 0 || s.RxFrames != uint64(r.psn) ||
		s.RxBytes != uint64(length) {
		t.Errorf("Stats() = %+v, want %d packets, %d bytes", s, r.psn, length)
	}
	r.close()
}

// Some packets of a run may be for another program: the others arrive with all headers.
func TestRunOfSeveralSlots(t *testing.T) {
	r := newLineRig(t)
	const size, packets = 512, 40
	r.own(packets, size)
	for range 2 * udp.LineCount {
		psn := r.send(packets, size, func(i int) uint8 {
			if i == 0 || i == packets-1 {
				return lineSlot + 1
			}
			return lineSlot
		})
		r.expect(psn.Add(1), packets-2, size)
		r.send(packets, size, func(int) uint8 { return lineSlot + 1 })
	}
	r.own(packets, size)
	if s, want := r.port.Stats(), uint64(2*udp.LineCount*(2+packets)); s.RxDropped != want {
		t.Errorf("%d packets dropped, want %d", s.RxDropped, want)
	}
	r.close()
}

// Runs arrive while the owner holds all buffers for runs.
func TestLinesInUse(t *testing.T) {
	r := newLineRig(t)
	const size, packets, runs = 512, 40, 2 * udp.LineCount
	r.own(packets, size)
	psn := r.psn
	var held []driver.Buf
	for range runs {
		r.send(packets, size, ownSlot)
		for n := 0; n < packets; {
			var bufs [packets]driver.Buf
			got := r.take(bufs[:])
			held = append(held, got...)
			for i := range got {
				n += got[i].Packets()
			}
		}
	}
	r.check(held, psn, size)
	r.port.Release(held)
	r.close()
}

// A call of Receive returns no further run after as many packets as the owner expects buffers.
func TestReceiveLimitsPackets(t *testing.T) {
	r := newLineRig(t)
	const size, packets, runs = 512, 40, 4
	r.own(packets, size)
	psn := r.psn
	for range runs {
		r.send(packets, size, ownSlot)
	}
	var calls []int
	for n := 0; n < runs*packets; {
		var bufs [packets + 1]driver.Buf
		got := r.take(bufs[:])
		n += r.check(got, psn.Add(uint32(n)), size)
		calls = append(calls, len(got))
		r.port.Release(got)
	}
	if want := []int{2, 2}; !slices.Equal(calls, want) {
		t.Errorf("calls of Receive return %d runs, want %d", calls, want)
	}
	r.close()
}

// A run that is not copied needs no buffers for packets.
func TestLineNeedsNoBuffers(t *testing.T) {
	r := newLineRig(t)
	const size, packets = 512, 40
	r.own(packets, size)
	undo := r.port.HoldBuffers(packets - 1)
	if r.own(packets, size) == 0 {
		t.Error("a run was copied")
	}
	undo()
	r.close()
}

// After a pause, the first run is copied.
func TestLinesEnd(t *testing.T) {
	r := newLineRig(t)
	const size, packets = 512, 40
	r.own(packets, size)
	for range 3 {
		for range udp.LongQuiet / 2 {
			r.port.Receive(make([]driver.Buf, 1))
		}
		if r.own(packets, size) == 0 {
			t.Fatal("a run was copied after a short pause")
		}
	}
	for range 2 * udp.LongQuiet {
		r.port.Receive(make([]driver.Buf, 1))
	}
	if r.own(packets, size) > 0 {
		t.Error("a run was not copied after a long pause")
	}
	for range 2 * udp.LongQuiet {
		r.port.Receive(make([]driver.Buf, 1))
	}
	if r.own(packets, size) > 0 {
		t.Error("a run was not copied after a second long pause")
	}
	r.close()
}
