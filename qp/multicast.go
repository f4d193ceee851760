package qp

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gorxe/gorxe/bth"
)

// Limits of multicast. A packet costs a copy for each QP that is attached to its group.
const (
	maxGroups   = 1024
	maxAttached = 64 // QPs of one group
)

// Errors of AttachMulticast and DetachMulticast.
var (
	ErrNotMulticast = errors.New("qp: no multicast address: IPv4 groups are 224.0.0.0/4, IPv6 groups ff00::/8")
	ErrGroupsFull   = errors.New("qp: too many multicast groups, or QPs in this one: detach some")
	ErrNotAttached  = errors.New("qp: the QP is not attached to this group")
)

// AttachMulticast lets a UD QP receive what is sent to a group (IBA 10.5.2): packets to QPNMulticast with the group's
// address and the QP's Q_Key. Attaching twice is one. A QP that is destroyed is detached from all.
func (e *Engine) AttachMulticast(q *QP, group bth.GID) error {
	switch {
	case q.typ != UD:
		return fmt.Errorf("%w: multicast is for UD QPs", ErrInvalidAttr)
	case q.dead:
		return fmt.Errorf("%w: the QP was destroyed", ErrQPState)
	case !group.IsMulticast():
		return fmt.Errorf("%w: %v", ErrNotMulticast, group)
	}
	members := e.groups[group]
	switch {
	case slices.Contains(members, q):
		return nil
	case len(members) == maxAttached || (members == nil && len(e.groups) == maxGroups):
		return ErrGroupsFull
	}
	if e.groups == nil {
		e.groups = map[bth.GID][]*QP{}
	}
	e.groups[group] = append(members, q)
	q.groups++
	return nil
}

// DetachMulticast ends it.
func (e *Engine) DetachMulticast(q *QP, group bth.GID) error {
	if !e.detach(q, group) {
		return fmt.Errorf("%w: %v", ErrNotAttached, group)
	}
	return nil
}

func (e *Engine) detach(q *QP, group bth.GID) bool {
	members := e.groups[group]
	i := slices.Index(members, q)
	if i < 0 {
		return false
	}
	if members = slices.Delete(members, i, i+1); len(members) == 0 {
		delete(e.groups, group)
	} else {
		e.groups[group] = members
	}
	q.groups--
	return true
}

func (e *Engine) detachAll(q *QP) {
	for g := range e.groups {
		if q.groups == 0 {
			return
		}
		e.detach(q, g)
	}
}

// HasGroup tells whether some QP is attached to a group.
func (e *Engine) HasGroup(group *bth.GID) bool {
	return len(e.groups) > 0 && group.IsMulticast() && e.groups[*group] != nil
}

// handleMulticast gives each attached QP its copy; one that has no receive, or another Q_Key, loses its own only.
func (e *Engine) handleMulticast(p *bth.Packet) {
	members := e.groups[p.Dst]
	if len(members) == 0 || p.Info.Transport != bth.UD {
		e.c.DropMulticast++
		return
	}
	for _, q := range members {
		if !q.pkeyOK(p.BTH.PKey()) {
			e.c.DropPKey++
			continue
		}
		q.handleUD(p)
	}
}
