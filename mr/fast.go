package mr

import "fmt"

// FastMR is a region whose memory comes later: Prepare names the memory and
// draws keys, a REG_MR work request makes them live in the order of its send
// queue, LOCAL_INV or the peer's SEND with invalidate ends them, and the next
// Prepare begins anew (IBA 10.6.6, fast register). One registration is live
// at a time.
type FastMR struct {
	keyOwner
	max int
}

// AllocFastMR makes a fast MR for up to maxLen bytes. ErrPD, ErrClosed (the
// PD), ErrLength, ErrTooMany.
func (t *Table) AllocFastMR(pd *PD, maxLen int) (*FastMR, error) {
	if maxLen <= 0 {
		return nil, fmt.Errorf("fast MR of %d bytes: %w", maxLen, ErrLength)
	}
	f := &FastMR{max: maxLen}
	if err := t.initOwner(&f.keyOwner, pd, fastMR); err != nil {
		return nil, err
	}
	return f, nil
}

// Prepare names the memory of a coming registration, as Register does, and
// gives the region that it will be: its keys are settled, and can be used in
// work requests behind the REG_MR. It always has an R_Key, which is the name
// that REG_MR and LOCAL_INV know it by. Errors are Register's; ErrLength also
// for more than the fast MR's bytes, ErrAccess for FlushPersistent, ErrTooMany
// with maxSlotKeys registrations prepared and not used.
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
		return nil, fmt.Errorf("%d bytes, the fast MR takes %d: %w", len(mem), f.max, ErrLength)
	case a&FlushPersistent != 0:
		return nil, fmt.Errorf("%v on a fast MR: %w", a, ErrAccess)
	}
	m := &MR{pd: f.pd, addr: iova, mem: mem[:len(mem):len(mem)], access: a, ext: &ext{keyOwner: &f.keyOwner}}
	if err := t.prepare(&f.keyOwner, m, true); err != nil {
		return nil, err
	}
	return m, nil
}

// FreeFastMR ends the fast MR and its keys; the caller waits for the packets in
// hand, as after Deregister. ErrBusy while windows are bound to it, ErrClosed
// the second time, ErrPD for another table's.
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

// PD is the fast MR's protection domain.
func (f *FastMR) PD() *PD { return f.pd }

// Max is the number of bytes that it takes at most.
func (f *FastMR) Max() int { return f.max }

// Registered is the registration that is live now, or nil. Any thread.
func (f *FastMR) Registered() *MR {
	if m := f.cur.Load(); m != nil && m.live.Load()&liveLocal != 0 {
		return m
	}
	return nil
}

// RegisterFast runs a REG_MR for a QP of this PD: the prepared registration
// with this R_Key becomes live. Any thread; allocates nothing. ErrKey, ErrPD;
// ErrBusy while the fast MR's last registration is live.
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
