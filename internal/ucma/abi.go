package ucma

import (
	"encoding/binary"
	"net/netip"

	"github.com/gorxe/gorxe/internal/abi"
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
	eventDeviceRemoval   = 11
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
	maxRetry   = 7          // of the counters of retries, fields of 3 bits
	rejVendor  = 35         // RDMA_USER_CM_REJ_VENDOR_OPTION_NOT_SUPPORTED
	familyIPv4 = 2
	familyIPv6 = 10
)

// decoder reads structures.
type decoder struct{ abi.Decoder }

// addr reads a struct sockaddr_in or sockaddr_in6 in a field of addrSize bytes. The result is
// invalid for other families.
func (d *decoder) addr() netip.AddrPort {
	b := d.Bytes(addrSize)
	p := binary.BigEndian.Uint16(b[2:])
	switch binary.LittleEndian.Uint16(b) {
	case familyIPv4:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), p)
	case familyIPv6:
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[8:24])).Unmap(), p)
	}
	return netip.AddrPort{}
}

// encoder appends structures.
type encoder struct{ abi.Encoder }

// pad appends zeros up to n bytes, or cuts the structure there.
func (e *encoder) pad(n int) []byte {
	if len(e.B) < n {
		e.Zeros(n - len(e.B))
	}
	return e.B[:n]
}

// addr appends a struct sockaddr in a field of addrSize bytes.
func (e *encoder) addr(a netip.AddrPort) {
	start := len(e.B)
	switch {
	case !a.Addr().IsValid():
	case a.Addr().Is4():
		e.U16(familyIPv4)
		e.B = binary.BigEndian.AppendUint16(e.B, a.Port())
		e.Bytes(a.Addr().AsSlice())
	default:
		e.U16(familyIPv6)
		e.B = binary.BigEndian.AppendUint16(e.B, a.Port())
		e.Zeros(4)
		e.Bytes(a.Addr().AsSlice())
	}
	e.Zeros(start + addrSize - len(e.B))
}

// private appends private data and its length. The data is cut to the field.
func (e *encoder) private(b []byte) {
	n := min(len(b), privateSize-1)
	e.Bytes(b[:n])
	e.Zeros(privateSize - n)
	e.U8(uint8(n))
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
	p.qpn, p.qkey = d.U32(), d.U32()
	private := d.Bytes(privateSize)
	p.private = private[:d.U8()]
	p.srq = d.U8() != 0
	p.responder, p.initiator = d.U8(), d.U8()
	p.flow = d.U8() != 0
	p.retry, p.rnrRetry = min(d.U8(), maxRetry), min(d.U8(), maxRetry)
	p.valid = d.U8() != 0
	return p
}

func (p *connParam) encode(e *encoder) {
	e.U32(p.qpn, p.qkey)
	e.private(p.private)
	e.U8(flag(p.srq), p.responder, p.initiator, flag(p.flow), p.retry, p.rnrRetry, 0)
}

// datagramParam is a struct rdma_ucm_ud_param.
type datagramParam struct {
	qpn, qkey uint32
	to        destination
	private   []byte
}

func (p *datagramParam) encode(e *encoder) {
	e.U32(p.qpn, p.qkey)
	p.to.encode(e)
	e.private(p.private)
	e.Zeros(7)
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
	e.Bytes(p.gid[:])
	e.U32(0)
	e.U8(p.index, p.hopLimit, p.trafficClass, 0)
	e.U16(0)
	e.U8(p.sl, 0, 0, 1, port, 0)
}

func flag(v bool) uint8 {
	if v {
		return 1
	}
	return 0
}
