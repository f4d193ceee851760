package uverbs

import (
	"encoding/binary"
	"syscall"

	"github.com/gorxe/gorxe/internal/abi"
)

// attr is an attribute of an ioctl.
type attr struct {
	id, len uint16
	data    uint64 // the value, or its address if len > 8
	at      uint64 // address of the attribute
	flags   uint16
}

// attrs are the attributes of a call.
type attrs struct {
	call Caller
	list []attr
}

func (a *attrs) find(id uint16) *attr {
	for i := range a.list {
		if a.list[i].id == id {
			return &a.list[i]
		}
	}
	return nil
}

// value returns the value of an input of up to 8 bytes, 0 if there is none.
func (a *attrs) value(id uint16) uint64 {
	if x := a.find(id); x != nil && x.len <= 8 {
		return x.data
	}
	return 0
}

// input returns the bytes of an input, nil if there is none.
func (a *attrs) input(id uint16) ([]byte, syscall.Errno) {
	x := a.find(id)
	if x == nil {
		return nil, 0
	}
	if x.len <= 8 {
		return binary.LittleEndian.AppendUint64(nil, x.data)[:x.len], 0
	}
	b := make([]byte, x.len)
	if a.call.ReadAt(b, x.data) != nil {
		return nil, syscall.EFAULT
	}
	return b, 0
}

// output writes b, cut to the length of the output, and marks the output as valid.
func (a *attrs) output(id uint16, b []byte) syscall.Errno {
	x := a.find(id)
	if x == nil {
		return 0
	}
	out := make([]byte, x.len)
	copy(out, b)
	if w, ok := a.call.(BothWriter); ok {
		flags := x.marked()
		if w.WriteBoth(out, x.data, flags[:], x.at+attrFlags) != nil {
			return syscall.EFAULT
		}
		return 0
	}
	if len(out) > 0 && a.call.WriteAt(out, x.data) != nil {
		return syscall.EFAULT
	}
	return a.mark(x)
}

// BothWriter is a Caller that can write two pieces of memory at once.
type BothWriter interface {
	Caller
	WriteBoth(p []byte, addr uint64, q []byte, addr2 uint64) error
}

// attrFlags is the offset of the flags of an attribute.
const attrFlags = 4

// marked returns the flags of an attribute with "valid output".
func (x *attr) marked() (flags [2]byte) {
	binary.LittleEndian.PutUint16(flags[:], x.flags|flagValidOutput)
	return flags
}

// mark sets the flag "valid output".
func (a *attrs) mark(x *attr) syscall.Errno {
	flags := x.marked()
	if a.call.WriteAt(flags[:], x.at+attrFlags) != nil {
		return syscall.EFAULT
	}
	return 0
}

// outputFD installs a descriptor and stores its number in the attribute.
func (a *attrs) outputFD(id uint16, fd int) (int, syscall.Errno) {
	x := a.find(id)
	if x == nil {
		return 0, syscall.EINVAL
	}
	n, err := a.call.Install(fd, true)
	if err != nil {
		return 0, errno(err)
	}
	if a.call.WriteAt(binary.LittleEndian.AppendUint64(nil, uint64(n)), x.at+8) != nil {
		return 0, syscall.EFAULT
	}
	return n, a.mark(x)
}

// fewAttrs is the number of attributes that are read together with the header.
const fewAttrs = 8

// readIoctl reads the header and the attributes of RDMA_VERBS_IOCTL.
func readIoctl(call Caller, arg uint64) (object, method uint16, a attrs, no syscall.Errno) {
	a.call = call
	// Most calls have few attributes. One read gets them all if they are in the same page.
	var first [ioctlHeader + fewAttrs*ioctlAttr]byte
	head := first[:]
	if arg%pageSize > pageSize-uint64(len(first)) {
		head = first[:ioctlHeader]
	}
	if call.ReadAt(head, arg) != nil {
		return 0, 0, a, syscall.EFAULT
	}
	d := abi.Decoder{B: head}
	length := d.U16()
	object, method = d.U16(), d.U16()
	n := d.U16()
	if n > maxAttrs || int(length) != ioctlHeader+ioctlAttr*int(n) {
		return 0, 0, a, syscall.EINVAL
	}
	var list []byte
	if int(length) <= len(head) {
		list = head[ioctlHeader:length]
	} else {
		list = make([]byte, ioctlAttr*int(n))
		if call.ReadAt(list, arg+ioctlHeader) != nil {
			return 0, 0, a, syscall.EFAULT
		}
	}
	d = abi.Decoder{B: list}
	a.list = make([]attr, 0, n)
	for i := range uint64(n) {
		x := attr{id: d.U16(), len: d.U16(), at: arg + ioctlHeader + ioctlAttr*i}
		x.flags = d.U16()
		d.Skip(2)
		x.data = d.U64()
		a.list = append(a.list, x)
	}
	return object, method, a, 0
}

// Ioctl executes an ioctl on the context's file. It returns the result, or an error number.
func (c *Context) Ioctl(call Caller, cmd, arg uint64) (int64, syscall.Errno) {
	if uint32(cmd) != verbsIoctl {
		return 0, syscall.ENOTTY
	}
	object, method, a, no := readIoctl(call, arg)
	if no != 0 {
		return 0, no
	}
	switch object {
	case objectDevice:
		switch method {
		case methodInvokeWrite:
			return 0, c.invoke(&a)
		case methodQueryPort:
			return 0, c.queryPortIoctl(&a)
		case methodGetContext, methodQueryContext:
			return 0, c.getContext(&a)
		case methodQueryGIDTable:
			return 0, c.queryGIDTable(&a)
		case methodQueryGIDEntry:
			return 0, c.queryGIDEntry(&a)
		}
	case objectAsyncEvent:
		if method == methodAsyncAlloc {
			return 0, c.allocAsync(&a)
		}
	}
	// libibverbs then uses the older commands through methodInvokeWrite.
	return 0, syscall.EPROTONOSUPPORT
}

// invoke executes one of the older commands.
func (c *Context) invoke(a *attrs) syscall.Errno {
	r := request{call: a.call}
	var no syscall.Errno
	if r.in.B, no = a.input(attrCoreIn); no != 0 {
		return no
	}
	if r.driver.B, no = a.input(attrUHWIn); no != 0 {
		return no
	}
	if x := a.find(attrCoreOut); x != nil {
		r.outLen = int(x.len)
	}
	no = c.execute(uint32(a.value(attrWriteCmd)), &r)
	if no != 0 {
		return no
	}
	if no := a.output(attrCoreOut, r.out.B); no != 0 {
		return no
	}
	return a.output(attrUHWOut, r.driverOut.B)
}
