package uverbs

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// steps are what hostile programs do.
var steps = []func(h *hostile){
	(*hostile).command, (*hostile).command, (*hostile).command, (*hostile).garbageCommand,
	(*hostile).query, (*hostile).garbageIoctl, (*hostile).garbageWrite, (*hostile).garbageRing,
	(*hostile).garbageIndex, (*hostile).workRequest, (*hostile).workRequest,
	(*hostile).workRequest, (*hostile).receive, (*hostile).ringDoorbell, (*hostile).ringDoorbell,
	(*hostile).fileDoorbell, (*hostile).changeFile, (*hostile).unmap, (*hostile).fork,
	(*hostile).closeDescriptor, (*hostile).progress, (*hostile).progress, (*hostile).poll,
}

func (h *hostile) step() { steps[int(h.in.U8())%len(steps)](h) }

// take returns up to n bytes of the input.
func (h *hostile) take(n int) []byte {
	n = min(n, len(h.in.B))
	b := h.in.B[:n]
	h.in.B = h.in.B[n:]
	return b
}

// handle returns a handle that exists with high probability.
func (h *hostile) handle() uint32 {
	switch v := h.in.U8(); {
	case v < 128:
		return []uint32{h.pd, h.cq, h.qp, h.mr, h.srq}[v%5]
	case v < 250:
		return uint32(v % 16)
	default:
		return h.in.U32()
	}
}

// number returns a size or count: small, or at a limit.
func (h *hostile) number() uint32 {
	v := h.in.U8()
	if v < 200 {
		return uint32(v % 40)
	}
	edges := []uint32{0, 1, 255, maxQueue, maxQueue + 1, maxCQEs, maxCQEs + 1, 1 << 31, 1<<32 - 1}
	return edges[int(v)%len(edges)]
}

// address returns an address in the heap, or anywhere.
func (h *hostile) address() uint64 {
	v := h.in.U16()
	switch {
	case v < 0xf000:
		return heapBase + uint64(v)
	case v < 0xf800:
		return heapBase + heapSize - uint64(v&0xff)
	default:
		return h.in.U64()
	}
}

// length returns the length of memory.
func (h *hostile) length() uint64 {
	v := h.in.U16()
	if v < 0xff00 {
		return uint64(v) % 5000
	}
	return 1 << (v & 63)
}

// valid are commands whose parameters are valid, or nearly so.
var valid = []struct {
	cmd            uint32
	out, driverOut int
	fields         func(h *hostile) []any
}{
	{cmdAllocPD, 4, 0, func(h *hostile) []any { return []any{uint64(0)} }},
	{cmdDeallocPD, 0, 0, func(h *hostile) []any { return []any{h.handle()} }},
	{cmdRegMR, 12, 0, func(h *hostile) []any {
		a := h.address()
		return []any{uint64(0), a, h.length(), a, h.pd, uint32(h.in.U8())}
	}},
	{cmdReregMR, 8, 0, func(h *hostile) []any {
		a := h.address()
		return []any{uint64(0), h.handle(), uint32(h.in.U8() % 9), a, h.length(), a, h.handle(),
			uint32(h.in.U8())}
	}},
	{cmdDeregMR, 0, 0, func(h *hostile) []any { return []any{h.handle()} }},
	{cmdCreateCompChannel, 4, 0, func(h *hostile) []any { return []any{uint64(0)} }},
	{cmdCreateCQ, 8, 16, func(h *hostile) []any {
		return []any{uint64(0), uint64(1), h.number(), uint32(0), h.channel, uint32(0)}
	}},
	{cmdResizeCQ, 8, 16, func(h *hostile) []any {
		return []any{uint64(0), h.handle(), h.number(), uint32(0)}
	}},
	{cmdReqNotifyCQ, 0, 0, func(h *hostile) []any { return []any{h.handle(), h.number()} }},
	{cmdDestroyCQ, 8, 0, func(h *hostile) []any { return []any{uint64(0), h.handle(), uint32(0)} }},
	{cmdCreateQP, 32, 32, func(h *hostile) []any {
		return []any{uint64(0), uint64(7), h.pd, h.cq, h.cq, h.handle(), h.number(), h.number(),
			h.number() % 64, h.number() % 64, h.number(), uint8(0), h.in.U8() % 6,
			h.in.U8() % 2, uint8(0)}
	}},
	{cmdQueryQP, 128, 0, func(h *hostile) []any { return []any{uint64(0), h.handle(), uint32(0)} }},
	{cmdModifyQP, 0, 0, func(h *hostile) []any {
		masks := []uint32{maskState, maskState | maskAV, maskAccess, maskState | maskPKeyIndex |
			maskPort | maskAccess, maskState | maskAV | maskPathMTU | maskDestQPN | maskRQPSN |
			maskMaxDestRdAtomic | maskMinRNRTimer, maskState | maskTimeout | maskRetryCnt |
			maskRNRRetry | maskSQPSN | maskMaxRdAtomic, h.in.U32()}
		return []any{h.modifyFields(masks[int(h.in.U8())%len(masks)], h.in.U8()%8)}
	}},
	{cmdDestroyQP, 4, 0, func(h *hostile) []any { return []any{uint64(0), h.handle(), uint32(0)} }},
	{cmdCreateAH, 4, 8, func(h *hostile) []any {
		return []any{uint64(0), uint64(0), h.pd, uint32(0), h.dest()[:16], uint32(0), uint8(0),
			uint8(64), uint8(0), uint8(0), uint16(0), uint8(0), uint16(0), uint8(1), uint8(1),
			uint32(0)}
	}},
	{cmdDestroyAH, 0, 0, func(h *hostile) []any { return []any{h.handle()} }},
	{cmdAttachMcast, 0, 0, func(h *hostile) []any {
		return []any{make([]byte, 10), uint16(0xffff), []byte{224, 1, 1, h.in.U8()}, h.handle(),
			uint32(0)}
	}},
	{cmdDetachMcast, 0, 0, func(h *hostile) []any {
		return []any{make([]byte, 10), uint16(0xffff), []byte{224, 1, 1, h.in.U8()}, h.handle(),
			uint32(0)}
	}},
	{cmdCreateSRQ, 16, 24, func(h *hostile) []any {
		return []any{uint64(0), uint64(9), h.pd, h.number(), h.number() % 64, h.number()}
	}},
	{cmdModifySRQ, 0, 0, func(h *hostile) []any {
		return []any{h.handle(), uint32(h.in.U8() % 4), h.number(), h.number()}
	}},
	{cmdQuerySRQ, 16, 0, func(h *hostile) []any { return []any{uint64(0), h.handle(), uint32(0)} }},
	{cmdDestroySRQ, 4, 0,
		func(h *hostile) []any { return []any{uint64(0), h.handle(), uint32(0)} }},
}

// command executes a command with up to two wrong bytes.
func (h *hostile) command() {
	v := valid[int(h.in.U8())%len(valid)]
	in := enc(v.fields(h)...)
	for range max(0, int(h.in.U8())-200) / 20 {
		in[int(h.in.U8())%len(in)] = h.in.U8()
	}
	_, _, _ = h.try(v.cmd, in, v.out, v.driverOut)
}

// garbageCommand executes a command with parameters from the input.
func (h *hostile) garbageCommand() {
	cmd := uint32(h.in.U8() % 64)
	if h.in.U8()&1 != 0 {
		cmd |= cmdExtended
	}
	in := make([]byte, 176)
	copy(in, h.take(24))
	_, _, _ = h.try(cmd, in, 304, 32)
}

// query makes an ioctl that reads attributes of the port, or asks for asynchronous events.
func (h *hostile) query() {
	out := make([]byte, int(h.in.U8())*4)
	in := []byte{h.in.U8() % 3, 0, 0, 0, 0, 0, 0, 0}
	size := enc(uint64(h.in.U8()) * 8)
	switch h.in.U8() % 4 {
	case 0:
		_ = h.ioctl(objectDevice, methodQueryPort, iattr{id: 0, in: in[:1]}, iattr{id: 1, out: out})
	case 1:
		_ = h.ioctl(objectDevice, methodQueryGIDTable, iattr{id: 0, in: size},
			iattr{id: 1, in: in[3:]}, iattr{id: 2, out: out}, iattr{id: 3, out: make([]byte, 8)})
	case 2:
		_ = h.ioctl(objectDevice, methodQueryGIDEntry, iattr{id: 0, in: in[:4]},
			iattr{id: 1, in: size[:4]}, iattr{id: 2, in: in[4:]}, iattr{id: 3, out: out})
	case 3:
		_ = h.ioctl(objectAsyncEvent, methodAsyncAlloc, iattr{id: 0})
	}
}

// garbageIoctl makes an ioctl of attributes from the input.
func (h *hostile) garbageIoctl() {
	if h.in.U8()&1 != 0 { // the header, too
		_, _ = h.ctx.Ioctl(h.p, verbsIoctl, h.p.put(append(slices.Clone(h.take(48)), make([]byte,
			64)...)))
		return
	}
	list := []iattr{{id: uint16(h.in.U8()), in: h.take(8)},
		{id: uint16(h.in.U8()), out: make([]byte, 16)}}
	_ = h.ioctl(uint16(h.in.U8()%20), uint16(h.in.U8()%8), list...)
}

// garbageWrite writes bytes of the input to the file.
func (h *hostile) garbageWrite() {
	b := slices.Clone(h.take(40))
	if len(b) >= 6 && h.in.U8()&3 != 0 { // a plausible header
		copy(b, enc(uint32(b[0]%64), uint16(len(b)/4)))
		b = b[:len(b)/4*4]
	}
	n := uint64(len(b))
	if h.in.U8() > 250 {
		n = uint64(h.number())
	}
	_, _ = h.ctx.Write(h.p, h.p.put(b), n)
}

func (h *hostile) anyRing() *userRing { return []*userRing{h.sq, h.rq, h.cring}[h.in.U8()%3] }

// garbageRing overwrites a part of a ring, maybe of its header.
func (h *hostile) garbageRing() {
	r := h.anyRing()
	at := int(h.in.U16()) % len(r.b)
	copy(r.b[at:], h.take(16))
}

// garbageIndex overwrites an index of a ring.
func (h *hostile) garbageIndex() {
	h.anyRing().word(128 + 128*int(h.in.U8()&1)).Store(h.in.U32())
}

// workRequest posts a work request that may be wrong in some bytes.
func (h *hostile) workRequest() {
	remote, rkey := h.address(), h.peer.rkey
	wr := h.sendWR(1, uint32(h.in.U8()%16), uint32(h.in.U8()%16), remote, uint64(rkey),
		uint32(h.length()))
	if h.typ == 4 {
		le.PutUint32(wr[sqQPN:], h.peer.qpn)
		le.PutUint32(wr[sqQKey:], 0x1234)
		le.PutUint32(wr[sqAH:], uint32(h.in.U8()))
	}
	if h.in.U8()&1 != 0 {
		copy(wr[int(h.in.U8())%len(wr):], h.take(4))
	}
	h.sq.post(wr)
	h.doorbell(0)
}

// receive posts a receive that may be wrong in some bytes.
func (h *hostile) receive() {
	wr := enc(uint64(5), uint64(0), uint32(0), uint32(0), uint32(0), uint32(1), uint32(0),
		uint32(0), h.address(), uint32(h.length()), h.lkey)
	if h.in.U8()&1 != 0 {
		copy(wr[int(h.in.U8())%len(wr):], h.take(4))
	}
	h.rq.post(wr)
}

// ringDoorbell writes a doorbell, maybe a wrong one.
func (h *hostile) ringDoorbell() { h.doorbell(h.in.U64() >> (h.in.U8() & 64)) }

// fileDoorbell writes bytes where doorbells are read from the file.
func (h *hostile) fileDoorbell() {
	b := append(enc(uint32(cmdPostSend), uint32(0), uint64(0), h.handle()), h.take(24)...)
	_, _ = unix.Pwrite(h.ctx.FD(), b, DoorbellOffset+int64(h.in.U16()%256))
	if !h.closed {
		h.a.dev[h.side].bells.ring(h.ctx.watch, false)
	}
}

// changeFile changes the file of the rings.
func (h *hostile) changeFile() {
	if h.closed {
		return
	}
	fd := h.ctx.FD()
	switch h.in.U8() % 6 {
	case 0:
		_ = unix.Ftruncate(fd, int64(h.in.U32())) // is refused
	case 1:
		_ = unix.Ftruncate(fd, DoorbellOffset+int64(h.in.U32()))
	case 2:
		_ = unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE,
			int64(h.in.U16()), int64(h.in.U16())+1)
	case 3:
		_, _ = unix.Pwrite(fd, h.take(16), int64(h.in.U32()%(1<<20)))
	case 4:
		_, _ = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, int(h.in.U8()))
	case 5:
		_, _ = unix.Pwrite(fd, h.take(16), DoorbellOffset+int64(h.in.U16()))
	}
}

// unmap removes memory that may be registered.
func (h *hostile) unmap() { h.p.unmap(heapBase + uint64(h.in.U16())) }

// fork makes another process use the device. It has a copy of the memory.
func (h *hostile) fork() {
	other := h.a.procs[1+h.side*processes+int(h.in.U8())%processes]
	if other == h.p {
		return
	}
	b := make([]byte, 4096)
	if h.p.ReadAt(b, heapBase) == nil {
		_ = other.WriteAt(b, heapBase)
	}
	h.p = other
}

// closeDescriptor closes the device, or another descriptor.
func (h *hostile) closeDescriptor() {
	v := h.in.U8()
	if v < 6 && !h.closed {
		h.closed = true
		h.ctx.Close()
		return
	}
	if n := len(h.p.fds); n > 0 {
		i := int(v) % n
		_ = unix.Close(h.p.fds[i])
		h.p.fds = slices.Delete(h.p.fds, i, i+1)
	}
}

// progress lets time pass.
func (h *hostile) progress() {
	for range h.in.U8() % 8 {
		if h.a.bed.Step() != nil {
			return
		}
	}
}

// poll takes completions from the ring.
func (h *hostile) poll() {
	for range h.in.U8() % 8 {
		if h.cring.size != wcSize && h.cring.size != 64 {
			panic(fmt.Sprintf("completions of %d bytes", h.cring.size))
		}
		if _, ok := h.cring.poll(); !ok {
			return
		}
	}
}
