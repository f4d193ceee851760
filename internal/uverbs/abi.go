package uverbs

import "encoding/binary"

// decoder reads the fields of a structure, in little endian. Beyond the end it returns zeros.
type decoder struct{ b []byte }

func (d *decoder) bytes(n int) []byte {
	if len(d.b) < n {
		d.b = nil
		return make([]byte, n)
	}
	v := d.b[:n]
	d.b = d.b[n:]
	return v
}

func (d *decoder) u8() uint8   { return d.bytes(1)[0] }
func (d *decoder) u16() uint16 { return binary.LittleEndian.Uint16(d.bytes(2)) }
func (d *decoder) u32() uint32 { return binary.LittleEndian.Uint32(d.bytes(4)) }
func (d *decoder) u64() uint64 { return binary.LittleEndian.Uint64(d.bytes(8)) }
func (d *decoder) skip(n int)  { d.bytes(n) }

// encoder appends the fields of a structure, in little endian.
type encoder struct{ b []byte }

func (e *encoder) u8(v ...uint8) { e.b = append(e.b, v...) }
func (e *encoder) u16(v uint16)  { e.b = binary.LittleEndian.AppendUint16(e.b, v) }
func (e *encoder) u64(v uint64)  { e.b = binary.LittleEndian.AppendUint64(e.b, v) }
func (e *encoder) bytes(b []byte) {
	e.b = append(e.b, b...)
}
func (e *encoder) u32(vs ...uint32) {
	for _, v := range vs {
		e.b = binary.LittleEndian.AppendUint32(e.b, v)
	}
}

// Objects and methods of RDMA_VERBS_IOCTL (rdma/ib_user_ioctl_cmds.h).
const (
	verbsIoctl = 0xc0181b01 // RDMA_VERBS_IOCTL

	objectDevice     = 0
	objectAsyncEvent = 16

	methodInvokeWrite   = 0
	methodQueryPort     = 2
	methodGetContext    = 3
	methodQueryContext  = 4
	methodQueryGIDTable = 5
	methodQueryGIDEntry = 6
	methodAsyncAlloc    = 0

	attrCoreIn   = 0
	attrCoreOut  = 1
	attrWriteCmd = 2
	attrUHWIn    = 1 << 12
	attrUHWOut   = attrUHWIn + 1

	flagValidOutput = 1 << 1

	ioctlHeader = 24 // bytes
	ioctlAttr   = 16 // bytes
	maxAttrs    = 64
)

// Commands of write() and INVOKE_WRITE (rdma/ib_user_verbs.h).
const (
	cmdGetContext = iota
	cmdQueryDevice
	cmdQueryPort
	cmdAllocPD
	cmdDeallocPD
	cmdCreateAH
	cmdModifyAH
	cmdQueryAH
	cmdDestroyAH
	cmdRegMR
	cmdRegSMR
	cmdReregMR
	cmdQueryMR
	cmdDeregMR
	cmdAllocMW
	cmdBindMW
	cmdDeallocMW
	cmdCreateCompChannel
	cmdCreateCQ
	cmdResizeCQ
	cmdDestroyCQ
	cmdPollCQ
	cmdPeekCQ
	cmdReqNotifyCQ
	cmdCreateQP
	cmdQueryQP
	cmdModifyQP
	cmdDestroyQP
	cmdPostSend
	cmdPostRecv
	cmdAttachMcast
	cmdDetachMcast
	cmdCreateSRQ
	cmdModifySRQ
	cmdQuerySRQ
	cmdDestroySRQ
	cmdPostSRQRecv
	cmdOpenXRCD
	cmdCloseXRCD
	cmdCreateXSRQ
	cmdOpenQP

	cmdExtended = 1 << 31
)
