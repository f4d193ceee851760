package mr

import (
	"fmt"
	"sync/atomic"
)

// maxSlotKeys is how many keys of one window or fast MR exist at a time: the
// one at work, and those prepared for work requests that have not run yet.
const maxOwnerKeys = 16

type ownerKind uint8

const (
	windowType1 ownerKind = iota
	windowType2
	fastMR
)

// slot is what a window and a fast MR have in common: an object that lives
// long, and a key of its own for each time that it is bound or registered.
//
// The control plane draws the key and puts a record into the index, prepared.
// The work request, on the thread of its QP, fills the record in and makes it
// live. So the hot path looks keys up as it does those of plain regions, the
// index keeps its single writer, and running a work request allocates nothing.
// A record that died is dead for good, and so is its key; the control plane
// sweeps it when it draws the next one.
type keyOwner struct {
	table *Table
	pd    *PD
	kind  ownerKind
	cur   atomic.Pointer[MR] // the record at work; nil: none; &gone: the slot was freed
	keys  []*MR              // in the index; control plane only
}

// gone stands in slot.cur for the end of the slot.
var freed MR

func (t *Table) initOwner(s *keyOwner, pd *PD, kind ownerKind) error {
	if err := t.checkSpace(pd); err != nil {
		return err
	}
	if err := pd.Retain(); err != nil {
		return err
	}
	s.table, s.pd, s.kind = t, pd, kind
	t.mrs++
	return nil
}

// prepare draws keys for m and makes it known.
func (t *Table) prepare(s *keyOwner, m *MR, local bool) error {
	if s.cur.Load() == &freed {
		return fmt.Errorf("memory window or fast MR: %w", ErrClosed)
	}
	s.sweep()
	if len(s.keys) >= maxOwnerKeys {
		return fmt.Errorf("%d keys of one object that no work request has used: %w", len(s.keys), ErrTooMany)
	}
	var err error
	if local {
		err = t.assignKeys(m, true)
	} else {
		m.rkey, err = t.remote.draw(&t.local)
	}
	if err != nil {
		return err
	}
	t.publish(m, livePrepared)
	s.keys = append(s.keys, m)
	return nil
}

// sweep takes dead records out of the index.
func (s *keyOwner) sweep() {
	kept := s.keys[:0]
	for _, m := range s.keys {
		if m.live.Load() != 0 {
			kept = append(kept, m)
		} else {
			s.table.unpublish(m)
		}
	}
	clear(s.keys[len(kept):])
	s.keys = kept
}

// free ends the slot and all its keys. The caller has marked it gone.
func (s *keyOwner) free() {
	for _, m := range s.keys {
		m.end()
		s.table.unpublish(m)
	}
	s.keys = nil
	s.table.mrs--
	s.pd.Release()
}

// end kills a slot's record, whatever it was, and reports whether it was at
// work. Whoever finds it so gives the window's region back.
func (m *MR) end() bool {
	if m.live.Swap(0)&(liveLocal|liveRemote) == 0 {
		return false
	}
	if p := m.ext.parent; p != nil {
		p.ext.windows.release()
	}
	return true
}
