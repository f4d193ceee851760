//go:build !amd64

package frame

const haveAVX512 = false

func crcAVX512(*foldTable, *headMask, *byte, int, *byte, int) uint32 {
	panic("frame: crcAVX512 is not available on this architecture")
}
