package roce

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/mr"
)

// PD is a protection domain: QPs reach only memory of their own PD.
type PD struct {
	dev    *Device
	pd     *mr.PD
	closed bool // under Device.ctl
}

// AllocPD makes a protection domain.
func (d *Device) AllocPD() (*PD, error) {
	d.ctl.Lock()
	defer d.ctl.Unlock()
	if err := d.open(); err != nil {
		return nil, err
	}
	inner, err := d.mrs.AllocPD()
	if err != nil {
		return nil, fmt.Errorf("roce: allocate a PD: %w", err)
	}
	p := &PD{dev: d, pd: inner}
	d.pds[p] = struct{}{}
	return p, nil
}

// Close frees the PD. It gives ErrInUse while memory regions, windows, QPs or SRQs exist in it. Closing twice is harmless.
func (p *PD) Close() error {
	p.dev.ctl.Lock()
	defer p.dev.ctl.Unlock()
	return p.shut()
}

func (p *PD) shut() error {
	if p.closed {
		return nil
	}
	if err := p.dev.mrs.DeallocPD(p.pd); err != nil {
		return fmt.Errorf("%w: %w", ErrInUse, err)
	}
	p.closed = true
	delete(p.dev.pds, p)
	return nil
}

// MROption changes how RegisterMR makes a memory region.
type MROption func(*mrConfig)

type mrConfig struct {
	iova    uint64
	hasIOVA bool
	persist func([]byte) error
}

func mrOptions(mem []byte, opts []MROption) mrConfig {
	var c mrConfig
	for _, o := range opts {
		o(&c)
	}
	if !c.hasIOVA {
		c.iova = mr.AddrOf(mem)
	}
	return c
}

// WithIOVA sets the address by which work requests and peers name the region's first byte. The default is the
// memory's own address, or 0 with ZeroBased.
func WithIOVA(addr uint64) MROption {
	return func(c *mrConfig) { c.iova, c.hasIOVA = addr, true }
}

// WithPersist says how the region's memory is made to survive a loss of power, and grants FlushPersistent: f is called
// with the bytes that a peer's FLUSH is about, on the device's own thread, and the FLUSH is answered when it returns nil.
// For a file mapped into memory it is unix.Msync with MS_SYNC, on whole pages.
func WithPersist(f func([]byte) error) MROption {
	return func(c *mrConfig) { c.persist = f }
}

// usable tells whether new objects can be made in the PD; the caller holds ctl.
func (p *PD) usable() error {
	if err := p.dev.open(); err != nil {
		return err
	}
	if p.closed {
		return fmt.Errorf("%w: the PD", ErrClosed)
	}
	return nil
}

// MR is a memory region: memory that work requests, and peers as far as its access rights go, may reach.
//
// Memory that a peer writes while the program looks at it has to be read by Load8 or Load64: they see everything that
// a WRITE put there once they see its last aligned word (see the package comment). After the completion that
// announces the data, plain reads of Bytes are fine.
type MR struct {
	*mr.MR // LKey, RKey, Addr, Len, Bytes, Access, Load8, Store8, Load64, Store64, Add64, CompareAndSwap64

	pd     *PD
	mapped []byte // memory of AllocMR
	closed bool   // under Device.ctl
}

// RegisterMR makes mem a memory region of the PD. mem stays the caller's; it must not be freed or reused before
// Close returns (a Go slice is kept alive by the region). Peers' writes need LocalWrite beside RemoteWrite or
// RemoteAtomic (IBA 10.6.3.1).
func (p *PD) RegisterMR(mem []byte, access Access, opts ...MROption) (*MR, error) {
	return p.register(mem, nil, access, opts)
}

// AllocMR makes a memory region of size bytes of its own: zeroed, aligned to a page, outside the Go heap, and given back
// to the system by Close. No slice of Bytes may be used after that.
func (p *PD) AllocMR(size int, access Access, opts ...MROption) (*MR, error) {
	if size <= 0 {
		return nil, fmt.Errorf("%w: a memory region of %d bytes; it needs at least 1", ErrInvalid, size)
	}
	d := p.dev
	if err := d.mem.take(size, "AllocMR"); err != nil {
		return nil, err
	}
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err == nil && size >= hugeSize && hugeHere() {
		_ = unix.Madvise(mem, unix.MADV_HUGEPAGE) // advice; without it all works, too
	}
	var m *MR
	if err != nil {
		err = fmt.Errorf("roce: map %d bytes of memory: %w", size, err)
	} else if m, err = p.register(mem, mem, access, opts); err != nil {
		_ = unix.Munmap(mem)
	}
	if err != nil {
		d.mem.give(size)
	}
	return m, err
}

func (p *PD) register(mem, mapped []byte, access Access, opts []MROption) (*MR, error) {
	c := mrOptions(mem, opts)
	d := p.dev
	d.ctl.Lock()
	defer d.ctl.Unlock()
	if err := p.usable(); err != nil {
		return nil, err
	}
	err := d.mem.take(mrBytes, "a memory region")
	if err != nil {
		return nil, err
	}
	var inner *mr.MR
	if c.persist != nil {
		inner, err = d.mrs.RegisterPersistent(p.pd, mem, c.iova, access, c.persist)
	} else {
		inner, err = d.mrs.Register(p.pd, mem, c.iova, access)
	}
	if err != nil {
		d.mem.give(mrBytes)
		return nil, fmt.Errorf("roce: register %d bytes: %w", len(mem), err)
	}
	m := &MR{MR: inner, pd: p, mapped: mapped}
	d.mems[m] = struct{}{}
	d.spread(m.memory)
	return m, nil
}

// LKey is the key by which the owner's work requests name the region.
func (m *MR) LKey() LKey { return LKey(m.MR.LKey()) }

// RKey is the key by which peers name the region.
func (m *MR) RKey() RKey { return RKey(m.MR.RKey()) }

// PD is the region's protection domain.
func (m *MR) PD() *PD { return m.pd }

// SGE names n bytes from offset off of the region. Posting checks the bounds.
func (m *MR) SGE(off, n int) SGE {
	return SGE{Addr: m.Addr() + uint64(off), Length: uint32(n), LKey: m.LKey()}
}

// Remote is what a peer has to know to WRITE, READ or do atomics on the region.
func (m *MR) Remote() RemoteBuffer {
	return RemoteBuffer{Addr: m.Addr(), RKey: m.RKey(), Len: uint64(m.Len())}
}

// Close takes the region's keys back at once and returns when no packet and no work request can touch the memory any
// more. It gives ErrInUse while memory windows are bound to the region. Closing twice is harmless.
func (m *MR) Close() error {
	d := m.pd.dev
	d.ctl.Lock()
	defer d.ctl.Unlock()
	if m.closed {
		return nil
	}
	if err := m.kill(); err != nil {
		return err
	}
	d.grace()
	return m.unmap()
}

// kill makes the keys invalid; the caller holds ctl.
func (m *MR) kill() error {
	if err := m.pd.dev.mrs.Deregister(m.MR); errors.Is(err, mr.ErrBusy) {
		return fmt.Errorf("%w: %w", ErrInUse, err)
	}
	// The only other error is that the region is not registered: then there is nothing left to take back.
	m.closed = true
	delete(m.pd.dev.mems, m)
	m.pd.dev.mem.give(mrBytes)
	return nil
}

// unmap gives AllocMR's memory back, after the grace period.
func (m *MR) unmap() error {
	if m.mapped == nil {
		return nil
	}
	mem := m.mapped
	m.mapped = nil
	m.pd.dev.mem.give(len(mem))
	if err := unix.Munmap(mem); err != nil {
		return fmt.Errorf("roce: unmap memory: %w", err)
	}
	return nil
}
