package roce

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/mr"
)

// replay runs every kind of operation on several QPs over a bad link in virtual time, and returns
// the capture and the completions of what Close flushed. All random numbers come from the seed.
// waste is the size of memory that is allocated first, so that the addresses of other memory
// change.
func replay(t *testing.T, seed uint64, waste int) []byte {
	t.Helper()
	link := newLink(t, loopback.Config{Virtual: true, Seed: seed, Plan: loopback.Plan{
		Loss: 0.02, Duplicate: 0.02, Reorder: 0.02, Delay: 5 * time.Microsecond,
		Jitter: 2 * time.Microsecond,
	}})
	var file bytes.Buffer
	capture := loopback.NewCapture(&file, link.Now)
	var ends [2]*end
	for i := range ends {
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		d, err := New(capture.Tee(link.Port(i)), WithExpert(Expert{Clock: link.Now,
			Rand: r.Uint64}))
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		pd, err := d.AllocPD()
		must(t, err)
		m, err := pd.AllocMR(waste, LocalWrite, WithIOVA(0))
		must(t, err)
		defer m.Close()
		ends[i] = newEnd(t, d, rigConfig{mem: 1 << 16})
	}
	a, b := ends[0], ends[1]
	slice, err := b.pd.RegisterMR(make([]byte, 1<<12), LocalWrite|RemoteWrite|RemoteAtomic|MWBind)
	must(t, err)
	fast, err := b.pd.AllocFastMR(1 << 12)
	must(t, err)
	reg, err := fast.Prepare(make([]byte, 1<<12), LocalWrite|RemoteWrite)
	must(t, err)
	sends := []SendWR{
		{Op: OpWrite, SGEs: []SGE{a.mr.SGE(0, 30_000)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()},
		{Op: OpRead, SGEs: []SGE{a.mr.SGE(30_000, 20_000)}, RemoteAddr: b.mr.Addr() + 5,
			RKey: b.mr.RKey()},
		{Op: OpWrite, SGEs: []SGE{a.mr.SGE(7, 4000)}, RemoteAddr: slice.Addr() + 16,
			RKey: slice.RKey()},
		{Op: OpFetchAdd, SwapAdd: 7, SGEs: []SGE{a.mr.SGE(60_000, 8)}, RemoteAddr: slice.Addr(),
			RKey: slice.RKey()},
		{Op: OpWrite, SGEs: []SGE{a.mr.SGE(7, 2000)}, RemoteAddr: reg.Addr() + 1,
			RKey: reg.RKey()},
	}
	qps := []*QP{a.qp}
	for i := range 4 {
		q := b.qp
		if i > 0 {
			for _, e := range ends {
				q, err = e.CreateQP(e.pd, QPConfig{SendCQ: e.cq})
				must(t, err)
				if e == a {
					qps = append(qps, q)
				}
			}
		}
		connect(t, qps[i], q)
		if i == 0 {
			must(t, b.qp.PostSend(SendWR{Op: OpRegMR, RKey: reg.RKey()}))
			b.Progress()
		}
	}
	want := 0
	for range 5 {
		for _, q := range qps {
			for i := range sends {
				sends[i].Flags = Signaled
			}
			must(t, q.PostSend(sends...))
			want += len(sends)
		}
	}
	var wcs [16]WC
	for want > 0 {
		advance(t, link, a.Device, b.Device)
		for _, wc := range wcs[:a.cq.Poll(wcs[:])] {
			want--
			if wc.Status != Success {
				t.Fatal(wc.Status)
			}
		}
	}
	for _, q := range qps { // sent while the devices close
		must(t, q.PostSend(sends[0]))
	}
	must(t, a.Close())
	must(t, b.Close())
	must(t, capture.Flush())
	for n := a.cq.Poll(wcs[:]); n > 0; n = a.cq.Poll(wcs[:]) {
		for _, wc := range wcs[:n] {
			fmt.Fprintln(&file, wc.QPN, wc.Status)
		}
	}
	return file.Bytes()
}

// A run in virtual time replays from its seed: two captures are equal byte for byte, whatever the
// addresses of the memory are.
func TestReplay(t *testing.T) {
	for seed := range uint64(3) {
		first, second := replay(t, seed, 4096), replay(t, seed, 1<<22)
		if !bytes.Equal(first, second) {
			t.Errorf("seed %d: two captures differ (%d and %d bytes)", seed, len(first),
				len(second))
		}
		if seed > 0 && bytes.Equal(first, replay(t, 0, 4096)) {
			t.Errorf("seeds 0 and %d give the same capture", seed)
		}
	}
}

// With Rand or Clock, addresses come from a counter. Regions do not overlap, and atomics work on
// memory of any alignment.
func TestReproducibleAddresses(t *testing.T) {
	link := newLink(t, loopback.Config{})
	r := rand.New(rand.NewPCG(1, 2))
	e := newEnd(t, newDevice(t, link, 0, WithExpert(Expert{Rand: r.Uint64})), rigConfig{})
	mem := make([]byte, 64)
	next := e.mr.Addr() + uint64(e.mr.Len())
	for skip := range 9 {
		m, err := e.pd.RegisterMR(mem[skip:], LocalWrite|RemoteWrite|RemoteAtomic)
		must(t, err)
		if m.Addr() < next {
			t.Errorf("region at %#x overlaps the previous one, which ends at %#x", m.Addr(), next)
		}
		next = m.Addr() + uint64(m.Len())
		must(t, m.Close())
	}
	m, err := e.pd.AllocMR(64, LocalWrite, WithIOVA(0x1234))
	must(t, err)
	if m.Addr() != 0x1234 {
		t.Errorf("Addr() = %#x, want the one of WithIOVA, 0x1234", m.Addr())
	}
	if e.mr.Addr() != firstIOVA {
		t.Errorf("the first address is %#x, want %#x", e.mr.Addr(), firstIOVA)
	}
}

// TestAddressesOfSmallRegions: the address of a small Go slice modulo 8 depends on what the runtime
// has allocated before. It must not show in packets.
func TestAddressesOfSmallRegions(t *testing.T) {
	link := newLink(t, loopback.Config{Virtual: true})
	d := newDevice(t, link, 0, WithExpert(Expert{Clock: link.Now}))
	pd, err := d.AllocPD()
	must(t, err)
	mem := make([]byte, 64)
	for i := range 8 {
		m, err := pd.RegisterMR(mem[i:], LocalWrite|RemoteWrite)
		must(t, err)
		if m.Addr()%8 != 0 {
			t.Errorf("address %#x of memory at offset %d, want a multiple of 8", m.Addr(), i)
		}
		for _, access := range []Access{LocalWrite | RemoteAtomic, LocalWrite | MWBind} {
			m, err := pd.RegisterMR(mem[i:], access)
			must(t, err)
			if m.Addr()%8 != mr.AddrOf(mem[i:])%8 {
				t.Errorf("access %v: address %#x of memory at offset %d", access, m.Addr(), i)
			}
		}
	}
}
