package mr

import (
	"fmt"
	"sync/atomic"
)

// maxOwnerKeys is the number of keys that a window or fast MR may have at a time: the one in use,
// and those prepared for work requests that have not run.
const maxOwnerKeys = 16

type ownerKind uint8

const (
	windowType1 ownerKind = iota
	windowType2
	fastMR
)

// keyOwner is the common part of a window and a fast MR: a long-lived object with a new key for
// each time that it is bound or registered.
//
// The control plane draws the key and puts a prepared record into the index. The work request,
// which the owner of its engine runs, completes the record and makes it live. Lookups are therefore
// the same as for plain regions, the index has a single writer, and executing a work request does
// not allocate. An invalidated record and its key are never used again. The control plane removes
// them when it draws the next key.
type keyOwner struct {
	table *Table
	pd    *PD
	kind  ownerKind
	cur   atomic.Pointer[MR] // record in use; nil: none; &freed: the owner was freed
	// tagged is the latest key of a tagged window; 0: not tagged
	tagged atomic.Uint32
	keys   []*MR // in the index; control plane only
}

// freed marks a keyOwner in keyOwner.cur as freed.
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

// prepare draws keys for m and adds it to the index.
func (t *Table) prepare(s *keyOwner, m *MR, local bool) error {
	if s.cur.Load() == &freed {
		return fmt.Errorf("memory window or fast MR: %w", ErrClosed)
	}
	s.sweep()
	if len(s.keys) >= maxOwnerKeys {
		return fmt.Errorf("%d keys of one object that no work request has used: %w", len(s.keys),
			ErrTooMany)
	}
	var err error
	if local {
		err = t.assignKeys(m, true)
	} else {
		m.rkey, err = t.draw(&t.remote, &t.local)
	}
	if err != nil {
		return err
	}
	t.publish(m, livePrepared)
	s.keys = append(s.keys, m)
	return nil
}

// sweep removes invalidated records from the index.
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

// free removes all keys. The caller has set cur to &freed.
func (s *keyOwner) free() {
	for _, m := range s.keys {
		m.end()
		s.table.unpublish(m)
	}
	s.keys = nil
	s.table.mrs--
	s.pd.Release()
}

// end invalidates a record and reports whether it was in use. If so, it releases the region of a
// window.
func (m *MR) end() bool {
	if m.live.Swap(0)&(liveLocal|liveRemote) == 0 {
		return false
	}
	if p := m.ext.parent; p != nil {
		p.ext.windows.release()
	}
	return true
}
