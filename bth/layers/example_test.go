package layers_test

import (
	"fmt"

	"github.com/google/gopacket"
	gplayers "github.com/google/gopacket/layers"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/bth/layers"
	"github.com/gorxe/gorxe/frame"
)

// After this package is imported, gopacket decodes the RoCE layers of any frame that it reads.
func Example() {
	packet := gopacket.NewPacket(someWrite(), gplayers.LayerTypeEthernet, gopacket.Default)

	b := packet.Layer(layers.LayerTypeBTH).(*layers.BTH)
	fmt.Println(b.Opcode, "to QP", b.DestQP, "PSN", b.PSN)
	if h, ok := packet.Layer(layers.LayerTypeRETH).(*layers.RETH); ok {
		fmt.Printf("%d bytes to %#x\n", h.DMALen, h.VA)
	}
	fmt.Printf("%q\n", b.Payload)

	// The ICRC covers the IP packet up to the ICRC itself.
	ip := packet.Layer(gplayers.LayerTypeIPv4).(*gplayers.IPv4)
	covered := append(append([]byte{}, ip.Contents...), ip.Payload[:len(ip.Payload)-bth.ICRCLen]...)
	icrc, _ := frame.ICRC(covered)
	fmt.Println("ICRC correct:", icrc == b.ICRC)

	// Output:
	// RC RDMA WRITE Only to QP 0x000011 PSN 0x000500
	// 5 bytes to 0x7f0000001000
	// "hello"
	// ICRC correct: true
}

// someWrite builds a frame in the same way as the data path.
func someWrite() []byte {
	f := make([]byte, 256)
	n := frame.PutHeaders(f, &frame.Address{
		Src: bth.GIDFromIPv4([4]byte{10, 77, 0, 1}), Dst: bth.GIDFromIPv4([4]byte{10, 77, 0, 2}),
		HopLimit: 64,
	})
	t := f[n:]
	bth.PutBTH(t, &bth.BTHFields{Opcode: bth.RCWriteOnly, PadCount: 3, PKey: bth.DefaultPKey,
		DestQP: 0x11, PSN: 0x500})
	bth.PutRETH(t[12:], 0x7f0000001000, 0x1234, 5)
	copy(t[28:], "hello")
	f = f[:n+28+5+3+bth.ICRCLen]
	new(frame.Encoder).Finish(f, n)
	return f
}
