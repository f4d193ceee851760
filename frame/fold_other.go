//go:build !amd64

package frame

const wideHere = false

func sumWide(*foldTable, *headMask, *byte, int, *byte, int) uint32 {
	panic("frame: no wide CRC on this processor")
}
