package frame_test

import (
	"fmt"
	"net/netip"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/frame"
)

// The frame of a SEND with 8 bytes of payload is encoded, and decoded again.
func Example() {
	path := frame.NewPath(&frame.Address{
		SrcMAC: bth.MAC{2, 0, 0, 0, 0, 1}, DstMAC: bth.MAC{2, 0, 0, 0, 0, 2},
		Src:     bth.GIDFromAddr(netip.MustParseAddr("10.0.0.1")),
		Dst:     bth.GIDFromAddr(netip.MustParseAddr("10.0.0.2")),
		SrcPort: 0xc000, HopLimit: 64,
	})
	var encoder frame.Encoder
	b := make([]byte, 1024)
	netLen := path.Put(b)
	bth.PutPlain(b[netLen:], bth.RCSendOnly, false, true, 0, bth.DefaultPKey, 0x11, 100)
	end := netLen + bth.HeaderLen + copy(b[netLen+bth.HeaderLen:], "8 bytes.")
	b = b[:end+bth.ICRCLen]
	encoder.Finish(b, netLen)

	decoder, packet := new(frame.Decoder), new(bth.Packet)
	fmt.Println(decoder.Decode(b, packet))
	fmt.Println(packet.BTH.Opcode(), packet.BTH.DestQP(), packet.BTH.PSN(), string(packet.Payload))
	b[end-1] ^= 1
	fmt.Println(decoder.Decode(b, packet))
	// Output:
	// ok
	// RC SEND Only 0x000011 0x000064 8 bytes.
	// bad ICRC
}
