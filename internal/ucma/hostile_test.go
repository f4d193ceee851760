package ucma

import (
	flags "flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/abi"
	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/roce/cm"
	"golang.org/x/sys/unix"
)

// hostile is a program that writes commands that the input selects.
type hostile struct {
	p     *program
	in    *abi.Decoder
	other netip.Addr
	files []*File
}

// arena has two devices in virtual time, and hostile programs on both.
type arena struct {
	bed   *testbed.Testbed
	dev   [2]*Device
	addr  [2]netip.Addr
	mem   [2]*memory
	steps uint64
}

func newArena() (*arena, error) {
	a := new(arena)
	var err error
	if a.bed, err = testbed.New(testbed.Config{Virtual: true}); err != nil {
		return nil, err
	}
	for i := range a.dev {
		a.dev[i] = NewDevice(a.bed.Dev[i], testGUID)
		a.addr[i], a.mem[i] = a.bed.Addr(i, 0).Addr(), new(memory)
	}
	return a, nil
}

func (a *arena) close() {
	for _, d := range a.dev {
		_ = d.Close()
	}
	_ = a.bed.Close()
}

// execute runs a hostile program on each device. It returns an error if anything is left of them,
// or if honest programs cannot connect afterwards.
func (a *arena) execute(t testing.TB, in []byte, honest bool) error {
	d := &abi.Decoder{B: in}
	var h [2]*hostile
	for i := range h {
		a.mem[i].next = 0
		h[i] = &hostile{p: &program{t: t, dev: a.dev[i], mem: a.mem[i], addr: a.addr[i]}, in: d,
			other: a.addr[1-i]}
		for range 2 {
			if err := h[i].open(); err != nil {
				return err
			}
		}
	}
	for len(d.B) > 0 {
		h[d.U8()&1].step(a)
		a.steps++
	}
	for _, h := range h {
		for _, f := range h.files {
			f.Close()
		}
	}
	if err := a.settle(); err != nil {
		return err
	}
	for i, d := range a.dev {
		d.busy.Wait()
		var n int
		_ = d.do(func(cm.Time, *cm.CM) syscall.Errno {
			n = len(d.files) + len(d.ids) + len(d.groups) + len(d.ports)
			return 0
		})
		if n != 0 {
			return fmt.Errorf("device %d: %d objects are left after Close, want 0", i, n)
		}
	}
	if honest {
		return a.connect(t)
	}
	return nil
}

// settle lets time pass until both devices have nothing to do.
func (a *arena) settle() error {
	const limit = 100_000 // events: far more than a program causes
	for range limit {
		if a.bed.Step() != nil {
			return nil
		}
	}
	return fmt.Errorf("the devices are still busy after %d events", limit)
}

// connect establishes a connection between honest programs.
func (a *arena) connect(t testing.TB) error {
	var p [2]*program
	for i := range p {
		a.mem[i].next = 0
		p[i] = &program{t: t, dev: a.dev[i], mem: a.mem[i], addr: a.addr[i]}
		p[i].open()
		defer p[i].f.Close()
	}
	p[1].listen(1, psTCP)
	id := p[0].create(2, psTCP)
	p[0].do(cmdResolveIP, enc(netip.AddrPort{}, netip.AddrPortFrom(a.addr[1], service), id,
		uint32(2000)), 0)
	a.dev[0].busy.Wait()
	p[0].next(eventAddrResolved)
	p[0].do(cmdResolveRoute, enc(id, uint32(2000)), 0)
	p[0].next(eventRouteResolved)
	p[0].connect(id, testParam)
	if err := a.bed.Run(time.Minute, p[1].readable); err != nil {
		return fmt.Errorf("request of an honest program: %w", err)
	}
	p[1].accept(p[1].next(eventConnectRequest).id, 3, connParam{qpn: 88})
	if err := a.bed.Run(time.Minute, p[0].readable); err != nil {
		return fmt.Errorf("response to an honest program: %w", err)
	}
	p[0].next(eventConnectResponse)
	return nil
}

func (h *hostile) open() error {
	f, err := h.p.dev.Open(7)
	if err == nil {
		h.files = append(h.files, f)
	}
	return err
}

// id returns a handle that exists with high probability.
func (h *hostile) id() uint32 {
	if v := h.in.U8(); v < 250 {
		return (h.p.dev.last + 1 - uint32(v%6)) % (2 * maxIDs)
	}
	return h.in.U32()
}

// address returns an address of a device, or another one.
func (h *hostile) address() netip.AddrPort {
	port := []uint16{0, service, service, 4791, uint16(h.in.U8())}[h.in.U8()%5]
	switch h.in.U8() % 6 {
	case 0:
		return netip.AddrPort{}
	case 1:
		return netip.AddrPortFrom(h.p.addr, port)
	case 2:
		return netip.AddrPortFrom(netip.IPv4Unspecified(), port)
	case 3:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 9, 8, h.in.U8()}), port)
	}
	return netip.AddrPortFrom(h.other, port)
}

// parts are the contents of commands.
var parts = map[uint32]func(h *hostile) []any{
	cmdCreateID: func(h *hostile) []any {
		spaces := []uint16{psTCP, psTCP, psUDP, psIB, uint16(h.in.U8())}
		return []any{uint64(h.in.U8()), spaces[h.in.U8()%5], 2 + h.in.U8()%4, make([]byte, 5)}
	},
	cmdBindIP: func(h *hostile) []any { return []any{h.address(), h.id()} },
	cmdResolveIP: func(h *hostile) []any {
		return []any{h.address(), h.address(), h.id(), uint32(h.in.U8())}
	},
	cmdConnect: func(h *hostile) []any { return []any{testParam, h.id(), make([]byte, 12)} },
	cmdListen:  func(h *hostile) []any { return []any{h.id(), uint32(h.in.U8())} },
	cmdAccept: func(h *hostile) []any {
		return []any{uint64(h.in.U8()), testParam, h.id(), make([]byte, 12)}
	},
	cmdReject: func(h *hostile) []any {
		return []any{h.id(), h.in.U8(), uint8(0), uint16(0), make([]byte, privateSize)}
	},
	cmdJoinIPMcast: func(h *hostile) []any {
		return []any{netip.AddrPortFrom(netip.AddrFrom4([4]byte{224, 1, 1, h.in.U8()}), 0),
			uint64(h.in.U8()), h.id(), make([]byte, 8)}
	},
	cmdSetOption: func(h *hostile) []any {
		return []any{uint64(1), h.id(), uint32(h.in.U8() & 1), uint32(h.in.U8() % 5), uint32(4)}
	},
}

// order is what programs do often.
var order = []uint32{cmdCreateID, cmdCreateID, cmdBindIP, cmdListen, cmdResolveIP, cmdResolveIP,
	cmdResolveRoute, cmdResolveRoute, cmdConnect, cmdConnect, cmdAccept, cmdAccept, cmdGetEvent,
	cmdGetEvent, cmdDisconnect, cmdDestroyID}

// step writes a command to one of the files.
func (h *hostile) step(a *arena) {
	p := h.p
	f := h.files[int(h.in.U8())%len(h.files)]
	op := h.in.U8()
	switch {
	case op < 40:
		for range op % 8 {
			if a.bed.Step() != nil {
				return
			}
		}
		return
	case op < 43:
		f.Close()
		return
	case op < 46 && len(h.files) < 4:
		_ = h.open()
		return
	case op < 50: // bytes in the pipe
		_, _ = unix.Write(f.fd, []byte{1, 2, 3})
		return
	}
	cmd := order[int(op)%len(order)]
	if op >= 200 {
		cmd = uint32(op - 200)
	}
	var body []byte
	if part := parts[cmd]; part != nil {
		body = enc(part(h)...)
	} else {
		body = enc(h.id(), uint32(h.in.U8()), uint64(h.in.U8()))
	}
	out := []int{4, eventSize, routeSize, int(h.in.U8())}[h.in.U8()%4]
	if responds[cmd] || cmd == cmdGetEvent {
		at := 0
		if cmd == cmdCreateID {
			at = 8
		}
		body = slices.Concat(body[:at], enc(p.mem.alloc(512)), body[at:])
	}
	for range max(0, int(h.in.U8())-200) / 20 {
		body[int(h.in.U8())%len(body)] = h.in.U8()
	}
	b := append(enc(cmd, uint16(len(body)), uint16(out)), body...)
	if h.in.U8() == 0 {
		b[4] ^= h.in.U8()
	}
	at := p.mem.alloc(len(b))
	if p.mem.next > uint64(len(p.mem.b))/2 {
		p.mem.next = 0
	}
	_ = p.mem.access(b, at, true)
	_, _ = f.Write(&call{memory: p.mem, nonblocking: true}, at, uint64(len(b)))
	p.dev.busy.Wait() // lookups of addresses
}

// FuzzProgram runs hostile programs, which do what the input says.
func FuzzProgram(f *testing.F) {
	for n := range uint64(8) {
		f.Add(randomInput(0, n))
	}
	a, err := newArena()
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(a.close)
	f.Fuzz(func(t *testing.T, in []byte) {
		if err := a.execute(t, in, true); err != nil {
			t.Fatal(err)
		}
	})
}

var (
	runs  = flags.Uint64("hostile.n", 500, "executions of TestHostile")
	seed  = flags.Uint64("hostile.seed", 1, "seed of TestHostile")
	first = flags.Uint64("hostile.first", 0, "number of the first execution of TestHostile")
)

// randomInput returns the input of an execution.
func randomInput(seed, n uint64) []byte {
	const longest = 400
	r := rand.New(rand.NewPCG(seed, n))
	b := make([]byte, 1+r.IntN(longest))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// TestHostile runs hostile programs with random inputs.
func TestHostile(t *testing.T) {
	a, err := newArena()
	if err != nil {
		t.Fatal(err)
	}
	start, last := time.Now(), time.Now()
	for n := range *runs {
		at := *first + n
		if err := a.execute(t, randomInput(*seed, at), at%16 == 15); err != nil {
			t.Fatalf("%v\nto repeat it: -hostile.seed=%d -hostile.first=%d", err, *seed, at)
		}
		if now := time.Now(); n+1 == *runs || now.Sub(last) > 20*time.Second {
			last = now
			t.Logf("%d executions, %.0f/s, %d steps", n+1, float64(n+1)/now.Sub(start).Seconds(),
				a.steps)
		}
	}
	a.close() // not deferred: after a panic, the devices are locked
}
