package perftest

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"

	"github.com/gorxe/gorxe/roce"
)

// Key is what a peer must know about one queue pair.
type Key struct {
	LID      uint16 // 0 in RoCE
	OutReads uint16 // READs and atomics that the side serves, and has outstanding, at a time
	QPN      roce.QPN
	PSN      roce.PSN // of the first packet that the side sends
	RKey     roce.RKey
	Addr     uint64 // of the buffer; the protocol does not tell its length
	GID      roce.GID
	SRQN     uint32
}

// keyLen is the length of a key as text, including its NUL: LID, outstanding READs, QPN, PSN,
// R_Key, address, the 16 bytes of the GID and the SRQ number. Each is a hexadecimal number of fixed
// width, followed by a colon.
const keyLen = 108

// keyWidths holds the number of digits of each field before the GID.
var keyWidths = [...]int{4, 4, 6, 6, 8, 16}

const (
	gidAt = 4 + 4 + 6 + 6 + 8 + 16 + 6 // offset of the GID: six fields and their colons
	srqAt = gidAt + len(roce.GID{})*3  // offset of the SRQ number
	max24 = 1<<24 - 1                  // largest 24-bit number
	// a key with a GID has a colon here, a key without one a digit
	colon2 = gidAt + 2
	maxOut = 255 // largest number of outstanding READs in the verbs API
)

// text returns the key as it is sent over TCP.
func (k *Key) text() []byte {
	b := make([]byte, 0, keyLen)
	b = fmt.Appendf(b, "%04x:%04x:%06x:%06x:%08x:%016x:",
		k.LID, k.OutReads, uint32(k.QPN), uint32(k.PSN), uint32(k.RKey), k.Addr)
	for _, c := range k.GID {
		b = fmt.Appendf(b, "%02x:", c)
	}
	return fmt.Appendf(b, "%08x:\x00", k.SRQN)
}

// plausibleKey returns an error if got cannot be the first bytes of a key.
func plausibleKey(got []byte) error {
	at := 0
	for _, w := range keyWidths {
		if !plausibleField(got, at, w) {
			return ErrGarbage
		}
		at += w + 1
	}
	if len(got) > colon2 && got[colon2] != ':' && isHex(got[colon2]) {
		return ErrNoGID
	}
	for ; at < srqAt; at += 3 {
		if !plausibleField(got, at, 2) {
			return ErrGarbage
		}
	}
	if !plausibleField(got, srqAt, 8) || (len(got) == keyLen && got[keyLen-1] != 0) {
		return ErrGarbage
	}
	return nil
}

// plausibleField reports whether the bytes of got from offset at on can be w hexadecimal digits and
// a colon. got may end before or within the field.
func plausibleField(got []byte, at, w int) bool {
	for i := at; i < min(len(got), at+w); i++ {
		if !isHex(got[i]) {
			return false
		}
	}
	return len(got) <= at+w || got[at+w] == ':'
}

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}

// parseKey parses a complete key that plausibleKey has accepted.
func parseKey(b []byte) (k Key, err error) {
	var v [len(keyWidths)]uint64
	at := 0
	for i, w := range keyWidths {
		v[i] = hexValue(b[at : at+w])
		at += w + 1
	}
	for i := range k.GID {
		k.GID[i] = byte(hexValue(b[at : at+2]))
		at += 3
	}
	k.LID, k.OutReads = uint16(v[0]), uint16(v[1])
	k.QPN, k.PSN, k.RKey, k.Addr = roce.QPN(v[2]), roce.PSN(v[3]), roce.RKey(v[4]), v[5]
	k.SRQN = uint32(hexValue(b[at : at+8]))
	return k, k.check()
}

// hexValue returns the value of up to 16 hexadecimal digits.
func hexValue(digits []byte) uint64 {
	var b [8]byte
	n := len(digits) / 2
	// plausibleKey has checked the digits, so there is no error.
	_, _ = hex.Decode(b[8-n:], digits)
	return binary.BigEndian.Uint64(b[:])
}

// check returns an error if k has values that perftest never sends on RoCE.
func (k *Key) check() error {
	switch {
	case k.QPN == 0 || k.QPN >= max24:
		return fmt.Errorf("%w: QPN %#x", ErrProtocol, uint32(k.QPN))
	case k.GID.IsZero():
		return ErrNoGID
	case k.GID.IsMulticast():
		return fmt.Errorf("%w: GID %v is a multicast address", ErrProtocol, k.GID)
	}
	return nil
}

// Endpoint returns the queue pair as a roce.Endpoint with path MTU mtu, which is not part of a key.
func (k *Key) Endpoint(mtu roce.MTU) roce.Endpoint {
	return roce.Endpoint{QPN: k.QPN, PSN: k.PSN, GID: k.GID, MTU: mtu}
}

// Reads returns how many READs and atomics may be outstanding towards the peer, at least 1 and at
// most the given number.
func (k *Key) Reads(most int) int { return max(1, min(int(k.OutReads), most, maxOut)) }
