package mr

import "fmt"

// Defaults and limits of Config. A table grows as it is used, so a high limit costs nothing at
// first.
const (
	DefaultMaxPD = 1 << 16
	DefaultMaxMR = 1 << 20
	// LimitMaxMR is the largest MaxMR. With more, keys would become scarce and could be guessed:
	// one value in 256 would be valid.
	LimitMaxMR = 1 << 24
)

// Config holds the parameters of a Table.
type Config struct {
	// MaxPD and MaxMR limit the number of PDs, and of regions, windows and fast MRs together. 0
	// means DefaultMaxPD and DefaultMaxMR.
	MaxPD, MaxMR int
	// Rand returns the secret of the key sequence. NewTable calls it. It must be cryptographic in
	// production and may be seeded in tests. Required.
	Rand func() uint64
}

// Table holds the PDs and MRs of one device.
type Table struct {
	local, remote index
	tagged        index // by the upper bits of the keys of tagged windows
	pds, maxPD    int
	mrs, maxMR    int
}

// NewTable returns an empty table. It returns ErrConfig if Rand is nil or a limit is out of range.
func NewTable(c Config) (*Table, error) {
	if c.Rand == nil {
		return nil, fmt.Errorf("%w: Config.Rand is required", ErrConfig)
	}
	if c.MaxPD == 0 {
		c.MaxPD = DefaultMaxPD
	}
	if c.MaxMR == 0 {
		c.MaxMR = DefaultMaxMR
	}
	if c.MaxPD < 0 || c.MaxMR < 0 || c.MaxMR > LimitMaxMR {
		return nil, fmt.Errorf("%w: MaxPD is %d, MaxMR is %d, want 0 or more, and MaxMR at most %d",
			ErrConfig, c.MaxPD, c.MaxMR, LimitMaxMR)
	}
	t := &Table{maxPD: c.MaxPD, maxMR: c.MaxMR}
	t.local.init(c.Rand)
	t.remote.init(c.Rand)
	t.tagged.init(c.Rand)
	return t, nil
}

// Register makes mem accessible at addresses [iova, iova+len(mem)), or [0, len(mem)) with
// ZeroBased, which ignores iova. The caller keeps the ownership of mem; the MR keeps it from being
// garbage collected. Errors: ErrPD, ErrClosed (the PD), ErrLength, ErrAccess, ErrAlign, ErrTooMany,
// ErrExhausted.
func (t *Table) Register(pd *PD, mem []byte, iova uint64, a Access) (*MR, error) {
	if a&FlushPersistent != 0 {
		return nil, fmt.Errorf("%v needs RegisterPersistent: %w", a, ErrAccess)
	}
	return t.register(pd, mem, iova, a, nil, nil)
}

// RegisterPersistent registers memory that can survive a power failure and adds FlushPersistent. A
// FLUSH for persistence calls persist with the bytes to flush and is answered when persist returns
// nil. For a mapped file, persist is msync. It blocks the thread that handles packets.
func (t *Table) RegisterPersistent(pd *PD, mem []byte, iova uint64, a Access,
	persist func([]byte) error) (*MR, error) {
	if persist == nil {
		return nil, fmt.Errorf("persist is nil: %w", ErrAccess)
	}
	return t.register(pd, mem, iova, a|FlushPersistent, persist, nil)
}

func (t *Table) register(pd *PD, mem []byte, iova uint64, a Access,
	persist func([]byte) error, b Backing) (*MR, error) {
	if a&ZeroBased != 0 {
		iova = 0
	}
	if err := t.checkSpace(pd); err != nil {
		return nil, err
	}
	if err := checkRegistration(mem, iova, a); err != nil {
		return nil, err
	}
	m := &MR{pd: pd, addr: iova, mem: mem[:len(mem):len(mem)], access: a}
	if a&(MWBind|FlushPersistent) != 0 || b != nil {
		m.ext = &ext{persist: persist, backing: b}
	}
	if b != nil {
		m.access |= foreign
	}
	if err := t.assignKeys(m, a&remoteRights != 0); err != nil {
		return nil, err
	}
	if err := pd.Retain(); err != nil {
		return nil, err
	}
	live := uint32(liveLocal)
	if m.rkey != 0 {
		live |= liveRemote
	}
	t.publish(m, live)
	t.mrs++
	return m, nil
}

// checkSpace reports whether another object fits.
func (t *Table) checkSpace(pd *PD) error {
	switch {
	case pd == nil || pd.table != t:
		return ErrPD
	case t.mrs >= t.maxMR:
		return fmt.Errorf("the limit is %d memory regions, windows and fast regions: %w", t.maxMR,
			ErrTooMany)
	}
	return nil
}

// checkRegistration checks the parameters of a registration.
func checkRegistration(mem []byte, iova uint64, a Access) error {
	n := uint64(len(mem))
	switch {
	case n == 0 || iova+n < n:
		// An end of exactly 2^64 is rejected too, so that start+length never overflows.
		return fmt.Errorf("%d bytes at %#x: %w", n, iova, ErrLength)
	case a&^allRights != 0:
		return fmt.Errorf("unknown access flag %#x: %w", uint16(a&^allRights), ErrAccess)
	case a&(RemoteWrite|RemoteAtomic) != 0 && a&LocalWrite == 0:
		// IBA 10.6.3.3: remote write and remote atomic need local write.
		return fmt.Errorf("%v without local-write, add it: %w", a, ErrAccess)
	case a&RemoteAtomic != 0 && (iova^AddrOf(mem))&7 != 0:
		return fmt.Errorf("iova %#x, memory %#x: %w", iova, AddrOf(mem), ErrAlign)
	}
	return nil
}

// assignKeys draws the keys. It skips values that are live in the other table: an L_Key must not be
// valid as an R_Key, nor the reverse. Foreign regions are the exception; see RegisterForeign.
func (t *Table) assignKeys(m *MR, remote bool) (err error) {
	if remote && m.access&foreign != 0 {
		m.rkey, err = t.drawShared()
		m.lkey = m.rkey
		return err
	}
	if m.lkey, err = t.draw(&t.local, &t.remote); err != nil {
		return err
	}
	if remote {
		m.rkey, err = t.draw(&t.remote, &t.local)
		if err == nil && m.rkey == m.lkey {
			m.rkey, err = t.draw(&t.remote, &t.local)
		}
	}
	return err
}

// draw returns the next key of x that is not live in the other index and is no key of a tagged
// window.
func (t *Table) draw(x, other *index) (Key, error) {
	for {
		key, err := x.draw(other)
		if err != nil || t.owner(key) == nil {
			return key, err
		}
	}
}

// drawShared returns the next R_Key that also fits as an L_Key.
func (t *Table) drawShared() (Key, error) {
	t.local.reserve()
	for b := *t.local.cur.Load(); ; {
		key, err := t.draw(&t.remote, &t.local)
		if err != nil || b.of(key).has(0) {
			return key, err
		}
	}
}

// publish adds the keys to the tables with the given state.
func (t *Table) publish(m *MR, live uint32) {
	m.live.Store(live)
	if m.lkey != 0 {
		t.local.insert(m.lkey, m)
	}
	if m.rkey != 0 {
		t.remote.insert(m.rkey, m)
	}
}

// unpublish removes the keys of an invalid region from the tables.
func (t *Table) unpublish(m *MR) {
	if m.lkey != 0 {
		t.local.remove(m.lkey)
	}
	if m.rkey != 0 {
		t.remote.remove(m.rkey)
	}
}

// Deregister invalidates both keys: every check that starts after it returns fails. A check that
// started before may still use the memory, so the caller must wait until the current step of the
// engine's owner has ended before it reuses the memory. Errors: ErrBusy while windows are bound to
// the region (IBA 10.6.7.2.4), ErrClosed the second time, ErrPD for an MR of another table,
// ErrAccess for a registration of a fast MR.
func (t *Table) Deregister(m *MR) error {
	switch {
	case m == nil || m.pd.table != t:
		return ErrPD
	case m.ext == nil:
	case m.ext.keyOwner != nil:
		return fmt.Errorf("a fast MR's registration ends with LOCAL_INV or FreeFastMR: %w",
			ErrAccess)
	case !m.ext.windows.close():
		if n := m.ext.windows.users(); n > 0 {
			return fmt.Errorf("%d windows bound to the region: %w", n, ErrBusy)
		}
		return fmt.Errorf("memory region: %w", ErrClosed)
	}
	if m.live.Swap(0)&liveLocal == 0 {
		return fmt.Errorf("memory region: %w", ErrClosed)
	}
	t.unpublish(m)
	t.mrs--
	m.pd.Release()
	return nil
}

// MRs returns the number of regions, windows and fast MRs. Control plane only.
func (t *Table) MRs() int { return t.mrs }

// PDs returns the number of protection domains. Control plane only.
func (t *Table) PDs() int { return t.pds }

// Contains reports whether the memory of a region contains the address addr of this process. It
// may run concurrently with registrations.
func (t *Table) Contains(addr uintptr) bool {
	buckets := *t.local.cur.Load()
	for i := range buckets {
		b := &buckets[i]
		for j := range b.mrs {
			m := b.mrs[j].Load()
			if m != nil && m.live.Load() != 0 && uint64(addr)-AddrOf(m.mem) < uint64(len(m.mem)) {
				return true
			}
		}
	}
	return false
}
