package sim

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"

	"github.com/gorxe/gorxe/internal/verify"
	"github.com/gorxe/gorxe/mr"
	"github.com/gorxe/gorxe/roce"
)

// noise is the initial content of all memory and the content of everything that is sent. It is the
// same for all scenarios; the offset of data identifies it.
var noise = func() []byte {
	b := make([]byte, bigOp+1<<20)
	r := rand.NewPCG(4791, 17)
	for i := 0; i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], r.Uint64())
	}
	return b
}()

// border is the minimum number of bytes on either side of a region that are watched too.
const border = 64

// region is a memory region inside a larger piece of memory, with a model of all of it.
type region struct {
	h     *host
	mr    *roce.MR
	mem   []byte // with the borders
	want  []byte // the model: what mem must hold
	off   int    // where the region begins in mem
	n     int
	alive bool
}

// newRegion registers n bytes. Its address is drawn, so that it is the same in every run and covers
// both ends of the address space.
func (h *host) newRegion(n int, access roce.Access) *region {
	r := h.w.rng
	off := border + r.IntN(32)
	if access&roce.RemoteAtomic != 0 {
		off &^= 7
	}
	g := &region{h: h, off: off, n: n, alive: true}
	g.mem = make([]byte, off+n+border)
	at := r.IntN(4096)
	for b := g.mem; len(b) > 0; {
		k := copy(b, noise[at:])
		b, at = b[k:], 0
	}
	g.want = bytes.Clone(g.mem)
	var opts []roce.MROption
	if oneIn(r, 8) {
		access |= roce.ZeroBased
	} else {
		opts = append(opts, roce.WithIOVA(drawAddr(r, n)+mr.AddrOf(g.bytes())&7))
	}
	var err error
	g.mr, err = h.PD.RegisterMR(g.bytes(), access, opts...)
	h.w.must(err, "register %d bytes", n)
	h.regions = append(h.regions, g)
	return g
}

// drawAddr returns a multiple of 8 where n bytes fit: low, anywhere, or just below 2^64.
func drawAddr(r *rand.Rand, n int) uint64 {
	switch r.IntN(3) {
	case 0:
		return uint64(r.Uint32()) &^ 7
	case 1:
		return -(uint64(n) + 64) &^ 7
	}
	return r.Uint64() >> 1 &^ 7
}

func (g *region) bytes() []byte { return g.mem[g.off : g.off+g.n : g.off+g.n] }

// at returns the n real bytes at an offset of the region, model the expected ones.
func (g *region) at(off, n int) []byte    { return g.mem[g.off+off:][:n] }
func (g *region) model(off, n int) []byte { return g.want[g.off+off:][:n] }

// accept copies real bytes to the model where their content is not determined.
func (g *region) accept(off, n int) { copy(g.model(off, n), g.at(off, n)) }

func (g *region) remote(off int) (uint64, roce.RKey) {
	return g.mr.Addr() + uint64(off), g.mr.RKey()
}

// close deregisters. Nothing may change afterwards.
func (g *region) close() {
	if !g.alive {
		return
	}
	g.alive = false
	g.h.w.must(g.mr.Close(), "deregister")
}

// check compares memory and model, including borders.
func (g *region) check() {
	if bytes.Equal(g.mem, g.want) {
		return
	}
	i, j := verify.Diff(g.mem, g.want)
	g.h.w.failf("host %d: memory differs from the model between bytes %d and %d of a region of %d bytes (alive: %v)",
		g.h.i, i-g.off, j-g.off, g.n, g.alive)
}

// piece is a part of a region.
type piece struct {
	g      *region
	off, n int
}

func (p piece) sge() roce.SGE { return p.g.mr.SGE(p.off, p.n) }

func sges(ps []piece) []roce.SGE {
	out := make([]roce.SGE, len(ps))
	for i, p := range ps {
		out[i] = p.sge()
	}
	return out
}

func total(ps []piece) (n int) {
	for _, p := range ps {
		n += p.n
	}
	return n
}

// gather concatenates the contents of pieces.
func gather(ps []piece) []byte {
	if len(ps) == 1 {
		return ps[0].g.at(ps[0].off, ps[0].n)
	}
	out := make([]byte, 0, total(ps))
	for _, p := range ps {
		out = append(out, p.g.at(p.off, p.n)...)
	}
	return out
}

// holds compares the first bytes of pieces with data.
func holds(ps []piece, data []byte) bool {
	for _, p := range ps {
		n := min(p.n, len(data))
		if !bytes.Equal(p.g.at(p.off, n), data[:n]) {
			return false
		}
		data = data[n:]
	}
	return len(data) == 0
}

// scatter writes data to the model of pieces.
func scatter(ps []piece, data []byte) {
	for _, p := range ps {
		data = data[copy(p.g.model(p.off, p.n), data):]
	}
}

// acceptAll copies pieces to the model.
func acceptAll(ps []piece) {
	for _, p := range ps {
		p.g.accept(p.off, p.n)
	}
}

// split cuts a range into up to most pieces, some of them empty.
func split(r *rand.Rand, g *region, off, n, most int) []piece {
	var out []piece
	for range r.IntN(most) {
		k := 0
		if n > 0 {
			k = r.IntN(n + 1)
		}
		out = append(out, piece{g, off, k})
		off, n = off+k, n-k
	}
	return append(out, piece{g, off, n})
}
