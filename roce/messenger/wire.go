package messenger

import "encoding/binary"

// The wire format; see the package comment.

// kind is the kind of a SEND with immediate: bits 28 to 31 of the immediate.
type kind uint8

const (
	kindMessage kind = iota
	kindRequest      // its ID is chosen by the caller, and is free again after the answer
	kindAnswer       // to the request with the same ID
	kindError        // likewise; the payload is the text of an error
	kindCredits      // no payload
	kindCancel       // no payload; the caller no longer needs the answer to the request
)

// maxGrant is the number of credits that fit in a header.
const maxGrant = 1<<12 - 1

// header is the contents of the immediate.
type header struct {
	kind    kind
	credits int    // bits 16 to 27
	id      uint16 // bits 0 to 15
}

func (h header) encode() uint32 {
	return uint32(h.kind)<<28 | uint32(h.credits)<<16 | uint32(h.id)
}

func decodeHeader(imm uint32) header {
	return header{kind: kind(imm >> 28), credits: int(imm >> 16 & maxGrant), id: uint16(imm)}
}

// hello is what each side tells the other one in the private data of the connection.
type hello struct {
	credits    uint16 // messages, requests and cancellations that the peer may send at first
	maxMessage uint32 // bytes of the longest message that the sender of the hello receives
}

// The hello: the magic number, the version, a zero, the credits and the longest message.
const (
	helloMagic   = "gMSG"
	helloVersion = 1
	helloLen     = 12
)

func (h hello) encode() []byte {
	b := append(make([]byte, 0, helloLen), helloMagic...)
	b = append(b, helloVersion, 0)
	b = binary.BigEndian.AppendUint16(b, h.credits)
	return binary.BigEndian.AppendUint32(b, h.maxMessage)
}

// decodeHello returns the hello at the front of private data. ok is false if there is none: the
// peer is a program that sends and receives plain messages.
func decodeHello(b []byte) (h hello, ok bool, err error) {
	if len(b) < helloLen || string(b[:len(helloMagic)]) != helloMagic {
		return h, false, nil
	}
	h = hello{credits: binary.BigEndian.Uint16(b[6:]), maxMessage: binary.BigEndian.Uint32(b[8:])}
	if b[4] != helloVersion || h.credits == 0 || h.credits > MaxDepth || h.maxMessage == 0 {
		return h, false, ErrProtocol
	}
	return h, true, nil
}
