package mr

import "fmt"

// FastMR is a region whose memory is assigned later. Prepare sets the memory and draws keys; a
// REG_MR work request makes them live, in the order of its send queue; LOCAL_INV or the peer's SEND
// with invalidate ends them; and the next Prepare starts again (IBA 10.6.6, fast register). Only
// one registration is live at a time.
type FastMR struct {
	keyOwner
	max int
}

// AllocFastMR creates a fast MR for up to maxLen bytes. Errors: ErrPD, ErrClosed (the PD),
// ErrLength, ErrTooMany.
func (t *Table) AllocFastMR(pd *PD, maxLen int) (*FastMR, error) {
	if maxLen <= 0 {
		return nil, fmt.Errorf("fast MR of %d bytes, want at least 1: %w", maxLen, ErrLength)
	}
	f := &FastMR{max: maxLen}
	if err := t.initOwner(&f.keyOwner, pd, fastMR); err != nil {
		return nil, err
	}
	return f, nil
}

// Prepare sets the memory of a future registration, like Register, and returns its region. The keys
// can already be used in work requests posted after the REG_MR. The region always has an R_Key,
// which REG_MR and LOCAL_INV use to identify it.
//
// The errors are those of Register, and ErrLength for more bytes than the fast MR holds, ErrAccess
// for FlushPersistent, and ErrTooMany if maxOwnerKeys registrations are prepared and unused.
func (t *Table) Prepare(f *FastMR, mem []byte, iova uint64, a Access) (*MR, error) {
	if f == nil || f.table != t {
		return nil, ErrPD
	}
	if a&ZeroBased != 0 {
		iova = 0
	}
	if err := checkRegistration(mem, iova, a); err != nil {
		return nil, err
	}
	switch {
	case len(mem) > f.max:
		return nil, fmt.Errorf("%d bytes, the fast MR holds %d: %w", len(mem), f.max, ErrLength)
	case a&FlushPersistent != 0:
		return nil, fmt.Errorf("%v is not available for a fast MR: %w", a, ErrAccess)
	}
	m := &MR{pd: f.pd, addr: iova, mem: mem[:len(mem):len(mem)], access: a,
		ext: &ext{keyOwner: &f.keyOwner}}
	if err := t.prepare(&f.keyOwner, m, true); err != nil {
		return nil, err
	}
	return m, nil
}

// FreeFastMR releases the fast MR and its keys. As after Deregister, the caller must wait for
// packets in progress. Errors: ErrBusy while windows are bound to it, ErrClosed the second time,
// ErrPD for a fast MR of another table.
func (t *Table) FreeFastMR(f *FastMR) error {
	if f == nil || f.table != t {
		return ErrPD
	}
	for {
		cur := f.cur.Load()
		if cur == &freed {
			return fmt.Errorf("fast MR: %w", ErrClosed)
		}
		if cur != nil && !cur.ext.windows.close() {
			if n := cur.ext.windows.users(); n > 0 {
				return fmt.Errorf("%d windows bound to the fast MR: %w", n, ErrBusy)
			}
		}
		if f.cur.CompareAndSwap(cur, &freed) {
			f.free()
			return nil
		}
	}
}

// PD returns the protection domain of the fast MR.
func (f *FastMR) PD() *PD { return f.pd }

// Max returns the capacity in bytes.
func (f *FastMR) Max() int { return f.max }

// Registered returns the live registration, or nil. It may be called from any goroutine.
func (f *FastMR) Registered() *MR {
	if m := f.cur.Load(); m != nil && m.live.Load()&liveLocal != 0 {
		return m
	}
	return nil
}

// RegisterFast executes a REG_MR for a QP of this PD: the prepared registration with this R_Key
// becomes live. It may be called from any goroutine and does not allocate. Errors: ErrKey, ErrPD,
// and ErrBusy while another registration of the fast MR is live.
func (t *Table) RegisterFast(pd *PD, key Key) error {
	m := t.remote.find(key)
	if m == nil || m.rkey != key || m.lkey == 0 || m.live.Load() != livePrepared {
		return ErrKey
	}
	if m.pd != pd {
		return ErrPD
	}
	cur := &m.ext.keyOwner.cur
	if !cur.CompareAndSwap(nil, m) {
		return ErrBusy
	}
	if !m.live.CompareAndSwap(livePrepared, liveLocal|liveRemote) {
		cur.CompareAndSwap(m, nil)
		return ErrKey
	}
	return nil
}
