package bth

import "fmt"

// parts says which headers follow the BTH. The order of the bits is the order on the wire (IBA 9.3,
// FETH: A19).
type parts uint16

const (
	hasFETH parts = 1 << iota
	hasDETH
	hasRETH
	hasAtomicETH
	hasAETH
	hasAtomicAckETH
	hasImmDt
	hasIETH
	hasPayload

	isFirst  = isStart
	isMiddle = 0
	isLast   = isEnd
	isOnly   = isStart | isEnd
)

const (
	isStart parts = 1 << (iota + 12)
	isEnd
)

// row is one line of the IBA opcode table.
type row struct {
	opcode Opcode
	name   string // without the transport's name
	op     Operation
	parts  parts
}

// connected lists the opcodes that RC and UC share in their low five bits.
var connected = []row{
	{RCSendFirst, "SEND First", OpSend, isFirst | hasPayload},
	{RCSendMiddle, "SEND Middle", OpSend, isMiddle | hasPayload},
	{RCSendLast, "SEND Last", OpSend, isLast | hasPayload},
	{RCSendLastImm, "SEND Last with Immediate", OpSend, isLast | hasImmDt | hasPayload},
	{RCSendOnly, "SEND Only", OpSend, isOnly | hasPayload},
	{RCSendOnlyImm, "SEND Only with Immediate", OpSend, isOnly | hasImmDt | hasPayload},
	{RCWriteFirst, "RDMA WRITE First", OpWrite, isFirst | hasRETH | hasPayload},
	{RCWriteMiddle, "RDMA WRITE Middle", OpWrite, isMiddle | hasPayload},
	{RCWriteLast, "RDMA WRITE Last", OpWrite, isLast | hasPayload},
	{RCWriteLastImm, "RDMA WRITE Last with Immediate", OpWrite, isLast | hasImmDt | hasPayload},
	{RCWriteOnly, "RDMA WRITE Only", OpWrite, isOnly | hasRETH | hasPayload},
	{RCWriteOnlyImm, "RDMA WRITE Only with Immediate", OpWrite,
		isOnly | hasRETH | hasImmDt | hasPayload},
}

// reliable lists the opcodes that only RC has.
var reliable = []row{
	{RCReadRequest, "RDMA READ Request", OpReadRequest, isOnly | hasRETH},
	{RCReadResponseFirst, "RDMA READ response First", OpReadResponse,
		isFirst | hasAETH | hasPayload},
	{RCReadResponseMiddle, "RDMA READ response Middle", OpReadResponse, isMiddle | hasPayload},
	{RCReadResponseLast, "RDMA READ response Last", OpReadResponse, isLast | hasAETH | hasPayload},
	{RCReadResponseOnly, "RDMA READ response Only", OpReadResponse, isOnly | hasAETH | hasPayload},
	{RCAck, "Acknowledge", OpAck, isOnly | hasAETH},
	{RCAtomicAck, "ATOMIC Acknowledge", OpAtomicAck, isOnly | hasAETH | hasAtomicAckETH},
	{RCCmpSwap, "CmpSwap", OpCmpSwap, isOnly | hasAtomicETH},
	{RCFetchAdd, "FetchAdd", OpFetchAdd, isOnly | hasAtomicETH},
	{RCSendLastInv, "SEND Last with Invalidate", OpSend, isLast | hasIETH | hasPayload},
	{RCSendOnlyInv, "SEND Only with Invalidate", OpSend, isOnly | hasIETH | hasPayload},
	{RCFlush, "FLUSH", OpFlush, isOnly | hasFETH | hasRETH},
	{RCAtomicWrite, "ATOMIC WRITE", OpAtomicWrite, isOnly | hasRETH | hasPayload},
}

var datagram = []row{
	{UDSendOnly, "SEND Only", OpSend, isOnly | hasDETH | hasPayload},
	{UDSendOnlyImm, "SEND Only with Immediate", OpSend, isOnly | hasDETH | hasImmDt | hasPayload},
}

var (
	opcodes    = buildOpcodes()
	byPosition = buildPositions()

	// invalid is the Info of a packet that Parse refused. It has no extension headers.
	invalid = OpcodeInfo{Opcode: OpcodeNone, Name: "invalid", HeaderLen: HeaderLen}
)

func buildOpcodes() (t [256]OpcodeInfo) {
	for i := range t {
		t[i] = OpcodeInfo{Opcode: Opcode(i), Name: fmt.Sprintf("unknown 0x%02x", i),
			HeaderLen: HeaderLen}
	}
	for _, r := range connected {
		t[r.opcode] = r.info(RC, r.opcode)
		t[UCSendFirst+r.opcode] = r.info(UC, UCSendFirst+r.opcode)
	}
	for _, r := range reliable {
		t[r.opcode] = r.info(RC, r.opcode)
	}
	for _, r := range datagram {
		t[r.opcode] = r.info(UD, r.opcode)
	}
	t[RCAtomicWrite].MinPayload = 8
	t[CNP] = OpcodeInfo{Opcode: CNP, Name: "CNP", Op: OpCNP, Known: true, Start: true, End: true,
		HeaderLen: HeaderLen}
	return t
}

// info computes the offsets of the row's headers.
func (r row) info(t Transport, o Opcode) OpcodeInfo {
	response := r.op == OpReadResponse || r.op == OpAck || r.op == OpAtomicAck
	i := OpcodeInfo{
		Opcode: o, Name: t.String() + " " + r.name, Transport: t, Op: r.op,
		Known: true, Request: !response, Response: response,
		Start: r.parts&isStart != 0, End: r.parts&isEnd != 0,
		HasPayload: r.parts&hasPayload != 0, HasImm: r.parts&hasImmDt != 0,
		HasInv:    r.parts&hasIETH != 0,
		HeaderLen: HeaderLen,
	}
	for _, h := range []struct {
		bit parts
		off *uint8
		n   uint8
	}{
		{hasFETH, &i.FETH, FETHLen},
		{hasDETH, &i.DETH, DETHLen},
		{hasRETH, &i.RETH, RETHLen},
		{hasAtomicETH, &i.AtomicETH, AtomicETHLen},
		{hasAETH, &i.AETH, AETHLen},
		{hasAtomicAckETH, &i.AtomicAckETH, AtomicAckETHLen},
		{hasImmDt, &i.ImmDt, ImmDtLen},
		{hasIETH, &i.IETH, IETHLen},
	} {
		if r.parts&h.bit != 0 {
			*h.off = i.HeaderLen
			i.HeaderLen += h.n
		}
	}
	return i
}

// buildPositions inverts the table for RequestOpcode.
func buildPositions() (t [numTransports][numOperations][16]Opcode) {
	for tr := range t {
		for op := range t[tr] {
			for i := range t[tr][op] {
				t[tr][op][i] = OpcodeNone
			}
		}
	}
	for i := range opcodes {
		if o := &opcodes[i]; o.Known {
			t[o.Transport][o.Op][position(o.Start, o.End, o.HasImm, o.HasInv)] = o.Opcode
		}
	}
	return t
}
