package frame

import "golang.org/x/sys/cpu"

// haveAVX512 reports whether the processor has the instructions of crcAVX512.
var haveAVX512 = cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512VL &&
	cpu.X86.HasAVX512VPCLMULQDQ

// crcAVX512 returns the CRC-32 of n bytes at p after applying m to the first 64 of them. n is at
// least 1. If blocks is not 0, it copies blocks*foldStep bytes from src to p+foldStep before it
// adds them to the CRC; n includes them.
//
//go:noescape
func crcAVX512(t *foldTable, m *headMask, p *byte, n int, src *byte, blocks int) uint32
