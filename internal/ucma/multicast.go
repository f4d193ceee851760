package ucma

import (
	"slices"
	"syscall"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/roce/cm"
)

// group is a multicast group that an ID has joined. The program attaches its QP to the group by
// itself, with the GID in the event.
type group struct {
	id       *id
	handle   uint32
	uid      uint64
	reported int // events
}

func (q *command) join(cm.Time, *cm.CM) ([]byte, syscall.Errno) {
	uid, a := q.in.U64(), q.in.addr()
	i, no := q.id()
	switch {
	case no != 0:
		return nil, no
	case !i.datagram() || !a.Addr().IsMulticast() || i.gids().Local.IsZero() || q.out < 4:
		return nil, syscall.EINVAL
	case len(i.groups) >= maxGroups:
		return nil, syscall.ENOMEM
	}
	h, no := i.dev.handle()
	if no != 0 {
		return nil, no
	}
	g := &group{id: i, handle: h, uid: uid}
	i.dev.groups[h] = g
	i.groups = append(i.groups, g)
	to := i.destination()
	to.gid = bth.GIDFromAddr(a.Addr())
	i.push(event{kind: eventMulticastJoin, group: g,
		ud: datagramParam{qpn: qpnGroup, qkey: udpQKey, to: to}})
	return result(h), 0
}

func (q *command) leave(cm.Time, *cm.CM) ([]byte, syscall.Errno) {
	g := q.f.dev.groups[q.in.U32()]
	if g == nil || g.id.file != q.f {
		return nil, syscall.ENOENT
	}
	delete(q.f.dev.groups, g.handle)
	i := g.id
	i.groups = slices.DeleteFunc(i.groups, func(o *group) bool { return o == g })
	q.f.drop(func(e *event) bool { return e.group == g })
	return result(uint32(g.reported)), 0
}
