package mr

import "fmt"

// PD is a protection domain: an MR is only accessible through queue pairs of its own PD (IBA
// 10.2.3). It counts its users.
type PD struct {
	table *Table
	refs  refs
}

// Retain adds a user (a QP, an SRQ, an AH), which makes DeallocPD fail. It returns ErrClosed if the
// PD was deallocated. It may be called from any goroutine.
func (pd *PD) Retain() error {
	if pd.refs.retain() {
		return nil
	}
	return fmt.Errorf("protection domain: %w", ErrClosed)
}

// Release undoes one successful Retain. It may be called from any goroutine.
func (pd *PD) Release() {
	if !pd.refs.release() {
		panic("mr: PD.Release without Retain")
	}
}

// Refs returns the number of users: MRs, windows, fast MRs and Retain calls.
func (pd *PD) Refs() int { return pd.refs.users() }

// AllocPD creates a protection domain. Error: ErrTooMany.
func (t *Table) AllocPD() (*PD, error) {
	if t.pds >= t.maxPD {
		return nil, fmt.Errorf("%d protection domains: %w", t.pds, ErrTooMany)
	}
	t.pds++
	return &PD{table: t}, nil
}

// DeallocPD releases a protection domain. Errors: ErrBusy while it has users, ErrClosed the second
// time, ErrPD for a PD of another table.
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
