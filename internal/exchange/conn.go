package exchange

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"time"
)

// Timeout is how long an end waits for an answer that needs no user.
const Timeout = 10 * time.Second

const refuseTime = time.Second // for the last words of a session

const quoted = 48 // bytes of a stranger's first words that an error shows

// Conn is one end of a session. Send and Receive may run at the same time, each
// by one goroutine.
type Conn struct {
	nc net.Conn
	r  *bufio.Reader
}

// NewConn makes a Conn of a stream.
func NewConn(nc net.Conn) *Conn { return &Conn{nc: nc, r: bufio.NewReader(nc)} }

// Dial connects to a gorxe at addr (host:port).
func Dial(ctx context.Context, addr string) (*Conn, error) {
	d := net.Dialer{Timeout: Timeout}
	nc, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, fmt.Errorf("cannot reach gorxe at %s: %w: is 'gorxe up' (or a 'gorxe perf' server) running there, and the port open?", addr, dialReason(err))
	}
	return NewConn(nc), nil
}

// dialReason strips what net.OpError repeats.
func dialReason(err error) error {
	var op *net.OpError
	if !errors.As(err, &op) {
		return err
	}
	if op.Timeout() {
		return ErrTimeout
	}
	var sys *os.SyscallError
	if errors.As(op.Err, &sys) {
		return sys.Err
	}
	return op.Err
}

// Local and Remote are the connection's addresses.
func (c *Conn) Local() *net.TCPAddr  { return tcpAddr(c.nc.LocalAddr()) }
func (c *Conn) Remote() *net.TCPAddr { return tcpAddr(c.nc.RemoteAddr()) }

func tcpAddr(a net.Addr) *net.TCPAddr {
	if t, ok := a.(*net.TCPAddr); ok {
		return t
	}
	return &net.TCPAddr{} // a test's pipe
}

// First waits for the peer's next byte, up to limit, and leaves it unread: it tells who speaks.
func (c *Conn) First(ctx context.Context, limit time.Duration) (byte, error) {
	defer bound(ctx, limit, c.nc.SetReadDeadline)()
	head, err := c.r.Peek(1)
	if err != nil {
		return 0, c.broken(ctx, err)
	}
	return head[0], nil
}

// Stream is the connection as bytes, for an exchange that comes before gorxe's or in its place. That must not read
// further than its own last byte.
func (c *Conn) Stream() net.Conn { return stream{c.nc, c.r} }

type stream struct {
	net.Conn
	r *bufio.Reader
}

func (s stream) Read(b []byte) (int, error) { return s.r.Read(b) }

// Close ends the session. It makes a Receive in progress return.
func (c *Conn) Close() error { return c.nc.Close() }

// Send sends one message, with a deadline of ctx's or Timeout.
func (c *Conn) Send(ctx context.Context, m *Message) error {
	m.Gorxe = Version
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if len(b) >= MaxMessage {
		return fmt.Errorf("%w: %d bytes, at most %d", ErrTooLong, len(b), MaxMessage)
	}
	stop := bound(ctx, Timeout, c.nc.SetWriteDeadline)
	defer stop()
	if _, err := c.nc.Write(append(b, '\n')); err != nil {
		return c.broken(ctx, err)
	}
	return nil
}

// Refuse tells the peer's user why this end gives up, and ends the session. It
// fails in silence: the session is over anyway.
func (c *Conn) Refuse(err error) {
	ctx, cancel := context.WithTimeout(context.Background(), refuseTime)
	defer cancel()
	_ = c.Send(ctx, &Message{Kind: KindError, Error: clip(err.Error())})
	if tcp, ok := c.nc.(*net.TCPConn); ok && tcp.CloseWrite() == nil {
		// Closing with unread bytes resets the connection, and the reset may overtake the text: read what the
		// peer still says, until it closes, but not for long.
		_ = tcp.SetReadDeadline(time.Now().Add(refuseTime))
		_, _ = io.CopyN(io.Discard, tcp, MaxMessage)
	}
	c.Close()
}

// Receive waits for one message of the given kinds, until ctx's deadline or
// Timeout.
func (c *Conn) Receive(ctx context.Context, kinds ...Kind) (*Message, error) {
	return c.receive(ctx, Timeout, kinds)
}

// Await is Receive without a time limit of its own, for the end of a run that
// may take long. The peer's death ends it: TCP keep-alives find that out.
func (c *Conn) Await(ctx context.Context, kinds ...Kind) (*Message, error) {
	return c.receive(ctx, 0, kinds)
}

func (c *Conn) receive(ctx context.Context, limit time.Duration, kinds []Kind) (*Message, error) {
	stop := bound(ctx, limit, c.nc.SetReadDeadline)
	defer stop()
	line, err := c.readLine()
	if err != nil {
		return nil, c.broken(ctx, err)
	}
	m := new(Message)
	if err := strict(line, m); err != nil {
		// A newer version may well have other fields: tell that rather than the field.
		if v, ok := versionOf(line); ok && v != Version {
			m.Gorxe = v
			return nil, m.check()
		}
		return nil, fmt.Errorf("%w: it sent %s (%v)", ErrGarbage, quote(line), err)
	}
	if err := m.check(); err != nil {
		return nil, err
	}
	if m.Kind == KindError {
		return nil, fmt.Errorf("%w: %s", ErrRemote, clip(printable(m.Error)))
	}
	if !slices.Contains(kinds, m.Kind) {
		return nil, fmt.Errorf("%w: it sent %q where %q was due", ErrProtocol, clip(string(m.Kind)), kinds)
	}
	return m, nil
}

// readLine reads one message. It judges the preamble byte by byte, as it comes:
// a stranger that sends a few bytes and then waits for us is told apart at once.
func (c *Conn) readLine() ([]byte, error) {
	for n := 1; n <= len(preamble); n++ {
		head, err := c.r.Peek(n)
		if len(head) == n && head[n-1] != preamble[n-1] {
			head, _ = c.r.Peek(min(c.r.Buffered(), quoted))
			return nil, fmt.Errorf("%w: it sent %s", ErrGarbage, quote(head))
		}
		if err != nil {
			if len(head) > 0 && errors.Is(err, io.EOF) {
				return nil, fmt.Errorf("%w: it sent %s and closed", ErrGarbage, quote(head))
			}
			return nil, err
		}
	}
	var line []byte
	for {
		part, err := c.r.ReadSlice('\n')
		if len(line)+len(part) > MaxMessage {
			return nil, fmt.Errorf("%w: it sent more than %d bytes, starting with %s", ErrTooLong, MaxMessage, quote(append(line, part...)))
		}
		line = append(line, part...)
		switch {
		case err == nil:
			return line, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
}

// broken turns a transport error into one that says what it means.
func (c *Conn) broken(ctx context.Context, err error) error {
	switch {
	case context.Cause(ctx) != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded):
		return context.Cause(ctx)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return ErrTimeout
	case errors.Is(err, ErrGarbage), errors.Is(err, ErrTooLong):
		return err
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed), errors.Is(err, io.ErrClosedPipe):
		return ErrGone
	}
	return fmt.Errorf("%w (%v)", ErrGone, dialReason(err))
}

// bound applies ctx's deadline, or limit from now (0: none), by set, and makes
// ctx's cancellation end the call in progress. The returned function undoes it.
func bound(ctx context.Context, limit time.Duration, set func(time.Time) error) func() {
	var deadline time.Time
	if limit > 0 {
		deadline = time.Now().Add(limit)
	}
	if d, ok := ctx.Deadline(); ok && (deadline.IsZero() || d.Before(deadline)) {
		deadline = d
	}
	_ = set(deadline) // a closed connection says so at the read or write that follows
	stop := context.AfterFunc(ctx, func() { _ = set(time.Unix(1, 0)) })
	return func() { stop() }
}

// strict decodes exactly one JSON value and refuses unknown fields.
func strict(b []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more than one value")
	}
	return nil
}

func versionOf(line []byte) (int, bool) {
	var v struct {
		Gorxe int `json:"gorxe"`
	}
	err := json.Unmarshal(line, &v)
	return v.Gorxe, err == nil
}

// quote shows the first bytes that a stranger sent.
func quote(b []byte) string {
	b = bytes.TrimRight(b, "\r\n")
	if len(b) > quoted {
		return fmt.Sprintf("%q...", b[:quoted])
	}
	return fmt.Sprintf("%q", b)
}

// printable keeps a peer's text from steering the user's terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || (r >= 0x80 && r < 0xa0) {
			return ' '
		}
		return r
	}, s)
}

func clip(s string) string {
	if len(s) > maxText {
		return strings.ToValidUTF8(s[:maxText], "") + "..."
	}
	return s
}
