package peerio

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
)

// maxQuoted is the number of received bytes that an error message shows.
const maxQuoted = 48

// Errors are the errors that a protocol returns for failures of its transport.
type Errors struct {
	Timeout error // the peer did not answer in time
	Gone    error // the connection is closed or broken
}

// Translate returns the protocol's error for err, which a read or write bound to ctx returned. It
// returns the cause of ctx if the caller canceled ctx.
func (e *Errors) Translate(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded):
		return context.Cause(ctx)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return e.Timeout
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF),
		errors.Is(err, net.ErrClosed), errors.Is(err, io.ErrClosedPipe):
		return e.Gone
	}
	return fmt.Errorf("%w (%v)", e.Gone, Reason(err))
}

// Reason returns the innermost error of a net.OpError, without the operation and the addresses
// that callers put into their own messages.
func Reason(err error) error {
	var op *net.OpError
	if !errors.As(err, &op) {
		return err
	}
	var sys *os.SyscallError
	if errors.As(op.Err, &sys) {
		return sys.Err
	}
	return op.Err
}

// Quote formats the first bytes of b for an error message.
func Quote(b []byte) string {
	b = bytes.TrimRight(b, "\r\n")
	if len(b) > maxQuoted {
		return fmt.Sprintf("%q...", b[:maxQuoted])
	}
	return fmt.Sprintf("%q", b)
}
