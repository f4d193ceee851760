package nldev

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Objects are the objects of the programs that use a device.
type Objects struct {
	PDs []PD
	CQs []CQ
	QPs []QP
	MRs []MR
	IDs []ID

	SRQs     []SRQ
	Contexts []Context
}

// counts yields the kinds of objects, as the command rdma names them, and the number of each.
func (o Objects) counts(yield func(kind string, n int) bool) {
	_ = yield("pd", len(o.PDs)) && yield("cq", len(o.CQs)) && yield("qp", len(o.QPs)) &&
		yield("cm_id", len(o.IDs)) && yield("mr", len(o.MRs)) && yield("srq", len(o.SRQs)) &&
		yield("ctx", len(o.Contexts))
}

// PD is a protection domain.
type PD struct {
	ID   uint32
	Uses uint64 // objects of the domain
	PID  uint32 // of the process
}

// CQ is a completion queue.
type CQ struct {
	ID, Entries uint32
	Uses        uint64 // QPs
	PID         uint32
}

// QP is a queue pair. Its type, state and migration state are those of libibverbs.
type QP struct {
	Number, PD             uint32
	Type, State, Migration uint8
	Remote, RQPSN, SQPSN   uint32
	PID                    uint32
}

// MR is a memory region.
type MR struct {
	ID, PD uint32
	Length uint64 // bytes
	PID    uint32
}

// SRQ is a shared receive queue.
type SRQ struct {
	ID, PD uint32
	QPs    []uint32 // numbers of its QPs
	PID    uint32
}

// Context is an open verbs device.
type Context struct {
	ID, PID uint32
}

// ID is an ID of rdma_cm. Its type of QP and port space are those of librdmacm.
type ID struct {
	ID           uint32
	QPN          uint32 // 0: none yet
	Type         uint8
	State        IDState
	Space        uint32
	Source, Dest netip.AddrPort // may be invalid
	PID          uint32
}

// IDState is the state of an ID, as the kernel numbers them.
type IDState uint8

// States of IDs.
const (
	IDIdle          IDState = 0
	IDAddrQuery     IDState = 1
	IDAddrResolved  IDState = 2
	IDRouteResolved IDState = 4
	IDConnect       IDState = 5
	IDAddrBound     IDState = 7
	IDListen        IDState = 8
)

// Numbers of the protocol for lists of objects. A list has a table with an entry for each object.
const (
	cmdQPs = 10
	cmdIDs = 11
	cmdCQs = 12
	cmdMRs = 13
	cmdPDs = 14

	cmdContexts = 22
	cmdSRQs     = 23

	attrQPs       = 19
	attrQP        = 20
	attrQPN       = 21
	attrRemoteQPN = 22
	attrRQPSN     = 23
	attrSQPSN     = 24
	attrMigration = 25
	attrType      = 26
	attrState     = 27
	attrPID       = 28
	attrIDs       = 30
	attrID        = 31
	attrSpace     = 32
	attrSource    = 33
	attrDest      = 34
	attrCQs       = 35
	attrCQ        = 36
	attrEntries   = 37
	attrUses      = 38
	attrMRs       = 40
	attrMR        = 41
	attrLength    = 45
	attrPDs       = 46
	attrPD        = 47
	attrPDID      = 60
	attrCQID      = 61
	attrMRID      = 62
	attrIDID      = 63
	attrContextID = 64
	attrContexts  = 86
	attrContext   = 87
	attrSRQs      = 88
	attrSRQ       = 89
	attrSRQID     = 90
)

// typeUD is the type of QPs that have no peer.
const typeUD = 4

// Limits of a list. The command rdma receives up to 4096 bytes at a time, and the socket of a
// program holds some hundred kilobytes.
const (
	maxListed  = 500  // objects; later ones are left out
	maxMessage = 2500 // bytes from which on a message gets no further object
	maxSRQQPs  = 100  // QPs of an SRQ, of 12 bytes each; others are left out
)

func (d *Device) objects() Objects {
	if d.Objects == nil {
		return Objects{}
	}
	return d.Objects()
}

// list returns the messages of a list, without its end.
func (d *Device) list(cmd uint16, reply header) [][]byte {
	o := d.objects()
	switch cmd {
	case cmdPDs:
		return put(d, reply, attrPDs, attrPD, o.PDs, (*message).pd)
	case cmdCQs:
		return put(d, reply, attrCQs, attrCQ, o.CQs, (*message).cq)
	case cmdQPs:
		return put(d, reply, attrQPs, attrQP, o.QPs, (*message).qp)
	case cmdMRs:
		return put(d, reply, attrMRs, attrMR, o.MRs, (*message).mr)
	case cmdIDs:
		return put(d, reply, attrIDs, attrID, o.IDs, (*message).id)
	case cmdSRQs:
		return put(d, reply, attrSRQs, attrSRQ, o.SRQs, (*message).srq)
	case cmdContexts:
		return put(d, reply, attrContexts, attrContext, o.Contexts, (*message).context)
	}
	return nil // there are no objects of other kinds
}

// put writes a list to messages.
func put[T any](d *Device, reply header, table, entry uint16, list []T,
	add func(*message, *T)) (out [][]byte) {

	list = list[:min(len(list), maxListed)]
	for len(list) > 0 {
		m := newMessage(reply)
		d.identity(m)
		m.nested(table, func() {
			for ; len(list) > 0 && len(m.b) < maxMessage; list = list[1:] {
				m.nested(entry, func() { add(m, &list[0]) })
			}
		})
		out = append(out, m.bytes())
	}
	return out
}

func (m *message) pd(p *PD) {
	m.u32(attrPDID, p.ID)
	m.u64(attrUses, p.Uses)
	m.u32(attrPID, p.PID)
}

func (m *message) cq(c *CQ) {
	m.u32(attrEntries, c.Entries)
	m.u64(attrUses, c.Uses)
	m.u32(attrCQID, c.ID)
	m.u32(attrPID, c.PID)
}

func (m *message) qp(q *QP) {
	m.u32(attrPortIndex, portID)
	m.u32(attrQPN, q.Number)
	m.u32(attrPDID, q.PD)
	if q.Type != typeUD {
		m.u32(attrRemoteQPN, q.Remote)
		m.u32(attrRQPSN, q.RQPSN)
		m.u8(attrMigration, q.Migration)
	}
	m.u32(attrSQPSN, q.SQPSN)
	m.u8(attrType, q.Type)
	m.u8(attrState, q.State)
	m.u32(attrPID, q.PID)
}

func (m *message) mr(r *MR) {
	m.u64(attrLength, r.Length)
	m.u32(attrMRID, r.ID)
	m.u32(attrPDID, r.PD)
	m.u32(attrPID, r.PID)
}

// basicSRQ is the type of SRQs without XRC or tag matching.
const basicSRQ = 0

func (m *message) srq(s *SRQ) {
	m.u32(attrSRQID, s.ID)
	m.u8(attrType, basicSRQ)
	m.u32(attrPDID, s.PD)
	m.nested(attrQPs, func() {
		for _, n := range s.QPs[:min(len(s.QPs), maxSRQQPs)] {
			m.nested(attrQP, func() { m.u32(attrQPN, n) })
		}
	})
	m.u32(attrPID, s.PID)
}

func (m *message) context(c *Context) {
	m.u32(attrContextID, c.ID)
	m.u32(attrPID, c.PID)
}

func (m *message) id(i *ID) {
	m.u32(attrPortIndex, portID)
	m.u32(attrIDID, i.ID)
	if i.QPN != 0 {
		m.u32(attrQPN, i.QPN)
		m.u8(attrType, i.Type)
	}
	m.u32(attrSpace, i.Space)
	m.u8(attrState, uint8(i.State))
	m.u32(attrPID, i.PID)
	m.addr(attrSource, i.Source)
	m.addr(attrDest, i.Dest)
}

// addr adds a struct sockaddr_in or sockaddr_in6, unless the address is invalid.
func (m *message) addr(kind uint16, a netip.AddrPort) {
	if !a.IsValid() {
		return
	}
	var b [unix.SizeofSockaddrInet6]byte
	binary.BigEndian.PutUint16(b[2:], a.Port())
	if a.Addr().Is4() {
		order.PutUint16(b[:], unix.AF_INET)
		copy(b[4:], a.Addr().AsSlice())
	} else {
		order.PutUint16(b[:], unix.AF_INET6)
		copy(b[8:], a.Addr().AsSlice())
	}
	m.raw(kind, b[:])
}
