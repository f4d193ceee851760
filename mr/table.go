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
	if a&ZeroBased != 0 {
		iova = 0
	}
	if err := t.admit(pd, mem, iova, a); err != nil {
		return nil, err
	}
	m := &MR{pd: pd, addr: iova, mem: mem[:len(mem):len(mem)], access: a}
	if err := t.assignKeys(m); err != nil {
		return nil, err
	}
	if err := pd.Retain(); err != nil {
		return nil, err
	}
	t.publish(m)
	return m, nil
}

func (t *Table) admit(pd *PD, mem []byte, iova uint64, a Access) error {
	n := uint64(len(mem))
	switch {
	case pd == nil || pd.table != t:
		return ErrPD
	case n == 0 || iova+n < n:
		// An end of exactly 2^64 is refused too, so that start+length is
		// a plain number for everyone who computes with it.
		return fmt.Errorf("%d bytes at %#x: %w", n, iova, ErrLength)
	case a&^allRights != 0:
		return fmt.Errorf("unknown right %#x: %w", uint8(a&^allRights), ErrAccess)
	case a&(RemoteWrite|RemoteAtomic) != 0 && a&LocalWrite == 0:
		// IBA 10.6.3.3: remote write and remote atomic need local write.
		return fmt.Errorf("%v without local-write: %w", a, ErrAccess)
	case a&RemoteAtomic != 0 && (iova^AddrOf(mem))&7 != 0:
		return fmt.Errorf("iova %#x, memory %#x: %w", iova, AddrOf(mem), ErrAlign)
	case t.mrs >= t.maxMR:
		return fmt.Errorf("%d memory regions: %w", t.mrs, ErrTooMany)
	}
	return nil
}

// assignKeys draws the keys. A value that is live in the other table is
// passed over: an L_Key must not open anything as an R_Key, nor the reverse.
func (t *Table) assignKeys(m *MR) (err error) {
	if m.lkey, err = t.local.draw(&t.remote); err != nil {
		return err
	}
	if m.access&remoteRights != 0 {
		m.rkey, err = t.remote.draw(&t.local)
		if err == nil && m.rkey == m.lkey {
			m.rkey, err = t.remote.draw(&t.local)
		}
	}
	return err
}

func (t *Table) publish(m *MR) {
	live := uint32(liveLocal)
	if m.rkey != 0 {
		live |= liveRemote
	}
	m.live.Store(live)
	t.local.insert(m.lkey, m)
	if m.rkey != 0 {
		t.remote.insert(m.rkey, m)
	}
	t.mrs++
}

// Deregister ends both keys: every check that begins after it returns fails.
// A check that began before may still hold a view of the memory, so the
// caller waits until the packets in hand are done before the memory is its
// owner's again. ErrClosed the second time, ErrPD for another table's MR.
func (t *Table) Deregister(m *MR) error {
	if m == nil || m.pd.table != t {
		return ErrPD
	}
	if m.live.Swap(0)&liveLocal == 0 {
		return fmt.Errorf("memory region: %w", ErrClosed)
	}
	t.local.remove(m.lkey)
	if m.rkey != 0 {
		t.remote.remove(m.rkey)
	}
	t.mrs--
	m.pd.Release()
	return nil
}

// Invalidate ends an R_Key as SEND with invalidate asks (IBA 10.6.5.2): the
// region must be of the QP's PD (else ErrPD) and allow it (else ErrAccess);
// ErrKey if the key is not live. The L_Key and the region live on until
// Deregister. Safe on the hot path, from any thread; allocates nothing.
func (t *Table) Invalidate(pd *PD, key Key) error {
	m := t.remote.find(key)
	switch {
	case m == nil || m.live.Load()&liveRemote == 0:
		return ErrKey
	case m.pd != pd:
		return ErrPD
	case m.access&RemoteInvalidate == 0:
		return ErrAccess
	case m.live.And(^uint32(liveRemote))&liveRemote == 0:
		return ErrKey // another thread was first
	}
	return nil
}

// MRs is the number of registered regions; control plane only.
func (t *Table) MRs() int { return t.mrs }

// PDs is the number of protection domains; control plane only.
func (t *Table) PDs() int { return t.pds }
