package rsocket

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"

	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/roce/rsocket/core"
)

// ErrProtocol means that the peer broke the protocol of rsockets, or does not use it.
var ErrProtocol = core.ErrProtocol

// netName is the network in net.OpError and Addr.
const netName = "rsocket"

// Addr is the address of one side of a connection: an IP address and an RDMA port. RDMA ports are
// independent of TCP ports with the same number.
type Addr struct{ netip.AddrPort }

// Network returns "rsocket".
func (Addr) Network() string { return netName }

var _ net.Addr = Addr{}

// failure is an error that programs recognize by the errno that a TCP socket would return.
type failure struct {
	errno syscall.Errno
	text  string
	cause error // or nil
}

func (f *failure) Error() string {
	if f.cause != nil {
		return f.text + ": " + f.cause.Error()
	}
	return f.text
}

func (f *failure) Unwrap() []error {
	if f.cause != nil {
		return []error{f.errno, f.cause}
	}
	return []error{f.errno}
}

var (
	errWriteShut = &failure{errno: syscall.EPIPE,
		text: "write after CloseWrite: write everything before it"}
	errPeerClosed = &failure{errno: syscall.EPIPE,
		text: "the peer has closed the connection: dial again"}
	errReset = &failure{errno: syscall.ECONNRESET,
		text: "the connection ended before the end of the peer's stream: dial again"}
)

// lost returns the error of a connection whose QP has failed. cause is what the device knows.
func lost(cause error) error {
	var st *roce.StatusError
	switch {
	case errors.Is(cause, roce.ErrClosed) || deviceEnded(cause):
		return cause
	case errors.As(cause, &st) && st.Status == roce.RetryExcErr:
		return &failure{errno: syscall.ETIMEDOUT, text: "the peer does not answer", cause: cause}
	case cause == nil:
		return errReset
	}
	return &failure{errno: syscall.ECONNRESET, text: errReset.text, cause: cause}
}

// deviceEnded reports whether err says that the device has failed: then dialing again is in vain.
func deviceEnded(err error) bool {
	return errors.Is(err, roce.ErrGone) || errors.Is(err, roce.ErrServiceEnded) ||
		errors.Is(err, roce.ErrMemoryFault)
}

// opError wraps err, which must not be nil, as package net does.
func opError(op string, local, remote net.Addr, err error) error {
	var f *failure
	switch {
	case errors.As(err, &f): // it has an errno
	case errors.Is(err, context.DeadlineExceeded):
		err = os.ErrDeadlineExceeded
	case errors.Is(err, roce.ErrRefused):
		err = &failure{errno: syscall.ECONNREFUSED, text: "connection refused", cause: err}
	case errors.Is(err, roce.ErrNoAnswer):
		err = &failure{errno: syscall.ETIMEDOUT, text: "connection timed out", cause: err}
	case errors.Is(err, roce.ErrUnreachable):
		err = &failure{errno: syscall.EHOSTUNREACH, text: "no route to host", cause: err}
	}
	return &net.OpError{Op: op, Net: netName, Source: local, Addr: remote, Err: err}
}
