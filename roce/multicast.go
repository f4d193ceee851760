package roce

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/qp"
)

// QPNMulticast is the RemoteQPN of a message to a multicast group.
const QPNMulticast = bth.QPNMulticast

// AttachMulticast lets a UD QP receive what is sent to a group, and makes the host a member of it on the interface, by
// the kernel (IGMP, MLD). On RoCEv2 a group's GID is its plain IP multicast address, so nothing has to be asked of anybody;
// programs on rdma_cm use QKeyUDP. Every QP that is attached gets its own copy of a message, if it has a receive for
// it; the device's own messages do not come back to it. Attaching twice is harmless.
//
// To send to a group, create an AH for its address and name QPNMulticast as RemoteQPN; a sender needs no membership.
func (q *QP) AttachMulticast(group netip.Addr) error {
	d := q.device()
	gid := bth.GIDFromAddr(group.Unmap().WithZone(""))
	d.ctl.Lock()
	defer d.ctl.Unlock()
	if q.closed.Load() {
		return ErrClosed
	}
	if q.groups[gid] {
		return nil
	}
	var err error
	if gone := d.do(func(qp.Time) { err = d.eng.AttachMulticast(&q.qp, gid) }); gone != nil {
		return gone
	}
	if err != nil {
		return err
	}
	if g, ok := d.net.(driver.Groups); ok && d.members[gid] == 0 {
		if err := g.JoinGroup(gid.Addr()); err != nil {
			_ = d.do(func(qp.Time) { _ = d.eng.DetachMulticast(&q.qp, gid) })
			return fmt.Errorf("roce: %w", err)
		}
	}
	if q.groups == nil {
		q.groups = map[GID]bool{}
	}
	q.groups[gid] = true
	d.members[gid]++
	return nil
}

// DetachMulticast ends it. Closing the QP does so, too.
func (q *QP) DetachMulticast(group netip.Addr) error {
	d := q.device()
	gid := bth.GIDFromAddr(group.Unmap().WithZone(""))
	d.ctl.Lock()
	defer d.ctl.Unlock()
	switch {
	case q.closed.Load():
		return ErrClosed
	case !q.groups[gid]:
		return fmt.Errorf("%w: %v", qp.ErrNotAttached, group)
	}
	if gone := d.do(func(qp.Time) { _ = d.eng.DetachMulticast(&q.qp, gid) }); gone != nil {
		return gone
	}
	return q.leaveGroup(gid)
}

// leaveGroup ends the host's membership with that of the last QP. The caller holds Device.ctl.
func (q *QP) leaveGroup(gid GID) error {
	d := q.device()
	delete(q.groups, gid)
	if d.members[gid]--; d.members[gid] > 0 {
		return nil
	}
	delete(d.members, gid)
	if g, ok := d.net.(driver.Groups); ok {
		return g.LeaveGroup(gid.Addr())
	}
	return nil
}

// CreateAHFromWC makes an address handle for the sender of a datagram (ibv_create_ah_from_wc): wc is the receive's
// completion, grh the first GRHLen bytes of what was received. Answer with it, to WC.SrcQP. The answer leaves from the address
// that the datagram was sent to; if that is a multicast group's, from the device's first of the same IP version. It may wait
// for a neighbour look-up until ctx is done.
func (d *Device) CreateAHFromWC(ctx context.Context, wc *WC, grh []byte) (*AH, error) {
	if wc.Status != Success || wc.Flags&WCGRH == 0 || len(grh) < GRHLen {
		return nil, fmt.Errorf("%w: an address handle needs the completion of a datagram received, and the first %d bytes of its memory", ErrInvalid, GRHLen)
	}
	src, dst, class, ok := parseGRH(grh)
	if !ok || src.IsMulticast() || src.IsZero() {
		return nil, fmt.Errorf("%w: no IP header in the first %d bytes of the memory received", ErrInvalid, GRHLen)
	}
	a := AHAttr{Remote: src, PathOptions: PathOptions{TrafficClass: class}}
	for _, e := range d.GIDs() {
		if e.GID == dst {
			a.GIDIndex = &e.Index
		}
	}
	return d.CreateAH(ctx, a)
}

// parseGRH reads the header that the NIC put in front of a datagram.
func parseGRH(b []byte) (src, dst GID, class uint8, ok bool) {
	const v4 = GRHLen - 20
	switch {
	case b[0]>>4 == 6:
		return GID(b[8:24]), GID(b[24:40]), b[0]<<4 | b[1]>>4, true
	case b[v4] == 4<<4|5:
		src.SetIPv4(b[v4+12 : v4+16])
		dst.SetIPv4(b[v4+16 : v4+20])
		return src, dst, b[v4+1], true
	}
	return src, dst, 0, false
}
