package mr

import "fmt"

// PD is a protection domain: an MR serves only queue pairs of its own PD
// (IBA 10.2.3). It counts what lives in it.
type PD struct {
	table *Table
	refs  refs
}

// Retain notes one more user (a QP, an SRQ, an AH); it keeps DeallocPD from
// succeeding. It fails with ErrClosed once the PD is gone. Safe from any
// goroutine.
func (pd *PD) Retain() error {
	if pd.refs.retain() {
		return nil
	}
	return fmt.Errorf("protection domain: %w", ErrClosed)
}

// Release takes back one Retain that succeeded. Safe from any goroutine.
func (pd *PD) Release() {
	if !pd.refs.release() {
		panic("mr: PD.Release without Retain")
	}
}

// Refs is the number of users at this moment: MRs, windows, fast MRs and Retain
// calls.
func (pd *PD) Refs() int { return pd.refs.users() }

// AllocPD makes a protection domain. ErrTooMany at the limit.
func (t *Table) AllocPD() (*PD, error) {
	if t.pds >= t.maxPD {
		return nil, fmt.Errorf("%d protection domains: %w", t.pds, ErrTooMany)
	}
	t.pds++
	return &PD{table: t}, nil
}

// DeallocPD releases a protection domain that nothing uses any more: ErrBusy
// while something does, ErrClosed the second time, ErrPD for another table's.
func (t *Table) DeallocPD(pd *PD) error {
	if pd == nil || pd.table != t {
		return ErrPD
	}
	if pd.refs.close() {
		t.pds--
		return nil
	}
	if n := pd.refs.users(); n > 0 {
		return fmt.Errorf("%d users: %w", n, ErrBusy)
	}
	return fmt.Errorf("protection domain: %w", ErrClosed)
}
