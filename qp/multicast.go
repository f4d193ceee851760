package qp

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gorxe/gorxe/bth"
)

// Limits of multicast. Each attached QP costs a copy of every packet to the group.
const (
	maxGroups   = 1024
	maxAttached = 64 // QPs per group
)

// Errors of AttachMulticast and DetachMulticast.
var (
	ErrNotMulticast = errors.New("qp: not a multicast address; " +
		"use an IPv4 group in 224.0.0.0/4 or an IPv6 group in ff00::/8")
	ErrGroupsFull  = errors.New("qp: too many multicast groups or QPs in this group; detach some")
	ErrNotAttached = errors.New("qp: the QP is not attached to this group; attach it first")
)

// AttachMulticast makes a UD QP receive packets to a group (IBA 10.5.2), that is, packets to
// QPNMulticast with the group's address and the QP's Q_Key. Attaching a QP twice has no effect.
// DestroyQP detaches a QP from all groups.
func (e *Engine) AttachMulticast(q *QP, group bth.GID) error {
	switch {
	case q.typ != UD:
		return fmt.Errorf("%w: only UD QPs receive multicast", ErrInvalidAttr)
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

// DetachMulticast undoes AttachMulticast.
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

// HasGroup reports whether a QP is attached to the group.
func (e *Engine) HasGroup(group *bth.GID) bool {
	return len(e.groups) > 0 && group.IsMulticast() && e.groups[*group] != nil
}

// handleMulticast delivers a copy to each attached QP. A QP without a receive or with another Q_Key
// only loses its own copy.
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
		q.meter().rcvd += uint64(len(p.Payload))
		q.handleUD(p)
	}
}
