// Package abi reads and writes the structures of the kernel's interface for RDMA programs.
//
// # Reading order
//
// For maintainers:
//
//   - abi.go: Decoder and Encoder
package abi
