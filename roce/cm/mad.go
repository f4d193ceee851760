package cm

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// The MAD header's fixed values for communication management (IBA 13.4.3, 12.6).
const (
	MADLen        = 256 // bytes of every MAD, header included
	MADHeaderLen  = 24  // bytes in front of the message
	baseVersion   = 1
	classCM       = 7 // management class ComMgt
	classVersion  = 2
	methodSend    = 3
	offTID        = 8
	offAttribute  = 16
	messageLen    = MADLen - MADHeaderLen
	maxExponent   = 31 // of times on the wire: 5 bits
	maxCMRetries  = 15 // 4 bits
	maxRetryCount = 7  // 3 bits
)

// Why a MAD was refused. ParseMAD and CM.HandleMAD return these bare: they are met on the receive
// path, where nothing may be allocated.
var (
	ErrMADLength    = errors.New("cm: MAD is not 256 bytes long: drop it")
	ErrMADVersion   = errors.New("cm: MAD base version is not 1: drop it")
	ErrClass        = errors.New("cm: MAD is not of the communication management class: another agent of QP1 may want it")
	ErrClassVersion = errors.New("cm: MAD's class version is not 2: drop it")
	ErrMethod       = errors.New("cm: MAD's method is not Send: drop it")
	ErrAttribute    = errors.New("cm: MAD's attribute is no message of the communication manager: drop it")
	ErrSource       = errors.New("cm: MAD came from an address that cannot be answered: drop it")
)

// Attribute is a MAD's attribute ID: which message of the communication manager it carries (IBA
// 12.6).
type Attribute uint16

// The messages.
const (
	AttrREQ     Attribute = 0x10 // request for communication
	AttrMRA     Attribute = 0x11 // message receipt acknowledgement
	AttrREJ     Attribute = 0x12 // reject
	AttrREP     Attribute = 0x13 // reply to a REQ
	AttrRTU     Attribute = 0x14 // ready to use
	AttrDREQ    Attribute = 0x15 // request for release
	AttrDREP    Attribute = 0x16 // reply to a DREQ
	AttrSIDRREQ Attribute = 0x17 // service ID resolution request
	AttrSIDRREP Attribute = 0x18 // its reply
	AttrLAP     Attribute = 0x19 // load alternate path
	AttrAPR     Attribute = 0x1a // its reply
	attrBase              = AttrREQ
	// NumAttributes is how many messages there are; Counters' arrays have one place for each, from
	// AttrREQ on.
	NumAttributes = int(AttrAPR-attrBase) + 1
)

var attrNames = [NumAttributes]string{"REQ", "MRA", "REJ", "REP", "RTU", "DREQ", "DREP", "SIDR_REQ", "SIDR_REP", "LAP", "APR"}

// Known tells whether the attribute is one of the messages above.
func (a Attribute) Known() bool { return a >= attrBase && a <= AttrAPR }

// Index is the attribute's place in tables of NumAttributes: 0 for REQ. Only for known ones.
func (a Attribute) Index() int { return int(a - attrBase) }

func (a Attribute) String() string {
	if a.Known() {
		return attrNames[a.Index()]
	}
	return fmt.Sprintf("attribute 0x%04x", uint16(a))
}

// MAD is a management datagram of the communication manager: the payload of a UD SEND to QP1. It
// is an array, so no accessor can go out of bounds whatever a peer sent. Fields are big endian.
type MAD [MADLen]byte

// ParseMAD checks b's length and header and returns a view of it, which shares b's memory.
func ParseMAD(b []byte) (*MAD, error) {
	if len(b) != MADLen {
		return nil, ErrMADLength
	}
	m := (*MAD)(b)
	switch {
	case m[0] != baseVersion:
		return nil, ErrMADVersion
	case m[1] != classCM:
		return nil, ErrClass
	case m[2] != classVersion:
		return nil, ErrClassVersion
	case m[3] != methodSend:
		return nil, ErrMethod
	case !m.Attribute().Known():
		return nil, ErrAttribute
	}
	return m, nil
}

// Attribute says which message this is.
func (m *MAD) Attribute() Attribute {
	return Attribute(binary.BigEndian.Uint16(m[offAttribute:]))
}

// TID is the transaction ID: the sender of an exchange chose it, the answers repeat it.
func (m *MAD) TID() uint64 { return binary.BigEndian.Uint64(m[offTID:]) }

// LocalID is the sender's communication ID. SIDR messages carry their request ID in its place.
func (m *MAD) LocalID() CommID { return CommID(binary.BigEndian.Uint32(m[MADHeaderLen:])) }

// RemoteID is the communication ID of the addressee. REQ and the SIDR messages have none there.
func (m *MAD) RemoteID() CommID { return CommID(binary.BigEndian.Uint32(m[MADHeaderLen+4:])) }

// begin makes m an empty message.
func (m *MAD) begin(a Attribute, tid uint64) {
	*m = MAD{baseVersion, classCM, classVersion, methodSend}
	binary.BigEndian.PutUint64(m[offTID:], tid)
	binary.BigEndian.PutUint16(m[offAttribute:], uint16(a))
}
