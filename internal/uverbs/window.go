package uverbs

import (
	"encoding/binary"
	"math"
	"syscall"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/internal/inside"
	"github.com/gorxe/gorxe/mr"
	"github.com/gorxe/gorxe/qp"
	"github.com/gorxe/gorxe/roce"
)

// allocMW creates a memory window, an object of type inside.MW. Work requests bind it.
func (c *Context) allocMW(r *request) syscall.Errno {
	r.in.Skip(8)
	pd, no := get[*roce.PD](c, r.in.U32())
	if no != 0 {
		return no
	}
	typ := mr.WindowType(r.in.U8())
	if typ != mr.Type1 && typ != mr.Type2 {
		return syscall.EINVAL
	}
	w, err := inside.AllocMW(pd, typ)
	if err != nil {
		return errno(err)
	}
	h, no := c.add(w)
	if no != 0 {
		_ = w.Close()
		return no
	}
	r.out.U32(h, uint32(w.Key()))
	return 0
}

func (c *Context) deallocMW(r *request) syscall.Errno {
	h := r.in.U32()
	w, no := doomed[inside.MW](c, h)
	if no != 0 {
		return no
	}
	if err := w.Close(); err != nil {
		return errno(err)
	}
	delete(c.objects, h)
	return 0
}

// decodeBind sets the fields of a BIND_MW. The window keeps the upper 24 bits of its key, and the
// program chooses the others.
func (d *Device) decodeBind(w []byte, wr *qp.SendWR) bool {
	const tag = 0xff
	le := binary.LittleEndian
	length := le.Uint64(w[sqMWLen:])
	access := le.Uint32(w[sqMWFlags:]) &^ accessOptional
	if length > math.MaxUint32 || access&^accessKnown != 0 {
		return false
	}
	old := le.Uint32(w[sqMWOld:])
	wr.InvKey = bth.RKey(old)
	wr.RKey = bth.RKey(old&^tag | le.Uint32(w[sqMWNew:])&tag)
	// Programs also set flags that concern the region. The kernel ignores them.
	wr.Access = mr.Access(access) &^ (mr.LocalWrite | mr.MWBind)
	if length > 0 {
		d.sges[0] = qp.SGE{Addr: le.Uint64(w[sqAddr:]), Length: uint32(length),
			LKey: bth.LKey(le.Uint32(w[sqMWLKey:]))}
		wr.SGEs = d.sges[:1]
	}
	return true
}
