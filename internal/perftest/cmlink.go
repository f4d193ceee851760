package perftest

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/gorxe/gorxe/internal/peerio"
	"github.com/gorxe/gorxe/roce"
)

// MessageConn is the connection that a Link uses when the sides connected by rdma_cm (-R). Each
// message of the protocol is one SEND on a separate queue pair. The errors are those of this
// package or the cause of the context.
type MessageConn interface {
	// Send sends b. The caller may reuse b when Send returns.
	Send(ctx context.Context, b []byte) error
	// Receive returns the next message. The slice belongs to the caller.
	Receive(ctx context.Context) ([]byte, error)
	// WaitClosed behaves like Link.WaitClosed.
	WaitClosed(ctx context.Context) error
	Close() error
}

// MaxMessage is the length in bytes of the longest message over rdma_cm.
const MaxMessage = binaryKeyLen

// NewMessageLink returns a Link that uses m.
func NewMessageLink(m MessageConn) *Link { return &Link{msgs: m, timeout: Timeout} }

// receiveMessage is receive over rdma_cm, where the length of a message determines its kind.
func (l *Link) receiveMessage(ctx context.Context, k kind, limit time.Duration) (
	kind, []byte, error) {
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, ErrTimeout)
		defer cancel()
	}
	b, err := l.msgs.Receive(ctx)
	if err != nil {
		return k, nil, err
	}
	if k == kindAny {
		k = messageKind(len(b))
	}
	want := -1
	switch k {
	case kindAny:
	case kindKey:
		want = binaryKeyLen
	default:
		want = kinds[k].length
	}
	if len(b) != want {
		return k, nil, fmt.Errorf("%w: it sent %d bytes, %s", ErrGarbage, len(b), peerio.Quote(b))
	}
	if f := kinds[k].plausible; f != nil && k != kindKey {
		if err := f(b); err != nil {
			return k, nil, fmt.Errorf("%w: it sent %s", err, peerio.Quote(b))
		}
	}
	return k, b, nil
}

// messageKind returns the kind of a message of n bytes after the setup.
func messageKind(n int) kind {
	switch n {
	case binaryKeyLen:
		return kindKey
	case valueLen:
		return kindValue
	case len(done):
		return kindDone
	}
	return kindAny
}

// binaryKeyLen is the length of a key in a SEND. It consists of big-endian numbers: LID,
// outstanding READs, QPN, PSN, R_Key and an unused one of 4 bytes each, the address of 8 bytes, the
// GID of 16 bytes, and the SRQ number and the GID index of 4 bytes each.
const binaryKeyLen = 56

// binary returns the key as it is sent over rdma_cm.
func (k *Key) binary() []byte {
	b := make([]byte, 0, binaryKeyLen)
	for _, v := range [...]uint32{
		uint32(k.LID), uint32(k.OutReads), uint32(k.QPN), uint32(k.PSN), uint32(k.RKey), 0,
	} {
		b = binary.BigEndian.AppendUint32(b, v)
	}
	b = binary.BigEndian.AppendUint64(b, k.Addr)
	b = append(b, k.GID[:]...)
	b = binary.BigEndian.AppendUint32(b, k.SRQN)
	return binary.BigEndian.AppendUint32(b, 0)
}

// parseBinaryKey parses a key of binaryKeyLen bytes. A blank key, which is a barrier before queue
// pairs exist, has QPN 0.
func parseBinaryKey(b []byte) (k Key, err error) {
	u := func(i int) uint32 { return binary.BigEndian.Uint32(b[i:]) }
	if u(0) > 1<<16-1 || u(4) > maxOut || u(8) >= max24 || u(12) > max24 {
		return k, fmt.Errorf("%w: key %x", ErrProtocol, b)
	}
	k = Key{
		LID: uint16(u(0)), OutReads: uint16(u(4)), QPN: roce.QPN(u(8)), PSN: roce.PSN(u(12)),
		RKey: roce.RKey(u(16)), Addr: binary.BigEndian.Uint64(b[24:]), SRQN: u(48),
	}
	copy(k.GID[:], b[32:])
	return k, nil
}

// encode returns the key as it is sent over the link.
func (l *Link) encode(k *Key) []byte {
	if l.msgs != nil {
		return k.binary()
	}
	return k.text()
}

// decode parses a key that was received over the link. Over rdma_cm a key need not have a GID.
func (l *Link) decode(b []byte) (Key, error) {
	if l.msgs != nil {
		return parseBinaryKey(b)
	}
	return parseKey(b)
}
