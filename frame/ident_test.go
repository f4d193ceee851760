package frame

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/gorxe/gorxe/bth"
)

// received returns the frame that f would be if a socket had received it: the identification is
// unknown, and the frame has another one.
func received(f []byte, unknown uint16) []byte {
	g := append([]byte(nil), f...)
	ip := g[lenEthernet:]
	binary.BigEndian.PutUint16(ip[4:], unknown)
	binary.BigEndian.PutUint16(ip[10:], 0)
	binary.BigEndian.PutUint16(ip[10:], ^sumIPv4(ip[:lenIPv4]))
	return g
}

// counted returns a frame with n bytes of payload and an identification.
func counted(n int, id uint16) []byte {
	f, netLen := writeOnly(&addr4, n)
	PutHeaders(f, &addr4)
	(&Encoder{ID: id}).Finish(f, netLen)
	return f
}

func TestRecoverIDs(t *testing.T) {
	var p bth.Packet
	for _, n := range []int{0, 4, 60, 64, 256, 1024, 4096} {
		for _, id := range []uint16{0, 1, 0x100, 0x8000, 0xffff, 0x1234} {
			for _, unknown := range []uint16{0, 1, 63} {
				d := new(Decoder)
				want := counted(n, id)
				f := received(want, unknown)
				if id != unknown {
					if r := d.Decode(f, &p); r != ReasonICRC {
						t.Fatalf("without RecoverIDs: %v, want %v", r, ReasonICRC)
					}
				}
				d.RecoverIDs()
				if r := d.Decode(f, &p); r != ReasonOK {
					t.Fatalf("payload %d, identification %#x: %v", n, id, r)
				}
				if id != unknown && string(f) != string(want) {
					t.Fatalf("payload %d: header %x, want %x", n, p.NetHeader, want[lenEthernet:34])
				}
			}
		}
	}
	d := new(Decoder)
	d.RecoverIDs()
	f, _ := writeOnly(&addr6, 64)
	if r := d.Decode(f, &p); r != ReasonOK {
		t.Errorf("IPv6: %v", r)
	}
	f[len(f)-1] ^= 1
	if r := d.Decode(f, &p); r != ReasonICRC {
		t.Errorf("corrupted packet over IPv6: %v", r)
	}
}

// The identifications of a flow are limited after its first packet, and a flow that exceeds the
// limit loses few packets.
func TestPlausibleIDs(t *testing.T) {
	x := new(identifications)
	for _, c := range []struct {
		after int64 // microseconds
		id    uint16
		want  bool
	}{
		{0, 40000, true}, // the first packet
		{1, 40000, true},
		{1, 40001, true},
		{1, 39990, true}, // overtaken
		{1, 40066, true},
		{0, 0, true}, // a run
		{0, MaxRunIDs - 1, true},
		{1, 40066 + identAhead + 3, false}, // too far ahead of the largest
		{0, 40066 + identAhead + 2, true},  // the limit has grown
		{100, 43100, true},
		{0, 43100 + 65, true},
		{10000, 43165 + 20000, true}, // the sender had time for 20000 other packets
		{10000, 5, true},             // the counter wraps around
	} {
		x.now += c.after
		if got := x.plausible(7, c.id); got != c.want {
			t.Fatalf("plausible(%d) = %v, want %v", c.id, got, c.want)
		}
	}
	for range 100 {
		id := uint16(rand.Uint32())
		refused := 0
		for ; !x.plausible(7, id); id++ {
			refused++
		}
		if refused > identRefusals {
			t.Fatalf("%d packets refused after a jump, want at most %d", refused, identRefusals)
		}
	}
	if !x.plausible(8, 5) {
		t.Error("another flow is affected")
	}
}

// Of random 32-bit errors in the ICRC, which stand for any corruption, the share that is accepted
// matches what is documented: 2^-16 for the first packet of a flow, and almost none afterwards.
func TestStrengthOfRecoveredICRC(t *testing.T) {
	const first, later = 1 << 20, 3 << 20
	random := rand.New(rand.NewPCG(21, 1))
	x := new(identifications)
	f := received(counted(64, 5000), 0)
	ip := f[lenEthernet : len(f)-bth.ICRCLen]
	accepted := func(n int, before func()) (count int) {
		for range n {
			before()
			if residue := random.Uint32(); residue != 0 && x.recover(ip, residue) {
				count++
			}
			binary.BigEndian.PutUint16(ip[4:], 0)
		}
		return count
	}
	key := binary.BigEndian.Uint64(ip[12:])
	flow := &x.flows[key*0x9e3779b97f4a7c15>>54]
	if n := accepted(first, func() { *flow = identFlow{} }); n < first>>16/2 || n > 2*first>>16 {
		t.Errorf("first packets: %d of %d accepted, want about %d", n, first, first>>16)
	}
	n := accepted(later, func() {
		*flow = identFlow{key: key, last: 5000, wide: identAhead, time: x.now - 10}
	})
	if n > 4 { // the expected number is 0.2
		t.Errorf("later packets: %d of %d accepted", n, later)
	}
}

// Corrupted packets, as opposed to random errors in the ICRC, are not accepted either.
func TestCorruptedPacketsOfFlow(t *testing.T) {
	random := rand.New(rand.NewPCG(21, 2))
	d := new(Decoder)
	d.RecoverIDs()
	var p bth.Packet
	wrong, id := 0, uint16(0)
	for i := range 1 << 17 {
		d.SetTime(int64(i) * 10_000)
		f := received(counted(40, id), 0)
		if i%4 == 0 {
			if r := d.Decode(f, &p); r != ReasonOK {
				t.Fatalf("packet %d: %v", i, r)
			}
			id++
			continue
		}
		body := f[lenEthernet+lenIPv4+lenUDP:]
		for range 1 + random.IntN(4) {
			at := random.IntN(len(body))
			if at != 4 { // the byte with FECN and BECN is not covered
				body[at] ^= byte(1 + random.IntN(255))
			}
		}
		if string(f) != string(received(counted(40, id), 0)) && d.Decode(f, &p) == ReasonOK {
			wrong++
		}
	}
	if wrong > 0 {
		t.Errorf("%d of %d corrupted packets accepted", wrong, 3<<15)
	}
}

// The ICRC of packet i of a run is that of a packet with identification i.
func TestRunIDs(t *testing.T) {
	r, d, p := new(RunIDs), new(Decoder), new(bth.Packet)
	for _, n := range []int{0, 60, 1024, 4096, 64, 1028} {
		for i := range MaxRunIDs {
			f := counted(n, 0)
			r.Set(f[lenV4Headers:], i)
			f = received(f, uint16(i))
			if got := d.Decode(f, p); got != ReasonOK {
				t.Fatalf("payload %d, packet %d: %v", n, i, got)
			}
		}
		for _, from := range []uint16{1, 63, 64, 0x07c0, 0x8000, 0xffff} {
			to := from * 31
			f := counted(n, from)
			r.Change(f[lenV4Headers:], from, to)
			f = received(f, to)
			if got := d.Decode(f, p); got != ReasonOK {
				t.Fatalf("payload %d, identification %#x changed to %#x: %v", n, from, to, got)
			}
			port := f[lenEthernet+lenIPv4:]
			old := binary.BigEndian.Uint16(port)
			r.ChangePort(f[lenV4Headers:], old, from)
			binary.BigEndian.PutUint16(port, from)
			if got := d.Decode(f, p); got != ReasonOK {
				t.Fatalf("payload %d, source port %#x changed to %#x: %v", n, old, from, got)
			}
		}
	}
}

const lenV4Headers = lenEthernet + lenIPv4 + lenUDP

func TestRecoverIDsDoesNotAllocate(t *testing.T) {
	d, p := new(Decoder), new(bth.Packet)
	d.RecoverIDs()
	f := received(counted(64, 9), 0)
	unknown := append([]byte(nil), f...)
	if n := testing.AllocsPerRun(100, func() {
		copy(f, unknown)
		if d.Decode(f, p) != ReasonOK {
			t.Fatal("packet refused")
		}
	}); n != 0 {
		t.Errorf("Decode allocates %v times", n)
	}
}

func BenchmarkRecoverID(b *testing.B) {
	d, p := new(Decoder), new(bth.Packet)
	d.RecoverIDs()
	f := received(counted(1024, 9), 0)
	for b.Loop() {
		binary.BigEndian.PutUint16(f[lenEthernet+4:], 0)
		binary.BigEndian.PutUint16(f[lenEthernet+10:], 0)
		binary.BigEndian.PutUint16(f[lenEthernet+10:], ^sumIPv4(f[lenEthernet:34]))
		if d.Decode(f, p) != ReasonOK {
			b.Fatal("packet refused")
		}
	}
}
