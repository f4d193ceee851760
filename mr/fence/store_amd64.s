//go:build !race

#include "textflag.h"

// func Store(p *atomic.Uint32, v uint32)
TEXT ·Store(SB), NOSPLIT, $0-12
	MOVQ p+0(FP), AX
	MOVL v+8(FP), CX
	MOVL CX, (AX)
	RET
