package service

import (
	"context"
	"errors"
	"fmt"
	"time"
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

// takeReport takes a part of the answer of a member, for all calls of Reports that wait for it.
func (n *session) takeReport(m *message) error {
	if done, err := n.report.add(m, MaxReport); !done {
		return err
	}
	b := n.report.b
	n.report.b = nil
	n.mu.Lock()
	waiting := n.reports
	n.reports = map[uint64]chan []byte{}
	n.awaiting = false
	n.mu.Unlock()
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

// sendStatus answers a request for the status.
func (n *session) sendStatus(id uint64) error {
	r := message{ID: id, Op: opStatus}
	b, err := n.status()
	if err != nil {
		r.fail(err)
		return n.w.send(&r, -1)
	}
	return n.w.sendParts(r, b)
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
func (w *wire) receiveStatus() ([]byte, error) {
	for p := (parts{}); ; {
		var m message
		_, err := w.receive(&m)
		if err == nil {
			err = m.err()
		}
		if err != nil {
			return nil, err
		}
		if done, err := p.add(&m, MaxStatus); done || err != nil {
			return p.b, err
		}
	}
}
