package dualport

import (
	"context"
	"errors"
	"net/netip"

	"github.com/gorxe/gorxe/driver"
	"golang.org/x/sys/unix"
)

// own reports whether an address is one of the interface.
func (p *Port) own(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	for _, q := range p.Addrs() {
		if q.Addr() == a {
			return true
		}
	}
	return false
}

// localHop returns the next hop to an own address.
func (p *Port) localHop(src, dst netip.Addr) (driver.Hop, bool) {
	if !p.own(dst) || src.IsValid() && !p.own(src) {
		return driver.Hop{}, false
	}
	if !src.IsValid() {
		src = dst.Unmap().WithZone("")
	}
	info := p.Info()
	return driver.Hop{MAC: info.MAC, Src: src.Unmap().WithZone(""), MTU: info.MTU}, true
}

// Resolve implements driver.Network.
func (p *Port) Resolve(ctx context.Context, src, dst netip.Addr) (driver.Hop, error) {
	if h, ok := p.localHop(src, dst); ok {
		return h, nil
	}
	return p.Port.Resolve(ctx, src, dst)
}

// Find implements driver.Finder.
func (p *Port) Find(src, dst netip.Addr) (driver.Hop, bool) {
	if h, ok := p.localHop(src, dst); ok {
		return h, true
	}
	return p.Port.Find(src, dst)
}

// Changed implements driver.Network.
func (p *Port) Changed() <-chan struct{} { return p.changed }

// JoinGroup implements driver.Groups. The kernel delivers packets to groups to the UDP port and to
// the other programs that have joined.
func (p *Port) JoinGroup(group netip.Addr) error {
	err := p.local.JoinGroup(group)
	p.refresh()
	return err
}

// LeaveGroup implements driver.Groups.
func (p *Port) LeaveGroup(group netip.Addr) error {
	err := p.local.LeaveGroup(group)
	p.refresh()
	return err
}

// Unwrap implements driver.Wrapper. A node service needs the UDP port.
func (p *Port) Unwrap() driver.Port { return p.local }

// follow passes changes of both ports on until Close.
func (p *Port) follow() {
	defer p.finished.Done()
	for {
		select {
		case <-p.stop:
			return
		case <-p.Port.Changed():
		case <-p.local.Changed():
		}
		p.refresh()
		select {
		case p.changed <- struct{}{}:
		default:
		}
	}
}

// refresh makes Wait follow the current sockets of the UDP port. After Close it does nothing.
func (p *Port) refresh() {
	mac := p.Info().MAC
	p.mac.Store(&mac)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	p.closeShares()
	for _, fd := range p.local.ShareAll() {
		e := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}
		if err := unix.EpollCtl(p.poll, unix.EPOLL_CTL_ADD, fd, &e); err != nil &&
			!errors.Is(err, unix.EEXIST) {
			_ = unix.Close(fd)
			continue
		}
		p.shares = append(p.shares, fd)
	}
	p.Wake()
}

// closeShares closes the duplicates. The sockets remain open elsewhere, so it also removes them
// from the epoll instance.
func (p *Port) closeShares() {
	for _, fd := range p.shares {
		_ = unix.EpollCtl(p.poll, unix.EPOLL_CTL_DEL, fd, nil)
		_ = unix.Close(fd)
	}
	p.shares = p.shares[:0]
}
