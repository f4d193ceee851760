package bth

import "fmt"

// Opcode is the first byte of a BTH: three bits of transport and five bits of operation (IBA
// 9.2.1).
type Opcode uint8

// Opcodes of the reliable connection transport.
const (
	RCSendFirst Opcode = iota
	RCSendMiddle
	RCSendLast
	RCSendLastImm
	RCSendOnly
	RCSendOnlyImm
	RCWriteFirst
	RCWriteMiddle
	RCWriteLast
	RCWriteLastImm
	RCWriteOnly
	RCWriteOnlyImm
	RCReadRequest
	RCReadResponseFirst
	RCReadResponseMiddle
	RCReadResponseLast
	RCReadResponseOnly
	RCAck
	RCAtomicAck
	RCCmpSwap
	RCFetchAdd

	RCSendLastInv Opcode = 0x16
	RCSendOnlyInv Opcode = 0x17
	RCFlush       Opcode = 0x1c // IBA annex A19
	RCAtomicWrite Opcode = 0x1d // IBA annex A19
)

// Opcodes of the unreliable connection transport.
const (
	UCSendFirst Opcode = iota + 0x20
	UCSendMiddle
	UCSendLast
	UCSendLastImm
	UCSendOnly
	UCSendOnlyImm
	UCWriteFirst
	UCWriteMiddle
	UCWriteLast
	UCWriteLastImm
	UCWriteOnly
	UCWriteOnlyImm
)

// Opcodes of the unreliable datagram transport, and of RoCEv2 congestion notification.
const (
	UDSendOnly    Opcode = 0x64
	UDSendOnlyImm Opcode = 0x65
	CNP           Opcode = 0x81 // IBA annex A17.9
)

// OpcodeNone is no valid opcode. RequestOpcode returns it if there is no matching opcode.
const OpcodeNone Opcode = 0xff

// Transport is the transport service of an opcode.
type Transport uint8

// The transports that gorxe implements. All others are TransportNone.
const (
	TransportNone Transport = iota
	RC
	UC
	UD
	numTransports
)

var transportNames = [numTransports]string{"none", "RC", "UC", "UD"}

// String returns "RC", "UC", "UD" or "none".
func (t Transport) String() string {
	if t < numTransports {
		return transportNames[t]
	}
	return fmt.Sprintf("transport %d", uint8(t))
}

// Operation is what a packet does, regardless of its position in a message.
type Operation uint8

// The operations.
const (
	OpNone Operation = iota
	OpSend
	OpWrite
	OpReadRequest
	OpReadResponse
	OpAck
	OpAtomicAck
	OpCmpSwap
	OpFetchAdd
	OpFlush
	OpAtomicWrite
	OpCNP
	numOperations
)

var operationNames = [numOperations]string{
	"none", "SEND", "RDMA WRITE", "RDMA READ Request", "RDMA READ response", "Acknowledge",
	"ATOMIC Acknowledge", "CmpSwap", "FetchAdd", "FLUSH", "ATOMIC WRITE", "CNP",
}

// String returns the IBA name of the operation.
func (o Operation) String() string {
	if o < numOperations {
		return operationNames[o]
	}
	return fmt.Sprintf("operation %d", uint8(o))
}

// OpcodeInfo describes the layout of a packet with a given opcode and its position in a message.
// Entries are shared and must not be modified.
type OpcodeInfo struct {
	Opcode    Opcode
	Name      string // the IBA name, such as "RC RDMA WRITE Only"
	Transport Transport
	Op        Operation

	Known             bool // Packet.Parse accepts the opcode
	Request, Response bool // sent by the requester or by the responder; both false for a CNP
	Start, End        bool // FIRST and ONLY start a message; LAST and ONLY end it

	HasPayload, HasImm, HasInv bool

	HeaderLen  uint8 // BTH and all extension headers, bytes
	MinPayload uint8 // smallest valid payload, bytes: 8 for ATOMIC WRITE

	// Offsets of the extension headers from the first byte of the BTH; 0 means absent.
	RETH, AETH, AtomicETH, AtomicAckETH, ImmDt, IETH, DETH, FETH uint8
}

// Info returns the entry of the opcode. It is never nil; see OpcodeInfo.Known.
func (o Opcode) Info() *OpcodeInfo { return &opcodes[o] }

// String returns the IBA name, such as "RC SEND Last with Immediate", or "unknown 0xff".
func (o Opcode) String() string { return opcodes[o].Name }

// RequestOpcode returns the opcode of a packet from its position in its message: start is true for
// the first packet, end for the last, both for an only packet. imm and inv describe the message and
// apply only to its last packet. It also works for READ responses. If there is no such opcode, it
// returns OpcodeNone.
func RequestOpcode(t Transport, op Operation, start, end, imm, inv bool) Opcode {
	if t >= numTransports || op >= numOperations {
		return OpcodeNone
	}
	return byPosition[t][op][position(start, end, imm && end, inv && end)]
}

// position encodes a packet's position in its message as an index of byPosition.
func position(start, end, imm, inv bool) (i uint8) {
	if start {
		i |= 1
	}
	if end {
		i |= 2
	}
	if imm {
		i |= 4
	}
	if inv {
		i |= 8
	}
	return i
}
