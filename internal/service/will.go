package service

import (
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/internal/udpmsg"
)

// wills are the frames that a member has given, by key.
type wills map[uint32][]byte

// set adds or removes a frame. It ignores those that do not fit.
func (w *wills) set(key uint32, b []byte) {
	if len(b) == 0 {
		delete(*w, key)
		return
	}
	if *w == nil {
		*w = wills{}
	}
	if _, ok := (*w)[key]; len(b) <= maxFrame && (ok || len(*w) < maxWills) {
		(*w)[key] = b
	}
}

// willPause is the time after which wills are sent again, since one may get lost.
const willPause = 300 * time.Millisecond

// sendWills sends the frames of a member that has died. Those that it could not have sent itself
// are left out.
func (n *session) sendWills() {
	type packet struct {
		src netip.Addr
		dst unix.Sockaddr
		b   []byte
	}
	var list []packet
	var dec frame.Decoder
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, b := range n.wills {
		var p bth.Packet
		if dec.Decode(b, &p) != frame.ReasonOK || p.BTH.DestQP() != bth.QPNGSI ||
			p.SrcPort != bth.Port || p.HasVLAN {
			continue
		}
		head := udpmsg.LenV4
		dst := unix.Sockaddr(&unix.SockaddrInet4{Port: bth.Port, Addr: p.Dst.Addr().As4()})
		if !p.Dst.IsIPv4() {
			head = udpmsg.LenV6
			a := &unix.SockaddrInet6{Port: bth.Port, Addr: p.Dst.Addr().As16()}
			if udpmsg.Scoped(p.Dst.Addr()) {
				a.ZoneId = uint32(n.s.index)
			}
			dst = a
		}
		src := p.Src.Addr()
		if n.only.IsValid() && src != n.only {
			continue
		}
		list = append(list, packet{src, dst, b[head:]})
	}
	if len(list) == 0 {
		return
	}
	n.s.running.Go(func() {
		for range 2 {
			sockets := map[netip.Addr]int{}
			for _, p := range list {
				fd, ok := sockets[p.src]
				if !ok {
					var err error
					if fd, err = n.s.port.Share(p.src); err != nil {
						fd = -1 // the address was removed
					}
					sockets[p.src] = fd
				}
				if fd >= 0 {
					_ = unix.Sendto(fd, p.b, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, p.dst)
				}
			}
			for _, fd := range sockets {
				if fd >= 0 {
					_ = unix.Close(fd)
				}
			}
			select {
			case <-n.s.stop:
				return
			case <-time.After(willPause):
			}
		}
	})
}
