package ucma

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/testbed"
	"golang.org/x/sys/unix"
)

// The tests play the program, with the structures of librdmacm.

var le = binary.LittleEndian

// memory is the memory of a program. Addresses are offsets.
type memory struct {
	mu   sync.Mutex
	b    [1 << 20]byte
	next uint64
}

// alloc returns the address of n free bytes.
func (m *memory) alloc(n int) uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.next += uint64(n)
	return m.next - uint64(n) + 1 // 0 is not an address
}

func (m *memory) access(p []byte, addr uint64, write bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if addr == 0 || addr+uint64(len(p)) > uint64(len(m.b)) || addr+uint64(len(p)) < addr {
		return syscall.EFAULT
	}
	if write {
		copy(m.b[addr:], p)
	} else {
		copy(p, m.b[addr:])
	}
	return nil
}

// answer is the result of a call.
type answer struct {
	n  int64
	no syscall.Errno
}

// call is a Caller.
type call struct {
	*memory
	nonblocking bool
	deferred    chan answer // nil unless the call waits
}

func (c *call) PID() int                            { return os.Getpid() }
func (c *call) ReadAt(p []byte, addr uint64) error  { return c.access(p, addr, false) }
func (c *call) WriteAt(p []byte, addr uint64) error { return c.access(p, addr, true) }
func (c *call) Nonblocking() bool                   { return c.nonblocking }

func (c *call) Defer() func(int64, syscall.Errno) {
	c.deferred = make(chan answer, 1)
	return func(n int64, no syscall.Errno) { c.deferred <- answer{n, no} }
}

// program is a program with an open event channel.
type program struct {
	t    testing.TB
	dev  *Device
	f    *File
	mem  *memory
	addr netip.Addr
}

var testGUID = [8]byte{2, 0, 0, 0xff, 0xfe, 0, 0, 1}

// pair returns programs on two devices of a link.
func pair(t testing.TB) [2]*program { t.Helper(); return pairOn(t, testbed.Config{}) }

// pairOn returns programs on the devices of a testbed.
func pairOn(t testing.TB, c testbed.Config) [2]*program {
	t.Helper()
	p, _ := bedOf(t, c)
	return p
}

// bedOf is pairOn that returns the testbed as well.
func bedOf(t testing.TB, c testbed.Config) ([2]*program, *testbed.Testbed) {
	t.Helper()
	bed, err := testbed.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = bed.Close() })
	var p [2]*program
	for i := range p {
		d := NewDevice(bed.Dev[i], testGUID)
		t.Cleanup(func() { _ = d.Close() })
		p[i] = &program{t: t, dev: d, mem: new(memory), addr: bed.Addr(i, 0).Addr()}
		p[i].open()
	}
	return p, bed
}

// open opens another event channel, which further commands use.
func (p *program) open() {
	p.t.Helper()
	f, err := p.dev.Open(7)
	if err != nil {
		p.t.Fatal(err)
	}
	p.f = f
}

// enc builds a structure.
func enc(fields ...any) []byte {
	var e encoder
	for _, f := range fields {
		switch f := f.(type) {
		case uint8:
			e.U8(f)
		case uint16:
			e.U16(f)
		case uint32:
			e.U32(f)
		case uint64:
			e.U64(f)
		case []byte:
			e.Bytes(f)
		case netip.AddrPort:
			e.addr(f)
		case connParam:
			f.encode(&e)
			e.B[len(e.B)-1] = 1 // valid
		default:
			panic(fmt.Sprintf("enc: %T", f))
		}
	}
	return e.B
}

// try writes a command. The result has out bytes.
func (p *program) try(c *call, cmd uint32, body []byte, out int) ([]byte, syscall.Errno) {
	var to uint64
	if responds[cmd] || cmd == cmdGetEvent {
		to = p.mem.alloc(out)
		at := 0
		if cmd == cmdCreateID {
			at = 8
		}
		body = slices.Concat(body[:at], enc(to), body[at:])
	}
	b := append(enc(cmd, uint16(len(body)), uint16(out)), body...)
	addr := p.mem.alloc(len(b))
	if err := p.mem.access(b, addr, true); err != nil {
		p.t.Fatal(err)
	}
	n, no := p.f.Write(c, addr, uint64(len(b)))
	if c.deferred != nil {
		a := <-c.deferred
		n, no = a.n, a.no
	}
	if no == 0 && n != int64(len(b)) {
		p.t.Errorf("write of %s = %d, want %d", CommandName(cmd), n, len(b))
	}
	result := make([]byte, out)
	if out > 0 {
		_ = p.mem.access(result, to, false)
	}
	return result, no
}

// do is try for a command that must succeed.
func (p *program) do(cmd uint32, body []byte, out int) []byte {
	p.t.Helper()
	b, no := p.try(&call{memory: p.mem}, cmd, body, out)
	if no != 0 {
		p.t.Fatalf("%s: %v", CommandName(cmd), no)
	}
	return b
}

// fails checks the error of a command.
func (p *program) fails(want syscall.Errno, cmd uint32, body []byte, out int) {
	p.t.Helper()
	if _, no := p.try(&call{memory: p.mem}, cmd, body, out); no != want {
		p.t.Errorf("%s = %v, want %v", CommandName(cmd), no, want)
	}
}

// create creates an ID.
func (p *program) create(uid uint64, space uint16) uint32 {
	p.t.Helper()
	typ := uint8(qpRC)
	if space == psUDP {
		typ = qpUD
	}
	return le.Uint32(p.do(cmdCreateID, enc(uid, space, typ, make([]byte, 5)), 4))
}

// destroy destroys an ID and returns the number of its events.
func (p *program) destroy(id uint32) uint32 {
	p.t.Helper()
	return le.Uint32(p.do(cmdDestroyID, enc(id, uint32(0)), 4))
}

// received is an event.
type received struct {
	uid      uint64
	id, kind uint32
	status   int32
	param    []byte
}

// private returns the private data of a connection's event.
func (r *received) private() []byte { return r.param[8:][:r.param[8+privateSize]] }

// next waits for an event and checks its kind.
func (p *program) next(kind uint32) received {
	p.t.Helper()
	b := p.do(cmdGetEvent, nil, eventSize)
	r := received{uid: le.Uint64(b), id: le.Uint32(b[8:]), kind: le.Uint32(b[12:]),
		status: int32(le.Uint32(b[16:])), param: b[20:324]}
	if r.kind != kind {
		p.t.Fatalf("event = %d with status %d, want %d", r.kind, r.status, kind)
	}
	return r
}

// readable reports whether poll finds events.
func (p *program) readable() bool {
	fds := []unix.PollFd{{Fd: int32(p.f.FD()), Events: unix.POLLIN}}
	_, _ = unix.Poll(fds, 0)
	return fds[0].Revents&unix.POLLIN != 0
}

const service = 7174

// listen returns a listener.
func (p *program) listen(uid uint64, space uint16) uint32 {
	p.t.Helper()
	id := p.create(uid, space)
	p.do(cmdBindIP, enc(netip.AddrPortFrom(p.addr, service), id), 0)
	p.do(cmdListen, enc(id, uint32(8)), 0)
	return id
}

// route returns the body of RESOLVE_IP for the service of to.
func route(id uint32, to *program) []byte {
	return enc(netip.AddrPort{}, netip.AddrPortFrom(to.addr, service), id, uint32(2000))
}

// resolve returns an ID with a route to the service of to.
func (p *program) resolve(uid uint64, space uint16, to *program) uint32 {
	p.t.Helper()
	id := p.create(uid, space)
	p.do(cmdResolveIP, route(id, to), 0)
	if e := p.next(eventAddrResolved); e.uid != uid || e.id != id {
		p.t.Fatalf("ADDR_RESOLVED of uid %d, id %d; want %d, %d", e.uid, e.id, uid, id)
	}
	p.do(cmdResolveRoute, enc(id, uint32(2000)), 0)
	p.next(eventRouteResolved)
	return id
}

func (p *program) connect(id uint32, c connParam) {
	p.t.Helper()
	p.do(cmdConnect, enc(c, id, make([]byte, 12)), 0)
}

// qpAttrs returns the attributes for a state.
func (p *program) qpAttrs(id, state uint32) []byte {
	p.t.Helper()
	return p.do(cmdInitQPAttr, enc(id, state), qpAttrSize)
}

func (p *program) accept(id uint32, uid uint64, c connParam) {
	p.t.Helper()
	p.do(cmdAccept, enc(uid, c, id, make([]byte, 12)), 0)
}

// ready confirms a response.
func (p *program) ready(id uint32) {
	p.t.Helper()
	p.do(cmdAccept, enc(uint64(0), make([]byte, 272), id, make([]byte, 12)), 0)
}

// option sets an option to a number.
func (p *program) option(id, name, value uint32) {
	p.t.Helper()
	at := p.mem.alloc(4)
	if err := p.mem.access(enc(value), at, true); err != nil {
		p.t.Fatal(err)
	}
	p.do(cmdSetOption, enc(at, id, uint32(levelID), name, optionSizes[name]), 0)
}

var testParam = connParam{qpn: 77, private: []byte("hello"), responder: 4, initiator: 3, retry: 5,
	rnrRetry: 6}

// established returns the IDs of a connection with the names 2 and 3.
func established(t testing.TB, a, b *program) (active, passive uint32) {
	t.Helper()
	b.listen(1, psTCP)
	active = a.resolve(2, psTCP, b)
	a.connect(active, testParam)
	passive = b.next(eventConnectRequest).id
	b.accept(passive, 3, connParam{qpn: 88, private: []byte("welcome")})
	a.next(eventConnectResponse)
	a.ready(active)
	b.next(eventEstablished)
	return active, passive
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s did not happen", what)
		}
	}
}

// isPrivate reports whether private data starts with text.
func isPrivate(got []byte, text string, size int) bool {
	return len(got) == size && bytes.HasPrefix(got, []byte(text))
}
