package roce

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/qp"
)

// QPNMulticast is the RemoteQPN of messages to a multicast group.
const QPNMulticast = bth.QPNMulticast

// AttachMulticast makes a UD QP receive the messages to a multicast group, and joins the group on
// the interface (IGMP, MLD). The GID of a RoCEv2 group is its IP multicast address. Programs on
// rdma_cm use QKeyUDP. Each attached QP gets its own copy of a message if it has posted a receive.
// Over UDP sockets the device also receives its own messages, as a hardware NIC does; otherwise it
// does not. Attaching twice is harmless.
//
// To send to a group, create an AH for its address and use QPNMulticast as RemoteQPN. A sender need
// not be attached.
//
// Errors: ErrNotMulticast, ErrGroupsFull, ErrInvalidAttr for a QP that is not UD, the operating
// system's error if the interface cannot join the group, ErrClosed.
func (q *QP) AttachMulticast(group netip.Addr) error {
	d := q.device()
	gid := bth.GIDFromAddr(group.Unmap().WithZone(""))
	d.ctl.Lock()
	defer d.ctl.Unlock()
	if q.closed.Load() {
		return ErrClosed
	}
	if d.joined[q][gid] {
		return nil
	}
	var err error
	if gone := d.do(func(qp.Time) { err = d.eng.AttachMulticast(&q.qp, gid) }); gone != nil {
		return gone
	}
	if err != nil {
		return err
	}
	if d.groups != nil && d.members[gid] == 0 {
		if err := d.groups.JoinGroup(gid.Addr()); err != nil {
			_ = d.do(func(qp.Time) { _ = d.eng.DetachMulticast(&q.qp, gid) })
			return fmt.Errorf("roce: %w", err)
		}
	}
	if d.joined[q] == nil {
		d.joined[q] = map[GID]bool{}
	}
	d.joined[q][gid] = true
	d.members[gid]++
	return nil
}

// DetachMulticast undoes AttachMulticast. Closing the QP does so, too.
//
// Errors: ErrNotAttached, ErrClosed.
func (q *QP) DetachMulticast(group netip.Addr) error {
	d := q.device()
	gid := bth.GIDFromAddr(group.Unmap().WithZone(""))
	d.ctl.Lock()
	defer d.ctl.Unlock()
	switch {
	case q.closed.Load():
		return ErrClosed
	case !d.joined[q][gid]:
		return fmt.Errorf("%w: %v", qp.ErrNotAttached, group)
	}
	if gone := d.do(func(qp.Time) { _ = d.eng.DetachMulticast(&q.qp, gid) }); gone != nil {
		return gone
	}
	return q.leaveGroup(gid)
}

// leaveGroup removes a group of the QP, and leaves it on the interface after the last QP. The
// caller holds Device.ctl.
func (q *QP) leaveGroup(gid GID) error {
	d := q.device()
	delete(d.joined[q], gid)
	if len(d.joined[q]) == 0 {
		delete(d.joined, q)
	}
	if d.members[gid]--; d.members[gid] > 0 {
		return nil
	}
	delete(d.members, gid)
	if d.groups != nil {
		return d.groups.LeaveGroup(gid.Addr())
	}
	return nil
}

// CreateAHFromWC creates an address handle for the sender of a received datagram
// (ibv_create_ah_from_wc). wc is the completion of the receive, and grh the first GRHLen bytes of
// the received memory. To reply, send to the QP WC.SrcQP with this AH. The reply comes from the
// address that the datagram was sent to, or, for a multicast group, from the first address with the
// same IP version. It has the DSCP of the datagram. CreateAHFromWC may wait for a neighbor lookup
// until ctx is done.
//
// Errors: ErrInvalid, and those of CreateAH.
func (d *Device) CreateAHFromWC(ctx context.Context, wc *WC, grh []byte) (*AH, error) {
	checkContext(ctx)
	if wc == nil || wc.Status != Success || wc.Flags&WCGRH == 0 || len(grh) < GRHLen {
		return nil, fmt.Errorf("%w: pass the completion of a received datagram "+
			"and the first %d bytes of its memory", ErrInvalid, GRHLen)
	}
	src, dst, class, ok := parseGRH(grh)
	if !ok || src.IsMulticast() || src.IsZero() {
		return nil, fmt.Errorf("%w: no IP header in the first %d bytes of the received memory",
			ErrInvalid, GRHLen)
	}
	a := AHAttr{Remote: src, PathOptions: PathOptions{
		Class:        -1,
		TrafficClass: class &^ ecnMask, // a congestion mark concerns only the received packet
	}}
	if c := d.classMap.Class(class>>dscpShift, 0); c > 0 {
		a.Class = c
	}
	for _, e := range d.GIDs() {
		if e.GID == dst {
			a.GIDIndex = &e.Index
		}
	}
	return d.CreateAH(ctx, a)
}

// parseGRH parses the IP header in front of a received datagram.
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
