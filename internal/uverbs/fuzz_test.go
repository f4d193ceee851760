package uverbs

import (
	"testing"

	"github.com/gorxe/gorxe/internal/abi"
	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/mr"
)

// FuzzProgram runs programs that pass garbage to commands and write garbage to their rings. The
// device must survive and serve another program afterwards. The input is a list of steps: a byte
// selects what to do, the following ones are the data.
func FuzzProgram(f *testing.F) {
	f.Add([]byte{0, 3, 0, 0, 0, 0, 1, 255, 2, 9, 9, 9, 9, 9, 9, 9, 9, 3, 4, 5})
	f.Add([]byte{1, 1, 0, 0, 0, 0, 3, 1, 200, 0, 0, 255, 3, 2, 1, 128, 4, 4, 2, 100, 1, 1, 1, 5, 3})
	bed, err := testbed.New(testbed.Config{})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = bed.Close() })
	var devices [2]*Device
	for i := range devices {
		if devices[i], err = NewDevice(bed.Dev[i], Config{}); err != nil {
			f.Fatal(err)
		}
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		a, b := openProgram(t, devices[0]).setup(2, 8192), openProgram(t, devices[1]).setup(2, 8192)
		a.connect(b, 2)
		b.connect(a, 2)
		h := hostile{a, abi.Decoder{B: in}}
		for len(h.in.B) > 0 {
			h.step()
		}
		a.ctx.Close()
		b.ctx.Close()
		if n := ownerState(devices[0]); n != 0 {
			t.Errorf("%d objects are left after Close, want 0", n)
		}
		works(t, devices)
	})
}

// ownerState returns how much of closed contexts the device still refers to.
func ownerState(d *Device) (n int) {
	d.do(func() {})
	d.do(func() { n = len(d.hot) + len(d.pending) + len(d.dirty) + len(d.ahs) })
	d.mu.Lock()
	defer d.mu.Unlock()
	return n + len(d.contexts) + len(d.byQP)
}

// works checks that new programs can use the devices.
func works(t *testing.T, devices [2]*Device) {
	t.Helper()
	c, d := openProgram(t, devices[0]).setup(2, 4096), openProgram(t, devices[1]).setup(2, 4096)
	c.connect(d, 2)
	d.connect(c, 2)
	c.post(c.sendWR(1, 0, sendSignaled, mr.AddrOf(d.mem), uint64(d.rkey), 64))
	want(t, c.wait(c.cring), 1, 0, 1)
	c.ctx.Close()
	d.ctx.Close()
}

// hostile is a program that does what the input says.
type hostile struct {
	*queues
	in abi.Decoder
}

// take returns up to n bytes of the input.
func (h *hostile) take(n int) []byte {
	n = min(n, len(h.in.B))
	b := h.in.B[:n]
	h.in.B = h.in.B[n:]
	return b
}

func (h *hostile) step() {
	switch h.in.U8() % 6 {
	case 0: // a command with random parameters; handles are likely to exist
		cmd := uint32(h.in.U8() % 64)
		if h.in.U8()&1 != 0 {
			cmd |= cmdExtended
		}
		in := make([]byte, 176)
		copy(in, h.take(24))
		h.try(cmd, in, 304, 32)
	case 1: // an ioctl with random attributes
		list := []iattr{{id: uint16(h.in.U8()), in: h.take(8)},
			{id: uint16(h.in.U8()), out: make([]byte, 16)}}
		h.ioctl(uint16(h.in.U8()%20), uint16(h.in.U8()%8), list...)
	case 2: // bytes of a ring, its header included
		r := []*userRing{h.sq, h.rq, h.cring}[h.in.U8()%3]
		at := int(h.in.U16()) % len(r.b)
		copy(r.b[at:], h.take(16))
	case 3: // indices
		r := []*userRing{h.sq, h.rq, h.cring}[h.in.U8()%3]
		r.word(128 + 128*int(h.in.U8()&1)).Store(h.in.U32())
	case 4: // a work request that is wrong in some bytes
		wr := h.sendWR(1, uint32(h.in.U8()%16), uint32(h.in.U8()%16), mr.AddrOf(h.mem),
			uint64(h.rkey), uint32(h.in.U16()))
		copy(wr[int(h.in.U8())%len(wr):], h.take(4))
		h.sq.post(wr)
	case 5: // a doorbell, or a write of random bytes
		b := enc(uint32(cmdPostSend), uint16(8), uint16(1), uint64(0), h.qp, uint32(0), uint64(0))
		copy(b[int(h.in.U8())%len(b):], h.take(2))
		_, _ = h.ctx.Write(h.call, mr.AddrOf(b), uint64(len(b)))
	}
}
