package uverbs

import (
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/mr"
	"github.com/gorxe/gorxe/roce"
	"golang.org/x/sys/unix"
)

// The tests play the program: they use the structures of libibverbs and of the rxe provider. Its
// address space is that of the test.

var le = binary.LittleEndian

// self is a Caller of this process.
type self struct{ mem *os.File }

func (s self) PID() int { return os.Getpid() }

func (s self) ReadAt(p []byte, addr uint64) error {
	_, err := s.mem.ReadAt(p, int64(addr))
	return err
}

func (s self) WriteAt(p []byte, addr uint64) error {
	_, err := s.mem.WriteAt(p, int64(addr))
	return err
}

func (s self) Install(fd int, cloexec bool) (int, error) {
	return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
}

// program is a program with an open context.
type program struct {
	t    testing.TB
	dev  *Device
	ctx  *Context
	call Caller
	addr roce.GID
}

// pair returns programs on two devices of a link.
func pair(t testing.TB, c testbed.Config) [2]*program {
	t.Helper()
	bed, err := testbed.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = bed.Close() })
	var p [2]*program
	for i := range p {
		p[i] = newProgram(t, bed.Dev[i])
	}
	return p
}

func newProgram(t testing.TB, dev *roce.Device) *program {
	t.Helper()
	d, err := NewDevice(dev, Config{Name: "rxe0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return openProgram(t, d)
}

func openProgram(t testing.TB, d *Device) *program {
	t.Helper()
	ctx, err := d.Open(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ctx.Close)
	mem, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = mem.Close() })
	return &program{t: t, dev: d, ctx: ctx, call: self{mem}, addr: d.dev.GIDs()[0].GID}
}

// enc builds a structure from integers and byte slices.
func enc(fields ...any) []byte {
	var b []byte
	for _, f := range fields {
		switch f := f.(type) {
		case uint8:
			b = append(b, f)
		case uint16:
			b = le.AppendUint16(b, f)
		case uint32:
			b = le.AppendUint32(b, f)
		case int32:
			b = le.AppendUint32(b, uint32(f))
		case uint64:
			b = le.AppendUint64(b, f)
		case []byte:
			b = append(b, f...)
		default:
			panic(fmt.Sprintf("enc: %T", f))
		}
	}
	return b
}

// iattr is an attribute of an ioctl.
type iattr struct {
	id  uint16
	in  []byte
	out []byte
}

// ioctl makes a call; fds are returned in the data of attribute 0.
func (p *program) ioctl(object, method uint16, list ...iattr) ([]uint64, syscall.Errno) {
	buf := enc(uint16(24+16*len(list)), object, method, uint16(len(list)), uint64(0), uint32(14),
		uint32(0))
	for _, a := range list {
		var data uint64
		n := len(a.in)
		switch {
		case a.out != nil:
			n, data = len(a.out), mr.AddrOf(a.out)
		case len(a.in) <= 8:
			data = le.Uint64(append(slices.Clone(a.in), make([]byte, 8)...))
		default:
			data = mr.AddrOf(a.in)
		}
		buf = append(buf, enc(a.id, uint16(n), uint16(1), uint16(0), data)...)
	}
	_, no := p.ctx.Ioctl(p.call, verbsIoctl, mr.AddrOf(buf))
	var data []uint64
	for i := range list {
		data = append(data, le.Uint64(buf[24+16*i+8:]))
	}
	return data, no
}

// try executes a command, whose provider's response has driverOut bytes.
func (p *program) try(cmd uint32, in []byte, out, driverOut int) ([]byte, []byte, syscall.Errno) {
	o, d := make([]byte, max(out, 1)), make([]byte, max(driverOut, 1))
	list := []iattr{{id: 2, in: enc(cmd)}, {id: 0, in: in}}
	if out > 0 {
		list = append(list, iattr{id: 1, out: o})
	}
	if driverOut > 0 {
		list = append(list, iattr{id: 4097, out: d})
	}
	_, no := p.ioctl(0, 0, list...)
	return o, d, no
}

func (p *program) do(cmd uint32, in []byte, out, driverOut int) ([]byte, []byte) {
	p.t.Helper()
	o, d, no := p.try(cmd, in, out, driverOut)
	if no != 0 {
		p.t.Fatalf("%s: %v", CommandName(cmd), no)
	}
	return o, d
}

// userRing is a ring as the program maps it.
type userRing struct {
	b          []byte
	size, mask uint32 // of a slot in bytes; slots - 1
}

func (p *program) mmap(info []byte) *userRing {
	p.t.Helper()
	off, size := le.Uint64(info), le.Uint32(info[8:])
	b, err := unix.Mmap(p.ctx.FD(), int64(off), int(size), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = unix.Munmap(b) })
	r := &userRing{b: b}
	r.size, r.mask = 1<<r.word(0).Load(), r.word(4).Load()
	return r
}

func (r *userRing) word(at int) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&r.b[at])) }

func (r *userRing) slot(i uint32) []byte {
	return r.b[384+(i&r.mask)*r.size:][:r.size]
}

// post writes an element at the producer index, false if the ring is full.
func (r *userRing) post(b []byte) bool {
	i := r.word(128).Load()
	if r.word(256).Load() == (i+1)&r.mask {
		return false
	}
	copy(r.slot(i), b)
	r.word(128).Store((i + 1) & r.mask)
	return true
}

// wc is a completion.
type wc struct {
	id                                          uint64
	status, opcode, len, extra, qpn, src, flags uint32
	sl                                          uint8
}

func (r *userRing) poll() (w wc, ok bool) {
	i := r.word(256).Load()
	if r.word(128).Load() == i {
		return w, false
	}
	b := r.slot(i)
	w = wc{id: le.Uint64(b), status: le.Uint32(b[8:]), opcode: le.Uint32(b[12:]),
		len: le.Uint32(b[20:]), extra: binary.BigEndian.Uint32(b[24:]), qpn: le.Uint32(b[28:]),
		src: le.Uint32(b[32:]), flags: le.Uint32(b[36:]), sl: b[44]}
	r.word(256).Store((i + 1) & r.mask)
	return w, true
}

func (p *program) wait(r *userRing) wc {
	p.t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		if w, ok := r.poll(); ok {
			return w
		}
		time.Sleep(20 * time.Microsecond)
	}
	p.t.Fatal("no completion within 20 seconds")
	return wc{}
}

// queues are the objects of a program with one QP.
type queues struct {
	*program
	pd, cq, qp, qpn uint32
	cring, sq, rq   *userRing
	mem             []byte
	mr, lkey, rkey  uint32
}

func (p *program) pd() uint32 {
	p.t.Helper()
	out, _ := p.do(cmdAllocPD, enc(uint64(0)), 4, 0)
	return le.Uint32(out)
}

func (p *program) reg(pd uint32, mem []byte, access uint32) (handle, lkey, rkey uint32) {
	p.t.Helper()
	a := mr.AddrOf(mem)
	out, _ := p.do(cmdRegMR, enc(uint64(0), a, uint64(len(mem)), a, pd, access), 12, 0)
	return le.Uint32(out), le.Uint32(out[4:]), le.Uint32(out[8:])
}

func (p *program) cq(depth uint32, channel int32, user uint64) (uint32, *userRing) {
	p.t.Helper()
	out, info := p.do(cmdCreateCQ, enc(uint64(0), user, depth, uint32(0), channel, uint32(0)), 8,
		16)
	return le.Uint32(out), p.mmap(info)
}

// setup creates a QP of the type (2 RC, 3 UC, 4 UD) with memory of size bytes.
func (p *program) setup(typ uint8, size int) *queues {
	p.t.Helper()
	q := &queues{program: p, pd: p.pd()}
	q.cq, q.cring = p.cq(100, -1, 1)
	out, info := p.do(cmdCreateQP,
		enc(uint64(0), uint64(7), q.pd, q.cq, q.cq, uint32(0), uint32(20),
			uint32(20), uint32(2), uint32(2), uint32(64), uint8(0), typ, uint8(0), uint8(0)), 32,
		32)
	q.qp, q.qpn = le.Uint32(out), le.Uint32(out[4:])
	q.rq, q.sq = p.mmap(info), p.mmap(info[16:])
	pages, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = unix.Munmap(pages) })
	q.mem = pages
	q.mr, q.lkey, q.rkey = p.reg(q.pd, q.mem, 15)
	return q
}

// modify changes attributes of the QP.
func (q *queues) modify(mask uint32, state uint8, to *queues, psn uint32) {
	q.t.Helper()
	q.do(cmdModifyQP, q.modifyBody(mask, state, to, psn), 0, 0)
}

// modifyBody returns the body of MODIFY_QP. Without a peer the route has no GRH.
func (q *queues) modifyBody(mask uint32, state uint8, to *queues, psn uint32) []byte {
	dest := enc(make([]byte, 32))
	var destQPN uint32
	if to != nil {
		index := q.dev.dev.GIDs()[0].Index
		dest = enc(to.addr[:], uint32(0), uint32(0), uint8(index), uint8(64), uint8(0), uint8(0),
			uint8(0), uint8(0), uint8(1), uint8(1))
		destQPN = to.qpn
	}
	return enc(dest, make([]byte, 32), q.qp, mask, uint32(0x1234), psn, psn, destQPN, uint32(15),
		uint16(0), uint16(0), state, uint8(0), uint8(3), uint8(0), uint8(0), uint8(16), uint8(16),
		uint8(12), uint8(1), uint8(14), uint8(7), uint8(7), make([]byte, 4))
}

// connect moves the QP to RTS.
func (q *queues) connect(to *queues, typ uint8) {
	q.t.Helper()
	const base = maskState | maskPKeyIndex | maskPort
	switch typ {
	case 2:
		q.modify(base|maskAccess, 1, nil, 0)
		q.modify(maskState|maskAV|maskPathMTU|maskDestQPN|maskRQPSN|maskMaxDestRdAtomic|
			maskMinRNRTimer, 2, to, 77)
		q.modify(maskState|maskTimeout|maskRetryCnt|maskRNRRetry|maskSQPSN|maskMaxRdAtomic, 3, nil,
			77)
	case 3:
		q.modify(base|maskAccess, 1, nil, 0)
		q.modify(maskState|maskAV|maskPathMTU|maskDestQPN|maskRQPSN, 2, to, 77)
		q.modify(maskState|maskSQPSN, 3, nil, 77)
	case 4:
		q.modify(base|maskQKey, 1, nil, 0)
		q.modify(maskState, 2, nil, 0)
		q.modify(maskState|maskSQPSN, 3, nil, 77)
	}
}

// createAH creates an AH. It returns the handle, and the number for work requests.
func (q *queues) createAH(pd uint32, to roce.GID, hopLimit uint8) (handle uint32, number []byte) {
	q.t.Helper()
	index := uint8(q.dev.dev.GIDs()[0].Index)
	out, number := q.do(cmdCreateAH, enc(uint64(0), uint64(0), pd, uint32(0), to[:], uint32(0),
		index, hopLimit, uint8(0), uint8(0), uint16(0), uint8(0), uint8(0), uint8(0), uint8(1),
		uint8(1), uint8(0)), 4, 8)
	return le.Uint32(out), number
}

// sendWR builds a send work request: op is the opcode, flags those of libibverbs.
func (q *queues) sendWR(id uint64, op, flags uint32, remote, rkey uint64, length uint32) []byte {
	b := make([]byte, 208+32)
	le.PutUint64(b, id)
	le.PutUint32(b[12:], op)
	le.PutUint32(b[16:], flags)
	binary.BigEndian.PutUint32(b[20:], 0xabcd)
	le.PutUint64(b[24:], remote)
	le.PutUint32(b[32:], uint32(rkey))
	le.PutUint32(b[184:], length)
	le.PutUint32(b[196:], 1)
	copy(b[208:], enc(mr.AddrOf(q.mem), length, q.lkey))
	return b
}

// post posts a send work request and rings the doorbell with write().
func (q *queues) post(b []byte) {
	q.t.Helper()
	if !q.sq.post(b) {
		q.t.Fatal("the send queue is full")
	}
	q.doorbell()
}

func (q *queues) doorbell() {
	q.t.Helper()
	cmd := enc(uint32(cmdPostSend), uint16(8), uint16(1), uint64(0), q.qp, uint32(0), uint32(0),
		uint32(128))
	if n, no := q.ctx.Write(q.call, mr.AddrOf(cmd), uint64(len(cmd))); no != 0 ||
		n != int64(len(cmd)) {
		q.t.Fatalf("Write() = %d, %v", n, no)
	}
}

// postRecv posts a receive of mem[off:off+n].
func (q *queues) postRecv(id uint64, off, n int) {
	q.t.Helper()
	if !q.rq.post(q.recvWR(id, off, n)) {
		q.t.Fatal("the receive queue is full")
	}
}

func (q *queues) recvWR(id uint64, off, n int) []byte {
	return enc(id, uint64(0), uint32(n), uint32(n), uint32(0), uint32(1), uint32(0), uint32(0),
		mr.AddrOf(q.mem)+uint64(off), uint32(n), q.lkey)
}

// connected returns two connected QPs.
func connected(t testing.TB, typ uint8, size int) (a, b *queues) {
	t.Helper()
	p := pair(t, testbed.Config{})
	a, b = p[0].setup(typ, size), p[1].setup(typ, size)
	a.connect(b, typ)
	b.connect(a, typ)
	return a, b
}
