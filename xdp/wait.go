package xdp

import (
	"encoding/binary"
	"time"

	"golang.org/x/sys/unix"
)

// stuckWait limits a Wait while frames are stuck in the transmit ring because the peer does not
// take them. poll sends some of them when it starts, but does not wait for free space.
const stuckWait = time.Millisecond

// Wait blocks until a frame has arrived, Wake was called, or d has passed (d < 0: no limit). It may
// return early. It returns ErrClosed after Close, and ErrGone at the end of the wait if the
// interface was removed.
func (p *Port) Wait(d time.Duration) error {
	if !p.enter() {
		return ErrClosed
	}
	defer p.leave()
	p.sleeping.Store(true)
	if !p.woken.Load() && !p.closed.Load() && !p.pending() && d != 0 {
		p.poll(d)
	}
	p.sleeping.Store(false)
	p.woken.Store(false)
	switch {
	case p.closed.Load():
		return ErrClosed
	case p.net.state.Load().gone:
		return ErrGone
	}
	return nil
}

// pending reports whether a receive ring has a frame.
func (p *Port) pending() bool {
	for _, q := range p.queues {
		if q.rx.ready(1) > 0 {
			return true
		}
	}
	return false
}

func (p *Port) poll(d time.Duration) {
	q := p.queues[0]
	if !q.zeroCopy && !p.down && q.tx.queued() > 0 && (d < 0 || d > stuckWait) {
		d = stuckWait
	}
	var timeout *unix.Timespec
	if d >= 0 {
		p.timeout = unix.NsecToTimespec(int64(d))
		timeout = &p.timeout
	}
	p.stats.Waits++
	n, err := unix.Ppoll(p.polls, timeout, nil)
	for err == unix.EINTR { // the kernel has updated timeout
		n, err = unix.Ppoll(p.polls, timeout, nil)
	}
	if err == nil && n > 0 && p.polls[0].Revents != 0 {
		var b [8]byte
		_, _ = unix.Read(p.event, b[:])
	}
}

// Wake makes the current Wait return, or the next one if there is none. It makes a system call only
// if the owner sleeps. It is safe for concurrent use.
func (p *Port) Wake() {
	p.woken.Store(true)
	if p.sleeping.Load() {
		p.signal()
	}
}

// signal makes the event descriptor readable. The mutex keeps Close from closing the descriptor at
// the same time; its number could then belong to another file.
func (p *Port) signal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.finished {
		return
	}
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], 1)
	_, _ = unix.Write(p.event, b[:])
}
