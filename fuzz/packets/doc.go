// Package packets makes RoCEv2 frames to throw at a RoCE stack: valid ones, and ones that are wrong
// in a few places. A stack under test is any that receives Ethernet: gorxe, the kernel's rxe, a
// NIC. Sending is the caller's part: a raw socket, a driver.Port, a pcap file.
//
//	g := packets.New(seed, packets.Target{
//		Address: frame.Address{SrcMAC: mine, DstMAC: theirs, Src: myGID, Dst: theirGID, SrcPort: 0xc000, HopLimit: 64},
//		QPN: 0x11, PSN: 0x100, MTU: 1024, Addr: addr, RKey: rkey, Len: 4096,
//	})
//	for range 100000 {
//		send(g.Frame())
//	}
//
// The more of Target is true, the deeper the frames get: with a QPN and the PSN that the QP expects
// next, packets are executed instead of dropped; with an address and a key they reach memory. A
// Generator keeps count of the PSN as the stack under test would; whoever sees the answers corrects it
// by SetPSN.
//
// The same seed makes the same frames, so a crash replays: Generator.N tells how many were made, and
// Generator.What what was wrong with the last one. Only aim it at machines that are yours.
package packets
