// Package frame puts a RoCEv2 packet on Ethernet and takes it off again: the
// Ethernet header with at most one VLAN tag, IPv4 or IPv6, UDP, and the
// invariant CRC (ICRC) behind it all (IBA annex A17). It also says what a Port
// is: the thing that moves whole frames, AF_XDP or memory.
//
// Reading order:
//
//   - port.go: Port, Network, Buf: the contract of the drivers.
//   - reason.go: why a frame is dropped.
//   - decode.go: Decoder, from a received frame to a bth.Packet, every check.
//   - flow.go: what the Decoder knows already of a peer's next frame.
//   - encode.go: Address and PutHeaders (the template a path keeps), Encoder,
//     which finishes a frame whose transport part somebody has written.
//   - icrc.go: the ICRC, in one or two runs of hash/crc32's code.
//   - fold.go: the same in one run, on processors with AVX-512 and wide carry-less multiply (fold_amd64.s), which also
//     copies a payload on its way.
//   - checksum.go: the Internet checksum.
//
// A frame's bytes come from strangers: nothing here panics on them or allocates.
package frame
