package udp

import (
	"time"

	"github.com/gorxe/gorxe/driver"
)

// Wait implements driver.Port.
func (p *Port) Wait(d time.Duration) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	// Packets that did not fit in the latest Receive are in no socket any more.
	if p.sleeper.Begin() && len(p.ready) == 0 && p.changing.Load() == 0 && !p.closed.Load() &&
		d != 0 {
		p.sleep(d)
	}
	p.sleeper.End()
	switch {
	case p.closed.Load():
		return driver.ErrClosed
	case p.net.state.Load().gone:
		return driver.ErrGone
	case p.net.state.Load().err != nil:
		return p.net.state.Load().err
	}
	return nil
}

// sleep sleeps, and remembers a socket that has packets then.
func (p *Port) sleep(d time.Duration) {
	p.stats.Waits++
	if !p.sleeper.Sleep(p.polls, d) {
		return
	}
	p.noteMADs()
	for i := range p.socks {
		if p.polls[i+1].Revents != 0 {
			p.hot = i
			break
		}
	}
}

// Watch implements driver.Watcher.
func (p *Port) Watch(fd int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sleeper.Watch(fd)
}

// Watched implements driver.Watcher.
func (p *Port) Watched() bool { return p.sleeper.Watched() }

// Wake implements driver.Port.
func (p *Port) Wake() { p.sleeper.Wake() }
