package frame

import (
	"encoding/binary"
	"hash/crc32"
)

// minFold is the length from which on crcAVX512 is used for Castagnoli.
const minFold = 2 * foldStep

var (
	castagnoliTable = crc32.MakeTable(crc32.Castagnoli)
	// castagnoliFold is nil if the processor does not support crcAVX512.
	castagnoliFold = makeFoldTable(crc32.Castagnoli)
	castagnoliMask = makeStartMask()
)

// makeStartMask returns the mask that adds the start value of a CRC.
func makeStartMask() (m headMask) {
	binary.LittleEndian.PutUint32(m.xor[:], ^uint32(0))
	return m
}

// Castagnoli returns the CRC32C of data: crc32.Checksum with the table of crc32.Castagnoli. It uses
// the instructions that compute the ICRC.
func Castagnoli(data []byte) uint32 {
	if castagnoliFold == nil || len(data) < minFold {
		return crc32.Checksum(data, castagnoliTable)
	}
	return crcAVX512(castagnoliFold, &castagnoliMask, &data[0], len(data), nil, 0)
}
