package uverbs

import (
	"context"
	"syscall"
	"time"

	"github.com/gorxe/gorxe/roce"
)

// resolveTimeout limits the wait for a neighbor lookup.
const resolveTimeout = 2 * time.Second

// route is the destination of a QP or an address handle.
type route struct {
	dgid         roce.GID
	flowLabel    uint32
	gidIndex     uint8
	hopLimit     uint8
	trafficClass uint8
	sl           uint8
	global, port uint8 // with a GRH, as RoCE requires; of the device
}

// valid reports whether the route is one of RoCE and of the device.
func (p *route) valid() bool { return p.global != 0 && p.port == 1 }

// setHopLimit replaces the hop limit of routes to one host by the default, as the kernel does.
// ibv_rc_pingpong and other programs set 1, which a router would not let pass.
func (p *route) setHopLimit() {
	if !p.dgid.IsMulticast() {
		p.hopLimit = roce.DefaultHopLimit
	}
}

// options returns the parameters of the path.
func (p *route) options() roce.PathOptions {
	return roce.PathOptions{TrafficClass: p.trafficClass, HopLimit: p.hopLimit,
		FlowLabel: p.flowLabel & (1<<20 - 1)}
}

// addressHandle is an AH. The program names it by number in its send work requests.
type addressHandle struct {
	c      *Context
	pd     *roce.PD
	ah     *roce.AH
	number uint32
}

func (c *Context) createAH(r *request) syscall.Errno {
	r.in.Skip(16)
	pdHandle := r.in.U32()
	r.in.Skip(4)
	var p route
	copy(p.dgid[:], r.in.Bytes(16))
	p.flowLabel = r.in.U32()
	p.gidIndex, p.hopLimit, p.trafficClass = r.in.U8(), r.in.U8(), r.in.U8()
	r.in.Skip(3) // reserved, LID
	p.sl = r.in.U8()
	r.in.Skip(2)
	p.global, p.port = r.in.U8(), r.in.U8()
	if !p.valid() {
		return syscall.EINVAL
	}
	p.setHopLimit()
	ctx, cancel := context.WithTimeout(context.Background(), resolveTimeout)
	defer cancel()
	index := int(p.gidIndex)
	ah, err := c.dev.dev.CreateAH(ctx,
		roce.AHAttr{Remote: p.dgid, GIDIndex: &index, PathOptions: p.options()})
	if err != nil {
		return errno(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	pd, no := get[*roce.PD](c, pdHandle)
	if c.closed {
		no = syscall.EIO
	}
	o := &addressHandle{c: c, pd: pd, ah: ah}
	h := uint32(0)
	if no == 0 {
		h, no = c.add(o)
	}
	if no != 0 {
		_ = ah.Close()
		return no
	}
	d := c.dev
	d.do(func() {
		for d.lastAH++; d.lastAH == 0 || d.ahs[d.lastAH] != nil; d.lastAH++ {
		}
		o.number = d.lastAH
		d.ahs[o.number] = o
	})
	r.out.U32(h)
	r.driverOut.U32(o.number, 0)
	return 0
}

func (a *addressHandle) destroy() {
	a.c.dev.do(func() { delete(a.c.dev.ahs, a.number) })
	_ = a.ah.Close()
}

func (c *Context) destroyAH(r *request) syscall.Errno {
	h := r.in.U32()
	a, no := doomed[*addressHandle](c, h)
	if no != 0 {
		return no
	}
	a.destroy()
	delete(c.objects, h)
	return 0
}
