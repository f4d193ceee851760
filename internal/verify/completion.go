package verify

import (
	"fmt"

	"github.com/gorxe/gorxe/roce"
)

// opcodes are the completion opcodes of send work requests.
var opcodes = map[roce.Op]roce.WCOpcode{
	roce.OpSend: roce.WCSend, roce.OpSendImm: roce.WCSend, roce.OpSendInv: roce.WCSend,
	roce.OpWrite: roce.WCWrite, roce.OpWriteImm: roce.WCWrite, roce.OpRead: roce.WCRead,
	roce.OpCmpSwap: roce.WCCmpSwap, roce.OpFetchAdd: roce.WCFetchAdd,
	roce.OpAtomicWrite: roce.WCAtomicWrite, roce.OpFlush: roce.WCFlush,
	roce.OpBindMW: roce.WCBindMW, roce.OpLocalInv: roce.WCLocalInv,
}

// Send checks the opcode and length of the successful completion of a send work request that moves
// n bytes. It returns an empty string, or how the completion differs.
func Send(wc *roce.WC, op roce.Op, n int) string {
	if wc.Opcode != opcodes[op] {
		return fmt.Sprintf("opcode %v, want %v", wc.Opcode, opcodes[op])
	}
	if int(wc.ByteLen) != n {
		return fmt.Sprintf("length %d, want %d", wc.ByteLen, n)
	}
	return ""
}

// Message describes a message that consumes a receive work request.
type Message struct {
	Op     roce.Op   // of the sender: a SEND or OpWriteImm
	Len    int       // payload bytes
	SrcQP  roce.QPN  // of the sender
	Imm    uint32    // with OpSendImm and OpWriteImm
	InvKey roce.RKey // with OpSendInv
	UD     bool      // a GRH precedes the payload
}

// Receive checks the successful completion of the receive that m consumed. It returns an empty
// string, or how the completion differs.
func Receive(wc *roce.WC, m *Message) string {
	op, n := roce.WCRecv, m.Len
	if m.Op == roce.OpWriteImm {
		op = roce.WCRecvWriteImm
	}
	if m.UD {
		n += roce.GRHLen
	}
	flags := roce.WCFlags(0)
	switch m.Op {
	case roce.OpSendImm, roce.OpWriteImm:
		flags |= roce.WCWithImm
	case roce.OpSendInv:
		flags |= roce.WCWithInv
	}
	if m.UD {
		flags |= roce.WCGRH
	}
	const known = roce.WCWithImm | roce.WCWithInv | roce.WCGRH
	switch {
	case wc.Opcode != op:
		return fmt.Sprintf("opcode %v, want %v", wc.Opcode, op)
	case int(wc.ByteLen) != n:
		return fmt.Sprintf("length %d, want %d", wc.ByteLen, n)
	case wc.Flags&known != flags:
		return fmt.Sprintf("flags %#x, want %#x", wc.Flags&known, flags)
	case flags&roce.WCWithImm != 0 && wc.Imm != m.Imm:
		return fmt.Sprintf("immediate data %#x, want %#x", wc.Imm, m.Imm)
	case flags&roce.WCWithInv != 0 && wc.InvKey != m.InvKey:
		return fmt.Sprintf("invalidated key %#x, want %#x", uint32(wc.InvKey), uint32(m.InvKey))
	case wc.SrcQP != m.SrcQP:
		return fmt.Sprintf("source QP %v, want %v", wc.SrcQP, m.SrcQP)
	}
	return ""
}
