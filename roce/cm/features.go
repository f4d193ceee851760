package cm

import (
	"encoding/binary"
	"encoding/json"
	"hash/crc32"

	"github.com/gorxe/gorxe/bth"
)

// Features is a set of extensions of RoCEv2 that one side of a connection supports. A connection
// uses those that both sides support. In JSON it is a list of names; names that are not known are
// ignored, so that later versions can add features.
type Features uint8

// SelectiveRepeat means that the side understands selective acknowledgments, in both directions.
const SelectiveRepeat Features = 1 << 0

const allFeatures = SelectiveRepeat

// featureNames lists the names in the order of the bits.
var featureNames = [...]string{"selective-repeat"}

// MarshalJSON implements json.Marshaler.
func (f Features) MarshalJSON() ([]byte, error) {
	names := []string{}
	for i, name := range featureNames {
		if f&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return json.Marshal(names)
}

// UnmarshalJSON implements json.Unmarshaler.
func (f *Features) UnmarshalJSON(b []byte) error {
	var names []string
	if err := json.Unmarshal(b, &names); err != nil {
		return err
	}
	*f = 0
	for _, s := range names {
		for i, name := range featureNames {
			if s == name {
				*f |= 1 << i
			}
		}
	}
	return nil
}

// A feature trailer is the last 8 bytes of the private data of a REQ, which offers features, or of
// a REP, which accepts some of them:
//
//	bytes 0-1  magic, different in REQ and REP
//	byte 2     version, 1
//	byte 3     features
//	bytes 4-7  CRC-32 (IEEE 802.3) of bytes 0 to 3, and of the QPN and the starting PSN in the
//	           message, 4 bytes each; in a REP those of the REQ follow; all big-endian
//
// The check binds the trailer to its message. So private data that an application forwards to
// another connection, echoes in its reply, or records and sends again does not count as a trailer.
const (
	trailerLen     = 8
	trailerVersion = 1
	offerMagic     = 0x671f // in a REQ
	acceptMagic    = 0x67e2 // in a REP
)

// binding holds the fields of a message to which its trailer belongs.
type binding struct {
	qpn bth.QPN
	psn bth.PSN
}

// trailerOf returns a trailer. bound are the message and, for a REP, the REQ.
func trailerOf(magic uint16, f Features, bound ...binding) (t [trailerLen]byte) {
	binary.BigEndian.PutUint16(t[:], magic)
	t[2], t[3] = trailerVersion, byte(f)
	covered := append(make([]byte, 0, 4+8*2), t[:4]...)
	for _, b := range bound {
		covered = binary.BigEndian.AppendUint32(covered, uint32(b.qpn))
		covered = binary.BigEndian.AppendUint32(covered, uint32(b.psn))
	}
	binary.BigEndian.PutUint32(t[4:], crc32.ChecksumIEEE(covered))
	return t
}

// putTrailer writes a trailer at the end of the private data b, unless there are no features.
func putTrailer(b []byte, magic uint16, f Features, bound ...binding) {
	if f != 0 {
		t := trailerOf(magic, f, bound...)
		copy(b[len(b)-trailerLen:], t[:])
	}
}

// trailerFits reports whether private data of used bytes leaves space for a trailer in a field of n
// bytes.
func trailerFits(used, n int) bool { return used+trailerLen <= n }

// takeTrailer returns the features in the trailer of the private data b that this package knows,
// and replaces the trailer by zeros. It returns 0 if b ends with other data.
func takeTrailer(b []byte, magic uint16, bound ...binding) Features {
	end := b[len(b)-trailerLen:]
	f := Features(end[3])
	if t := trailerOf(magic, f, bound...); [trailerLen]byte(end) != t {
		return 0
	}
	clear(end)
	return f & allFeatures
}
