package perftest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/gorxe/gorxe/internal/peerio"
)

// DefaultPort is the TCP port on which perftest's servers listen.
const DefaultPort = 18515

// Timeout is the time limit for one message of the setup. It is long because perftest registers
// its buffers between messages.
const Timeout = 20 * time.Second

var transportErrors = peerio.Errors{Timeout: ErrTimeout, Gone: ErrGone}

// kind is a kind of message.
type kind uint8

const (
	kindHello kind = iota
	kindInt        // cycle_buffer or cache line size
	kindMTU
	kindKey
	kindValue // one value of a report
	kindDone
	kindAny // key, value or done
)

// done is the last message of older versions.
const done = "done\x00"

// kinds holds the properties of each kind.
var kinds = [...]struct {
	length    int
	plausible func(got []byte) error // checks the first bytes of a message; nil: no check
}{
	kindHello: {versionLen, plausibleHello},
	kindInt:   {4, nil},
	kindMTU:   {2, plausibleMTU},
	kindKey:   {keyLen, plausibleKey},
	kindValue: {valueLen, nil},
	kindDone:  {len(done), plausibleDone},
}

func plausibleDone(got []byte) error {
	if !strings.HasPrefix(done, string(got)) {
		return ErrGarbage
	}
	return nil
}

// Link carries the messages of one side. One goroutine may send while another one receives.
type Link struct {
	nc      net.Conn
	r       *bufio.Reader
	msgs    MessageConn   // used instead of nc and r if the sides connected by rdma_cm
	timeout time.Duration // for one message of the setup
}

// NewLink returns a Link that uses the stream nc.
func NewLink(nc net.Conn) *Link {
	return &Link{nc: nc, r: bufio.NewReaderSize(nc, 4*keyLen), timeout: Timeout}
}

// Close closes the connection. A receive in progress returns ErrGone.
func (l *Link) Close() error {
	if l.msgs != nil {
		return l.msgs.Close()
	}
	return l.nc.Close()
}

// send sends one message.
func (l *Link) send(ctx context.Context, b []byte) error {
	if l.msgs != nil {
		ctx, cancel := context.WithTimeoutCause(ctx, l.timeout, ErrTimeout)
		defer cancel()
		return l.msgs.Send(ctx, b)
	}
	defer peerio.Bound(ctx, l.timeout, l.nc.SetWriteDeadline)()
	if _, err := l.nc.Write(b); err != nil {
		return transportErrors.Translate(ctx, err)
	}
	return nil
}

// receive returns the next message, which must be of kind k, and its kind. A limit of 0 means no
// limit other than ctx.
func (l *Link) receive(ctx context.Context, k kind, limit time.Duration) (kind, []byte, error) {
	if l.msgs != nil {
		return l.receiveMessage(ctx, k, limit)
	}
	defer peerio.Bound(ctx, limit, l.nc.SetReadDeadline)()
	if k == kindAny {
		head, err := l.r.Peek(1)
		if err != nil {
			return k, nil, transportErrors.Translate(ctx, err)
		}
		if k, err = kindOf(head[0]); err != nil {
			return k, nil, l.unexpected(err, nil)
		}
	}
	b := make([]byte, kinds[k].length)
	for n := 0; n < len(b); {
		m, err := l.r.Read(b[n:])
		n += m
		if f := kinds[k].plausible; f != nil && m > 0 {
			if bad := f(b[:n]); bad != nil {
				return k, nil, l.unexpected(bad, b[:n])
			}
		}
		if err != nil && n < len(b) {
			return k, nil, incomplete(ctx, k, err, b[:n])
		}
	}
	return k, b, nil
}

// incomplete returns the error for a message of kind k of which only got arrived before err.
func incomplete(ctx context.Context, k kind, err error, got []byte) error {
	err = transportErrors.Translate(ctx, err)
	switch {
	case len(got) == 0 || ctx.Err() != nil:
		return err
	case errors.Is(err, ErrTimeout):
		return fmt.Errorf("%w: it sent only %s of %d bytes", err, peerio.Quote(got),
			kinds[k].length)
	case k == kindHello:
		err = ErrGarbage
	default:
		err = ErrProtocol
	}
	return fmt.Errorf("%w: it sent only %s of %d bytes and closed the connection",
		err, peerio.Quote(got), kinds[k].length)
}

// kindOf returns the kind of a message that starts with c, after the setup. A key starts with a
// hexadecimal digit. A report starts with a size below 2^56, so its first byte is 0.
func kindOf(c byte) (kind, error) {
	switch {
	case c == done[0]:
		return kindDone, nil
	case isHex(c):
		return kindKey, nil
	case c == 0:
		return kindValue, nil
	}
	return kindAny, ErrGarbage
}

// unexpected adds to err a quote of what arrived: got and the bytes that are buffered after it.
func (l *Link) unexpected(err error, got []byte) error {
	more, _ := l.r.Peek(l.r.Buffered())
	return fmt.Errorf("%w: it sent %s", err, peerio.Quote(bytes.Join([][]byte{got, more}, nil)))
}

// WaitClosed waits until the peer closes the connection and returns ErrGone. It also returns if ctx
// ends, or if the peer sends something; it then returns nil and leaves the message unread.
func (l *Link) WaitClosed(ctx context.Context) error {
	if l.msgs != nil {
		return l.msgs.WaitClosed(ctx)
	}
	defer peerio.Bound(ctx, 0, l.nc.SetReadDeadline)()
	if _, err := l.r.Peek(1); err != nil {
		return transportErrors.Translate(ctx, err)
	}
	return nil
}
