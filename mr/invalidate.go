package mr

// Invalidate invalidates an R_Key for a QP of this PD without windows of type 2; see
// InvalidateScope.
func (t *Table) Invalidate(pd *PD, key Key) error { return t.InvalidateScope(pd, nil, key) }

// InvalidateScope invalidates an R_Key for SEND with invalidate (IBA 9.4.1.1) and for LOCAL_INV
// (IBA 10.6.5) of the QP with this PD and scope:
//
//   - of a plain region that grants RemoteInvalidate: the R_Key becomes invalid, while the L_Key
//     and the region stay valid until Deregister;
//   - of a fast MR: the registration ends;
//   - of a window of type 2 bound to this QP: the window can be bound again.
//
// It may be called from any goroutine and does not allocate. Errors: ErrKey if the key is not live;
// ErrPD or ErrQP if it belongs to another PD or QP; ErrAccess for a region without that right and
// for a window of type 1 (o10-37.2.26); ErrBusy for a fast MR with bound windows.
func (t *Table) InvalidateScope(pd *PD, s *Scope, key Key) error {
	m := t.findRemote(key)
	if m == nil || m.rkey != key || m.live.Load()&liveRemote == 0 {
		return ErrKey
	}
	if m.ext != nil && m.ext.keyOwner != nil {
		return m.invalidateOwned(pd, s)
	}
	switch {
	case m.pd != pd:
		return ErrPD
	case m.access&RemoteInvalidate == 0:
		return ErrAccess
	case m.live.And(^uint32(liveRemote))&liveRemote == 0:
		return ErrKey // another goroutine was first
	}
	return nil
}

// invalidateOwned ends a binding of a window or a registration of a fast MR.
func (m *MR) invalidateOwned(pd *PD, s *Scope) error {
	x := m.ext
	switch x.keyOwner.kind {
	case windowType1:
		return ErrAccess
	case windowType2:
		if x.pd != pd {
			return ErrPD
		}
		if x.scope != s {
			return ErrQP
		}
	case fastMR:
		if m.pd != pd {
			return ErrPD
		}
		if !x.windows.close() {
			if x.windows.users() > 0 {
				return ErrBusy
			}
			return ErrKey // another goroutine was first
		}
	}
	if !m.end() {
		return ErrKey
	}
	x.keyOwner.cur.CompareAndSwap(m, nil)
	return nil
}
