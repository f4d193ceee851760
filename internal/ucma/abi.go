package ucma

import (
	"encoding/binary"
	"net/netip"
)

// Commands (rdma/rdma_user_cm.h, version 4 of the ABI).
const (
	cmdCreateID = iota
	cmdDestroyID
	cmdBindIP
	cmdResolveIP
	cmdResolveRoute
	cmdQueryRoute
	cmdConnect
	cmdListen
	cmdAccept
	cmdReject
	cmdDisconnect
	cmdInitQPAttr
	cmdGetEvent
	cmdGetOption
	cmdSetOption
	cmdNotify
	cmdJoinIPMcast
	cmdLeaveMcast
	cmdMigrateID
	cmdQuery
	cmdBind
	cmdResolveAddr
	cmdJoinMcast
)

var commandNames = [...]string{"CREATE_ID", "DESTROY_ID", "BIND_IP", "RESOLVE_IP", "RESOLVE_ROUTE",
	"QUERY_ROUTE", "CONNECT", "LISTEN", "ACCEPT", "REJECT", "DISCONNECT", "INIT_QP_ATTR",
	"GET_EVENT", "GET_OPTION", "SET_OPTION", "NOTIFY", "JOIN_IP_MCAST", "LEAVE_MCAST", "MIGRATE_ID",
	"QUERY", "BIND", "RESOLVE_ADDR", "JOIN_MCAST"}

// Events (rdma_cm_event_type).
const (
	eventAddrResolved    = 0
	eventAddrError       = 1
	eventRouteResolved   = 2
	eventConnectRequest  = 4
	eventConnectResponse = 5
	eventUnreachable     = 7
	eventRejected        = 8
	eventEstablished     = 9
	eventDisconnected    = 10
	eventMulticastJoin   = 12
	eventTimeWaitExit    = 15
)

// Port spaces.
const (
	psIB  = 0x13f // only created, to find out whether AF_IB exists
	psTCP = 0x106
	psUDP = 0x111
)

// Types of QPs (ib_qp_type).
const (
	qpRC = 2
	qpUC = 3
	qpUD = 4
)

// Options of SET_OPTION.
const (
	levelID = 0

	optionTOS        = 0
	optionReuse      = 1
	optionAFOnly     = 2
	optionAckTimeout = 3
)

// Sizes in bytes.
const (
	headerSize     = 8
	maxCommand     = 512 // longer than all commands
	addrSize       = 28  // struct sockaddr_in6
	privateSize    = 256 // private data in commands and events
	eventSize      = 336
	eventParamSize = 304
	minEventSize   = eventSize - 12 // without the fields that were added later
	routeSize      = 208
	minRouteSize   = routeSize - 8
	pathSize       = 64
	qpAttrSize     = 144
)

const (
	port       = 1          // number of the only port
	udpQKey    = 0x01234567 // RDMA_UDP_QKEY
	qpnGroup   = 0xffffff   // QPN of multicast
	commEst    = 4          // IB_EVENT_COMM_EST
	rejVendor  = 35         // RDMA_USER_CM_REJ_VENDOR_OPTION_NOT_SUPPORTED
	familyIPv4 = 2
	familyIPv6 = 10
)

// decoder reads the fields of a structure, in little endian. Beyond the end it returns zeros.
type decoder struct{ b []byte }

func (d *decoder) bytes(n int) []byte {
	if len(d.b) < n {
		d.b = nil
		return make([]byte, n)
	}
	v := d.b[:n]
	d.b = d.b[n:]
	return v
}

func (d *decoder) u8() uint8   { return d.bytes(1)[0] }
func (d *decoder) u16() uint16 { return binary.LittleEndian.Uint16(d.bytes(2)) }
func (d *decoder) u32() uint32 { return binary.LittleEndian.Uint32(d.bytes(4)) }
func (d *decoder) u64() uint64 { return binary.LittleEndian.Uint64(d.bytes(8)) }
func (d *decoder) skip(n int)  { d.bytes(n) }

// addr reads a struct sockaddr_in or sockaddr_in6 in a field of addrSize bytes. The result is
// invalid for other families.
func (d *decoder) addr() netip.AddrPort {
	b := d.bytes(addrSize)
	p := binary.BigEndian.Uint16(b[2:])
	switch binary.LittleEndian.Uint16(b) {
	case familyIPv4:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), p)
	case familyIPv6:
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[8:24])).Unmap(), p)
	}
	return netip.AddrPort{}
}

// encoder appends the fields of a structure, in little endian.
type encoder struct{ b []byte }

func (e *encoder) u8(vs ...uint8) { e.b = append(e.b, vs...) }
func (e *encoder) u16(v uint16)   { e.b = binary.LittleEndian.AppendUint16(e.b, v) }
func (e *encoder) u64(v uint64)   { e.b = binary.LittleEndian.AppendUint64(e.b, v) }
func (e *encoder) bytes(b []byte) { e.b = append(e.b, b...) }
func (e *encoder) zeros(n int)    { e.b = append(e.b, make([]byte, n)...) }

func (e *encoder) u32(vs ...uint32) {
	for _, v := range vs {
		e.b = binary.LittleEndian.AppendUint32(e.b, v)
	}
}

// pad appends zeros up to n bytes, or cuts the structure there.
func (e *encoder) pad(n int) []byte {
	if len(e.b) < n {
		e.zeros(n - len(e.b))
	}
	return e.b[:n]
}

// addr appends a struct sockaddr in a field of addrSize bytes.
func (e *encoder) addr(a netip.AddrPort) {
	start := len(e.b)
	switch {
	case !a.Addr().IsValid():
	case a.Addr().Is4():
		e.u16(familyIPv4)
		e.b = binary.BigEndian.AppendUint16(e.b, a.Port())
		e.bytes(a.Addr().AsSlice())
	default:
		e.u16(familyIPv6)
		e.b = binary.BigEndian.AppendUint16(e.b, a.Port())
		e.zeros(4)
		e.bytes(a.Addr().AsSlice())
	}
	e.zeros(start + addrSize - len(e.b))
}

// private appends private data and its length. The data is cut to the field.
func (e *encoder) private(b []byte) {
	n := min(len(b), privateSize-1)
	e.bytes(b[:n])
	e.zeros(privateSize - n)
	e.u8(uint8(n))
}

// connParam is a struct rdma_ucm_conn_param.
type connParam struct {
	qpn, qkey       uint32
	private         []byte
	srq             bool
	responder       uint8
	initiator       uint8
	flow            bool
	retry, rnrRetry uint8
	valid           bool
}

func (d *decoder) connParam() (p connParam) {
	p.qpn, p.qkey = d.u32(), d.u32()
	private := d.bytes(privateSize)
	p.private = private[:d.u8()]
	p.srq = d.u8() != 0
	p.responder, p.initiator = d.u8(), d.u8()
	p.flow = d.u8() != 0
	p.retry, p.rnrRetry = d.u8()&7, d.u8()&7
	p.valid = d.u8() != 0
	return p
}

func (p *connParam) encode(e *encoder) {
	e.u32(p.qpn, p.qkey)
	e.private(p.private)
	e.u8(flag(p.srq), p.responder, p.initiator, flag(p.flow), p.retry, p.rnrRetry, 0)
}

// datagramParam is a struct rdma_ucm_ud_param.
type datagramParam struct {
	qpn, qkey uint32
	to        destination
	private   []byte
}

func (p *datagramParam) encode(e *encoder) {
	e.u32(p.qpn, p.qkey)
	p.to.encode(e)
	e.private(p.private)
	e.zeros(7)
}

// destination is a struct ib_uverbs_ah_attr.
type destination struct {
	gid          [16]byte
	index        uint8 // of the local GID
	trafficClass uint8
	hopLimit     uint8
	sl           uint8
}

func (p *destination) encode(e *encoder) {
	e.bytes(p.gid[:])
	e.u32(0)
	e.u8(p.index, p.hopLimit, p.trafficClass, 0)
	e.u16(0)
	e.u8(p.sl, 0, 0, 1, port, 0)
}

func flag(v bool) uint8 {
	if v {
		return 1
	}
	return 0
}
