package frame

import "golang.org/x/sys/cpu"

// wideHere: this processor has sumWide's instructions.
var wideHere = cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512VL && cpu.X86.HasAVX512VPCLMULQDQ

// sumWide returns the CRC-32 of n bytes at p, at least 1, of which the first 64 are changed as m says. On its way it copies so many blocks of
// foldBlock bytes from src to p's second block and those behind it. n covers them.
//
//go:noescape
func sumWide(t *foldTable, m *headMask, p *byte, n int, src *byte, blocks int) uint32
