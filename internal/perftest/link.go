package perftest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"
)

// DefaultPort is where perftest's servers listen, TCP.
const DefaultPort = 18515

// Timeout is how long an end waits for a message of the set-up. perftest
// registers its buffers meanwhile, which may take seconds.
const Timeout = 20 * time.Second

const quoted = 48 // bytes of a stranger's words that an error shows

// kind is a kind of message.
type kind uint8

const (
	kindHello kind = iota
	kindInt        // cycle_buffer, cache line size
	kindMTU
	kindKey
	kindWord // of a report
	kindDone
	kindAny // whatever comes: a key, a word or done
)

// done is what older versions say after the last exchange.
const done = "done\x00"

// kinds holds what is known of each kind.
var kinds = [...]struct {
	length    int
	plausible func(got []byte) error // judges the first bytes as they come; nil: any will do
}{
	kindHello: {versionLen, plausibleHello},
	kindInt:   {4, nil},
	kindMTU:   {2, plausibleMTU},
	kindKey:   {keyLen, plausibleKey},
	kindWord:  {wordLen, nil},
	kindDone:  {len(done), plausibleDone},
}

func plausibleDone(got []byte) error {
	if !strings.HasPrefix(done, string(got)) {
		return ErrGarbage
	}
	return nil
}

// Link carries the messages of one end over a stream. One goroutine may send
// and one receive at a time.
type Link struct {
	nc      net.Conn
	r       *bufio.Reader
	mail    Mailbox       // in place of the stream, where the ends have met by rdma_cm
	timeout time.Duration // for one message of the set-up
}

// NewLink makes a Link of a stream.
func NewLink(nc net.Conn) *Link {
	return &Link{nc: nc, r: bufio.NewReaderSize(nc, 4*keyLen), timeout: Timeout}
}

// Close ends the exchange. A Receive in progress returns.
func (l *Link) Close() error {
	if l.mail != nil {
		return l.mail.Close()
	}
	return l.nc.Close()
}

// send sends one message.
func (l *Link) send(ctx context.Context, b []byte) error {
	if l.mail != nil {
		ctx, cancel := context.WithTimeoutCause(ctx, l.timeout, ErrTimeout)
		defer cancel()
		return l.mail.Send(ctx, b)
	}
	defer bound(ctx, l.timeout, l.nc.SetWriteDeadline)()
	if _, err := l.nc.Write(b); err != nil {
		return broken(ctx, err)
	}
	return nil
}

// receive takes the next message, which has to be of kind k, within limit (0:
// until ctx ends), and says of which kind it is.
func (l *Link) receive(ctx context.Context, k kind, limit time.Duration) (kind, []byte, error) {
	if l.mail != nil {
		return l.receiveMail(ctx, k, limit)
	}
	defer bound(ctx, limit, l.nc.SetReadDeadline)()
	if k == kindAny {
		head, err := l.r.Peek(1)
		if err != nil {
			return k, nil, broken(ctx, err)
		}
		if k, err = kindOf(head[0]); err != nil {
			return k, nil, l.foreign(err, nil)
		}
	}
	b := make([]byte, kinds[k].length)
	for n := 0; n < len(b); {
		m, err := l.r.Read(b[n:])
		n += m
		if f := kinds[k].plausible; f != nil && m > 0 {
			if bad := f(b[:n]); bad != nil {
				return k, nil, l.foreign(bad, b[:n])
			}
		}
		if err != nil && n < len(b) {
			return k, nil, cutShort(ctx, k, err, b[:n])
		}
	}
	return k, b, nil
}

// cutShort says what it means that a message of kind k ended with err after got.
func cutShort(ctx context.Context, k kind, err error, got []byte) error {
	err = broken(ctx, err)
	switch {
	case len(got) == 0 || ctx.Err() != nil:
		return err
	case errors.Is(err, ErrTimeout):
		return fmt.Errorf("%w: of %d bytes it sent %s", err, kinds[k].length, quote(got))
	case k == kindHello:
		err = ErrGarbage
	default:
		err = ErrProtocol
	}
	return fmt.Errorf("%w: of %d bytes it sent %s, and closed", err, kinds[k].length, quote(got))
}

// kindOf tells what a message is that starts with c, once the set-up is over: a
// key is hexadecimal, with a LID below the multicast ones in front; a report
// starts with a size below 2^56.
func kindOf(c byte) (kind, error) {
	switch {
	case c == done[0]:
		return kindDone, nil
	case isHex(c):
		return kindKey, nil
	case c == 0:
		return kindWord, nil
	}
	return kindAny, ErrGarbage
}

// foreign quotes what came instead of the exchange: got, and what is there after it.
func (l *Link) foreign(err error, got []byte) error {
	more, _ := l.r.Peek(min(l.r.Buffered(), quoted))
	return fmt.Errorf("%w: it sent %s", err, quote(bytes.Join([][]byte{got, more}, nil)))
}

// Gone waits until the peer closes, which gives ErrGone, says something that
// nobody asked for, which stays unread, or ctx ends.
func (l *Link) Gone(ctx context.Context) error {
	if l.mail != nil {
		return l.mail.Gone(ctx)
	}
	defer bound(ctx, 0, l.nc.SetReadDeadline)()
	if _, err := l.r.Peek(1); err != nil {
		return broken(ctx, err)
	}
	return nil
}

// bound applies ctx's deadline, or limit from now (0: none), by set, and makes
// ctx's end end the call in progress. The returned function undoes it.
func bound(ctx context.Context, limit time.Duration, set func(time.Time) error) func() {
	var deadline time.Time
	if limit > 0 {
		deadline = time.Now().Add(limit)
	}
	if d, ok := ctx.Deadline(); ok && (deadline.IsZero() || d.Before(deadline)) {
		deadline = d
	}
	_ = set(deadline) // a closed connection says so at the read or write that follows
	cut := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(cut)
		_ = set(time.Unix(1, 0))
	})
	return func() {
		if !stop() {
			<-cut // else it might cut the next call short
		}
	}
}

// broken turns a transport error into one that says what it means.
func broken(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded):
		return context.Cause(ctx)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return ErrTimeout
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed), errors.Is(err, io.ErrClosedPipe):
		return ErrGone
	}
	var op *net.OpError
	if errors.As(err, &op) {
		err = op.Err
	}
	return fmt.Errorf("%w (%v)", ErrGone, err)
}

// quote shows the first bytes that a stranger sent.
func quote(b []byte) string {
	if len(b) > quoted {
		return fmt.Sprintf("%q...", b[:quoted])
	}
	return fmt.Sprintf("%q", b)
}
