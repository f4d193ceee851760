package cm

import "github.com/gorxe/gorxe/bth"

// SIDRREQ requests the datagram QP of a service (IBA 12.11.1).
type SIDRREQ struct {
	RequestID CommID
	PKey      bth.PKey
	Service   ServiceID
	Private   [SIDRREQPrivateLen]byte
}

func (r *SIDRREQ) code(c coder) {
	c.u32(0, (*uint32)(&r.RequestID))
	c.u16(4, (*uint16)(&r.PKey))
	c.u64(8, (*uint64)(&r.Service))
	c.bytes(16, r.Private[:])
}

// Decode reads m, which must be a SIDR_REQ.
func (r *SIDRREQ) Decode(m *MAD) { r.code(coder{m, false}) }

// Encode writes the message as a whole MAD.
func (r *SIDRREQ) Encode(m *MAD, tid uint64) { m.begin(AttrSIDRREQ, tid); r.code(coder{m, true}) }

// SIDRREP answers a SIDRREQ (IBA 12.11.2).
type SIDRREP struct {
	RequestID CommID
	Status    SIDRStatus
	InfoLen   uint8 // bytes used in Info
	QPN       bth.QPN
	Service   ServiceID
	QKey      bth.QKey
	Info      [InfoLen]byte
	Private   [SIDRREPPrivateLen]byte
}

func (r *SIDRREP) code(c coder) {
	c.u32(0, (*uint32)(&r.RequestID))
	c.u8(4, (*uint8)(&r.Status))
	c.u8(5, &r.InfoLen)
	c.u24(8, (*uint32)(&r.QPN))
	c.u64(12, (*uint64)(&r.Service))
	c.u32(20, (*uint32)(&r.QKey))
	c.bytes(24, r.Info[:])
	c.bytes(96, r.Private[:])
}

// Decode reads m, which must be a SIDR_REP.
func (r *SIDRREP) Decode(m *MAD) { r.code(coder{m, false}) }

// Encode writes the message as a whole MAD.
func (r *SIDRREP) Encode(m *MAD, tid uint64) { m.begin(AttrSIDRREP, tid); r.code(coder{m, true}) }

// LAP requests an alternate path (IBA 12.8.1). RoCE has none, so LAP holds only what an answer
// needs.
type LAP struct {
	LocalID, RemoteID CommID
	RemoteQPN         bth.QPN
}

func (r *LAP) code(c coder) {
	c.ids(&r.LocalID, &r.RemoteID)
	c.u24(12, (*uint32)(&r.RemoteQPN))
}

// Decode reads m, which must be a LAP.
func (r *LAP) Decode(m *MAD) { r.code(coder{m, false}) }

// Encode writes the message as a whole MAD.
func (r *LAP) Encode(m *MAD, tid uint64) { m.begin(AttrLAP, tid); r.code(coder{m, true}) }

// Statuses of an APR (IBA 12.8.2).
const (
	aprInvalidID   = 1
	aprUnsupported = 2
)

// APR answers a LAP (IBA 12.8.2).
type APR struct {
	LocalID, RemoteID CommID
	InfoLen           uint8 // bytes used in Info
	Status            uint8
	Info              [InfoLen]byte
	Private           [REJPrivateLen]byte
}

func (r *APR) code(c coder) {
	c.ids(&r.LocalID, &r.RemoteID)
	c.u8(8, &r.InfoLen)
	c.u8(9, &r.Status)
	c.bytes(12, r.Info[:])
	c.bytes(84, r.Private[:])
}

// Decode reads m, which must be an APR.
func (r *APR) Decode(m *MAD) { r.code(coder{m, false}) }

// Encode writes the message as a whole MAD.
func (r *APR) Encode(m *MAD, tid uint64) { m.begin(AttrAPR, tid); r.code(coder{m, true}) }
