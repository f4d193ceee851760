// Package bth reads and writes the InfiniBand transport packet that RoCEv2 carries in UDP: from the
// Base Transport Header (BTH) to the end of the pad bytes.
//
// It is for tools that inspect or make packets, and for drivers, which meet its [GID], [MAC] and
// [MTU]. Programs that communicate use package roce.
//
// # Reading packets
//
// [Packet.Parse] checks a received packet once and then gives access to its headers. A header type
// such as [BTH] or [RETH] is a view: a slice of the receive buffer with accessor methods. After
// Parse has returned, no accessor panics. The buffer must not change while views are in use.
//
// A captured Ethernet frame has further headers and the ICRC: frame.Decoder checks them and fills
// in a Packet. Subpackage layers offers the same headers as gopacket layers.
//
// # Writing packets
//
// The Put functions write headers, in the order in which [OpcodeInfo] lists them for an [Opcode].
// They panic if the buffer is shorter than the header; that is a bug of the caller and never caused
// by received data. frame.Encoder adds what is around the packet.
//
// All integers on the wire are big-endian. The package holds no mutable state, does not allocate
// while it parses or writes packets, and imports no other package of this module. Subpackage
// bthtest holds captured traffic for tests.
//
// # Reading order
//
// For maintainers:
//
//   - ids.go: typed numbers (PSN and its arithmetic, MSN, QPN, keys, MAC) and sizes
//   - opcode.go, table.go: Opcode, OpcodeInfo, and the table that defines every packet layout
//   - header.go: BTH and its writer
//   - ext.go: views and writers of the extension headers
//   - selack.go: the selective acknowledgment in an ACKNOWLEDGE between gorxe peers
//   - cnp.go: the congestion notification packet
//   - syndrome.go: the AETH syndrome, RNR timers and ACK timeouts
//   - packet.go: Packet and its parser
//   - gid.go, mtu.go: GIDs and path MTUs
package bth
