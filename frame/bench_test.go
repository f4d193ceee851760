package frame

import (
	"fmt"
	"testing"

	"github.com/gorxe/gorxe/bth"
)

// writeOnly returns a finished "RC RDMA WRITE Only" frame with n payload bytes.
func writeOnly(a *Address, n int) (f []byte, netLen int) {
	f = make([]byte, bth.MaxNetHeader+bth.MaxHeaderLen+n+bth.ICRCLen)
	netLen = PutHeaders(f, a)
	b := f[netLen:]
	bth.PutBTH(b, &bth.BTHFields{Opcode: bth.RCWriteOnly, PKey: bth.DefaultPKey, DestQP: 0x123,
		PSN: 77, AckReq: true})
	bth.PutRETH(b[bth.HeaderLen:], 0x7f0011223344, 0xdeadbeef, uint32(n))
	h := bth.HeaderLen + bth.RETHLen
	for i := range n {
		b[h+i] = byte(i * 7)
	}
	f = f[:netLen+h+n+bth.ICRCLen]
	new(Encoder).Finish(f, netLen)
	return f, netLen
}

var (
	addr4 = Address{
		SrcMAC: bth.MAC{2, 0, 0, 0, 0, 1}, DstMAC: bth.MAC{2, 0, 0, 0, 0, 2},
		Src: bth.GIDFromIPv4([4]byte{10, 77, 0, 1}), Dst: bth.GIDFromIPv4([4]byte{10, 77, 0, 2}),
		SrcPort: 0xc123, TrafficClass: 0x68, HopLimit: 64,
	}
	addr6 = Address{
		SrcMAC: bth.MAC{2, 0, 0, 0, 0, 1}, DstMAC: bth.MAC{2, 0, 0, 0, 0, 2},
		Src: bth.GID{0: 0xfd, 1: 0x77, 15: 1}, Dst: bth.GID{0: 0xfd, 1: 0x77, 15: 2},
		SrcPort: 0xc123, TrafficClass: 0x68, HopLimit: 64, FlowLabel: 0xabcde,
	}
)

func sizes(b *testing.B, run func(b *testing.B, f []byte, netLen int)) {
	for _, n := range []int{0, 64, 256, 1024, 4096} {
		f, netLen := writeOnly(&addr4, n)
		b.Run(fmt.Sprintf("ipv4/%d", n), func(b *testing.B) { run(b, f, netLen) })
	}
	for _, n := range []int{64, 1024} {
		f, netLen := writeOnly(&addr6, n)
		b.Run(fmt.Sprintf("ipv6/%d", n), func(b *testing.B) { run(b, f, netLen) })
	}
}

func BenchmarkDecode(b *testing.B) {
	sizes(b, func(b *testing.B, f []byte, _ int) {
		d, p := new(Decoder), new(bth.Packet)
		b.SetBytes(int64(len(f)))
		for b.Loop() {
			if d.Decode(f, p) != ReasonOK {
				b.Fatal("bad frame")
			}
		}
	})
}

func BenchmarkFinish(b *testing.B) {
	sizes(b, func(b *testing.B, f []byte, netLen int) {
		e := new(Encoder)
		b.SetBytes(int64(len(f)))
		for b.Loop() {
			e.Finish(f, netLen)
		}
	})
}
