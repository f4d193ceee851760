package cm

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Fixed values of MADs of communication management (IBA 13.4.3, 12.6).
const (
	MADLen        = 256 // bytes of a MAD, including the header
	MADHeaderLen  = 24  // bytes of the header
	baseVersion   = 1
	classCM       = 7 // management class ComMgt
	classVersion  = 2
	methodSend    = 3
	offTID        = 8
	offAttribute  = 16
	messageLen    = MADLen - MADHeaderLen
	maxExponent   = 31 // of times: 5 bits
	maxCMRetries  = 15 // 4 bits
	maxRetryCount = 7  // 3 bits
	maxSL         = 15 // 4 bits
)

// Errors of ParseMAD and CM.HandleMAD. They are returned unwrapped, because the receive path does
// not allocate.
var (
	ErrMADLength  = errors.New("cm: MAD is not 256 bytes long: drop it")
	ErrMADVersion = errors.New("cm: MAD base version is not 1: drop it")
	ErrClass      = errors.New("cm: MAD is not of the communication management class: " +
		"pass it to another agent of QP1")
	ErrClassVersion = errors.New("cm: MAD's class version is not 2: drop it")
	ErrMethod       = errors.New("cm: MAD's method is not Send: drop it")
	ErrAttribute    = errors.New("cm: MAD's attribute is not a message of communication management: " +
		"drop it")
	ErrSource = errors.New("cm: MAD came from an address that cannot be answered: drop it")
)

// Attribute is the attribute ID of a MAD: the type of its message (IBA 12.6).
type Attribute uint16

// The types of messages.
const (
	AttrREQ     Attribute = 0x10 // request for communication
	AttrMRA     Attribute = 0x11 // message receipt acknowledgment
	AttrREJ     Attribute = 0x12 // reject
	AttrREP     Attribute = 0x13 // reply to a REQ
	AttrRTU     Attribute = 0x14 // ready to use
	AttrDREQ    Attribute = 0x15 // request for release
	AttrDREP    Attribute = 0x16 // reply to a DREQ
	AttrSIDRREQ Attribute = 0x17 // service ID resolution request
	AttrSIDRREP Attribute = 0x18 // reply to a SIDR_REQ
	AttrLAP     Attribute = 0x19 // load alternate path
	AttrAPR     Attribute = 0x1a // reply to a LAP
	attrBase              = AttrREQ
	// NumAttributes is the number of types of messages.
	NumAttributes = int(AttrAPR-attrBase) + 1
)

var attrNames = [NumAttributes]string{
	"REQ", "MRA", "REJ", "REP", "RTU", "DREQ", "DREP", "SIDR_REQ", "SIDR_REP", "LAP", "APR",
}

// Known reports whether a is one of the types above.
func (a Attribute) Known() bool { return a >= attrBase && a <= AttrAPR }

// Index returns the index of a known attribute in arrays of NumAttributes elements; AttrREQ has 0.
func (a Attribute) Index() int { return int(a - attrBase) }

func (a Attribute) String() string {
	if a.Known() {
		return attrNames[a.Index()]
	}
	return fmt.Sprintf("attribute 0x%04x", uint16(a))
}

// MAD is a management datagram: the payload of a UD SEND to QP1. Its fields are big-endian. It is
// an array, so that no access can be out of bounds whatever a peer sends.
type MAD [MADLen]byte

// ParseMAD checks the length and the header of b, and returns a MAD that shares b's memory.
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

// Attribute returns the type of the message.
func (m *MAD) Attribute() Attribute {
	return Attribute(binary.BigEndian.Uint16(m[offAttribute:]))
}

// TID returns the transaction ID, which the first sender of an exchange chooses and answers repeat.
func (m *MAD) TID() uint64 { return binary.BigEndian.Uint64(m[offTID:]) }

// LocalID returns the sender's communication ID, or the request ID of a SIDR message.
func (m *MAD) LocalID() CommID { return CommID(binary.BigEndian.Uint32(m[MADHeaderLen:])) }

// RemoteID returns the receiver's communication ID. REQ and SIDR messages have none.
func (m *MAD) RemoteID() CommID { return CommID(binary.BigEndian.Uint32(m[MADHeaderLen+4:])) }

// begin makes m an empty message.
func (m *MAD) begin(a Attribute, tid uint64) {
	*m = MAD{baseVersion, classCM, classVersion, methodSend}
	binary.BigEndian.PutUint64(m[offTID:], tid)
	binary.BigEndian.PutUint16(m[offAttribute:], uint16(a))
}
