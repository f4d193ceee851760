package service

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Report is what a member says about itself. Only Body comes from the member; the service does not
// look at it.
type Report struct {
	Slot     uint8
	PID, UID int
	Name     string // of the program; printable ASCII
	Joined   time.Time
	Body     []byte // at most MaxReport bytes; empty if the member has not answered
}

// Reports asks all members and waits for their answers, at most for the given time.
func (s *Server) Reports(timeout time.Duration) []Report {
	s.mu.Lock()
	s.reports++
	id := s.reports
	var list []Report
	var from []*session
	for slot, n := range s.slots {
		if n == nil {
			continue
		}
		list = append(list, Report{Slot: uint8(slot), PID: int(n.cred.Pid), UID: int(n.cred.Uid),
			Name: n.name, Joined: n.joined})
		from = append(from, n)
	}
	s.mu.Unlock()
	answers := make([]chan []byte, len(from))
	for i, n := range from {
		answers[i] = make(chan []byte, 1)
		n.mu.Lock()
		n.reports[id] = answers[i]
		asked := n.awaiting
		n.awaiting = true
		n.mu.Unlock()
		if asked { // a program that is stopped must not lose its connection because of requests
			continue
		}
		go func() { // a member that does not read must not delay the others
			if !n.tell(&message{Op: opReport, ID: id}) {
				n.mu.Lock()
				n.awaiting = false
				n.mu.Unlock()
			}
		}()
	}
	end := time.After(timeout)
	over := false
	for i, n := range from {
		select {
		case list[i].Body = <-answers[i]:
		default:
			if over {
				break
			}
			select {
			case list[i].Body = <-answers[i]:
			case <-n.done:
			case <-end:
				over = true
			}
		}
		n.mu.Lock()
		delete(n.reports, id)
		n.mu.Unlock()
	}
	return list
}

// takeReport takes the answer of a member, for all calls of Reports that wait for it. It closes the
// descriptor.
func (n *session) takeReport(m *message, fd int) error {
	n.mu.Lock()
	waiting := n.reports
	n.reports = map[uint64]chan []byte{}
	n.awaiting = false
	n.mu.Unlock()
	var b []byte
	switch {
	case fd >= 0 && len(waiting) == 0:
		return unix.Close(fd)
	case fd >= 0:
		var err error
		if b, err = readMemFile(fd, m.Size, MaxReport); err != nil {
			return err
		}
	}
	for _, c := range waiting {
		c <- b
	}
	return nil
}

// SetStatus sets the function that answers clients of Status. privileged means that the client is
// root or the user who called New; the process may have become another user since.
func (s *Server) SetStatus(f func(uid uint32, privileged bool) []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status = f
}

const (
	// partLen is the length of the parts of a status, bytes. In a message they are a third longer.
	partLen = 32 << 10
	// statusTime is how long a program may take to read a status.
	statusTime = 5 * time.Second
)

// errSlow means that a program does not read the status.
var errSlow = errors.New("it reads the status too slowly")

// sendStatus answers a request for the status, in parts: a memory file would use memory of the
// service for as long as the program likes.
func (n *session) sendStatus(id uint64) error {
	r := message{ID: id, Op: opStatus}
	b, err := n.status()
	if err != nil {
		r.fail(err)
		return n.w.send(&r, -1)
	}
	r.Size = len(b)
	for end := time.Now().Add(statusTime); time.Now().Before(end); {
		part := min(len(b), partLen)
		r.Frame, b = b[:part], b[part:]
		if err := n.w.send(&r, -1); err != nil || len(b) == 0 {
			return err
		}
	}
	return errSlow
}

// status returns the status that the program may see.
func (n *session) status() ([]byte, error) {
	n.s.mu.Lock()
	f := n.s.status
	n.s.mu.Unlock()
	if f == nil {
		return nil, errors.New("this node service has no status")
	}
	uid := n.cred.Uid
	b := f(uid, uid == 0 || int(uid) == n.s.owner)
	if len(b) > MaxStatus {
		return nil, fmt.Errorf("the status is longer than %d bytes", MaxStatus)
	}
	return b, nil
}

// statusPatience is how long Status waits for an answer.
const statusPatience = 10 * time.Second

// Status returns the status of the service at a path. The error wraps ErrNone if none answers. If
// ctx ends, it is the cause.
func Status(ctx context.Context, path string) ([]byte, error) {
	c, err := connect(path)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(statusPatience))
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })()
	w := newWire(c)
	if err := w.send(&message{Op: opStatus, ID: 1}, -1); err != nil {
		return nil, fmt.Errorf("ask %s: %w", path, err)
	}
	b, err := w.receiveStatus()
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, fmt.Errorf("status of %s: %w", path, err)
	}
	return b, nil
}

// receiveStatus receives the parts of a status.
func (w *wire) receiveStatus() (b []byte, err error) {
	for {
		var m message
		fd, err := w.receive(&m)
		if fd >= 0 {
			_ = unix.Close(fd)
		}
		if err == nil {
			err = m.err()
		}
		if err != nil {
			return nil, err
		}
		if m.Size > MaxStatus || len(b)+len(m.Frame) > m.Size {
			return nil, errProtocol
		}
		b = append(b, m.Frame...)
		if len(b) == m.Size {
			return b, nil
		}
		if len(m.Frame) == 0 {
			return nil, errProtocol
		}
	}
}
