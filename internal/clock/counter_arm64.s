#include "textflag.h"

// func counter() uint64
TEXT ·counter(SB), NOSPLIT, $0-8
	MRS  CNTVCT_EL0, R0
	MOVD R0, ret+0(FP)
	RET

// func steady() bool
//
// The counter of the generic timer always runs at a constant rate.
TEXT ·steady(SB), NOSPLIT, $0-1
	MOVD $1, R0
	MOVB R0, ret+0(FP)
	RET
