package roce

import (
	"fmt"
	"slices"
	"strings"
)

// maxPKeys is the largest number of partitions of a Device.
const maxPKeys = 128

// partition is the part of a P_Key that names the partition. The other bit, 0x8000, marks a full
// member (IBA 10.9.1).
const partition = 0x7fff

// WithPKeys makes the Device a member of the partitions with these keys, at most 128. The default
// is DefaultPKey alone, the only partition of the kernel's rxe. QPs belong to the first one unless
// QPConfig.PKey selects another.
//
// Packets reach a QP only if they carry a P_Key of the QP's partition, and if their sender or the
// QP is a full member, which bit 15 of a key marks (IBA 10.9.3). Other packets are ignored and
// counted (drop_pkey). Connection requests must carry a P_Key of one of the Device's partitions.
// P_Keys separate programs that cooperate. They do not stop an attacker: a peer's packets contain
// whatever key it chooses.
func WithPKeys(keys ...PKey) Option {
	return func(c *config) { c.pkeys = slices.Clone(keys) }
}

// pkeyTable holds the P_Keys of a Device, one per partition. It does not change.
type pkeyTable []PKey

func newPKeyTable(keys []PKey) (pkeyTable, error) {
	if len(keys) == 0 {
		return pkeyTable{DefaultPKey}, nil
	}
	if len(keys) > maxPKeys {
		return nil, fmt.Errorf("%w: %d P_Keys; a device has at most %d", ErrPKey, len(keys),
			maxPKeys)
	}
	for i, k := range keys {
		if k&partition == 0 {
			return nil, fmt.Errorf("%w: %#04x; its low 15 bits name the partition and must not be 0",
				ErrPKey, uint16(k))
		}
		if _, err := pkeyTable(keys[:i]).find(k); err == nil {
			return nil, fmt.Errorf("%w: %#04x names a partition that is in the list already",
				ErrPKey, uint16(k))
		}
	}
	return keys, nil
}

// find returns the key of k's partition. Bit 15 of k does not matter. If k is 0, find returns the
// first key.
func (t pkeyTable) find(k PKey) (PKey, error) {
	if k == 0 {
		return t[0], nil
	}
	for _, own := range t {
		if (own^k)&partition == 0 {
			return own, nil
		}
	}
	return 0, fmt.Errorf("%w: %#04x; the device has %v", ErrPKey, uint16(k), t)
}

// String returns the keys, separated by commas.
func (t pkeyTable) String() string {
	var keys []string
	for _, k := range t {
		keys = append(keys, fmt.Sprintf("%#04x", uint16(k)))
	}
	return strings.Join(keys, ", ")
}

// matching returns the key with which the Device answers a packet with key k; false: the packet
// must be ignored.
func (t pkeyTable) matching(k PKey) (PKey, bool) {
	for _, own := range t {
		if own.Matches(k) {
			return own, true
		}
	}
	return 0, false
}

// PKeys returns the partition keys of the Device.
func (d *Device) PKeys() []PKey { return slices.Clone(d.pkeys) }

// checkPKey returns an error if packets with key remote would not reach the QP.
func (q *QP) checkPKey(remote PKey) error {
	if own := q.pkey(); !own.Matches(remote) {
		return fmt.Errorf("%w: the peer's is %#04x, the QP's is %#04x: both must name the same "+
			"partition (low 15 bits), and one must be a full member's (bit 15)", ErrPKey,
			uint16(remote), uint16(own))
	}
	return nil
}
