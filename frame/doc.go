// Package frame encodes and decodes the Ethernet frames of RoCEv2: the Ethernet header with at most
// one VLAN tag, the IPv4 or IPv6 header, UDP, and the invariant CRC (ICRC) at the end (IBA annex
// A17). Package bth handles the bytes in between.
//
// It is for tools that inspect or make frames. Programs that communicate use package roce.
//
// A [Decoder] checks a received frame completely and fills in a bth.Packet, or returns the [Reason]
// for dropping it. To send, a [Path] prepares the headers for a peer once. For each frame the
// caller copies them with [Path.Put], writes headers and payload from the BTH on, and calls
// [Encoder.Finish], which fills in lengths, checksums and the ICRC.
//
// Received bytes may have any content: no function panics because of them. Decoding and encoding do
// not allocate.
//
// # Reading order
//
// For maintainers:
//
//   - reason.go: the reasons for dropping a frame
//   - decode.go: Decoder with all checks, and PeekBTH
//   - encode.go: Address, PutHeaders and Encoder
//   - path.go: Path, the addresses and prepared headers of one peer
//   - icrc.go: the ICRC, computed with hash/crc32
//   - castagnoli.go: CRC32C with the same instructions, for other packages
//   - fold.go, fold_amd64.go, fold_other.go: the CRC on processors with AVX-512, which can also
//     copy the payload
//   - ident.go: the identification of received packets that a socket does not report
//   - checksum.go: the Internet checksum
package frame
