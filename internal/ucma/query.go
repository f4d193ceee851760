package ucma

import (
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"
	"syscall"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/internal/nldev"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/roce/cm"
)

// Bits of the mask of INIT_QP_ATTR (ibv_qp_attr_mask).
const (
	maskState           = 1 << 0
	maskAccess          = 1 << 3
	maskPKeyIndex       = 1 << 4
	maskPort            = 1 << 5
	maskQKey            = 1 << 6
	maskAV              = 1 << 7
	maskPathMTU         = 1 << 8
	maskTimeout         = 1 << 9
	maskRetryCnt        = 1 << 10
	maskRNRRetry        = 1 << 11
	maskRQPSN           = 1 << 12
	maskMaxRdAtomic     = 1 << 13
	maskMinRNRTimer     = 1 << 15
	maskSQPSN           = 1 << 16
	maskMaxDestRdAtomic = 1 << 17
	maskDestQPN         = 1 << 20
)

const minRNRTimer = 12 // 0.64 ms, as in package roce

// gids returns the addresses of the ID. The remote one is zero until RESOLVE_IP.
func (i *id) gids() (p bth.GIDPair) {
	if a := i.src.Addr(); a.IsValid() && !i.dev.anyOf(a) {
		p.Local = bth.GIDFromAddr(a)
	}
	if a := i.dst.Addr(); a.IsValid() {
		p.Remote = bth.GIDFromAddr(a)
	}
	return p
}

// peer returns the address of the peer. An ID without one, such as a listener, has an unspecified
// address of its own family, whose length programs derive from it.
func (i *id) peer() netip.AddrPort {
	switch a := i.src.Addr(); {
	case i.dst.IsValid() || !a.IsValid():
		return i.dst
	case a.Is4():
		return netip.AddrPortFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.AddrPortFrom(netip.IPv6Unspecified(), 0)
}

// destination returns the address of the peer.
func (i *id) destination() destination {
	index, _ := i.dev.gid(i.src.Addr())
	return destination{gid: i.gids().Remote, index: uint8(max(index, 0)), trafficClass: i.tos,
		hopLimit: roce.DefaultHopLimit}
}

func (q *command) queryRoute(cm.Time, *cm.CM) ([]byte, syscall.Errno) {
	i, no := q.id()
	switch {
	case no != 0:
		return nil, no
	case q.out < minRouteSize:
		return nil, syscall.ENOSPC
	}
	var e encoder
	gids := i.gids()
	attached := !gids.Local.IsZero() // the ID is bound to the device
	if attached {
		e.Bytes(i.dev.guid[:])
		i.putPath(&e, gids)
		e.Zeros(pathSize)
	} else {
		e.Zeros(8 + 2*pathSize)
	}
	e.addr(i.src)
	e.addr(i.peer())
	paths := uint32(0)
	if i.path != nil && i.state != resolved || i.request != nil {
		paths = 1
	}
	e.U32(paths)
	if attached {
		e.U8(port)
	}
	return e.pad(routeSize), 0
}

// putPath appends a struct ib_user_path_rec.
func (i *id) putPath(e *encoder, gids bth.GIDPair) {
	const exactly, reversible, rate = 2, 1, 3
	b := make([]byte, pathSize)
	copy(b, gids.Remote[:])
	copy(b[16:], gids.Local[:])
	binary.LittleEndian.PutUint32(b[44:], reversible)
	binary.LittleEndian.PutUint32(b[48:], uint32(i.mtu.Enum()))
	binary.BigEndian.PutUint16(b[52:], uint16(bth.DefaultPKey))
	b[54], b[55] = roce.DefaultHopLimit, i.tos
	b[56] = 1 // paths
	b[58], b[59], b[60], b[61], b[62] = exactly, exactly, rate, exactly, defaultAckTimeout-1
	e.Bytes(b)
}

// initQPAttr returns the attributes with which the program moves its QP to a state.
func (q *command) initQPAttr(cm.Time, *cm.CM) ([]byte, syscall.Errno) {
	i, no := q.id()
	s := roce.State(q.in.U32())
	switch {
	case no != 0:
		return nil, no
	case q.out < qpAttrSize:
		return nil, syscall.ENOSPC
	case i.gids().Local.IsZero():
		return nil, syscall.EINVAL
	}
	a := qpAttr{state: uint8(s), mask: maskState}
	switch {
	case i.datagram():
		a.mask |= maskPKeyIndex | maskPort | maskQKey
		a.qkey = udpQKey
	case s == roce.StateInit:
		a.mask |= maskPKeyIndex | maskPort | maskAccess
		if i.request != nil || i.params != nil {
			a.access = uint32(roce.RemoteWrite | roce.RemoteRead | roce.RemoteAtomic)
		}
	case s == roce.StateRTR, s == roce.StateRTS:
		c, ok := i.negotiated()
		if !ok {
			return nil, syscall.EINVAL
		}
		if i.ackTimeout != 0 { // the program's choice precedes the negotiated one
			c.Timeout = i.ackTimeout
		}
		a.set(s, &c, i)
	default:
		return nil, syscall.EINVAL
	}
	return a.encode(), 0
}

// negotiated returns the attributes that both sides have chosen.
func (i *id) negotiated() (cm.QPAttributes, bool) {
	switch {
	case i.request != nil:
		return i.request.PassiveQP(&cm.AcceptParams{PSN: i.psn,
			ResponderResources: i.request.InitiatorDepth,
			InitiatorDepth:     i.request.ResponderResources}), true
	case i.response != nil:
		return i.params.ActiveQP(i.response), true
	}
	return cm.QPAttributes{}, false
}

// qpAttr is a struct ib_uverbs_qp_attr.
type qpAttr struct {
	mask, qkey, access uint32
	state              uint8
	to                 destination
	cm                 cm.QPAttributes
	minRNRTimer        uint8
}

// set sets the attributes for RTR or RTS.
func (a *qpAttr) set(s roce.State, c *cm.QPAttributes, i *id) {
	a.cm, a.to = *c, i.destination()
	rc := i.qpType == qpRC
	if s == roce.StateRTR {
		a.mask |= maskAV | maskPathMTU | maskDestQPN | maskRQPSN
		if rc {
			a.mask |= maskMaxDestRdAtomic | maskMinRNRTimer
			a.minRNRTimer = minRNRTimer
		}
		return
	}
	a.mask |= maskSQPSN
	if rc {
		a.mask |= maskTimeout | maskRetryCnt | maskRNRRetry | maskMaxRdAtomic
	}
}

func (a *qpAttr) encode() []byte {
	var e encoder
	c := &a.cm
	e.U32(a.mask, uint32(a.state), uint32(a.state), uint32(c.MTU.Enum()), 0, a.qkey,
		uint32(c.RQPSN), uint32(c.SQPSN), uint32(c.RemoteQPN), a.access)
	a.to.encode(&e)
	e.Zeros(32 + 20 + 4) // alternate path, capabilities, P_Key indexes
	e.U8(0, 0, c.MaxRdAtomic, c.MaxDestRdAtomic, a.minRNRTimer, port, c.Timeout, c.RetryCount,
		c.RNRRetry)
	return e.pad(qpAttrSize)
}

// IDs describes the IDs of all programs, the oldest handles first.
func (d *Device) IDs() (list []nldev.ID) {
	_ = d.do(func(cm.Time, *cm.CM) syscall.Errno {
		for _, h := range slices.Sorted(maps.Keys(d.ids)) {
			i := d.ids[h]
			list = append(list, nldev.ID{ID: h, QPN: i.qpn, Type: i.qpType, State: i.shown(),
				Space: uint32(i.space), Source: i.src, Dest: i.dst, PID: uint32(i.file.pid)})
		}
		return 0
	})
	return list
}

// shown returns the state as the kernel names it.
func (i *id) shown() nldev.IDState {
	switch i.state {
	case resolving:
		return nldev.IDAddrQuery
	case resolved:
		return nldev.IDAddrResolved
	case routed:
		return nldev.IDRouteResolved
	case listening:
		return nldev.IDListen
	case requested, connected:
		return nldev.IDConnect
	}
	if i.bound {
		return nldev.IDAddrBound
	}
	return nldev.IDIdle
}
