package mr

// Invalidate ends an R_Key for a QP of this PD that has no windows of type 2;
// see InvalidateScope.
func (t *Table) Invalidate(pd *PD, key Key) error { return t.InvalidateScope(pd, nil, key) }

// InvalidateScope ends an R_Key as SEND with invalidate (IBA 9.4.1.1) and the
// LOCAL_INV work request (IBA 10.6.5) ask, for the QP with this PD and scope:
//
//   - a plain region that grants RemoteInvalidate: the R_Key dies, the L_Key and
//     the region live on until Deregister;
//   - a fast MR: the registration is over;
//   - a window of type 2 that is bound to this QP: it is free to be bound again.
//
// ErrKey if the key is not live; ErrPD, ErrQP if it is another PD's or QP's;
// ErrAccess for a region without the right and a window of type 1 (o10-37.2.26);
// ErrBusy for a fast MR with windows bound to it. Any thread; allocates nothing.
func (t *Table) InvalidateScope(pd *PD, s *Scope, key Key) error {
	m := t.remote.find(key)
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
		return ErrKey // another thread was first
	}
	return nil
}

// invalidateSlot ends what a window or a fast MR is at work with.
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
			return ErrKey // another thread was first
		}
	}
	if !m.end() {
		return ErrKey
	}
	x.keyOwner.cur.CompareAndSwap(m, nil)
	return nil
}
