package bth_test

import (
	"fmt"

	"github.com/gorxe/gorxe/bth"
)

// A packet of an RDMA READ request is written and parsed. Package frame adds and checks what is
// around it.
func Example() {
	b := make([]byte, bth.HeaderLen+bth.RETHLen)
	bth.PutPlain(b, bth.RCReadRequest, false, false, 0, bth.DefaultPKey, 0x11, 7)
	bth.PutRETH(b[bth.HeaderLen:], 0x1000, 42, 65536)

	var p bth.Packet
	if err := p.Parse(b); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(p.BTH.Opcode(), "to QP", p.BTH.DestQP())
	fmt.Printf("%d bytes at %#x\n", p.RETH().DMALen(), p.RETH().VA())
	fmt.Println(p.Parse(b[:20])) // bytes are missing
	// Output:
	// RC RDMA READ Request to QP 0x000011
	// 65536 bytes at 0x1000
	// bth: packet is too short for its headers or its fixed payload
}
