package packets_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/fuzz/packets"
	"github.com/gorxe/gorxe/loopback"
)

func target() packets.Target {
	return packets.Target{
		Address: frame.Address{Src: bth.GIDFromIPv4([4]byte{10, 77, 0, 1}),
			Dst: bth.GIDFromIPv4([4]byte{10, 77, 0, 2}), SrcPort: 0xc123},
		QPN: 0x11, PSN: 0xfffffe, MTU: 256, Addr: 0x10000, RKey: 0x1234, Len: 4096, QKey: 7,
		SrcQPN: 9, Responses: true,
	}
}

// Without mutations a decoder accepts every frame, with the expected PSN.
func TestValidFrames(t *testing.T) {
	for _, tr := range []bth.Transport{bth.RC, bth.UC, bth.UD} {
		tg := target()
		tg.Sound, tg.Transport, tg.Responses = 1, tr, false
		g := packets.New(1, tg)
		var d frame.Decoder
		var p bth.Packet
		seen := map[bth.Opcode]bool{}
		for range 3000 {
			want := g.Target().PSN
			f := g.Frame()
			if r := d.Decode(f, &p); r != frame.ReasonOK {
				t.Fatalf("%v: frame %d (%s): %v", tr, g.N(), g.What(), r)
			}
			if p.Info.Transport != tr || p.BTH.DestQP() != 0x11 || p.BTH.PSN() != want ||
				len(p.Payload) > 256 {
				t.Fatalf("%v: %s: to QP %v, PSN %v, want %v, %d bytes", tr, g.What(),
					p.BTH.DestQP(), p.BTH.PSN(), want, len(p.Payload))
			}
			seen[p.BTH.Opcode()] = true
		}
		if want := map[bth.Transport]int{bth.RC: 16, bth.UC: 12, bth.UD: 2}[tr]; len(seen) < want {
			t.Errorf("%v: %d opcodes seen, want %d: %v", tr, len(seen), want, seen)
		}
	}
}

// The same seed makes the same frames, another seed others. Mutated frames meet every reason for
// which a decoder drops a frame, and enough of them are accepted.
func TestMutatedFrames(t *testing.T) {
	a, b, other := packets.New(7, target()), packets.New(7, target()), packets.New(8, target())
	var d frame.Decoder
	var p bth.Packet
	var reasons [frame.NumReasons]int
	same := 0
	for range 30000 {
		f := a.Frame()
		if !bytes.Equal(f, b.Frame()) {
			t.Fatalf("frame %d differs from that of the same seed: %s", a.N(), a.What())
		}
		if bytes.Equal(f, other.Frame()) {
			same++
		}
		if len(f) > packets.MaxFrame {
			t.Fatalf("frame of %d bytes", len(f))
		}
		reasons[d.Decode(f, &p)]++
	}
	if same > 3000 {
		t.Errorf("%d of 30000 frames are those of another seed", same)
	}
	if reasons[frame.ReasonOK] < 10000 {
		t.Errorf("only %d frames of 30000 pass the decoder", reasons[frame.ReasonOK])
	}
	for _, r := range []frame.Reason{frame.ReasonShort, frame.ReasonIPChecksum,
		frame.ReasonUDPLength, frame.ReasonUDPChecksum,
		frame.ReasonOpcode, frame.ReasonVersion, frame.ReasonPad, frame.ReasonTruncated,
		frame.ReasonICRC} {
		if reasons[r] == 0 {
			t.Errorf("no frame is dropped for: %v", r)
		}
	}
}

// The packet with 48 bytes of IP: opcode 0xff to the multicast QPN.
func TestKnownCrashPacket(t *testing.T) {
	g := packets.New(3, target())
	for range 200000 {
		f := g.Frame()
		if len(f) == 14+48 && strings.Contains(g.What(), "killer") && f[42] == 0xff &&
			binary.BigEndian.Uint32(f[46:]) == 0xffffff {
			return
		}
	}
	t.Error("never made")
}

// Every class makes frames of every size that fit the limit, for each transport and IP version, and
// the same frames for the same seed. Some frames of each class are not valid.
func TestClasses(t *testing.T) {
	names := map[string]bool{}
	for i := range packets.Classes() {
		c := &packets.Classes()[i]
		if names[c.Name] {
			t.Errorf("two classes are named %q", c.Name)
		}
		names[c.Name] = true
		var d frame.Decoder
		var p bth.Packet
		refused, frames := 0, 0
		for seed := range uint64(400) {
			tg := target()
			tg.Transport = []bth.Transport{bth.RC, bth.UC, bth.UD}[seed%3]
			if seed%2 == 1 {
				tg.Address.Src, _ = bth.ParseGID("fd00::1")
				tg.Address.Dst, _ = bth.ParseGID("fd00::2")
			}
			var again [][]byte
			packets.New(seed, tg).Make(c, func(f []byte) { again = append(again, bytes.Clone(f)) })
			g := packets.New(seed, tg)
			g.Make(c, func(f []byte) {
				frames++
				if len(f) > packets.MaxFrame || len(again) == 0 || !bytes.Equal(f, again[0]) {
					t.Fatalf("%s, seed %d: frame of %d bytes, or another one the second time", c.Name,
						seed, len(f))
				}
				again = again[1:]
				if d.Decode(f, &p) != frame.ReasonOK || g.What() != "" {
					refused++
				}
			})
			if len(again) > 0 || g.N() == 0 {
				t.Fatalf("%s, seed %d: %d frames less than the first time", c.Name, seed, len(again))
			}
		}
		if frames < 400 || refused == 0 {
			t.Errorf("%s: %d frames, %d with errors", c.Name, frames, refused)
		}
	}
	if len(names) < 20 {
		t.Errorf("only %d classes", len(names))
	}
}

// Fragments and extension headers have correct IP checksums, so that the stack itself must refuse
// them.
func TestFragmentsAndOptions(t *testing.T) {
	for i := range packets.Classes() {
		c := &packets.Classes()[i]
		if c.Name != "IP fragments" {
			continue
		}
		for seed := range uint64(100) {
			packets.New(seed, target()).Make(c, func(f []byte) {
				ip := f[14:34]
				sum := uint32(0)
				for i := 0; i < len(ip); i += 2 {
					sum += uint32(binary.BigEndian.Uint16(ip[i:]))
				}
				if sum = sum>>16 + sum&0xffff; sum != 0xffff {
					t.Fatalf("seed %d: IPv4 header with checksum %#x", seed, sum)
				}
				if binary.BigEndian.Uint16(ip[6:])&0x3fff == 0 {
					t.Fatalf("seed %d: not a fragment", seed)
				}
				if int(binary.BigEndian.Uint16(ip[2:])) != len(f)-14 {
					t.Fatalf("seed %d: IP length does not match the frame", seed)
				}
			})
		}
		return
	}
	t.Fatal("no class of fragments")
}

// The Generator can be used on any stack, here one that is reached through a Port.
func ExampleGenerator() {
	link, err := loopback.NewLink(loopback.Config{})
	if err != nil {
		panic(err)
	}
	defer link.Close()
	mine := link.Port(0)
	g := packets.New(42, packets.Target{
		Address: frame.Address{
			SrcMAC: mine.Info().MAC, DstMAC: link.Port(1).Info().MAC, SrcPort: 0xc000,
			Src: bth.GIDFromIPv4([4]byte{10, 77, 0, 1}),
			Dst: bth.GIDFromIPv4([4]byte{10, 77, 0, 2}),
		},
		Transport: bth.RC, QPN: 0x11, PSN: 100, MTU: 1024, Sound: 0.5,
	})
	for range 100 {
		var bufs [1]driver.Buf
		if mine.Alloc(bufs[:]) == 0 {
			break
		}
		f := g.Frame()
		bufs[0].B = bufs[0].B[:copy(bufs[0].B, f)]
		if _, err := mine.Send(bufs[:]); err != nil {
			panic(err)
		}
	}
	fmt.Println(g.N(), "frames sent")
	// Output: 100 frames sent
}
