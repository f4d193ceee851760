package frame

import "golang.org/x/sys/cpu"

// wideHere: this processor has sumWide's instructions.
var wideHere = cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512VL && cpu.X86.HasAVX512VPCLMULQDQ

// sumWide returns the CRC-32 of n bytes at p, at least 1, of which the first 64 are changed as m says.
//
//go:noescape
func sumWide(t *foldTable, m *headMask, p *byte, n int) uint32
