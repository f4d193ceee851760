package uverbs

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"time"

	"github.com/gorxe/gorxe/internal/abi"
	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/qp"
	"github.com/gorxe/gorxe/roce"
	"golang.org/x/sys/unix"
)

// The memory of a hostile program: pages for data, which may be registered, and a scratch area for
// the structures of calls.
const (
	heapBase    = 0x10000
	heapSize    = 0x10000
	scratchBase = 1 << 40
	scratchSize = 1 << 16
)

// process is a process whose memory is a file, so that a hostile program cannot harm the test. An
// address is an offset in the file. The process unmaps memory by truncating the file. It implements
// Caller.
type process struct {
	pid     int
	mem     int
	maps    int // what /proc/PID/maps would be
	scratch [scratchSize]byte
	used    uint64 // bytes of scratch
	changed bool   // memory was unmapped
	fds     []int
}

func newProcess(pid int) (*process, error) {
	mem, err := unix.MemfdCreate("heap", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	maps, err := unix.MemfdCreate("maps", unix.MFD_CLOEXEC)
	return &process{pid: pid, mem: mem, maps: maps, changed: true}, err
}

// restore makes the memory as it was at the start, if it has changed.
func (p *process) restore() {
	if p.changed {
		_ = unix.Ftruncate(p.mem, 0)
		p.unmap(heapBase + heapSize)
		p.changed = false
	}
}

// closeFiles closes the descriptors that the program got.
func (p *process) closeFiles() {
	for _, fd := range p.fds {
		_ = unix.Close(fd)
	}
	p.fds = p.fds[:0]
}

// unmap removes the heap from an address on.
func (p *process) unmap(from uint64) {
	p.changed = true
	_ = unix.Ftruncate(p.mem, int64(from))
	_, _ = unix.Pwrite(p.maps, fmt.Appendf(nil, "%08x-%08x rw-p\n", heapBase, from), 0)
}

// PID implements Caller.
func (p *process) PID() int { return p.pid }

// ReadAt implements Caller.
func (p *process) ReadAt(b []byte, addr uint64) error {
	if at := addr - scratchBase; at < scratchSize && uint64(len(b)) <= scratchSize-at {
		copy(b, p.scratch[at:])
		return nil
	}
	return p.access(unix.Pread, b, addr)
}

// WriteAt implements Caller.
func (p *process) WriteAt(b []byte, addr uint64) error {
	if at := addr - scratchBase; at < scratchSize && uint64(len(b)) <= scratchSize-at {
		copy(p.scratch[at:], b)
		return nil
	}
	return p.access(unix.Pwrite, b, addr)
}

func (p *process) access(f func(int, []byte, int64) (int, error), b []byte, addr uint64) error {
	if addr < heapBase || addr > heapBase+heapSize-uint64(len(b)) {
		return unix.EFAULT
	}
	if n, err := f(p.mem, b, int64(addr)); err != nil || n != len(b) {
		return unix.EFAULT
	}
	return nil
}

// Install implements Caller.
func (p *process) Install(fd int, _ bool) (int, error) {
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err == nil {
		p.fds = append(p.fds, n)
	}
	return n, err
}

// put stores b in the scratch area and returns its address. Old data is overwritten.
func (p *process) put(b []byte) uint64 {
	n := uint64(len(b)+7) &^ 7
	if p.used+n > scratchSize {
		p.used = 0
	}
	at := p.used
	copy(p.scratch[at:], b)
	p.used += n
	return scratchBase + at
}

// arena has two devices in virtual time that hostile programs use, and a pair of honest programs.
type arena struct {
	bed   *testbed.Testbed
	dev   [2]*Device
	gids  [2]roce.GIDEntry
	procs map[int]*process
	good  [2]*hostile // the honest programs
	bad   [2]*hostile
	count uint64 // of executions
	steps uint64
}

// The limits of the devices are low, so that an object that is not released is noticed.
const (
	arenaMemory  = 16 << 20
	arenaObjects = 256
)

func newArena() (*arena, error) {
	a := &arena{procs: map[int]*process{}}
	var err error
	a.bed, err = testbed.New(testbed.Config{Virtual: true, Options: []roce.Option{roce.WithExpert(
		roce.Expert{MaxMemory: arenaMemory, MaxQP: arenaObjects, MaxMR: arenaObjects,
			MaxPD: arenaObjects, Rand: rand.New(rand.NewPCG(1, 2)).Uint64})}})
	if err != nil {
		return nil, err
	}
	for i := range a.dev {
		if a.dev[i], err = NewDevice(a.bed.Dev[i], Config{Name: "rxe0"}); err != nil {
			return nil, err
		}
		a.dev[i].openSpace = a.openSpace
		a.gids[i] = a.bed.Dev[i].GIDs()[0]
	}
	for pid := 1; pid <= 2*processes+2; pid++ {
		if a.procs[pid], err = newProcess(pid); err != nil {
			return nil, err
		}
		a.procs[pid].restore()
	}
	for i := range a.good {
		a.good[i] = &hostile{a: a, side: i, p: a.procs[2*processes+1+i]}
		if err := a.good[i].open(2, false); err != nil {
			return nil, err
		}
	}
	for i, h := range a.good {
		if err := h.connect(a.good[1-i]); err != nil {
			return nil, err
		}
	}
	return a, nil
}

func (a *arena) close() {
	for _, d := range a.dev {
		_ = d.Close()
	}
	_ = a.bed.Close()
	for _, p := range a.procs {
		p.closeFiles()
		_ = unix.Close(p.mem)
		_ = unix.Close(p.maps)
	}
}

// openSpace replaces the function of the same name.
func (a *arena) openSpace(pid int) (*space, error) {
	p := a.procs[pid]
	if p == nil {
		return nil, unix.ESRCH
	}
	mem, err := unix.FcntlInt(uintptr(p.mem), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	maps, err := unix.FcntlInt(uintptr(p.maps), unix.F_DUPFD_CLOEXEC, 0)
	return &space{fd: mem, maps: maps, fast: fast{pidfd: -1}}, err
}

// processes is the number of processes of a hostile program: it may fork.
const processes = 3

// begin starts a hostile program on each device. They are connected to each other.
func (a *arena) begin(typ uint8) error {
	a.restore()
	for i := range a.bad {
		a.bad[i] = &hostile{a: a, side: i, p: a.procs[1+i*processes]}
		if err := a.bad[i].open(2+typ%3, typ&4 != 0); err != nil {
			return err
		}
	}
	return nil
}

// restore restores the memory of hostile programs.
func (a *arena) restore() {
	for pid := 1; pid <= 2*processes; pid++ {
		a.procs[pid].restore()
	}
}

// execute makes the hostile programs do what the input says. It returns an error if a rule is
// broken.
func (a *arena) execute(in []byte) error {
	d := &abi.Decoder{B: in}
	a.restore()
	for i, h := range a.bad {
		h.in, h.p = d, a.procs[1+i*processes]
	}
	if !a.bad[0].ready() || !a.bad[1].ready() {
		for i, h := range a.bad {
			if err := h.connect(a.bad[1-i]); err != nil {
				return err
			}
		}
	}
	for len(d.B) > 0 {
		a.bad[d.U8()&1].step()
		a.steps++
	}
	a.bed.Progress()
	for _, h := range a.bad {
		if err := h.checkLimits(); err != nil {
			return err
		}
	}
	if a.count++; a.count%16 == 0 {
		return a.transfer()
	}
	return nil
}

// end ends the hostile programs. It returns an error if anything of them is left.
func (a *arena) end() error {
	for i, h := range a.bad {
		h.close()
		for k := range processes {
			a.procs[1+i*processes+k].closeFiles()
		}
	}
	for i, dev := range a.dev {
		if n := ownerState(dev) - honestState; n != 0 {
			return fmt.Errorf("device %d: %d objects are left after Close, want 0", i, n)
		}
	}
	return a.transfer()
}

// honestState is the result of ownerState with the honest program of a device: its context and QP,
// which the device refers to twice.
const honestState = 3

// transfer sends data in both directions between the honest programs.
func (a *arena) transfer() error {
	const size = 3000
	for i, h := range a.good {
		peer := a.good[1-i]
		want := make([]byte, size)
		fill(want, byte(a.count))
		if err := h.p.WriteAt(want, heapBase); err != nil {
			return err
		}
		h.sq.post(h.sendWR(a.count, 0, sendSignaled, heapBase+4096, uint64(peer.rkey), size))
		h.doorbell(0)
		var w wc
		err := a.bed.Run(time.Minute, func() (ok bool) {
			w, ok = h.cring.poll()
			return ok
		})
		if err != nil || w.status != 0 || w.id != a.count {
			return fmt.Errorf("honest program %d: completion %+v, %v, want success", i, w, err)
		}
		got := make([]byte, size)
		if err := peer.p.ReadAt(got, heapBase+4096); err != nil || !slices.Equal(got, want) {
			return fmt.Errorf("honest program %d: the peer has other data, %v", i, err)
		}
	}
	return nil
}

// hostile is a program that does what the input says.
type hostile struct {
	a    *arena
	side int
	p    *process // that makes the calls
	in   *abi.Decoder
	ctx  *Context
	peer *hostile

	typ             uint8
	pd, cq, qp, qpn uint32
	srq             uint32 // 0: none
	mr, lkey, rkey  uint32
	channel         uint32
	cring, sq, rq   *userRing
	mapped          [][]byte
	closed          bool
}

// ioctl makes a call.
func (h *hostile) ioctl(object, method uint16, list ...iattr) syscall.Errno {
	buf := enc(uint16(24+16*len(list)), object, method, uint16(len(list)), uint64(0), uint32(14),
		uint32(0))
	out := make([]uint64, len(list))
	for i, a := range list {
		var data uint64
		n := len(a.in)
		switch {
		case a.out != nil:
			n, data = len(a.out), h.p.put(a.out)
			out[i] = data
		case len(a.in) <= 8:
			data = le.Uint64(append(slices.Clone(a.in), make([]byte, 8)...))
		default:
			data = h.p.put(a.in)
		}
		buf = append(buf, enc(a.id, uint16(n), uint16(1), uint16(0), data)...)
	}
	_, no := h.ctx.Ioctl(h.p, verbsIoctl, h.p.put(buf))
	for i, a := range list {
		if a.out != nil {
			_ = h.p.ReadAt(a.out, out[i])
		}
	}
	return no
}

// try executes a command.
func (h *hostile) try(cmd uint32, in []byte, out, driverOut int) (o, d []byte, no syscall.Errno) {
	o, d = make([]byte, out), make([]byte, driverOut)
	list := []iattr{{id: attrWriteCmd, in: enc(cmd)}, {id: attrCoreIn, in: in}}
	if out > 0 {
		list = append(list, iattr{id: attrCoreOut, out: o})
	}
	if driverOut > 0 {
		list = append(list, iattr{id: attrUHWOut, out: d})
	}
	return o, d, h.ioctl(objectDevice, methodInvokeWrite, list...)
}

// open opens the device and creates a QP of the type (2 RC, 3 UC, 4 UD), with an SRQ if shared.
func (h *hostile) open(typ uint8, shared bool) (err error) {
	if h.ctx, err = h.a.dev[h.side].Open(h.p.pid); err != nil {
		return err
	}
	do := func(cmd uint32, out, driverOut int, fields ...any) (o, d []byte) {
		o, d, no := h.try(cmd, enc(fields...), out, driverOut)
		if no != 0 && err == nil {
			err = fmt.Errorf("%s: %w", CommandName(cmd), no)
		}
		return o, d
	}
	h.typ = typ
	if no := h.ioctl(objectAsyncEvent, methodAsyncAlloc, iattr{id: 0}); no != 0 {
		return no
	}
	o, _ := do(cmdAllocPD, 4, 0, uint64(0))
	h.pd = le.Uint32(o)
	o, _ = do(cmdCreateCompChannel, 4, 0, uint64(0))
	h.channel = le.Uint32(o)
	o, d := do(cmdCreateCQ, 8, 16, uint64(0), uint64(1), uint32(60), uint32(0), h.channel,
		uint32(0))
	if err != nil {
		return err
	}
	h.cq, h.cring = le.Uint32(o), h.mmap(d)
	hasSRQ := uint8(0)
	if shared {
		o, d = do(cmdCreateSRQ, 16, 24, uint64(0), uint64(9), h.pd, uint32(20), uint32(2),
			uint32(5))
		if err != nil {
			return err
		}
		h.srq, h.rq, hasSRQ = le.Uint32(o), h.mmap(d), 1
	}
	o, d = do(cmdCreateQP, 32, 32, uint64(0), uint64(7), h.pd, h.cq, h.cq, h.srq, uint32(20),
		uint32(20), uint32(2), uint32(2), uint32(64), uint8(0), h.typ, hasSRQ, uint8(0))
	if err != nil {
		return err
	}
	h.qp, h.qpn, h.sq = le.Uint32(o), le.Uint32(o[4:]), h.mmap(d[16:])
	if !shared {
		h.rq = h.mmap(d)
	}
	o, _ = do(cmdRegMR, 12, 0, uint64(0), uint64(heapBase), uint64(heapSize), uint64(heapBase),
		h.pd, uint32(15))
	h.mr, h.lkey, h.rkey = le.Uint32(o), le.Uint32(o[4:]), le.Uint32(o[8:])
	return err
}

func (h *hostile) mmap(info []byte) *userRing {
	off, size := le.Uint64(info), le.Uint32(info[8:])
	b, err := unix.Mmap(h.ctx.FD(), int64(off), int(size), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED)
	if err != nil {
		panic(fmt.Sprintf("map a ring: %v", err))
	}
	h.mapped = append(h.mapped, b)
	r := &userRing{b: b}
	r.size, r.mask = 1<<r.word(0).Load(), r.word(4).Load()
	return r
}

// connect moves the QP to RTS.
func (h *hostile) connect(to *hostile) error {
	h.peer = to
	_, _, no := h.try(cmdModifyQP, h.modifyFields(maskState, 0), 0, 0)
	if no != 0 {
		return fmt.Errorf("MODIFY_QP to RESET: %w", no)
	}
	const base = maskState | maskPKeyIndex | maskPort
	steps := map[uint8][]uint32{
		2: {base | maskAccess, maskState | maskAV | maskPathMTU | maskDestQPN | maskRQPSN |
			maskMaxDestRdAtomic | maskMinRNRTimer,
			maskState | maskTimeout | maskRetryCnt | maskRNRRetry | maskSQPSN | maskMaxRdAtomic},
		3: {base | maskAccess, maskState | maskAV | maskPathMTU | maskDestQPN | maskRQPSN,
			maskState | maskSQPSN},
		4: {base | maskQKey, maskState, maskState | maskSQPSN},
	}[h.typ]
	for i, mask := range steps {
		_, _, no := h.try(cmdModifyQP, h.modifyFields(mask, uint8(i+1)), 0, 0)
		if no != 0 {
			return fmt.Errorf("MODIFY_QP to state %d: %w", i+1, no)
		}
	}
	return nil
}

func (h *hostile) dest() []byte {
	g := &h.a.gids[h.peer.side]
	return enc(g.GID[:], uint32(0), uint32(0), uint8(g.Index), uint8(64), uint8(0), uint8(0),
		uint8(0), uint8(0), uint8(1), uint8(1))
}

func (h *hostile) modifyFields(mask uint32, state uint8) []byte {
	const psn = 77
	return enc(h.dest(), make([]byte, 32), h.qp, mask, uint32(0x1234), uint32(psn), uint32(psn),
		h.peer.qpn, uint32(15), uint16(0), uint16(0), state, uint8(0), uint8(3), uint8(0),
		uint8(0), uint8(16), uint8(16), uint8(12), uint8(1), uint8(14), uint8(7), uint8(7),
		make([]byte, 4))
}

// sendWR builds a send work request.
func (h *hostile) sendWR(id uint64, op, flags uint32, remote, rkey uint64, length uint32) []byte {
	b := make([]byte, sqElement+32)
	le.PutUint64(b, id)
	le.PutUint32(b[sqOpcode:], op)
	le.PutUint32(b[sqFlags:], flags)
	le.PutUint64(b[sqAddr:], remote)
	le.PutUint32(b[sqRKey:], uint32(rkey))
	le.PutUint32(b[sqDataLen:], length)
	le.PutUint32(b[sqNumSGE:], 1)
	copy(b[sqElement:], enc(uint64(heapBase), length, h.lkey))
	return b
}

// doorbell writes a doorbell to the file. The bits of change are inverted in a word of it.
func (h *hostile) doorbell(change uint64) {
	b := enc(uint32(cmdPostSend), uint16(8), uint16(1), uint64(0), h.qp, uint32(0), uint64(0))
	at := int(change>>32) % len(b)
	b[at] ^= byte(change)
	b[(at+1)%len(b)] ^= byte(change >> 8)
	_, _ = h.ctx.Write(h.p, h.p.put(b), uint64(len(b)))
}

// checkLimits returns an error if the program has more than it may have.
func (h *hostile) checkLimits() error {
	c := h.ctx
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case len(c.objects) > maxObjects, len(c.spaces) > maxSpaces, len(c.chans) > maxChannels,
		c.mirrors > maxMirror, c.file.size > maxRings:
		return fmt.Errorf("%d objects, %d processes, %d channels, %d bytes of memory, "+
			"%d bytes of rings: too many", len(c.objects), len(c.spaces), len(c.chans), c.mirrors,
			c.file.size)
	}
	return nil
}

// ready reports whether the QP is connected.
func (h *hostile) ready() bool {
	q, no := get[*queuePair](h.ctx, h.qp)
	return no == 0 && q.inner.State() == qp.RTS
}

// intact reports whether the program still has the objects that it got in open.
func (h *hostile) intact() bool {
	if h.closed {
		return false
	}
	_, e1 := get[*queuePair](h.ctx, h.qp)
	_, e2 := get[*memoryRegion](h.ctx, h.mr)
	return e1 == 0 && e2 == 0
}

func (h *hostile) close() {
	h.ctx.Close()
	for _, b := range h.mapped {
		_ = unix.Munmap(b)
	}
}
