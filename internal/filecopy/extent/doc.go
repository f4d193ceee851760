// Package extent keeps ranges of a file together with the checksums of their contents.
//
// The checksum is CRC32C (Castagnoli), as computed by hash/crc32. The CRC of two adjacent ranges
// follows from the CRCs of both and the length of the second, so that blocks can be summed in any
// order and by several goroutines, and the result is the ordinary CRC32C of the whole file.
//
// Reading order:
//   - crc.go: Sum, Combine and Zeros
//   - set.go: Extent and Set
package extent
