package uverbs

import (
	"syscall"
	"testing"

	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/mr"
	"github.com/gorxe/gorxe/roce"
)

// The device reports its limits, and a program that exceeds one gets ENOMEM. What it destroys is
// free again, also the memory of its queues.
func TestLimits(t *testing.T) {
	const memory = 4 << 20
	link, err := loopback.NewLink(loopback.Config{})
	if err != nil {
		t.Fatal(err)
	}
	dev, err := roce.New(link.Port(0), roce.WithLimits(roce.Limits{QPs: 2, MRs: 3, Memory: memory}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dev.Close() })
	p := newProgram(t, dev)
	out, _ := p.do(cmdQueryDevice, enc(uint64(0)), 176, 0)
	if size, qps, mrs := le.Uint64(out[24:]), le.Uint32(out[52:]), le.Uint32(out[80:]); size !=
		memory || qps != 2 || mrs != 3 {
		t.Errorf("max_mr_size = %d, max_qp = %d, max_mr = %d, want %d, 2 and 3", size, qps, mrs,
			memory)
	}

	mem := make([]byte, memory)
	pd := p.pd()
	cq, _ := p.cq(10, -1, 1)
	reg := func(n int) ([]byte, syscall.Errno) {
		a := mr.AddrOf(mem)
		out, _, no := p.try(cmdRegMR, enc(uint64(0), a, uint64(n), a, pd, uint32(1)), 12, 0)
		return out, no
	}
	qp := func(depth uint32) ([]byte, syscall.Errno) {
		out, _, no := p.try(cmdCreateQP, enc(uint64(0), uint64(7), pd, cq, cq, uint32(0), depth,
			uint32(1), uint32(16), uint32(1), uint32(0), uint8(0), uint8(2), uint8(0), uint8(0)),
			32, 32)
		return out, no
	}
	for range 50 {
		var qps, mrs [][]byte
		for range 2 {
			out, no := qp(1)
			if no != 0 {
				t.Fatalf("CREATE_QP: %v", no)
			}
			qps = append(qps, out)
		}
		if _, no := qp(1); no != syscall.ENOMEM {
			t.Fatalf("a third QP: %v, want ENOMEM", no)
		}
		for range 3 {
			out, no := reg(4096)
			if no != 0 {
				t.Fatalf("REG_MR: %v", no)
			}
			mrs = append(mrs, out)
		}
		if _, no := reg(4096); no != syscall.ENOMEM {
			t.Fatalf("a fourth region: %v, want ENOMEM", no)
		}
		for _, out := range qps {
			p.do(cmdDestroyQP, enc(uint64(0), le.Uint32(out), uint32(0)), 4, 0)
		}
		for _, out := range mrs {
			p.do(cmdDeregMR, enc(le.Uint32(out)), 0, 0)
		}
		if _, no := reg(memory); no != syscall.ENOMEM {
			t.Fatalf("all memory, of which queues have some: %v, want ENOMEM", no)
		}
		out, no := reg(memory / 2)
		if no != 0 {
			t.Fatalf("half of the memory: %v", no)
		}
		if _, no := qp(32000); no != syscall.ENOMEM {
			t.Fatalf("a QP with a large queue: %v, want ENOMEM", no)
		}
		p.do(cmdDeregMR, enc(le.Uint32(out)), 0, 0)
	}
}

// A region can be registered again at the limits of regions and of memory. If it does not fit, its
// handle has a region as before.
func TestReregAtLimit(t *testing.T) {
	const memory = 4 << 20
	link, err := loopback.NewLink(loopback.Config{})
	if err != nil {
		t.Fatal(err)
	}
	dev, err := roce.New(link.Port(0), roce.WithLimits(roce.Limits{MRs: 1, Memory: memory}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dev.Close() })
	p := newProgram(t, dev)
	mem := make([]byte, memory+1)
	a, pd := mr.AddrOf(mem), p.pd()
	out, _ := p.do(cmdRegMR, enc(uint64(0), a, uint64(memory*3/4), a, pd, uint32(1)), 12, 0)
	handle := le.Uint32(out)
	for _, c := range []struct {
		bytes uint64
		want  syscall.Errno
	}{{memory / 2, 0}, {memory * 3 / 4, 0}, {memory * 7 / 8, 0}, {memory + 1, syscall.ENOMEM},
		{4096, 0}} {
		if _, _, no := p.try(cmdReregMR, enc(uint64(0), handle, uint32(reregTranslation), a, c.bytes,
			a, uint32(0), uint32(0)), 8, 0); no != c.want {
			t.Errorf("REREG_MR of %d bytes: errno %d (%[2]v), want %d", c.bytes, no, c.want)
		}
		if n := len(p.ctx.dev.Objects().MRs); n != 1 {
			t.Fatalf("%d regions after REREG_MR of %d bytes, want 1", n, c.bytes)
		}
	}
	p.do(cmdDeregMR, enc(handle), 0, 0)
	// All memory is free again.
	p.do(cmdRegMR, enc(uint64(0), a, uint64(memory*7/8), a, pd, uint32(1)), 12, 0)
}
