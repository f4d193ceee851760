package udp

import (
	"encoding/binary"
	"time"

	"github.com/gorxe/gorxe/driver"
	"golang.org/x/sys/unix"
)

// Wait implements driver.Port.
func (p *Port) Wait(d time.Duration) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sleeping.Store(true)
	if !p.woken.Load() && !p.changing.Load() && !p.closed.Load() && d != 0 {
		p.poll(d)
	}
	p.sleeping.Store(false)
	p.woken.Store(false)
	switch {
	case p.closed.Load():
		return driver.ErrClosed
	case p.net.state.Load().gone:
		return driver.ErrGone
	}
	return nil
}

func (p *Port) poll(d time.Duration) {
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
	if err != nil || n == 0 {
		return
	}
	if p.polls[0].Revents != 0 {
		var b [8]byte
		_, _ = unix.Read(p.event, b[:])
	}
	for i := range p.socks {
		if p.polls[i+1].Revents != 0 {
			p.hot = i
			break
		}
	}
}

// Wake implements driver.Port.
func (p *Port) Wake() {
	p.woken.Store(true)
	if p.sleeping.Load() {
		p.signal()
	}
}

// signal makes the event descriptor readable. The mutex keeps Close from closing the descriptor at
// the same time; its number could then belong to another file.
func (p *Port) signal() {
	p.eventMu.Lock()
	defer p.eventMu.Unlock()
	if p.event < 0 {
		return
	}
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], 1)
	_, _ = unix.Write(p.event, b[:])
}
