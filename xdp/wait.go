//go:build linux

package xdp

import (
	"time"

	"golang.org/x/sys/unix"
)

// stuckWait limits a Wait while frames are stuck in the transmit ring because the peer does not
// take them. ppoll sends some of them when it starts, but does not wait for free space.
const stuckWait = time.Millisecond

// Wait blocks until a frame has arrived, Wake was called, or d has passed (d < 0: no limit). It may
// return early. It returns ErrClosed after Close, and ErrGone at the end of the wait if the
// interface was removed.
func (p *Port) Wait(d time.Duration) error {
	if !p.enter() {
		return ErrClosed
	}
	defer p.leave()
	if p.sleeper.Begin() && !p.closed.Load() && !p.pending() && d != 0 {
		p.sleep(d)
	}
	p.sleeper.End()
	switch {
	case p.closed.Load():
		return ErrClosed
	case p.net.state.Load().gone:
		return ErrGone
	}
	return nil
}

// AddPoll makes Wait return also while a descriptor is readable, which the caller may close after
// the Port. It must be called before the first Wait.
func (p *Port) AddPoll(fd int) {
	p.polls = append(p.polls, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
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

func (p *Port) sleep(d time.Duration) {
	q := p.queues[0]
	if !q.zeroCopy && !p.down && q.tx.queued() > 0 && (d < 0 || d > stuckWait) {
		d = stuckWait
	}
	p.stats.Waits++
	p.sleeper.Sleep(p.polls, d)
}

// Wake makes the current Wait return, or the next one if there is none. It makes a system call only
// if the owner sleeps. It is safe for concurrent use.
func (p *Port) Wake() { p.sleeper.Wake() }

// Watch implements driver.Watcher.
func (p *Port) Watch(fd int) { p.sleeper.Watch(fd) }

// Watched implements driver.Watcher.
func (p *Port) Watched() bool { return p.sleeper.Watched() }
