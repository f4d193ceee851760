//go:build !race

#include "textflag.h"

// func Store(p *atomic.Uint32, v uint32)
TEXT ·Store(SB), NOSPLIT, $0-12
	MOVQ p+0(FP), AX
	MOVL v+8(FP), CX
	MOVL CX, (AX)
	RET

// func Store64(p *atomic.Uint64, v uint64)
TEXT ·Store64(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), AX
	MOVQ v+8(FP), CX
	MOVQ CX, (AX)
	RET

// func Order()
TEXT ·Order(SB), NOSPLIT, $8-0
	XORL AX, AX
	XCHGL AX, 0(SP) // a locked instruction on a cached line
	RET
