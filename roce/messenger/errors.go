package messenger

import (
	"errors"
	"fmt"
	"io"
	"net/netip"

	"github.com/gorxe/gorxe/roce"
)

// The errors of this package. Methods return them in an *Error; test for them with errors.Is.
var (
	// ErrTooLarge: the message is longer than Config.MaxMessage of this side or of the peer.
	ErrTooLarge = errors.New("message too large")
	// ErrRange: a one-sided operation exceeds the remote buffer, or an atomic one is not aligned.
	ErrRange = errors.New("outside of the remote buffer")
	// ErrPlain: the peer does not use this package's format, so it does not answer calls.
	ErrPlain = errors.New("the peer exchanges plain messages only: it does not answer calls")
	// ErrProtocol: the peer has violated the protocol.
	ErrProtocol = errors.New("the peer violated the protocol")
)

// Error is the error of a method, with the peer. Err may be or wrap an error of this package, of
// package roce, such as roce.ErrConnLost with a *roce.StatusError, or of a context.
type Error struct {
	Op   string         // for example "send"
	Peer netip.AddrPort // the peer's address
	Err  error
}

// Error returns the message.
func (e *Error) Error() string { return fmt.Sprintf("messenger: %s %v: %v", e.Op, e.Peer, e.Err) }

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// Is reports true for io.EOF if the peer has closed the connection.
func (e *Error) Is(target error) bool {
	var aborted *roce.RejectError
	return target == io.EOF && errors.Is(e.Err, roce.ErrDisconnected) && !errors.As(e.Err, &aborted)
}

// CallError is the error that the peer's Handler has returned.
type CallError struct {
	Text string // of the error; cut to the longest message
}

// Error returns the text.
func (e *CallError) Error() string { return e.Text }

// failed adds the operation and the peer to an error.
func (c *Conn) failed(op string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Op: op, Peer: c.remote, Err: err}
}

func tooLarge(n, limit int) error {
	return fmt.Errorf("%w: %d bytes; Config.MaxMessage of the two sides permits %d", ErrTooLarge, n,
		limit)
}
