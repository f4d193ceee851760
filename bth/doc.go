// Package bth knows the bytes of an InfiniBand transport packet as RoCEv2
// carries it: from the Base Transport Header (BTH) to the end of the pad.
//
// It is the bottom of gorxe: it imports nothing of ours, holds no state, starts
// nothing and allocates nothing. Ethernet, IP, UDP and the ICRC around a packet
// are package roce/frame's; what a packet means to a queue pair is package qp's.
//
// Reading order:
//
//   - ids.go: the typed numbers (PSN and its arithmetic, MSN, QPN, keys), sizes.
//   - opcode.go: Opcode, OpcodeInfo and the one table all layouts come from.
//   - header.go: BTH and its writer.
//   - ext.go: views and writers of the extension headers.
//   - syndrome.go: the AETH's syndrome byte, RNR and ACK timers.
//   - packet.go: Packet, and Parse with its checks.
//   - gid.go, mtu.go: addresses and path MTUs.
//
// Everything on the wire is big endian. A header type (BTH, RETH, ...) is a view:
// a slice of the receive buffer whose length Packet.Parse has checked once, so
// that no accessor of a parsed packet can panic. Writers (Put...) panic on a
// buffer shorter than the header, which is a bug of the caller, never of a peer.
//
// Sub-package layers offers the same headers as gopacket layers; the data path
// does not use it.
package bth
