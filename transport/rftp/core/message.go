package core

import (
	"encoding/binary"
	"fmt"
)

// Control messages. Numbers are big endian. Each message begins with
//
//	type (2 bytes), version (1), 0 (1), length of what follows these 16 bytes (4),
//	control messages received and processed so far, modulo 2^32 (4),
//	program messages taken so far, modulo 2^32 (4)
const (
	// MaxControl is the length of the longest control message.
	MaxControl = 4096
	// Version is the version of the protocol.
	Version = 1

	controlHeader = 16
	maxBody       = MaxControl - controlHeader
)

// Type is the type of a control message.
type Type uint16

const (
	// TypeAccept: the sink has a pool. Block size (4), blocks (4), sessions (4), mode (1), 0 (3),
	// then the first grants, 16 bytes each.
	TypeAccept Type = iota + 1
	// TypeOpen: the source opens a session. Session (4), then its parameters.
	TypeOpen
	// TypeRequest: the source has blocks to send and no credits for them. Credits that it has asked
	// for since the connection began (4).
	TypeRequest
	// TypeGrant: grants since the connection began, including these (4), the number in the last
	// Request that was received (4), then the grants.
	TypeGrant
	// TypeFin: blocks have arrived. Their IDs, 4 bytes each.
	TypeFin
	// TypeConsumed: for each session, 8 bytes: session (4), blocks consumed since it began (4).
	TypeConsumed
	// TypeEnd: the source ends a session. Session (4), blocks that it has sent (4), 1 if it aborts
	// it (4), then the reason.
	TypeEnd
	// TypeRefuse: the sink aborts a session. Session (4), then the reason.
	TypeRefuse
	// TypeDone: the sink has consumed sessions. Their numbers, 4 bytes each.
	TypeDone
	// TypeMessage: a message of the program.
	TypeMessage
	// TypeAck: only the header.
	TypeAck
	// TypeQPDown: a data QP of the sender has failed. Its index (4).
	TypeQPDown
	// TypeQPState: index of a data QP that the sender has closed (4), 1 if this is the last part
	// (4), then the IDs of granted blocks, 4 bytes each.
	TypeQPState
	// TypeFinish: the sender opens no more sessions, and all of them have ended.
	TypeFinish
	// TypeBye: the sender ends the connection. The reason.
	TypeBye

	endTypes
)

var typeNames = [...]string{"Accept", "Open", "Request", "Grant", "Fin", "Consumed", "End",
	"Refuse", "Done", "Message", "Ack", "QPDown", "QPState", "Finish", "Bye"}

func (t Type) String() string {
	if i := int(t) - 1; i >= 0 && i < len(typeNames) {
		return typeNames[i]
	}
	return fmt.Sprintf("type %d", uint16(t))
}

const (
	grantLen   = 16 // ID (4), R_Key (4), address (8)
	idLen      = 4
	reportLen  = 8
	acceptBody = 16
	grantBody  = 8
	endBody    = 12
	stateBody  = 8
)

// grant allows the source to write one block.
type grant struct {
	id   uint32 // index in the sink's pool, and in the upper 16 bits how often it was granted
	key  uint32
	addr uint64
}

func index(id uint32) int { return int(id & 0xffff) }

// control is a control message that was received.
type control struct {
	typ   Type
	ack   uint32
	taken uint32
	body  []byte
}

func (c *control) u32(at int) uint32 { return binary.BigEndian.Uint32(c.body[at:]) }

func (c *control) grant(at int) grant {
	b := c.body[at:]
	return grant{id: binary.BigEndian.Uint32(b), key: binary.BigEndian.Uint32(b[4:]),
		addr: binary.BigEndian.Uint64(b[8:])}
}

// bodies says which lengths a body may have: fixed bytes, then entries of the given size.
var bodies = [endTypes]struct{ fixed, entry, most int }{
	TypeAccept:   {acceptBody, grantLen, maxBody},
	TypeOpen:     {4, 1, 4 + MaxParams},
	TypeRequest:  {4, 0, 4},
	TypeGrant:    {grantBody, grantLen, maxBody},
	TypeFin:      {0, idLen, maxBody},
	TypeConsumed: {0, reportLen, maxBody},
	TypeEnd:      {endBody, 1, endBody + MaxText},
	TypeRefuse:   {4, 1, 4 + MaxText},
	TypeDone:     {0, 4, maxBody},
	TypeMessage:  {0, 1, MaxMessage},
	TypeAck:      {0, 0, 0},
	TypeQPDown:   {4, 0, 4},
	TypeQPState:  {stateBody, idLen, maxBody},
	TypeFinish:   {0, 0, 0},
	TypeBye:      {0, 1, MaxText},
}

// parse reads a control message. Its body is a part of b.
func (c *control) parse(b []byte) error {
	if len(b) < controlHeader || len(b) > MaxControl {
		return fmt.Errorf("%w: a control message of %d bytes", ErrPeer, len(b))
	}
	*c = control{typ: Type(binary.BigEndian.Uint16(b)), ack: binary.BigEndian.Uint32(b[8:]),
		taken: binary.BigEndian.Uint32(b[12:]), body: b[controlHeader:]}
	n := binary.BigEndian.Uint32(b[4:])
	switch {
	case b[2] != Version:
		return fmt.Errorf("%w: version %d, this side has %d", ErrPeer, b[2], Version)
	case c.typ == 0 || c.typ >= endTypes:
		return fmt.Errorf("%w: a control message of %v", ErrPeer, c.typ)
	case uint64(n) != uint64(len(c.body)):
		return fmt.Errorf("%w: %v has length %d and %d bytes", ErrPeer, c.typ, n, len(c.body))
	}
	f := &bodies[c.typ]
	rest := len(c.body) - f.fixed
	if rest < 0 || len(c.body) > f.most || (f.entry > 1 && rest%f.entry != 0) {
		return fmt.Errorf("%w: %v with a body of %d bytes", ErrPeer, c.typ, len(c.body))
	}
	return nil
}

// builder writes a control message.
type builder struct {
	n int
	b [MaxControl]byte
}

func (w *builder) begin(t Type, ack, taken uint32) {
	w.n = controlHeader
	clear(w.b[:controlHeader])
	binary.BigEndian.PutUint16(w.b[:], uint16(t))
	w.b[2] = Version
	binary.BigEndian.PutUint32(w.b[8:], ack)
	binary.BigEndian.PutUint32(w.b[12:], taken)
}

func (w *builder) space() int { return MaxControl - w.n }

func (w *builder) u32(v uint32) {
	binary.BigEndian.PutUint32(w.b[w.n:], v)
	w.n += 4
}

func (w *builder) grant(g grant) {
	w.u32(g.id)
	w.u32(g.key)
	binary.BigEndian.PutUint64(w.b[w.n:], g.addr)
	w.n += 8
}

func (w *builder) bytes(b []byte) { w.n += copy(w.b[w.n:], b) }

func (w *builder) text(s string) { w.n += copy(w.b[w.n:], s) }

func (w *builder) message() []byte {
	binary.BigEndian.PutUint32(w.b[4:], uint32(w.n-controlHeader))
	return w.b[:w.n]
}

// HeaderLen is the length of the header of a block, which is in front of its payload.
const HeaderLen = 64

// Header is the header of a block: session (4 bytes), sequence number (4), offset (8), length (4),
// tag (4), Meta (24), 0 (16). Numbers are big endian.
type Header struct {
	Session uint32
	Seq     uint32 // counts the blocks of the session from 0
	Offset  uint64 // of the program, like the next two
	Len     uint32 // bytes of payload
	Tag     uint32
	Meta    [24]byte
}

// Put writes the header into the first HeaderLen bytes of b.
func (h *Header) Put(b []byte) {
	_ = b[HeaderLen-1]
	binary.BigEndian.PutUint32(b, h.Session)
	binary.BigEndian.PutUint32(b[4:], h.Seq)
	binary.BigEndian.PutUint64(b[8:], h.Offset)
	binary.BigEndian.PutUint32(b[16:], h.Len)
	binary.BigEndian.PutUint32(b[20:], h.Tag)
	copy(b[24:], h.Meta[:])
	clear(b[48:HeaderLen])
}

// Parse reads the first HeaderLen bytes of b.
func (h *Header) Parse(b []byte) {
	_ = b[HeaderLen-1]
	h.Session = binary.BigEndian.Uint32(b)
	h.Seq = binary.BigEndian.Uint32(b[4:])
	h.Offset = binary.BigEndian.Uint64(b[8:])
	h.Len = binary.BigEndian.Uint32(b[16:])
	h.Tag = binary.BigEndian.Uint32(b[20:])
	copy(h.Meta[:], b[24:48])
}
