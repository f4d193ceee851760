package service

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"time"

	"github.com/gorxe/gorxe/driver"
)

// logFunc logs a line that programs of a user can cause. It does not block.
type logFunc = func(level slog.Level, uid uint32, text string, attrs ...slog.Attr)

// SetLog sets the function that logs what programs do. It must limit the lines of each user.
func (s *Server) SetLog(log logFunc) { s.log.Store(&log) }

// line logs a line about a program.
func (n *session) line(level slog.Level, text, name string, attrs ...slog.Attr) {
	log := n.s.log.Load()
	if log == nil {
		return
	}
	(*log)(level, n.cred.Uid, text, append([]slog.Attr{slog.String("program", name),
		slog.Int("pid", int(n.cred.Pid)), slog.Uint64("uid", uint64(n.cred.Uid))}, attrs...)...)
}

// maxReason is the longest reason in a line, bytes. The error of a message may contain parts of it.
const maxReason = 200

func reason(err error) slog.Attr {
	text := err.Error()
	if len(text) > maxReason {
		text = text[:maxReason] + "..."
	}
	return slog.String("reason", text)
}

// hasJoined logs a new member.
func (n *session) hasJoined() {
	n.line(slog.LevelInfo, "program joined", n.name, slog.Int("slot", int(n.slot)))
}

// refused logs a program that could not connect or join, unless the service ends.
func (n *session) refused(name string, err error) {
	if !errors.Is(err, driver.ErrServiceEnded) {
		n.line(slog.LevelWarn, "program refused", name, reason(err))
	}
}

// ended logs the end of a connection: err is the reason unless the member has left, or the service
// ends. A program that only asked for the status is not worth a line.
func (n *session) ended(err error) {
	if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) {
		err = nil
	}
	switch {
	case n.slot != 0:
		level, text := slog.LevelInfo, "program left"
		if !n.left && !n.s.ending() {
			level, text = slog.LevelWarn, "program ended without leaving"
		}
		attrs := []slog.Attr{slog.Int("slot", int(n.slot)),
			slog.Duration("after", time.Since(n.joined).Round(time.Millisecond))}
		if err != nil {
			attrs = append(attrs, reason(err))
		}
		n.line(level, text, n.name, attrs...)
	case err != nil:
		n.line(slog.LevelWarn, "connection refused", "", reason(err))
	}
}

// ending reports whether Close was called.
func (s *Server) ending() bool {
	select {
	case <-s.stop:
		return true
	default:
		return false
	}
}
