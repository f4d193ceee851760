package roce

import "github.com/gorxe/gorxe/qp"

// WC is a work completion (ibv_wc): the result of one work request. If Status is not Success, only
// ID, Status and QPN are set. So if a CQ is used for both, let the ID tell sends from receives.
type WC struct {
	ID      uint64 // that of the work request
	Status  Status
	Opcode  WCOpcode
	Flags   WCFlags
	ByteLen uint32 // bytes received or transferred, GRHLen included
	Imm     uint32 // with WCWithImm: immediate data, host byte order
	InvKey  RKey   // with WCWithInv: the key that the peer has invalidated
	QPN     QPN    // the local QP
	SrcQP   QPN    // UD: the sender's QP
}

// Status is the status of a work completion (ibv_wc_status).
type Status uint8

// The statuses. All but Success and WRFlushErr report a fault, after which an RC QP is in StateErr.
const (
	Success        Status = iota
	LocLenErr             // the posted receive is shorter than the message
	LocQPOpErr            // READ or atomic on a QP with MaxRdAtomic 0
	LocProtErr            // an SGE names memory that is no longer registered
	WRFlushErr            // not executed, because the QP is in StateErr or closed
	MWBindErr             // OpBindMW, OpLocalInv, OpRegMR or the peer's OpSendInv names a wrong key
	BadRespErr            // the peer's response breaks the protocol
	LocAccessErr          // not used by this package
	RemInvReqErr          // the peer does not support the request, or posted a shorter receive
	RemAccessErr          // the peer refused access: wrong R_Key, range or right
	RemOpErr              // the peer failed to execute the request
	RetryExcErr           // the peer did not answer: see ConnectOptions.Retries
	RNRRetryExcErr        // the peer posted no receive: see ConnectOptions.RNRRetries
	RemAbortErr           // not used by this package
	FatalErr              // not used by this package
	GeneralErr            // not used by this package
)

// String returns the text of ibv_wc_status_str, for example "remote access error".
func (s Status) String() string { return qp.Status(s).String() }

// WCOpcode is the operation that completed (ibv_wc_opcode).
type WCOpcode uint8

// The operations of completions.
const (
	WCSend         WCOpcode = iota // OpSend, OpSendImm, OpSendInv
	WCWrite                        // OpWrite, OpWriteImm
	WCRead                         // OpRead
	WCCmpSwap                      // OpCmpSwap
	WCFetchAdd                     // OpFetchAdd
	WCRecv                         // a SEND was received
	WCRecvWriteImm                 // a WRITE with immediate was received
	WCFlush                        // OpFlush
	WCAtomicWrite                  // OpAtomicWrite
	WCBindMW                       // OpBindMW
	WCLocalInv                     // OpLocalInv
	WCRegMR                        // OpRegMR
)

// String returns the name of the operation as in ibv_wc_opcode, for example "RDMA_WRITE".
func (o WCOpcode) String() string { return qp.WCOpcode(o).String() }

// WCFlags are the flags of a work completion (ibv_wc_flags).
type WCFlags uint8

// The flags of a completion.
const (
	WCWithImm   WCFlags = 1 << iota // WC.Imm is set
	WCWithInv                       // the peer invalidated WC.InvKey
	WCGRH                           // the first GRHLen bytes received are the network header
	WCSolicited                     // the peer set the flag Solicited
	WCIPv4                          // that header is of IPv4, in the last 20 of its bytes
)
