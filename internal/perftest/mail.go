package perftest

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/gorxe/gorxe/roce"
)

// Mailbox is what a Link needs of a connection by rdma_cm (-R): there each message of the exchange is one SEND, on a queue
// pair of its own. What has been received is handed over, and what is to be sent has been when Send returns. Errors
// are those of this package, or the cause of ctx.
type Mailbox interface {
	Send(ctx context.Context, b []byte) error
	Receive(ctx context.Context) ([]byte, error)
	// Gone waits as Link.Gone does.
	Gone(ctx context.Context) error
	Close() error
}

// MaxMail is the length of the longest message.
const MaxMail = mailKeyLen

// NewMailLink makes a Link of a mailbox.
func NewMailLink(m Mailbox) *Link { return &Link{mail: m, timeout: Timeout} }

// receiveMail is receive by mailbox, where a message's length tells its kind.
func (l *Link) receiveMail(ctx context.Context, k kind, limit time.Duration) (kind, []byte, error) {
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, ErrTimeout)
		defer cancel()
	}
	b, err := l.mail.Receive(ctx)
	if err != nil {
		return k, nil, err
	}
	if k == kindAny {
		switch len(b) {
		case mailKeyLen:
			k = kindKey
		case wordLen:
			k = kindWord
		case len(done):
			k = kindDone
		}
	}
	want := mailKeyLen
	if k == kindAny {
		want = -1
	} else if k != kindKey {
		want = kinds[k].length
	}
	if len(b) != want {
		return k, nil, fmt.Errorf("%w: it sent %d bytes, %s", ErrGarbage, len(b), quote(b))
	}
	if f := kinds[min(k, kindDone)].plausible; f != nil && k != kindKey {
		if err := f(b); err != nil {
			return k, nil, fmt.Errorf("%w: it sent %s", err, quote(b))
		}
	}
	return k, b, nil
}

// mailKeyLen is the length of a key in a SEND: numbers of 4 bytes, big endian, but an address of 8 and a GID of 16: LID, outstanding READs,
// QPN, PSN, R_Key, 4 bytes unused, address, GID, the SRQ's number, the GID's index.
const mailKeyLen = 56

// mail is the key as it travels in a SEND.
func (k *Key) mail() []byte {
	b := make([]byte, 0, mailKeyLen)
	for _, v := range [...]uint32{uint32(k.LID), uint32(k.OutReads), uint32(k.QPN), uint32(k.PSN), uint32(k.RKey), 0} {
		b = binary.BigEndian.AppendUint32(b, v)
	}
	b = binary.BigEndian.AppendUint64(b, k.Addr)
	b = append(b, k.GID[:]...)
	b = binary.BigEndian.AppendUint32(b, k.SRQN)
	return binary.BigEndian.AppendUint32(b, 0)
}

// parseMail reads a key of mailKeyLen bytes. A blank one, which is a barrier before there are queue pairs, is QPN 0.
func parseMail(b []byte) (k Key, err error) {
	u := func(i int) uint32 { return binary.BigEndian.Uint32(b[i:]) }
	if u(0) > 1<<16-1 || u(4) > maxOut || u(8) >= max24 || u(12) > max24 {
		return k, fmt.Errorf("%w: a key of %x", ErrProtocol, b)
	}
	k = Key{
		LID: uint16(u(0)), OutReads: uint16(u(4)), QPN: roce.QPN(u(8)), PSN: roce.PSN(u(12)), RKey: roce.RKey(u(16)),
		Addr: binary.BigEndian.Uint64(b[24:]), SRQN: u(48),
	}
	copy(k.GID[:], b[32:])
	return k, nil
}

// encode is the key as it travels over the link.
func (l *Link) encode(k *Key) []byte {
	if l.mail != nil {
		return k.mail()
	}
	return k.text()
}

// decode reads a key that came over the link. Over rdma_cm it need not have a GID.
func (l *Link) decode(b []byte) (Key, error) {
	if l.mail != nil {
		return parseMail(b)
	}
	return parseKey(b)
}
