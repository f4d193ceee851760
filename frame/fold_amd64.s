#include "go_asm.h"
#include "textflag.h"

// MOVE multiplies the four parts of register z by the pairs in k and adds src.
#define MOVE(k, src, z, tmp) \
	VPCLMULQDQ $0x00, k, z, tmp    \
	VPCLMULQDQ $0x11, k, z, z      \
	VPTERNLOGD $0x96, src, tmp, z

// HEAD applies the headMask m to the packet's first 64 bytes: (z | or) ^ xor.
#define HEAD(m, z, tmp) \
	VMOVDQU64  headMask_or(m), tmp         \
	VPTERNLOGD $0x56, headMask_xor(m), tmp, z

// func crcAVX512(t *foldTable, m *headMask, p *byte, n int, src *byte, blocks int) uint32
TEXT ·crcAVX512(SB), NOSPLIT, $0-52
	MOVQ t+0(FP), DI
	MOVQ m+8(FP), DX
	MOVQ p+16(FP), SI
	MOVQ n+24(FP), CX
	MOVQ src+32(FP), BX
	MOVQ blocks+40(FP), R9
	MOVQ CX, R8
	NEGQ R8
	ANDQ $255, R8
	SHLQ $4, R8       // offset of the entry in undo
	CMPQ CX, $64
	JBE  one
	CMPQ CX, $256
	JB   tail

	VMOVDQU64 (SI), Z0
	VMOVDQU64 64(SI), Z1
	VMOVDQU64 128(SI), Z2
	VMOVDQU64 192(SI), Z3
	HEAD(DX, Z0, Z4)
	VMOVDQU64 foldTable_step(DI), Z16
	ADDQ $256, SI
	SUBQ $256, CX
	TESTQ R9, R9
	JZ   whole

copy:
	VMOVDQU64 0(BX), Z8
	VMOVDQU64 64(BX), Z9
	VMOVDQU64 128(BX), Z10
	VMOVDQU64 192(BX), Z11
	VMOVDQU64 Z8, 0(SI)
	VMOVDQU64 Z9, 64(SI)
	VMOVDQU64 Z10, 128(SI)
	VMOVDQU64 Z11, 192(SI)
	MOVE(Z16, Z8, Z0, Z4)
	MOVE(Z16, Z9, Z1, Z5)
	MOVE(Z16, Z10, Z2, Z6)
	MOVE(Z16, Z11, Z3, Z7)
	ADDQ $256, BX
	ADDQ $256, SI
	SUBQ $256, CX
	DECQ R9
	JNZ  copy

whole:
	CMPQ CX, $256
	JB   rest

next:
	MOVE(Z16, 0(SI), Z0, Z4)
	MOVE(Z16, 64(SI), Z1, Z5)
	MOVE(Z16, 128(SI), Z2, Z6)
	MOVE(Z16, 192(SI), Z3, Z7)
	ADDQ $256, SI
	SUBQ $256, CX
	CMPQ CX, $256
	JAE  next

rest:
	TESTQ CX, CX
	JZ    end

tail:
	// Load the last 1 to 255 bytes and fill up with zeros. A masked load does not access the
	// bytes that it leaves out, but it still waits for their cache lines. The lines after a
	// frame are rarely cached, so the branches skip them.
	VPBROADCASTB CX, Z12
	VPCMPUB      $6, foldTable_index+0(DI), Z12, K1
	VPCMPUB      $6, foldTable_index+64(DI), Z12, K2
	VPCMPUB      $6, foldTable_index+128(DI), Z12, K3
	VPCMPUB      $6, foldTable_index+192(DI), Z12, K4
	VPXORD       Z9, Z9, Z9
	VPXORD       Z10, Z10, Z10
	VPXORD       Z11, Z11, Z11
	VMOVDQU8.Z   (SI), K1, Z8
	CMPQ         CX, $64
	JBE          loaded
	VMOVDQU8.Z   64(SI), K2, Z9
	CMPQ         CX, $128
	JBE          loaded
	VMOVDQU8.Z   128(SI), K3, Z10
	CMPQ         CX, $192
	JBE          loaded
	VMOVDQU8.Z   192(SI), K4, Z11

loaded:
	CMPQ n+24(FP), $256
	JB   short
	MOVE(Z16, Z8, Z0, Z4)
	MOVE(Z16, Z9, Z1, Z5)
	MOVE(Z16, Z10, Z2, Z6)
	MOVE(Z16, Z11, Z3, Z7)

end:
	// Move the sixteen parts onto the last one: 96 bits, times x^32.
	VMOVDQU64  foldTable_last+0(DI), Z8
	VMOVDQU64  foldTable_last+64(DI), Z9
	VMOVDQU64  foldTable_last+128(DI), Z10
	VMOVDQU64  foldTable_last+192(DI), Z11
	VPCLMULQDQ $0x00, Z8, Z0, Z4
	VPCLMULQDQ $0x11, Z8, Z0, Z0
	VPCLMULQDQ $0x00, Z9, Z1, Z5
	VPCLMULQDQ $0x11, Z9, Z1, Z1
	VPCLMULQDQ $0x00, Z10, Z2, Z6
	VPCLMULQDQ $0x11, Z10, Z2, Z2
	VPCLMULQDQ $0x00, Z11, Z3, Z7
	VPCLMULQDQ $0x11, Z11, Z3, Z3
	VPTERNLOGD $0x96, Z0, Z1, Z4
	VPTERNLOGD $0x96, Z2, Z5, Z6
	VPTERNLOGD $0x96, Z3, Z7, Z4
	VPXORD     Z6, Z4, Z4

join:
	VEXTRACTI64X4 $1, Z4, Y5
	VPXOR      Y5, Y4, Y4
	VEXTRACTI128 $1, Y4, X5
	VPXOR      X5, X4, X4

	// Undo the zeros after the packet.
	VMOVDQU    foldTable_undo(DI)(R8*1), X6
	VPCLMULQDQ $0x00, X6, X4, X5
	VPCLMULQDQ $0x11, X6, X4, X4
	VPXOR      X5, X4, X4

	// Reduce 96 bits to 64, the last of the register, and these to the remainder by Barrett
	// reduction: multiplying by x^64/P gives the quotient.
	VPCLMULQDQ $0x00, foldTable_x64(DI), X4, X5
	VPXOR      X5, X4, X4
	VPSRLDQ    $8, X4, X4
	VPCLMULQDQ $0x00, foldTable_mu(DI), X4, X5
	VPAND      foldTable_low(DI), X5, X5
	VPCLMULQDQ $0x00, foldTable_p(DI), X5, X5
	VPXOR      X5, X4, X4
	VPEXTRD    $1, X4, AX
	VZEROUPPER
	NOTL       AX
	MOVL       AX, ret+48(FP)
	RET

one:
	// At most 64 bytes: treat them as the last register of a step, so that fewer zeros follow.
	ANDQ         $(63<<4), R8
	VPBROADCASTB CX, Z12
	VPCMPUB      $6, foldTable_index+0(DI), Z12, K1
	VMOVDQU8.Z   (SI), K1, Z0
	HEAD(DX, Z0, Z4)
	VMOVDQU64    foldTable_last+192(DI), Z11
	VPCLMULQDQ   $0x00, Z11, Z0, Z4
	VPCLMULQDQ   $0x11, Z11, Z0, Z0
	VPXORD       Z0, Z4, Z4
	JMP          join

short:
	HEAD(DX, Z8, Z4)
	VMOVDQA64 Z8, Z0
	VMOVDQA64 Z9, Z1
	VMOVDQA64 Z10, Z2
	VMOVDQA64 Z11, Z3
	JMP       end
