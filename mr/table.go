package mr

import "fmt"

// Limits that hold when Config leaves them 0. A table grows as it is used, so
// a high limit costs nothing until it is reached.
const (
	DefaultMaxPD = 1 << 16
	DefaultMaxMR = 1 << 20
	// LimitMaxMR is the largest MaxMR: beyond, keys would become guessable
	// and rare (one value in 256 would be live).
	LimitMaxMR = 1 << 24
)

// Config is what a Table needs.
type Config struct {
	// MaxPD and MaxMR bound the table; 0 means DefaultMaxPD, DefaultMaxMR.
	// MaxMR is for regions, windows and fast MRs together.
	MaxPD, MaxMR int
	// Rand gives the secret of the key sequence, read once in NewTable:
	// crypto-grade in production, seeded in tests. Required.
	Rand func() uint64
}

// Table holds the PDs and MRs of one device.
type Table struct {
	local, remote index
	pds, maxPD    int
	mrs, maxMR    int
}

// NewTable makes an empty table. ErrConfig if Rand is missing or a limit is
// out of range.
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
		return nil, fmt.Errorf("%w: MaxPD %d, MaxMR %d (at most %d)", ErrConfig, c.MaxPD, c.MaxMR, LimitMaxMR)
	}
	t := &Table{maxPD: c.MaxPD, maxMR: c.MaxMR}
	t.local.init(c.Rand)
	t.remote.init(c.Rand)
	return t, nil
}

// Register makes mem reachable under addresses [iova, iova+len(mem)), or
// [0, len(mem)) with ZeroBased, which ignores iova. mem stays the caller's;
// the MR keeps it from being collected. Errors: ErrPD, ErrClosed (the PD),
// ErrLength, ErrAccess, ErrAlign, ErrTooMany, ErrExhausted.
func (t *Table) Register(pd *PD, mem []byte, iova uint64, a Access) (*MR, error) {
	if a&FlushPersistent != 0 {
		return nil, fmt.Errorf("%v without a way to make memory persistent, see RegisterPersistent: %w", a, ErrAccess)
	}
	return t.register(pd, mem, iova, a, nil)
}

// RegisterPersistent registers memory that can be made to survive a power
// failure, and FlushPersistent with it: a FLUSH to persistence calls persist
// with the bytes in question and is answered when that returns nil. For a file
// mapped into memory it is msync. It runs on the thread that handles packets,
// which waits for it.
func (t *Table) RegisterPersistent(pd *PD, mem []byte, iova uint64, a Access, persist func([]byte) error) (*MR, error) {
	if persist == nil {
		return nil, fmt.Errorf("nothing makes the memory persistent: %w", ErrAccess)
	}
	return t.register(pd, mem, iova, a|FlushPersistent, persist)
}

func (t *Table) register(pd *PD, mem []byte, iova uint64, a Access, persist func([]byte) error) (*MR, error) {
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
	if a&(MWBind|FlushPersistent) != 0 {
		m.ext = &ext{persist: persist}
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

// room tells whether another object fits.
func (t *Table) checkSpace(pd *PD) error {
	switch {
	case pd == nil || pd.table != t:
		return ErrPD
	case t.mrs >= t.maxMR:
		return fmt.Errorf("the limit is %d memory regions, windows and fast regions: %w", t.maxMR, ErrTooMany)
	}
	return nil
}

// admit checks what is to be registered.
func checkRegistration(mem []byte, iova uint64, a Access) error {
	n := uint64(len(mem))
	switch {
	case n == 0 || iova+n < n:
		// An end of exactly 2^64 is refused too, so that start+length is
		// a plain number for everyone who computes with it.
		return fmt.Errorf("%d bytes at %#x: %w", n, iova, ErrLength)
	case a&^allRights != 0:
		return fmt.Errorf("unknown right %#x: %w", uint16(a&^allRights), ErrAccess)
	case a&(RemoteWrite|RemoteAtomic) != 0 && a&LocalWrite == 0:
		// IBA 10.6.3.3: remote write and remote atomic need local write.
		return fmt.Errorf("%v without local-write: %w", a, ErrAccess)
	case a&RemoteAtomic != 0 && (iova^AddrOf(mem))&7 != 0:
		return fmt.Errorf("iova %#x, memory %#x: %w", iova, AddrOf(mem), ErrAlign)
	}
	return nil
}

// assignKeys draws the keys. A value that is live in the other table is
// passed over: an L_Key must not open anything as an R_Key, nor the reverse.
func (t *Table) assignKeys(m *MR, remote bool) (err error) {
	if m.lkey, err = t.local.draw(&t.remote); err != nil {
		return err
	}
	if remote {
		m.rkey, err = t.remote.draw(&t.local)
		if err == nil && m.rkey == m.lkey {
			m.rkey, err = t.remote.draw(&t.local)
		}
	}
	return err
}

// publish makes the keys known, in the given state.
func (t *Table) publish(m *MR, live uint32) {
	m.live.Store(live)
	if m.lkey != 0 {
		t.local.insert(m.lkey, m)
	}
	if m.rkey != 0 {
		t.remote.insert(m.rkey, m)
	}
}

// forget takes the keys of a dead region out.
func (t *Table) unpublish(m *MR) {
	if m.lkey != 0 {
		t.local.remove(m.lkey)
	}
	if m.rkey != 0 {
		t.remote.remove(m.rkey)
	}
}

// Deregister ends both keys: every check that begins after it returns fails.
// A check that began before may still hold a view of the memory, so the
// caller waits until the packets in hand are done before the memory is its
// owner's again. ErrBusy while windows are bound to the region (IBA
// 10.6.7.2.4), ErrClosed the second time, ErrPD for another table's MR,
// ErrAccess for a fast MR's registration.
func (t *Table) Deregister(m *MR) error {
	switch {
	case m == nil || m.pd.table != t:
		return ErrPD
	case m.ext == nil:
	case m.ext.keyOwner != nil:
		return fmt.Errorf("a fast MR's registration ends by LOCAL_INV or FreeFastMR: %w", ErrAccess)
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

// MRs is the number of regions, windows and fast MRs; control plane only.
func (t *Table) MRs() int { return t.mrs }

// PDs is the number of protection domains; control plane only.
func (t *Table) PDs() int { return t.pds }
