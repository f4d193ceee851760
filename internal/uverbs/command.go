package uverbs

import (
	"encoding/binary"
	"syscall"

	"github.com/gorxe/gorxe/internal/abi"
	"github.com/gorxe/gorxe/qp"
)

// request is one of the older commands: its parameters, and the response.
type request struct {
	call      Caller
	in        abi.Decoder // the command
	driver    abi.Decoder // the provider's part
	out       abi.Encoder
	driverOut abi.Encoder
	outLen    int // bytes of space for out
}

// command is an entry of the table of commands.
type command struct {
	name    string
	in, out int // least number of bytes of the command and of space for the response
	run     func(c *Context, r *request) syscall.Errno
	// unlocked: the function locks Context.mu itself, after waiting for a neighbor lookup
	unlocked bool
}

// commands has the commands that programs use. Commands with cmdExtended have another layout.
var commands = map[uint32]command{
	cmdQueryDevice:               {"QUERY_DEVICE", 8, 176, (*Context).queryDevice, false},
	cmdExtended | cmdQueryDevice: {"QUERY_DEVICE", 8, 184, (*Context).queryDeviceEx, false},
	cmdQueryPort:                 {"QUERY_PORT", 16, 40, (*Context).queryPort, false},
	cmdAllocPD:                   {"ALLOC_PD", 8, 4, (*Context).allocPD, false},
	cmdDeallocPD:                 {"DEALLOC_PD", 4, 0, (*Context).deallocPD, false},
	cmdRegMR:                     {"REG_MR", 40, 12, (*Context).regMR, false},
	cmdReregMR:                   {"REREG_MR", 48, 8, (*Context).reregMR, false},
	cmdResizeCQ:                  {"RESIZE_CQ", 16, 8, (*Context).resizeCQ, false},
	cmdDeregMR:                   {"DEREG_MR", 4, 0, (*Context).deregMR, false},
	cmdAllocMW:                   {"ALLOC_MW", 16, 8, (*Context).allocMW, false},
	cmdDeallocMW:                 {"DEALLOC_MW", 4, 0, (*Context).deallocMW, false},
	cmdCreateCompChannel:         {"CREATE_COMP_CHANNEL", 8, 4, (*Context).createChannel, false},
	cmdCreateCQ:                  {"CREATE_CQ", 32, 8, (*Context).createCQ, false},
	cmdExtended | cmdCreateCQ:    {"CREATE_CQ", 32, 16, (*Context).createCQEx, false},
	cmdReqNotifyCQ:               {"REQ_NOTIFY_CQ", 8, 0, (*Context).reqNotifyCQ, false},
	cmdDestroyCQ:                 {"DESTROY_CQ", 16, 8, (*Context).destroyCQ, false},
	cmdCreateQP:                  {"CREATE_QP", 56, 32, (*Context).createQP, false},
	cmdExtended | cmdCreateQP:    {"CREATE_QP", 64, 40, (*Context).createQPEx, false},
	cmdQueryQP:                   {"QUERY_QP", 16, 128, (*Context).queryQP, false},
	cmdModifyQP:                  {"MODIFY_QP", 112, 0, (*Context).modifyQP, true},
	cmdExtended | cmdModifyQP:    {"MODIFY_QP", 112, 0, (*Context).modifyQP, true},
	cmdDestroyQP:                 {"DESTROY_QP", 16, 4, (*Context).destroyQP, false},
	cmdCreateAH:                  {"CREATE_AH", 56, 4, (*Context).createAH, true},
	cmdDestroyAH:                 {"DESTROY_AH", 4, 0, (*Context).destroyAH, false},
	cmdAttachMcast:               {"ATTACH_MCAST", 24, 0, (*Context).attachMcast, false},
	cmdDetachMcast:               {"DETACH_MCAST", 24, 0, (*Context).detachMcast, false},
	cmdCreateSRQ:                 {"CREATE_SRQ", 32, 16, (*Context).createSRQ, false},
	cmdCreateXSRQ:                {"CREATE_XSRQ", 48, 16, (*Context).createXSRQ, false},
	cmdModifySRQ:                 {"MODIFY_SRQ", 16, 0, (*Context).modifySRQ, false},
	cmdQuerySRQ:                  {"QUERY_SRQ", 16, 16, (*Context).querySRQ, false},
	cmdDestroySRQ:                {"DESTROY_SRQ", 16, 4, (*Context).destroySRQ, false},
	cmdPostSend:                  {"POST_SEND", 24, 0, (*Context).postSend, true},
}

// execute runs a command.
func (c *Context) execute(id uint32, r *request) syscall.Errno {
	cmd, ok := commands[id]
	switch {
	case !ok:
		return syscall.EOPNOTSUPP
	case r.outLen < cmd.out:
		return syscall.ENOSPC // from this, libibverbs learns that INVOKE_WRITE exists
	case len(r.in.B) < cmd.in:
		return syscall.EINVAL
	case cmd.unlocked:
		return cmd.run(c, r)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return syscall.EIO
	}
	return cmd.run(c, r)
}

// postSend is the doorbell of a QP.
func (c *Context) postSend(r *request) syscall.Errno {
	r.in.Skip(8)
	return c.ring(r.in.U32())
}

func (c *Context) ring(handle uint32) syscall.Errno {
	q, ok := c.qps.Load(handle)
	if !ok {
		return syscall.EINVAL
	}
	return q.(*queuePair).ring()
}

func (q *queuePair) ring() syscall.Errno {
	if q.inner.State() < qp.RTS {
		return syscall.EINVAL
	}
	q.inner.RingDoorbell()
	return 0
}

// Bytes of the headers of a command that is passed to write().
const (
	writeHeader   = 8
	writeHeaderEx = 16 // after it, for extended commands
	maxWrite      = 4096
)

// Write executes a write() of n bytes at addr to the context's file: a doorbell, or one of the
// older commands. It returns the result, or an error number.
func (c *Context) Write(call Caller, addr, n uint64) (int64, syscall.Errno) {
	if n < writeHeader || n > maxWrite {
		return 0, syscall.EINVAL
	}
	b := make([]byte, n)
	if call.ReadAt(b, addr) != nil {
		return 0, syscall.EFAULT
	}
	d := abi.Decoder{B: b}
	id := d.U32()
	inWords, outWords := int(d.U16()), int(d.U16())
	r := request{call: call}
	var response uint64
	var driverOut int
	if id&cmdExtended == 0 {
		if inWords*4 != len(b) {
			return 0, syscall.EINVAL
		}
		if id == cmdPostSend && n >= writeHeader+12 {
			return int64(n), c.ring(binary.LittleEndian.Uint32(b[writeHeader+8:]))
		}
		// The provider's part follows the command's.
		split := min(len(d.B), commands[id].in)
		r.in.B, r.driver.B = d.B[:split], d.B[split:]
		r.outLen = min(outWords*4, commands[id].out)
		driverOut = outWords*4 - r.outLen
		response = binary.LittleEndian.Uint64(append(r.in.B[:min(8, split):min(8, split)],
			make([]byte, 8)...))
	} else {
		response = d.U64()
		providerIn, providerOut := int(d.U16()), int(d.U16())
		d.Skip(4)
		if inWords*8+providerIn*8 != len(d.B) {
			return 0, syscall.EINVAL
		}
		r.in.B, r.driver.B = d.B[:inWords*8], d.B[inWords*8:]
		r.outLen, driverOut = outWords*8, providerOut*8
	}
	if no := c.execute(id, &r); no != 0 {
		return 0, no
	}
	if len(r.out.B)+len(r.driverOut.B) == 0 || response == 0 {
		return int64(n), 0
	}
	out := make([]byte, r.outLen+driverOut)
	copy(out[:r.outLen], r.out.B)
	copy(out[r.outLen:], r.driverOut.B)
	if call.WriteAt(out, response) != nil {
		return 0, syscall.EFAULT
	}
	return int64(n), 0
}

// Name returns the name of the command of an ioctl, for traces.
func Name(call Caller, cmd, arg uint64) string {
	if uint32(cmd) != verbsIoctl {
		return "unknown ioctl"
	}
	object, method, a, no := readIoctl(call, arg)
	if no != 0 {
		return "invalid ioctl"
	}
	switch [2]uint16{object, method} {
	case [2]uint16{objectDevice, methodInvokeWrite}:
		return CommandName(uint32(a.value(attrWriteCmd)))
	case [2]uint16{objectDevice, methodQueryPort}:
		return "QUERY_PORT"
	case [2]uint16{objectDevice, methodGetContext}:
		return "GET_CONTEXT"
	case [2]uint16{objectDevice, methodQueryContext}:
		return "QUERY_CONTEXT"
	case [2]uint16{objectDevice, methodQueryGIDTable}:
		return "QUERY_GID_TABLE"
	case [2]uint16{objectDevice, methodQueryGIDEntry}:
		return "QUERY_GID_ENTRY"
	case [2]uint16{objectAsyncEvent, methodAsyncAlloc}:
		return "ASYNC_EVENT_ALLOC"
	}
	return "unsupported method"
}

// CommandName returns the name of a command of write() or INVOKE_WRITE.
func CommandName(id uint32) string {
	if c, ok := commands[id]; ok {
		return c.name
	}
	return "unsupported command"
}
