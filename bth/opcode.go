package bth

import "fmt"

// Opcode is the first byte of a BTH: three bits of transport, five of operation
// (IBA 9.2.1, table of opcodes).
type Opcode uint8

// Opcodes of the reliable connection.
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

// Opcodes of the unreliable connection.
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

// Opcodes of the unreliable datagram, and RoCEv2's congestion notification.
const (
	UDSendOnly    Opcode = 0x64
	UDSendOnlyImm Opcode = 0x65
	CNP           Opcode = 0x81 // IBA annex A17.9
)

// OpcodeNone is an opcode that nobody sends: RequestOpcode's "there is none".
const OpcodeNone Opcode = 0xff

// Transport is the service of an opcode.
type Transport uint8

// The transports that gorxe speaks; all others are TransportNone.
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

// Operation is what a packet does, without its place in a message.
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

// String returns the architecture's name of the operation.
func (o Operation) String() string {
	if o < numOperations {
		return operationNames[o]
	}
	return fmt.Sprintf("operation %d", uint8(o))
}

// OpcodeInfo says how a packet of an opcode is laid out and what it is in its
// message. The entries are constant: read only.
type OpcodeInfo struct {
	Opcode    Opcode
	Name      string // the architecture's name, such as "RC RDMA WRITE Only"
	Transport Transport
	Op        Operation

	Known             bool // gorxe can parse it
	Request, Response bool // who sends it; a CNP is neither
	Start, End        bool // FIRST or ONLY starts a message; LAST or ONLY ends it

	HasPayload, HasImm, HasInv bool

	HeaderLen  uint8 // BTH and all its extension headers, bytes
	MinPayload uint8 // bytes without which the packet makes no sense: 8 for ATOMIC WRITE

	// Offsets of the extension headers from the BTH's first byte; 0 = absent.
	RETH, AETH, AtomicETH, AtomicAckETH, ImmDt, IETH, DETH, FETH uint8
}

// Info returns the opcode's entry; never nil, see Known.
func (o Opcode) Info() *OpcodeInfo { return &opcodes[o] }

// String returns the architecture's name, such as "RC SEND Last with Immediate",
// or "unknown 0xff".
func (o Opcode) String() string { return opcodes[o].Name }

// RequestOpcode returns the opcode of a packet at a place in its message: start
// for the first, end for the last, both for an only one. imm and inv are the
// message's and count on its last packet only. It serves READ responses too.
// Without such an opcode the answer is OpcodeNone (0xff).
func RequestOpcode(t Transport, op Operation, start, end, imm, inv bool) Opcode {
	if t >= numTransports || op >= numOperations {
		return OpcodeNone
	}
	return byPlace[t][op][placeOf(start, end, imm && end, inv && end)]
}

func placeOf(start, end, imm, inv bool) (i uint8) {
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
