// Package pcap reads and writes captures of Ethernet frames, in the formats pcap and pcapng.
//
// Every gorxe command can record or read captures, so this package is part of every process. It is
// used instead of gopacket's, which fills large tables when a program starts.
//
// The formats are described in draft-ietf-opsawg-pcap and draft-ietf-opsawg-pcapng.
//
// Reading order:
//
//   - pcap.go: what the formats have in common
//   - reader.go: the Reader, which finds out the format, and files in the format pcap
//   - ng.go: files in the format pcapng
//   - writer.go: the writers of both formats
package pcap
