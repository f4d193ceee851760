package udp

import (
	"slices"

	"github.com/gorxe/gorxe/bth"
)

// Connections returns the number of connected sockets.
func (p *Port) Connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.connections
}

// ConnectedTo returns the number of sockets that are connected to a peer.
func (p *Port) ConnectedTo(gid bth.GID) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.socks {
		if s.parent != nil && s.out.peer == gid {
			n++
		}
	}
	return n
}

// SetSlot makes the Port one of several programs that share an address.
func (p *Port) SetSlot(slot uint8) { p.slot = slot }

// FreeBuffers returns how many buffers for received packets and for runs are free.
func (p *Port) FreeBuffers() (rx, lines int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.rx.free), len(p.lines.free)
}

// HoldBuffers takes the buffers for received packets except n, until undo is called.
func (p *Port) HoldBuffers(n int) (undo func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	held := slices.Clone(p.rx.free[n:])
	p.rx.free = p.rx.free[:n]
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.rx.free = append(p.rx.free, held...)
	}
}

const (
	ConnectAfter = connectAfter
	MaxConnected = maxConnected
	RxBuffers    = rxBuffers
	LineCount    = lineCount
	LineMin      = lineMin
	LongQuiet    = longQuiet
)
