package service

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/frame"
)

const (
	// lookInterval is the time between two looks at the addresses of the port.
	lookInterval = 100 * time.Millisecond
	// sweepFirst and sweepMost are the shortest and the longest time between two looks for sockets
	// that programs keep.
	sweepFirst = time.Millisecond
	sweepMost  = time.Second
	// attachInterval is the time after which the programs are attached again, since members can
	// detach them.
	attachInterval = time.Second
)

// maintain follows changes of the network and removes dead sockets until Close.
func (s *Server) maintain() {
	look := time.NewTicker(lookInterval)
	defer look.Stop()
	again, pause := time.NewTimer(sweepMost), sweepFirst
	attached := time.Now()
	for {
		select {
		case <-s.stop:
			return
		case <-s.kick:
			pause = sweepFirst
			again.Reset(pause)
		case <-again.C:
			s.mu.Lock()
			if s.sweepAll() {
				pause = min(2*pause, sweepMost)
				again.Reset(pause)
			}
			s.mu.Unlock()
		case <-look.C:
			s.lookAtPort()
			if time.Since(attached) > attachInterval {
				attached = time.Now()
				s.attachAll()
			}
		}
	}
}

// sweep removes dead sockets, now or soon. s.mu must be held.
func (s *Server) sweep() {
	if s.sweepAll() {
		signal(s.kick)
	}
}

func (s *Server) sweepAll() (again bool) {
	for a, g := range s.groups {
		if g.sweep(func(inode uint64) bool {
			set, err := s.list.read()
			return err != nil || set[inode]
		}) {
			again = true
		}
		if len(g.socks) == 0 {
			delete(s.groups, a)
		}
	}
	return again
}

func (s *Server) attachAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.groups {
		if len(g.socks) > 1 {
			_ = g.attach()
		}
	}
}

// readState returns what members are told about the network.
func (s *Server) readState() netState {
	st := netState{Info: s.port.Info(), Index: s.index, Addrs: s.port.Addrs()}
	st.Info.Note, st.Info.Service = "", s.path
	return st
}

// stateFor returns the state for a member that uses one address; the zero Addr: all addresses.
func (s *Server) stateFor(only netip.Addr) netState {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.state
	if only.IsValid() {
		st.Addrs = slices.DeleteFunc(slices.Clone(st.Addrs),
			func(p netip.Prefix) bool { return p.Addr() != only })
	}
	return st
}

// lookAtPort tells members about changes of the port.
func (s *Server) lookAtPort() {
	now := s.readState()
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Info == s.state.Info && slices.Equal(now.Addrs, s.state.Addrs) {
		return
	}
	s.state = now
	for a, g := range s.groups {
		if slices.ContainsFunc(now.Addrs, func(p netip.Prefix) bool { return p.Addr() == a }) {
			continue
		}
		for _, m := range g.socks { // the members close theirs, too
			m.dead = true
		}
	}
	s.sweep()
	for n := range s.conns {
		signal(n.change)
	}
}

// openSocket opens the socket of a slot at an address.
func (s *Server) openSocket(slot uint8, a netip.Addr) (fd int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return -1, driver.ErrServiceEnded
	}
	if s.socketsOf(slot) >= maxKept {
		return -1, refuse("it keeps %d sockets that it should have closed", maxKept)
	}
	base, err := s.port.Share(a)
	if err != nil {
		return -1, fmt.Errorf("%w %v", err, a)
	}
	g := s.groups[a]
	if g == nil {
		g = &group{addr: a}
		s.groups[a] = g
	}
	if s.unmerged {
		_ = dontMerge(base)
	}
	if err := g.rebase(base); err != nil {
		return -1, err
	}
	if g.find(slot) != nil {
		return -1, refuse("it has a socket of %v", a)
	}
	err = s.port.InNamespace(func() error {
		fd, err = g.open(slot, s.index, s.options.Limits.Rate)
		return err
	})
	if err != nil {
		return -1, err
	}
	if s.unmerged {
		_ = dontMerge(fd)
	}
	if again, err := s.port.Share(a); err == nil && !g.isBase(again) {
		// The address was removed and added meanwhile, and the port has bound a new socket, perhaps
		// before this one.
		g.undo()
		if err := g.rebase(again); err != nil {
			return -1, err
		}
		return -1, fmt.Errorf("%w %v: it changes", driver.ErrNoAddress, a)
	} else if err == nil {
		_ = unix.Close(again)
	}
	return fd, err
}

// socketsOf returns the number of sockets of a slot, with those that are to be removed.
func (s *Server) socketsOf(slot uint8) (n int) {
	for _, g := range s.groups {
		for _, m := range g.socks {
			if m.slot == slot {
				n++
			}
		}
	}
	return n
}

// unmerge makes the kernel deliver packets as they arrive, without merging them to runs, because it
// also merges packets of different slots, which then get lost. Packets that never leave this host
// are not merged. s.mu must be held.
func (s *Server) unmerge() {
	if s.unmerged || !slices.ContainsFunc(s.state.Addrs,
		func(p netip.Prefix) bool { return !p.Addr().IsLoopback() }) {
		return
	}
	s.unmerged = true
	for _, g := range s.groups {
		for _, m := range g.socks {
			if m.fd >= 0 {
				_ = dontMerge(m.fd)
			}
		}
	}
}

func dontMerge(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_UDP, unix.UDP_GRO, 0) }

// closeSocket closes the socket of a slot at an address, which the member has closed.
func (s *Server) closeSocket(slot uint8, a netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if g := s.groups[a]; g != nil && !s.closed && g.find(slot) != nil {
		g.close(slot)
		s.sweep()
	}
}

func (n *session) resolve(src, dst netip.Addr) (driver.Hop, error) {
	if src.IsValid() && n.only.IsValid() && src != n.only {
		return driver.Hop{}, driver.ErrNoAddress
	}
	if !src.IsValid() {
		src = n.only
	}
	return n.s.port.Resolve(context.Background(), src, dst)
}

// listenAt adds a listener on a service ID.
func (s *Server) listenAt(id uint64, l listener) error {
	f := &s.forwards
	f.Lock()
	defer f.Unlock()
	return f.listeners.add(id, l)
}

func (s *Server) unlistenAt(slot uint8, id uint64) (found bool) {
	f := &s.forwards
	f.Lock()
	defer f.Unlock()
	return f.listeners.remove(id, slot)
}

// Slot returns 0, the slot of the service's own device.
func (s *Server) Slot() uint8 { return 0 }

// Listen implements driver.Member for the service's own device.
func (s *Server) Listen(id uint64) error { return s.listenAt(id, listener{}) }

// Unlisten implements driver.Member for the service's own device.
func (s *Server) Unlisten(id uint64) { s.unlistenAt(0, id) }

// Will does nothing: the service's own device ends with the service.
func (s *Server) Will(uint32, []byte) {}

// Forward passes a packet to QP1 to a member. It returns false if the service's own device handles
// the packet. It does not wait: a packet is dropped if the member has too many.
func (s *Server) Forward(p *bth.Packet) bool {
	f := &s.forwards
	f.Lock()
	defer f.Unlock()
	slot := route(p.Payload, p.Dst.Addr(), f.listeners)
	if slot == 0 || f.mads[slot] == 0 {
		return false
	}
	if len(p.BTH) > len(f.buf)-bth.MaxNetHeader-bth.ICRCLen {
		return true
	}
	b := f.buf[:]
	n := frame.PutHeaders(b, &frame.Address{SrcMAC: p.SrcMAC, Src: p.Src, Dst: p.Dst,
		SrcPort: p.SrcPort, TrafficClass: p.TrafficClass, HopLimit: p.HopLimit})
	end := n + copy(b[n:], p.BTH) + bth.ICRCLen
	f.enc.ID = 0
	f.enc.Finish(b[:end], n)
	if err := unix.Sendto(f.mads[slot], b[:end], unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL,
		nil); err != nil {
		f.dropped++
	}
	return true
}
