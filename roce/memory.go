package roce

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/gorxe/gorxe/mr"
)

// PD is a protection domain. A QP can access only memory of its own PD.
type PD struct {
	dev    *Device
	pd     *mr.PD
	closed bool // guarded by Device.ctl

	// objects are the open objects of the PD if closeAll is to close them, otherwise nil. Guarded
	// by Device.ctl.
	objects map[io.Closer]struct{}
}

// AllocPD creates a protection domain.
//
// Errors: ErrTooMany, ErrClosed.
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

// Close destroys the PD. It returns ErrInUse while memory regions, windows, QPs or SRQs exist in
// it. Closing twice is harmless.
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

// add records an object that was created in the PD, and remove one that was closed. The caller
// holds Device.ctl.
func (p *PD) add(o io.Closer) {
	if p.objects != nil {
		p.objects[o] = struct{}{}
	}
}

func (p *PD) remove(o io.Closer) { delete(p.objects, o) }

// allocTemporaryPD creates a PD for closeAll.
func (d *Device) allocTemporaryPD() (*PD, error) {
	p, err := d.AllocPD()
	if err == nil {
		p.objects = map[io.Closer]struct{}{}
	}
	return p, err
}

// closeAll closes the PD and the objects in it. QPs are closed first, regions after the windows
// that are bound to them.
func (p *PD) closeAll() error {
	p.dev.ctl.Lock()
	objects := slices.SortedFunc(maps.Keys(p.objects), func(a, b io.Closer) int {
		return cmp.Compare(closeOrder(a), closeOrder(b))
	})
	p.dev.ctl.Unlock()
	var errs []error
	for _, o := range objects {
		errs = append(errs, o.Close())
	}
	errs = append(errs, p.Close())
	if p.dev.closing.Load() { // Device.Close closes everything
		return nil
	}
	return errors.Join(errs...)
}

func closeOrder(o io.Closer) int {
	switch o.(type) {
	case *QP:
		return 0
	case *MR:
		return 2
	}
	return 1
}

// create runs alloc, which creates an object in the PD, with ctl held.
func (p *PD) create(what string, alloc func() error) error {
	p.dev.ctl.Lock()
	defer p.dev.ctl.Unlock()
	if err := p.usable(); err != nil {
		return err
	}
	if err := alloc(); err != nil {
		return fmt.Errorf("roce: allocate %s: %w", what, err)
	}
	return nil
}

// closeMemory destroys a region or window unless it is closed. It runs kill, which invalidates the
// keys, waits until no packet uses them any more, and runs release.
func (d *Device) closeMemory(closed *bool, kill, release func() error) error {
	d.ctl.Lock()
	defer d.ctl.Unlock()
	if *closed {
		return nil
	}
	if err := kill(); err != nil {
		return err
	}
	d.grace()
	return release()
}

// usable returns an error if no object can be created in the PD. The caller holds ctl.
func (p *PD) usable() error {
	if err := p.dev.open(); err != nil {
		return err
	}
	if p.closed {
		return fmt.Errorf("%w: the PD", ErrClosed)
	}
	return nil
}

// MROption is an argument of RegisterMR, AllocMR and FastMR.Prepare.
type MROption func(*mrConfig)

type mrConfig struct {
	iova    uint64
	hasIOVA bool
	persist func([]byte) error
	backing mr.Backing // see inside.Backing
}

// mrOptions returns the options of a region that covers mem. The caller holds ctl.
func (d *Device) mrOptions(mem []byte, access Access, opts []MROption) mrConfig {
	var c mrConfig
	for _, o := range opts {
		o(&c)
	}
	switch {
	case c.hasIOVA:
	case d.iovas.next != 0:
		c.iova = d.iovas.take(mem, access)
	default:
		c.iova = mr.AddrOf(mem)
	}
	return c
}

// iovaCounter assigns addresses to regions that do not depend on where their memory is.
type iovaCounter struct{ next uint64 } // 0: not in use

const (
	firstIOVA = 1 << 40
	iovaPage  = 4096
)

// take returns the next address for mem, modulo 8 that of the memory if peers may use atomics,
// which need it. An unused page follows each region.
func (c *iovaCounter) take(mem []byte, access Access) uint64 {
	addr := c.next
	if access&(RemoteAtomic|MWBind) != 0 {
		addr += mr.AddrOf(mem) % 8
	}
	c.next += (uint64(len(mem)) + 3*iovaPage - 1) &^ (iovaPage - 1)
	return addr
}

// WithIOVA sets the address with which work requests and peers name the first byte of the region.
// The default is the address of the memory, or 0 with ZeroBased. With Expert.Clock or Expert.Rand
// it is the next number of a counter, so that two runs give the same addresses. With RemoteAtomic
// or MWBind it equals the address of the memory modulo 8, which is always the same for AllocMR.
func WithIOVA(addr uint64) MROption {
	return func(c *mrConfig) { c.iova, c.hasIOVA = addr, true }
}

// WithPersist adds the right FlushPersistent and sets the function that makes memory survive a loss
// of power. The device calls f on its own thread with the bytes that a peer's FLUSH covers, and
// acknowledges the FLUSH when f returns nil. For a file that is mapped into memory, f calls
// unix.Msync with MS_SYNC on the whole pages.
func WithPersist(f func([]byte) error) MROption {
	return func(c *mrConfig) { c.persist = f }
}

// MR is a memory region: memory that local work requests and, within its access rights, peers can
// access.
//
// A program that polls memory while a peer writes to it must use Load8, Load32 or Load64: once they
// return the last aligned word of a WRITE, all bytes before it are visible, too. After the
// completion that announces the data, plain reads of Bytes are safe.
type MR struct {
	region

	pd     *PD
	own    []byte      // memory of AllocMR; nil after Close
	pool   *BufferPool // with these buffers; nil: none. Guarded by Device.ctl, like closed
	closed bool
}

// RegisterMR registers mem as a memory region. The caller keeps mem, and must not reuse it before
// Close returns. RemoteWrite and RemoteAtomic need LocalWrite (IBA 10.6.3.1).
//
// The region refers to mem even after Close, which keeps memory of the Go heap alive. Memory that
// the program has mapped itself must stay mapped until Close has returned, and as long as it calls
// the methods of the region that access it, such as Load64.
//
// Errors: ErrMemoryLength, ErrMemoryAlign, ErrMemoryAccess, ErrTooMany, ErrNoMemory, ErrClosed.
func (p *PD) RegisterMR(mem []byte, access Access, opts ...MROption) (*MR, error) {
	return p.register(mem, nil, access, opts)
}

// AllocMR allocates size bytes and registers them as a memory region. The memory is zeroed and
// aligned to a page. It is memory of the Go heap: after Close, slices of Bytes and the methods of
// the region can still be used, and the garbage collector frees the memory when there are no
// references to it. It counts as memory in use until then. The Go runtime starts a collection when
// there is as much garbage as memory in use, so large regions make the heap grow: use
// debug.SetGCPercent, or register memory that the program maps itself.
//
// Errors: those of RegisterMR, and ErrInvalid.
func (p *PD) AllocMR(size int, access Access, opts ...MROption) (*MR, error) {
	if size <= 0 {
		return nil, fmt.Errorf("%w: a memory region of %d bytes; it needs at least 1", ErrInvalid,
			size)
	}
	d := p.dev
	n := allocLen(size)
	if err := d.mem.take(n, "AllocMR"); err != nil {
		return nil, err
	}
	own := zeroed(n)
	m, err := p.register(aligned(own, size), own, access, opts)
	if err != nil {
		lapse(d.mem.account, &own[0], n)
	}
	return m, err
}

func (p *PD) register(mem, own []byte, access Access, opts []MROption) (*MR, error) {
	d := p.dev
	d.ctl.Lock()
	defer d.ctl.Unlock()
	if err := p.usable(); err != nil {
		return nil, err
	}
	c := d.mrOptions(mem, access, opts)
	outside := 0 // bytes of memory that AllocMR has not allocated
	if own == nil {
		outside = len(mem)
	}
	if err := d.charge(outside, "registered memory"); err != nil {
		return nil, err
	}
	err := d.mem.take(mrBytes, "a memory region")
	if err != nil {
		d.discharge(outside)
		return nil, err
	}
	var inner *mr.MR
	switch {
	case c.backing != nil:
		inner, err = d.mrs.RegisterForeign(p.pd, mem, c.iova, mr.Access(access), c.backing)
	case c.persist != nil:
		inner, err = d.mrs.RegisterPersistent(p.pd, mem, c.iova, mr.Access(access), c.persist)
	default:
		inner, err = d.mrs.Register(p.pd, mem, c.iova, mr.Access(access))
	}
	if err != nil {
		d.mem.give(mrBytes)
		d.discharge(outside)
		return nil, fmt.Errorf("roce: register %d bytes: %w", len(mem), err)
	}
	m := &MR{region: region{inner}, pd: p, own: own}
	d.mems[m] = struct{}{}
	p.add(m)
	d.spread(m.memory)
	return m, nil
}

// PD returns the region's protection domain.
func (m *MR) PD() *PD { return m.pd }

// Close invalidates the region's keys, and returns when no packet and no work request can access
// the memory any more. It returns ErrInUse while memory windows are bound to the region. Closing
// twice is harmless.
func (m *MR) Close() error {
	return m.pd.dev.closeMemory(&m.closed, m.kill, m.free)
}

// kill invalidates the keys. The caller holds ctl.
func (m *MR) kill() error {
	if err := m.pd.dev.mrs.Deregister(m.m); errors.Is(err, mr.ErrBusy) {
		return fmt.Errorf("%w: %w", ErrInUse, err)
	}
	// The only other error means that the region is not registered, so there is nothing to undo.
	m.closed = true
	if m.pool != nil {
		m.pool.shut()
	}
	delete(m.pd.dev.mems, m)
	m.pd.remove(m)
	m.pd.dev.mem.give(mrBytes)
	if m.own == nil {
		m.pd.dev.discharge(m.Len())
	}
	return nil
}

// free leaves the memory of AllocMR to the garbage collector, after the grace period.
func (m *MR) free() error {
	if m.own != nil {
		lapse(m.pd.dev.mem.account, &m.own[0], len(m.own))
		m.own = nil
	}
	return nil
}
