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

// Random super-frames are dropped or arrive as frames with wrong ICRCs. Packets and runs after them
// arrive.
func TestForgedRuns(t *testing.T) {
	pair := newPair(t, veth.Options{Offloads: true})
	b := openEnd(t, &pair.B, Options{Mode: Generic})
	s, r := newRunSender(t, pair, false), roce{}
	random := rand.New(rand.NewPCG(21, 4))
	good, want, length := r.run(several(3, bth.RCSendOnly), 1, 64)
	d, pkt := new(frame.Decoder), new(bth.Packet)
	for round := range 200 {
		size := []int{1, 15, 16, 17, 20, 1 + random.IntN(1400), 1472}[round%7]
		data := make([]byte, 1+random.IntN(min(64*size, 65_000)))
		for i := range data {
			data[i] = byte(random.Uint32())
		}
		if n := len(data) / 2; round%3 == 0 { // a valid header
			copy(data, good[:min(n, bth.HeaderLen)])
		}
		if round%5 == 0 { // a valid first packet
			copy(data, good[:min(len(data), length)])
		}
		if round%4 == 0 {
			clear(data[len(data)/2:]) // zeros are the BTH of a SEND FIRST
		}
		_ = s.send(data, size) // the kernel refuses some sizes
		if err := s.send(good, length); err != nil {
			t.Fatal(err)
		}
		deadline := time.Now().Add(5 * time.Second)
		for at := 0; at < len(want); {
			var bufs [64]driver.Buf
			n := b.Receive(bufs[:])
			for i := range bufs[:n] {
				if d.Decode(bufs[i].B, pkt) == frame.ReasonOK &&
					bytes.Equal(payloadOf(bufs[i].B), payloadOf(want[at])) {
					at++
				} else if at > 0 {
					at = 0
				}
			}
			if b.Release(bufs[:n]); n == 0 && time.Now().After(deadline) {
				t.Fatalf("round %d: the run after a forged one did not arrive (%+v)", round,
					b.Stats())
			}
		}
	}
	if st := b.Stats(); st.RxDropped == 0 {
		t.Error("no forged run was counted")
	}
	checkBuffers(t, b)
}

// checkBuffers checks that no buffer of the first queue was lost.
func checkBuffers(t testing.TB, p *Port) {
	t.Helper()
	q := p.queues[0]
	if n := int(q.posted) + len(q.spare); len(p.split.free) != splitSlots || n != int(q.rxCount) {
		t.Errorf("%d buffers for packets and %d for frames exist, want %d and %d",
			len(p.split.free), n, splitSlots, q.rxCount)
	}
}

// GRO may merge packets with the same identification.
func TestRunWithOneIdentification(t *testing.T) {
	pair := newPair(t, veth.Options{Offloads: true})
	b := openEnd(t, &pair.B, Options{Mode: Generic})
	s := newRunSender(t, pair, false)
	data, want, size := roce{sameID: true}.run(several(20, bth.RCWriteMiddle), 1, 1024)
	if err := s.send(data, size); err != nil {
		t.Fatal(err)
	}
	expect(t, b, want)
}

// On a veth without segmentation offload the kernel cuts runs before they arrive.
func TestRunsWithoutOffload(t *testing.T) {
	pair := newPair(t, veth.Options{})
	b := openEnd(t, &pair.B, Options{Mode: Generic})
	for _, v6 := range []bool{false, true} {
		data, want, size := roce{v6: v6}.run(several(40, bth.RCWriteMiddle), 1, 1024)
		if err := newRunSender(t, pair, v6).send(data, size); err != nil {
			t.Fatal(err)
		}
		expect(t, b, want)
	}
	if b.split.lengths != [recentLengths]int{} {
		t.Error("a run arrived")
	}
}

// In native mode the kernel cuts runs before they arrive.
func TestRunsInNativeMode(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		pair := newPair(t, veth.Options{Offloads: true})
		b := openEnd(t, &pair.B, Options{Mode: Native})
		data, want, size := roce{v6: v6}.run(several(40, bth.RCWriteMiddle), 1, 1024)
		if err := newRunSender(t, pair, v6).send(data, size); err != nil {
			t.Fatal(err)
		}
		expect(t, b, want)
		if b.Info().Runs || b.splits || b.Stats().RxDropped != 0 {
			t.Errorf("Stats() = %+v, splits = %v", b.Stats(), b.splits)
		}
	}
}

// Without multi-buffer, runs that fit in a chunk arrive. Longer ones are dropped and counted.
func TestRunsWithoutMultiBuffer(t *testing.T) {
	pair := newPair(t, veth.Options{Offloads: true})
	no := false
	b := openEnd(t, &pair.B, Options{Mode: Generic, MultiBuffer: &no})
	s := newRunSender(t, pair, false)
	long, _, size := roce{}.run(several(20, bth.RCWriteMiddle), 1, 1024)
	if err := s.send(long, size); err != nil {
		t.Fatal(err)
	}
	short, want, size := roce{}.run(several(3, bth.RCWriteMiddle), 1, 1024)
	if err := s.send(short, size); err != nil {
		t.Fatal(err)
	}
	expect(t, b, want)
	if st := b.Stats(); st.RxDropped == 0 {
		t.Errorf("Stats() = %+v, want a dropped run", st)
	}
}

// Receiving runs does not allocate.
func TestRunsNoAllocations(t *testing.T) {
	pair := newPair(t, veth.Options{MTU: 4500, Offloads: true})
	b := openEnd(t, &pair.B, Options{Mode: Generic})
	s := newRunSender(t, pair, false)
	data, want, size := roce{}.run(several(15, bth.RCWriteMiddle), 1, 4096)
	if err := s.send(data, size); err != nil { // sets the length of packets
		t.Fatal(err)
	}
	var bufs [8]driver.Buf
	drain := func() {
		for got := 0; got < len(want); {
			n := b.Receive(bufs[:])
			b.Release(bufs[:n])
			if got += n; n == 0 {
				b.Wait(10 * time.Millisecond)
			}
		}
	}
	drain()
	to := s.to
	allocs := testing.AllocsPerRun(100, func() {
		if err := unix.Sendto(s.fd, data, 0, to); err != nil {
			t.Error(err)
		}
		drain()
	})
	if allocs > 1 { // Sendto may allocate the address
		t.Errorf("%v allocations per run of %d packets, want at most 1", allocs, len(want))
	}
}

// fakeKernel is a Port with one queue whose receive ring the test fills.
type fakeKernel struct {
	*Port
	q *queue
}

func newFakeKernel() *fakeKernel {
	q := &queue{shift: 13, rxCount: 256, umem: make([]byte, 256<<13)}
	q.rx, q.fill = fakeRing[unix.XDPDesc](256), fakeRing[uint64](256)
	q.initRefill(false)
	p := &Port{queues: []*queue{q}, splits: true, multi: true, capacity: 2*chunkSize - headroom}
	p.split.pool = newPool()
	return &fakeKernel{Port: p, q: q}
}

// deliver puts b on the receive ring, cut into the given lengths. more says that the frame
// continues after them. It returns false if no buffer is free.
func (k *fakeKernel) deliver(b []byte, more bool, lengths ...int) bool {
	for i, n := range lengths {
		at := k.q.fill.consumer.Load()
		if at == k.q.fill.producer.Load() {
			return false
		}
		addr := k.q.fill.slots[at&k.q.fill.mask] + headroom
		k.q.fill.consumer.Store(at + 1)
		n = min(n, len(b))
		copy(k.q.umem[addr:], b[:n])
		b = b[n:]
		d := unix.XDPDesc{Addr: addr, Len: uint32(n)}
		if more || i < len(lengths)-1 {
			d.Options = unix.XDP_PKT_CONTD
		}
		own := k.q.rx.producer.Load()
		k.q.rx.slots[own&k.q.rx.mask] = d
		k.q.rx.producer.Store(own + 1)
	}
	return true
}

// superFrame returns the frame that a socket receives for a run.
func superFrame(r roce, data []byte, head []byte) []byte {
	n := etherLen + ipv4Len
	if r.v6 {
		n = etherLen + ipv6Len
	}
	b := append(append([]byte(nil), head[:n+udpLen]...), data...)
	length := udpLen + len(data)
	x := run{headers: headers{ip: etherLen, udp: n, end: n + udpLen}}
	copy(x.head[:], b[:n+udpLen])
	x.put(b, len(data), 0)
	from := etherLen + 12
	if r.v6 {
		from = etherLen + 8
	}
	sum := fold(sum16(b[from:n]) + protoUDP + uint32(length))
	b[n+6], b[n+7] = byte(sum>>8), byte(sum)
	return b
}

// Frames of too many descriptors, and those that never end, are dropped and counted. Frames after
// them arrive.
func TestEndlessFrames(t *testing.T) {
	k := newFakeKernel()
	f := packet{}.build(pattern(100, 1))
	var bufs [16]driver.Buf
	get := func(want int) {
		t.Helper()
		n := k.Receive(bufs[:])
		if n != want {
			t.Fatalf("Receive() = %d, want %d (%+v)", n, want, k.stats)
		}
		for i := range bufs[:n] {
			if !bytes.Equal(bufs[i].B, f) {
				t.Errorf("a frame of %d bytes arrived as %d bytes", len(f), len(bufs[i].B))
			}
		}
		k.Release(bufs[:n])
	}
	big := make([]byte, 64<<10)
	for range 10 { // longer than the ring
		k.deliver(big, true, sizes(maxPieces/2, 100)...)
		get(0)
	}
	if k.stats.RxDropped == 0 {
		t.Error("a frame without an end was not counted")
	}
	k.deliver(big, false, 100)
	k.deliver(f, false, len(f))
	get(1)
	before := k.stats.RxDropped
	k.deliver(big, false, sizes(maxPieces+1, 10)...) // one descriptor too many
	k.deliver(f, false, 60, 60, len(f))
	get(1)
	if k.stats.RxDropped == before {
		t.Error("a frame with too many descriptors was not counted")
	}
	k.deliver(f, true, 50) // the rest arrives later
	get(0)
	k.deliver(f[50:], false, len(f))
	get(1)
	checkBuffers(t, k.Port)
}

// The receive path neither panics nor loses buffers, whatever frames arrive in whatever pieces.
func FuzzRuns(f *testing.F) {
	for i, r := range []roce{{}, {v6: true}} {
		data, want, _ := r.run(several(5, bth.RCWriteMiddle, bth.RCWriteLast), 1, 256)
		f.Add(superFrame(r, data, want[0]), uint16(1000*i), uint8(i))
		data, want, _ = r.run(several(9, bth.RCSendOnly), 2, 4)
		f.Add(superFrame(r, data, want[0]), uint16(3840), uint8(7))
	}
	k := newFakeKernel()
	good, want, _ := roce{}.run(several(4, bth.RCSendOnly), 1, 100)
	run := superFrame(roce{}, good, want[0])
	d, pkt := new(frame.Decoder), new(bth.Packet)
	f.Fuzz(func(t *testing.T, b []byte, piece uint16, take uint8) {
		n := 1 + int(piece)%(chunkSize-headroom)
		var lengths []int
		for rest := len(b); rest > 0 && len(lengths) < 200; rest -= n {
			lengths = append(lengths, n)
		}
		k.deliver(b, false, lengths...)
		k.deliver(run, false, len(run)/2, len(run))
		arrived := 0
		for {
			var bufs [16]driver.Buf
			n := k.Receive(bufs[:1+int(take)%len(bufs)])
			for i := range bufs[:n] {
				if len(bufs[i].B) > k.capacity {
					t.Errorf("a frame of %d bytes arrived", len(bufs[i].B))
				}
				if d.Decode(bufs[i].B, pkt) == frame.ReasonOK {
					arrived++
				}
			}
			if k.Release(bufs[:n]); n == 0 {
				break
			}
		}
		if arrived < len(want) {
			t.Errorf("%d packets arrived, want at least %d", arrived, len(want))
		}
		checkBuffers(t, k.Port)
	})
}

// BenchmarkRun measures how long it takes to split a run.
func BenchmarkRun(b *testing.B) {
	for _, c := range []struct {
		op          bth.Opcode
		count, size int
	}{
		{bth.RCWriteOnly, 64, 64}, {bth.RCWriteMiddle, 58, 1024}, {bth.RCWriteMiddle, 15, 4096},
		{bth.RCSendOnly, 2, 1024}, {bth.RCAck, 1, 0}, {bth.RCSendOnly, 1, 4096},
	} {
		b.Run(fmt.Sprintf("%dx%d", c.count, c.size), func(b *testing.B) {
			k := newFakeKernel()
			data, want, _ := roce{}.run(several(c.count, c.op), 1, c.size)
			f := superFrame(roce{}, data, want[0])
			lengths := sizes((len(f)+3839)/3840, 3840)
			var bufs [64]driver.Buf
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				k.deliver(f, false, lengths...)
				for got := 0; got < c.count; {
					n := k.Receive(bufs[:])
					k.Release(bufs[:n])
					if got += n; n == 0 {
						b.Fatal("no packets")
					}
				}
			}
		})
	}
}

// Runs may have a priority tag.
func TestTaggedRuns(t *testing.T) {
	k := newFakeKernel()
	d, pkt := new(frame.Decoder), new(bth.Packet)
	for _, r := range []roce{{}, {v6: true}} {
		data, want, _ := r.run(several(9, bth.RCReadResponseMiddle, bth.RCReadResponseLast), 1,
			append(sizes(9, 512), 40)...)
		f := superFrame(r, data, want[0])
		f = append(append(bytes.Clone(f[:12]), 0x81, 0, 0xe0, 0), f[12:]...)
		k.deliver(f, false, 3840, len(f))
		var bufs [16]driver.Buf
		n := k.Receive(bufs[:])
		if n != len(want) {
			t.Fatalf("Receive() = %d, want %d", n, len(want))
		}
		for i := range bufs[:n] {
			if reason := d.Decode(bufs[i].B, pkt); reason != frame.ReasonOK || !pkt.HasVLAN ||
				!bytes.HasSuffix(bufs[i].B, payloadOf(want[i])) {
				t.Errorf("packet %d: Decode() = %v, tag %#x", i, reason, pkt.VLAN)
			}
		}
		k.Release(bufs[:n])
	}
	checkBuffers(t, k.Port)
}
