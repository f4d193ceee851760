package uverbs

import (
	"syscall"

	"github.com/gorxe/gorxe/internal/inside"
	"github.com/gorxe/gorxe/mr"
	"github.com/gorxe/gorxe/roce"
)

// Access flags of REG_MR that are ignored: a program may always set them.
const (
	accessOptional = 0x3ff << 20
	accessKnown    = uint32(roce.LocalWrite | roce.RemoteWrite | roce.RemoteRead |
		roce.RemoteAtomic | roce.MWBind | roce.ZeroBased | roce.FlushGlobal)
	// accessWrites are the flags for which the memory must be writable.
	accessWrites = uint32(roce.LocalWrite | roce.RemoteWrite | roce.RemoteAtomic | roce.MWBind)
)

func (c *Context) allocPD(r *request) syscall.Errno {
	pd, err := c.dev.dev.AllocPD()
	if err != nil {
		return errno(err)
	}
	h, no := c.add(pd)
	if no != 0 {
		_ = pd.Close()
		return no
	}
	r.out.U32(h)
	return 0
}

func (c *Context) deallocPD(r *request) syscall.Errno {
	h := r.in.U32()
	pd, no := doomed[*roce.PD](c, h)
	if no != 0 {
		return no
	}
	for _, o := range c.objects { // package roce has AHs without PDs
		if a, ok := o.(*addressHandle); ok && a.pd == pd {
			return syscall.EBUSY
		}
	}
	if err := pd.Close(); err != nil {
		return errno(err)
	}
	delete(c.objects, h)
	return 0
}

// memoryRegion is an MR.
type memoryRegion struct {
	c      *Context
	mr     *roce.MR
	mirror *mirror
}

func (c *Context) regMR(r *request) syscall.Errno {
	r.in.Skip(8)
	start, length, iova := r.in.U64(), r.in.U64(), r.in.U64()
	pd, no := get[*roce.PD](c, r.in.U32())
	if no != 0 {
		return no
	}
	m, no := c.register(r.call, region{pd, start, length, iova, r.in.U32()})
	if no != 0 {
		return no
	}
	h, no := c.add(m)
	if no != 0 {
		_ = m.destroy()
		return no
	}
	r.out.U32(h, uint32(m.mr.LKey()), uint32(m.mr.RKey()))
	return 0
}

// region has the parameters of a registration.
type region struct {
	pd                  *roce.PD
	start, length, iova uint64
	access              uint32
}

// register registers program memory.
func (c *Context) register(call Caller, to region) (*memoryRegion, syscall.Errno) {
	start, length, iova, access := to.start, to.length, to.iova, to.access&^accessOptional
	switch {
	case access&^accessKnown != 0:
		return nil, syscall.EOPNOTSUPP
	case length == 0 || start+length < start || start+length > 1<<63,
		(start^iova)&(pageSize-1) != 0:
		return nil, syscall.EINVAL
	case length > maxMirror-c.mirrors:
		return nil, syscall.ENOMEM
	}
	s, no := c.space(call.PID())
	if no != 0 {
		return nil, no
	}
	var probe [1]byte // the memory must exist, as if it was pinned
	if !s.read(probe[:], start) || !s.read(probe[:], start+length-1) ||
		!s.mapped(start, length, access&accessWrites != 0) {
		return nil, syscall.EFAULT
	}
	mi, err := newMirror(c.dev, s, start, length)
	if err != nil {
		return nil, errno(err)
	}
	opts := []roce.MROption{roce.WithIOVA(iova), inside.Backing(mr.Backing(mi)).(roce.MROption)}
	m, err := to.pd.RegisterMR(mi.mem, roce.Access(access), opts...)
	if err != nil {
		mi.unmap()
		return nil, errno(err)
	}
	c.mirrors += length
	return &memoryRegion{c, m, mi}, 0
}

// space returns the address space of a process. The caller holds mu.
func (c *Context) space(pid int) (*space, syscall.Errno) {
	if s := c.spaces[pid]; s != nil {
		if !s.dead() {
			return s, 0
		}
		c.abandon(pid, s)
	}
	if len(c.spaces) >= maxSpaces {
		c.abandonDead()
	}
	if len(c.spaces) >= maxSpaces {
		return nil, syscall.ENOMEM
	}
	s, err := c.dev.openSpace(pid)
	if err != nil {
		return nil, errno(err)
	}
	c.spaces[pid] = s
	c.dev.mu.Lock()
	c.dev.spaces[pid] = append(c.dev.spaces[pid], s)
	c.dev.mu.Unlock()
	return s, 0
}

// abandonDead forgets the spaces of all dead processes. The caller holds mu.
func (c *Context) abandonDead() {
	for pid, s := range c.spaces {
		if s.dead() {
			c.abandon(pid, s)
		}
	}
}

// abandon forgets the space of a dead process. The caller holds mu.
func (c *Context) abandon(pid int, s *space) {
	if !c.dev.do(s.abandon) {
		s.abandon() // the loop has ended
	}
	c.dev.forget(pid, s)
	delete(c.spaces, pid)
}

// Flags of REREG_MR.
const (
	reregTranslation = 1 << iota
	reregPD
	reregAccess
)

// reregMR registers the memory again with the changed parameters. The handle stays, the keys
// change.
func (c *Context) reregMR(r *request) syscall.Errno {
	r.in.Skip(8)
	h, flags := r.in.U32(), r.in.U32()
	start, length, iova, pdHandle := r.in.U64(), r.in.U64(), r.in.U64(), r.in.U32()
	access := r.in.U32()
	m, no := get[*memoryRegion](c, h)
	if no != 0 {
		return no
	}
	if flags&^(reregTranslation|reregPD|reregAccess) != 0 || flags == 0 {
		return syscall.EINVAL
	}
	to := m.region()
	if flags&reregPD != 0 {
		if to.pd, no = get[*roce.PD](c, pdHandle); no != 0 {
			return no
		}
	}
	if flags&reregTranslation != 0 {
		to.start, to.length, to.iova = start, length, iova
	}
	if flags&reregAccess != 0 {
		to.access = access
	}
	next, no := c.replace(r.call, h, m, to)
	if no != 0 {
		return no
	}
	r.out.U32(uint32(next.mr.LKey()), uint32(next.mr.RKey()))
	return 0
}

// region returns the parameters of the registration.
func (m *memoryRegion) region() region {
	return region{m.mr.PD(), m.mirror.addr, uint64(m.mr.Len()), m.mr.Addr(), uint32(m.mr.Access())}
}

// replace replaces the region m of a handle. At a limit it deregisters m first. If the registration
// fails then, the handle has a region as before, with other keys: the manual page of ibv_rereg_mr
// forbids the use of the old ones.
func (c *Context) replace(call Caller, h uint32, m *memoryRegion, to region) (*memoryRegion,
	syscall.Errno) {
	before := m.region()
	next, no := c.register(call, to)
	if no != 0 && no != syscall.ENOMEM {
		return nil, no
	}
	if err := m.destroy(); err != nil {
		if next != nil {
			_ = next.destroy()
		}
		return nil, errno(err)
	}
	if next == nil {
		if next, no = c.register(call, to); no != 0 {
			if next, _ = c.register(call, before); next == nil {
				delete(c.objects, h)
				return nil, no
			}
		}
	}
	c.objects[h] = next
	return next, no
}

// destroy deregisters the region. The caller holds Context.mu.
func (m *memoryRegion) destroy() error {
	if err := m.mr.Close(); err != nil {
		return err
	}
	m.c.dev.do(func() {
		m.mirror.gone = true
		m.mirror.space.flush()
	})
	m.mirror.unmap()
	m.c.mirrors -= uint64(len(m.mirror.mem))
	return nil
}

func (c *Context) deregMR(r *request) syscall.Errno {
	h := r.in.U32()
	m, no := doomed[*memoryRegion](c, h)
	if no != 0 {
		return no
	}
	if err := m.destroy(); err != nil {
		return errno(err)
	}
	delete(c.objects, h)
	return 0
}
