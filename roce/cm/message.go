package cm

import "github.com/gorxe/gorxe/bth"

// Lengths in bytes of the private data of the messages (IBA 12.6). Messages have no length field
// for it: the receiver gets all bytes, zeros after those that the sender wrote.
const (
	REQPrivateLen     = 92 // including an IPCMHeader for services of rdma_cm
	MRAPrivateLen     = 222
	REJPrivateLen     = 148
	REPPrivateLen     = 196
	RTUPrivateLen     = 224
	DREQPrivateLen    = 220
	DREPPrivateLen    = 224
	SIDRREQPrivateLen = 216 // including an IPCMHeader for services of rdma_cm
	SIDRREPPrivateLen = 136
	InfoLen           = 72 // additional information of REJ, SIDR_REP and APR
)

// CommID is a communication ID: one side's name of a connection or a SIDR exchange. 0 is none.
type CommID uint32

// GUID identifies a channel adapter.
type GUID uint64

// Path is a path record in a REQ. Local is the sender of the REQ.
type Path struct {
	LocalLID, RemoteLID uint16 // 0xffff on RoCE
	LocalGID, RemoteGID bth.GID
	FlowLabel           uint32 // 20 bits
	PacketRate          uint8  // 6 bits
	TrafficClass        uint8
	HopLimit            uint8
	SL                  uint8 // 4 bits
	SubnetLocal         bool
	AckTimeout          uint8 // Local ACK Timeout: 4.096 us x 2^t, 5 bits
}

func (p *Path) code(c coder, off int) {
	c.u16(off, &p.LocalLID)
	c.u16(off+2, &p.RemoteLID)
	c.bytes(off+4, p.LocalGID[:])
	c.bytes(off+20, p.RemoteGID[:])
	c.u20(off+36, &p.FlowLabel)
	c.bits(off+39, 0, 6, &p.PacketRate)
	c.u8(off+40, &p.TrafficClass)
	c.u8(off+41, &p.HopLimit)
	c.bits(off+42, 4, 4, &p.SL)
	c.flag(off+42, 3, &p.SubnetLocal)
	c.bits(off+43, 3, 5, &p.AckTimeout)
}

// REQ requests a connection (IBA 12.6.5). Times are exponents t of 4.096 us x 2^t.
type REQ struct {
	LocalID            CommID
	Service            ServiceID
	GUID               GUID
	QKey               bth.QKey
	QPN                bth.QPN
	ResponderResources uint8  // READs and atomics that the sender accepts at a time
	LocalEECN          uint32 // 24 bits; RD only
	InitiatorDepth     uint8  // READs and atomics that the sender wants to have outstanding
	RemoteEECN         uint32 // 24 bits; RD only
	RemoteTimeout      uint8  // remote CM response timeout: how long the sender waits for an answer
	Transport          Transport
	FlowControl        bool
	PSN                bth.PSN
	LocalTimeout       uint8 // local CM response timeout: how long the receiver should wait for one
	RetryCount         uint8 // 3 bits
	PKey               bth.PKey
	MTU                uint8 // path MTU, encoded: 1 (256) to 5 (4096)
	RDCExists          bool
	RNRRetry           uint8 // 3 bits
	MaxCMRetries       uint8 // 4 bits
	SRQ                bool
	ExtendedTransport  uint8 // 3 bits
	Primary, Alternate Path
	Private            [REQPrivateLen]byte
}

func (r *REQ) code(c coder) {
	c.u32(0, (*uint32)(&r.LocalID))
	c.u64(8, (*uint64)(&r.Service))
	c.u64(16, (*uint64)(&r.GUID))
	c.u32(28, (*uint32)(&r.QKey))
	c.u24(32, (*uint32)(&r.QPN))
	c.u8(35, &r.ResponderResources)
	c.u24(36, &r.LocalEECN)
	c.u8(39, &r.InitiatorDepth)
	c.u24(40, &r.RemoteEECN)
	c.bits(43, 3, 5, &r.RemoteTimeout)
	c.bits(43, 1, 2, (*uint8)(&r.Transport))
	c.flag(43, 0, &r.FlowControl)
	c.u24(44, (*uint32)(&r.PSN))
	c.bits(47, 3, 5, &r.LocalTimeout)
	c.bits(47, 0, 3, &r.RetryCount)
	c.u16(48, (*uint16)(&r.PKey))
	c.bits(50, 4, 4, &r.MTU)
	c.flag(50, 3, &r.RDCExists)
	c.bits(50, 0, 3, &r.RNRRetry)
	c.bits(51, 4, 4, &r.MaxCMRetries)
	c.flag(51, 3, &r.SRQ)
	c.bits(51, 0, 3, &r.ExtendedTransport)
	r.Primary.code(c, 52)
	r.Alternate.code(c, 96)
	c.bytes(140, r.Private[:])
}

// Decode reads m, which must be a REQ.
func (r *REQ) Decode(m *MAD) { r.code(coder{m, false}) }

// Encode writes the message as a whole MAD.
func (r *REQ) Encode(m *MAD, tid uint64) { m.begin(AttrREQ, tid); r.code(coder{m, true}) }

// MRA announces that the answer to a message will take longer (IBA 12.6.6).
type MRA struct {
	LocalID, RemoteID CommID
	Message           Answered
	ServiceTimeout    uint8 // exponent: how long it may take
	Private           [MRAPrivateLen]byte
}

func (r *MRA) code(c coder) {
	c.ids(&r.LocalID, &r.RemoteID)
	c.bits(8, 6, 2, (*uint8)(&r.Message))
	c.bits(9, 3, 5, &r.ServiceTimeout)
	c.bytes(10, r.Private[:])
}

// Decode reads m, which must be an MRA.
func (r *MRA) Decode(m *MAD) { r.code(coder{m, false}) }

// Encode writes the message as a whole MAD.
func (r *MRA) Encode(m *MAD, tid uint64) { m.begin(AttrMRA, tid); r.code(coder{m, true}) }

// REJ refuses a connection or ends its setup (IBA 12.6.7).
type REJ struct {
	LocalID, RemoteID CommID // 0 if the sender does not know it
	Message           Answered
	InfoLen           uint8 // bytes used in Info; 7 bits
	Reason            Reason
	Info              [InfoLen]byte
	Private           [REJPrivateLen]byte
}

func (r *REJ) code(c coder) {
	c.ids(&r.LocalID, &r.RemoteID)
	c.bits(8, 6, 2, (*uint8)(&r.Message))
	c.bits(9, 1, 7, &r.InfoLen)
	c.u16(10, (*uint16)(&r.Reason))
	c.bytes(12, r.Info[:])
	c.bytes(84, r.Private[:])
}

// Decode reads m, which must be a REJ.
func (r *REJ) Decode(m *MAD) { r.code(coder{m, false}) }

// Encode writes the message as a whole MAD.
func (r *REJ) Encode(m *MAD, tid uint64) { m.begin(AttrREJ, tid); r.code(coder{m, true}) }

// REP accepts a connection (IBA 12.6.8).
type REP struct {
	LocalID, RemoteID  CommID
	QKey               bth.QKey
	QPN                bth.QPN
	EECN               uint32 // 24 bits; RD only
	PSN                bth.PSN
	ResponderResources uint8
	InitiatorDepth     uint8
	AckDelay           uint8 // target ACK delay, exponent
	Failover           uint8 // 2 bits
	FlowControl        bool
	RNRRetry           uint8
	SRQ                bool
	GUID               GUID
	Private            [REPPrivateLen]byte
}

func (r *REP) code(c coder) {
	c.ids(&r.LocalID, &r.RemoteID)
	c.u32(8, (*uint32)(&r.QKey))
	c.u24(12, (*uint32)(&r.QPN))
	c.u24(16, &r.EECN)
	c.u24(20, (*uint32)(&r.PSN))
	c.u8(24, &r.ResponderResources)
	c.u8(25, &r.InitiatorDepth)
	c.bits(26, 3, 5, &r.AckDelay)
	c.bits(26, 1, 2, &r.Failover)
	c.flag(26, 0, &r.FlowControl)
	c.bits(27, 5, 3, &r.RNRRetry)
	c.flag(27, 4, &r.SRQ)
	c.u64(28, (*uint64)(&r.GUID))
	c.bytes(36, r.Private[:])
}

// Decode reads m, which must be a REP.
func (r *REP) Decode(m *MAD) { r.code(coder{m, false}) }

// Encode writes the message as a whole MAD.
func (r *REP) Encode(m *MAD, tid uint64) { m.begin(AttrREP, tid); r.code(coder{m, true}) }

// RTU completes the setup (IBA 12.6.9).
type RTU struct {
	LocalID, RemoteID CommID
	Private           [RTUPrivateLen]byte
}

func (r *RTU) code(c coder) {
	c.ids(&r.LocalID, &r.RemoteID)
	c.bytes(8, r.Private[:])
}

// Decode reads m, which must be an RTU.
func (r *RTU) Decode(m *MAD) { r.code(coder{m, false}) }

// Encode writes the message as a whole MAD.
func (r *RTU) Encode(m *MAD, tid uint64) { m.begin(AttrRTU, tid); r.code(coder{m, true}) }

// DREQ requests the release of a connection (IBA 12.6.10).
type DREQ struct {
	LocalID, RemoteID CommID
	RemoteQPN         bth.QPN // QP of the receiver
	Private           [DREQPrivateLen]byte
}

func (r *DREQ) code(c coder) {
	c.ids(&r.LocalID, &r.RemoteID)
	c.u24(8, (*uint32)(&r.RemoteQPN))
	c.bytes(12, r.Private[:])
}

// Decode reads m, which must be a DREQ.
func (r *DREQ) Decode(m *MAD) { r.code(coder{m, false}) }

// Encode writes the message as a whole MAD.
func (r *DREQ) Encode(m *MAD, tid uint64) { m.begin(AttrDREQ, tid); r.code(coder{m, true}) }

// DREP answers a DREQ (IBA 12.6.11). It has the layout of an RTU.
type DREP RTU

func (r *DREP) code(c coder) { (*RTU)(r).code(c) }

// Decode reads m, which must be a DREP.
func (r *DREP) Decode(m *MAD) { r.code(coder{m, false}) }

// Encode writes the message as a whole MAD.
func (r *DREP) Encode(m *MAD, tid uint64) { m.begin(AttrDREP, tid); r.code(coder{m, true}) }
