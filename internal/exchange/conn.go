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
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/gorxe/gorxe/internal/peerio"
	"github.com/gorxe/gorxe/roce"
)

// Timeout is the time limit for an answer that does not depend on a user.
const Timeout = 10 * time.Second

// refuseTimeout limits each step of Conn.Refuse.
const refuseTimeout = time.Second

var transportErrors = peerio.Errors{Timeout: ErrTimeout, Gone: ErrGone}

// Conn is the local side of a session. One goroutine may call Send while another one calls
// Receive or Await.
type Conn struct {
	nc net.Conn
	r  *bufio.Reader

	addr   string       // that Dial has connected to
	dev    *roce.Device // see DialFrom
	fields uint         // new fields of endpoints that the client's request has; see usedFields

	checkGID func(context.Context, netip.Addr, roce.GID) error // of the server; nil: SameAddr
}

// NewConn returns a Conn that uses the stream nc.
func NewConn(nc net.Conn) *Conn { return &Conn{nc: nc, r: bufio.NewReader(nc)} }

// Dial connects to the gorxe server at addr (host:port).
func Dial(ctx context.Context, addr string) (*Conn, error) { return DialFrom(ctx, nil, addr) }

// DialFrom is Dial from the address of a device, if it has only one. Servers compare the address
// with the client's GID. dev may be nil.
func DialFrom(ctx context.Context, dev *roce.Device, addr string) (*Conn, error) {
	nc, err := dialTCP(ctx, dev, addr)
	if err != nil {
		return nil, err
	}
	c := NewConn(nc)
	c.addr, c.dev = addr, dev
	return c, nil
}

func dialTCP(ctx context.Context, dev *roce.Device, addr string) (net.Conn, error) {
	d := net.Dialer{Timeout: Timeout}
	if a := onlyAddr(dev); a.IsValid() {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(a, 0))
	}
	nc, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, unreachable(addr, err)
	}
	return nc, nil
}

// unreachable returns the error for an attempt to connect to addr that failed with err.
func unreachable(addr string, err error) error {
	if ne := net.Error(nil); errors.As(err, &ne) && ne.Timeout() {
		err = noAnswer{}
	}
	return fmt.Errorf("cannot reach gorxe at %s: %w: check that 'gorxe up' or a 'gorxe perf' "+
		"server runs there and that no firewall blocks the port", addr, peerio.Reason(err))
}

// noAnswer is ErrTimeout without its advice.
type noAnswer struct{}

func (noAnswer) Error() string { return "the host does not answer" }
func (noAnswer) Unwrap() error { return ErrTimeout }

// onlyAddr returns the address of a device on UDP sockets that has only one.
func onlyAddr(dev *roce.Device) (a netip.Addr) {
	if dev == nil || dev.Info().Port != roce.PortUDP.String() {
		return a
	}
	if gids := dev.GIDs(); len(gids) == 1 && !gids[0].Addr.IsLinkLocalUnicast() {
		a = gids[0].Addr
	}
	return a
}

// Local returns the local address of the connection.
func (c *Conn) Local() *net.TCPAddr { return tcpAddr(c.nc.LocalAddr()) }

// Remote returns the address of the peer.
func (c *Conn) Remote() *net.TCPAddr { return tcpAddr(c.nc.RemoteAddr()) }

// tcpAddr returns a with the IPv4 form of an IPv4-mapped address.
func tcpAddr(a net.Addr) *net.TCPAddr {
	if t, ok := a.(*net.TCPAddr); ok {
		return net.TCPAddrFromAddrPort(netip.AddrPortFrom(t.AddrPort().Addr().Unmap(),
			t.AddrPort().Port()))
	}
	return &net.TCPAddr{} // a pipe in a test
}

// PeekByte waits up to limit for the next byte of the peer and returns it without consuming it.
// The byte tells which protocol the peer speaks.
func (c *Conn) PeekByte(ctx context.Context, limit time.Duration) (byte, error) {
	defer peerio.Bound(ctx, limit, c.nc.SetReadDeadline)()
	head, err := c.r.Peek(1)
	if err != nil {
		return 0, transportErrors.Translate(ctx, err)
	}
	return head[0], nil
}

// Stream returns the connection as a byte stream, for a protocol that runs before the exchange or
// instead of it. That protocol must not read beyond its own last byte.
func (c *Conn) Stream() net.Conn { return stream{c.nc, c.r} }

type stream struct {
	net.Conn
	r *bufio.Reader
}

func (s stream) Read(b []byte) (int, error) { return s.r.Read(b) }

// Close ends the session. A Receive or Await in progress returns ErrGone.
func (c *Conn) Close() error { return c.nc.Close() }

// Send sends one message. It fails after Timeout or when ctx ends.
func (c *Conn) Send(ctx context.Context, m *Message) error {
	m.Gorxe = Version
	if m.Kind == KindAccept {
		m.QPs = withOnly(c.fields, m.QPs)
	}
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if len(b) >= MaxMessage {
		return fmt.Errorf("%w: %d bytes, at most %d", ErrTooLong, len(b), MaxMessage)
	}
	defer peerio.Bound(ctx, Timeout, c.nc.SetWriteDeadline)()
	if _, err := c.nc.Write(append(b, '\n')); err != nil {
		return transportErrors.Translate(ctx, err)
	}
	return nil
}

// Refuse sends err to the peer and closes the connection. It ignores failures, because the session
// is over in any case.
func (c *Conn) Refuse(err error) {
	ctx, cancel := context.WithTimeout(context.Background(), refuseTimeout)
	defer cancel()
	_ = c.Send(ctx, &Message{Kind: KindError, Error: clip(err.Error())})
	if tcp, ok := c.nc.(*net.TCPConn); ok && tcp.CloseWrite() == nil {
		// Closing a connection with unread bytes resets it, and the reset may overtake the error
		// message. Read what the peer still sends, but not for long.
		_ = tcp.SetReadDeadline(time.Now().Add(refuseTimeout))
		_, _ = io.CopyN(io.Discard, tcp, MaxMessage)
	}
	c.Close()
}

// Receive waits for one message of the given kinds. It fails after Timeout or when ctx ends.
func (c *Conn) Receive(ctx context.Context, kinds ...Kind) (*Message, error) {
	return c.receive(ctx, Timeout, kinds)
}

// Await is like Receive but has no time limit besides ctx. Use it to wait for the end of a run. TCP
// keep-alives detect a peer that has died.
func (c *Conn) Await(ctx context.Context, kinds ...Kind) (*Message, error) {
	return c.receive(ctx, 0, kinds)
}

func (c *Conn) receive(ctx context.Context, limit time.Duration, kinds []Kind) (*Message, error) {
	defer peerio.Bound(ctx, limit, c.nc.SetReadDeadline)()
	line, err := c.readLine()
	switch {
	case errors.Is(err, ErrGarbage), errors.Is(err, ErrTooLong):
		return nil, err
	case err != nil:
		return nil, transportErrors.Translate(ctx, err)
	}
	m, err := parse(line)
	if err != nil {
		return nil, err
	}
	if m.Kind == KindError {
		return nil, fmt.Errorf("%w: %s", ErrRemote, clip(printable(m.Error)))
	}
	if !slices.Contains(kinds, m.Kind) {
		return nil, fmt.Errorf("%w: it sent %q instead of %q", ErrProtocol, clip(string(m.Kind)),
			kinds)
	}
	if m.Kind == KindRequest {
		c.fields = usedFields(m.QPs)
	}
	return m, nil
}

// parse decodes and checks one message.
func parse(line []byte) (*Message, error) {
	m := new(Message)
	if err := strict(line, m); err != nil {
		// Another version may have other fields. Report the version instead of the field.
		if v, ok := versionOf(line); ok && v != Version {
			m.Gorxe = v
			return nil, m.check()
		}
		return nil, fmt.Errorf("%w: it sent %s (%v)", ErrGarbage, peerio.Quote(line), err)
	}
	return m, m.check()
}

// readLine reads one message. It checks the preamble byte by byte as it arrives, so that it
// recognizes another protocol even if the peer sends only a few bytes and then waits.
func (c *Conn) readLine() ([]byte, error) {
	for n := 1; n <= len(preamble); n++ {
		head, err := c.r.Peek(n)
		if len(head) == n && head[n-1] != preamble[n-1] {
			head, _ = c.r.Peek(c.r.Buffered())
			return nil, fmt.Errorf("%w: it sent %s", ErrGarbage, peerio.Quote(head))
		}
		if err != nil {
			if len(head) > 0 && errors.Is(err, io.EOF) {
				return nil, fmt.Errorf("%w: it sent %s and closed the connection", ErrGarbage,
					peerio.Quote(head))
			}
			return nil, err
		}
	}
	var line []byte
	for {
		part, err := c.r.ReadSlice('\n')
		if len(line)+len(part) > MaxMessage {
			return nil, fmt.Errorf("%w: it sent more than %d bytes, starting with %s",
				ErrTooLong, MaxMessage, peerio.Quote(append(line, part...)))
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

// strict decodes exactly one JSON value. Unknown fields are an error.
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

// printable replaces control characters, so that a peer's text cannot control the terminal.
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
