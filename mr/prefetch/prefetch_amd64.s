#include "textflag.h"

// func run(p unsafe.Pointer, n uintptr)
TEXT ·run(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), AX
	MOVQ n+8(FP), CX

next:
	PREFETCHT0 (AX)
	ADDQ $64, AX
	DECQ CX
	JGT  next
	RET

// func also(p, q unsafe.Pointer, n uintptr)
TEXT ·also(SB), NOSPLIT, $0-24
	MOVQ p+0(FP), BX
	MOVQ q+8(FP), AX
	MOVQ n+16(FP), CX
	PREFETCHT0 (BX)

again:
	PREFETCHT0 (AX)
	ADDQ $64, AX
	DECQ CX
	JGT  again
	RET

// func pair(p, q unsafe.Pointer)
TEXT ·pair(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), AX
	MOVQ q+8(FP), BX
	PREFETCHT0 (AX)
	PREFETCHT0 (BX)
	RET
