// Package packets generates RoCEv2 frames for testing a RoCE stack: valid ones, and ones with a few
// errors. The stack may be anything that receives Ethernet: gorxe, the kernel's rxe, a NIC. The
// caller sends them: by a raw socket, a driver.Port, a pcap file.
//
//	g := packets.New(seed, packets.Target{
//		Address: frame.Address{
//			SrcMAC: mine, DstMAC: theirs, Src: myGID, Dst: theirGID, SrcPort: 0xc000, HopLimit: 64,
//		},
//		QPN: 0x11, PSN: 0x100, MTU: 1024, Addr: addr, RKey: rkey, Len: 4096,
//	})
//	for range 100000 {
//		send(g.Frame())
//	}
//
// The more of Target is correct, the deeper the frames get: with a QPN and the expected PSN,
// packets are executed instead of dropped; with an address and a key they reach memory. A Generator
// tracks the PSN as the stack would. A caller that sees the answers corrects it by SetPSN.
//
// The same seed makes the same frames, so a crash replays. Generator.N returns the number of
// frames, and Generator.What what was wrong with the last one. Use it only on machines that you
// own.
//
// Generator.Frame draws packets and their errors at random. Generator.Make makes short sequences of
// a Class: a kind of packets that RoCE stacks are known to have mishandled.
//
// # Reading order
//
//   - packets.go: Target, Generator, valid packets.
//   - mutate.go: errors at random.
//   - corpus.go: classes of packets that have broken RoCE stacks.
//   - congestion.go: the classes about selective repeat and congestion.
//   - network.go: the classes about Ethernet, IP, UDP and MADs.
package packets
