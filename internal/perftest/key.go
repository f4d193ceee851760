package perftest

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"

	"github.com/gorxe/gorxe/roce"
)

// Key is what a peer has to know of one queue pair.
type Key struct {
	LID      uint16 // 0 in RoCE
	OutReads uint16 // READs and atomics that this end serves, and has in flight, at a time
	QPN      roce.QPN
	PSN      roce.PSN // the first that this end sends
	RKey     roce.RKey
	Addr     uint64 // of the buffer, whose length is not told
	GID      roce.GID
	SRQN     uint32
}

// keyLen is the length of a key as text, its NUL included: LID, outstanding
// READs, QPN, PSN, R_Key, address, 16 bytes of GID and the SRQ's number, all
// hexadecimal of fixed width, with a colon after each.
const keyLen = 108

// keyWidths are the digits of the fields in front of the GID.
var keyWidths = [...]int{4, 4, 6, 6, 8, 16}

const (
	gidAt  = 4 + 4 + 6 + 6 + 8 + 16 + 6 // offset of the GID: six fields and their colons
	srqAt  = gidAt + len(roce.GID{})*3  // offset of the SRQ's number
	max24  = 1<<24 - 1                  // of a QPN and a PSN
	colon2 = gidAt + 2                  // where a GID has a colon, and a key without GID a digit
	maxOut = 255                        // what verbs can express
)

// text is the key as it travels over TCP.
func (k *Key) text() []byte {
	b := make([]byte, 0, keyLen)
	b = fmt.Appendf(b, "%04x:%04x:%06x:%06x:%08x:%016x:",
		k.LID, k.OutReads, uint32(k.QPN), uint32(k.PSN), uint32(k.RKey), k.Addr)
	for _, c := range k.GID {
		b = fmt.Appendf(b, "%02x:", c)
	}
	return fmt.Appendf(b, "%08x:\x00", k.SRQN)
}

// plausibleKey judges a key's first bytes as they come.
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

// plausibleField tells whether the bytes from at on may be w hexadecimal digits
// and a colon, as far as they are there.
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

// parseKey reads a whole key that plausibleKey let through.
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

// hexValue is the value of up to 16 digits.
func hexValue(digits []byte) uint64 {
	var b [8]byte
	n := len(digits) / 2
	// The digits were looked at one by one: there is no error.
	_, _ = hex.Decode(b[8-n:], digits)
	return binary.BigEndian.Uint64(b[:])
}

// check refuses what no perftest of RoCE sends.
func (k *Key) check() error {
	switch {
	case k.QPN == 0 || k.QPN >= max24:
		return fmt.Errorf("%w: QPN %#x", ErrProtocol, uint32(k.QPN))
	case k.GID.IsZero():
		return ErrNoGID
	case k.GID.IsMulticast():
		return fmt.Errorf("%w: GID %v is a multicast group's", ErrProtocol, k.GID)
	}
	return nil
}

// Endpoint is the queue pair as package roce names it. perftest agrees on the path MTU separately.
func (k *Key) Endpoint(mtu roce.MTU) roce.Endpoint {
	return roce.Endpoint{QPN: k.QPN, PSN: k.PSN, GID: k.GID, MTU: mtu, PKey: roce.DefaultPKey}
}

// Reads is how many READs and atomics may be in flight towards the peer, of most that this end can have.
func (k *Key) Reads(most int) int { return max(1, min(int(k.OutReads), most, maxOut)) }
