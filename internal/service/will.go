package service

import (
	"bytes"
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
		(*w)[key] = bytes.Clone(b) // the decoder of JSON may have allocated much more
	}
}

// willPause is the time after which wills are sent again, since one may get lost.
const willPause = 300 * time.Millisecond

// farewell is a will as a message of a UDP socket.
type farewell struct {
	src netip.Addr
	dst unix.Sockaddr
	b   []byte // what follows the UDP header
}

// farewell converts a frame. ok is false if the member could not have sent it itself.
func (n *session) farewell(dec *frame.Decoder, b []byte) (f farewell, ok bool) {
	var p bth.Packet
	if dec.Decode(b, &p) != frame.ReasonOK || p.BTH.DestQP() != bth.QPNGSI ||
		p.SrcPort != bth.Port || p.HasVLAN {
		return f, false
	}
	f.src = p.Src.Addr()
	if n.only.IsValid() && f.src != n.only {
		return f, false
	}
	if p.Dst.IsIPv4() {
		f.dst = &unix.SockaddrInet4{Port: bth.Port, Addr: p.Dst.Addr().As4()}
		f.b = b[udpmsg.LenV4:]
		return f, true
	}
	dst := &unix.SockaddrInet6{Port: bth.Port, Addr: p.Dst.Addr().As16()}
	if udpmsg.Scoped(p.Dst.Addr()) {
		dst.ZoneId = uint32(n.s.index)
	}
	f.dst, f.b = dst, b[udpmsg.LenV6:]
	return f, true
}

// sendWills sends the frames of a member that has died.
func (n *session) sendWills() {
	var list []farewell
	var dec frame.Decoder
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, b := range n.wills {
		if f, ok := n.farewell(&dec, b); ok {
			list = append(list, f)
		}
	}
	if len(list) == 0 {
		return
	}
	n.s.running.Go(func() {
		for range 2 {
			n.s.sendFarewells(list)
			select {
			case <-n.s.stop:
				return
			case <-time.After(willPause):
			}
		}
	})
}

// sendFarewells sends messages, each from its source address, unless that was removed.
func (s *Server) sendFarewells(list []farewell) {
	sockets := map[netip.Addr]int{}
	for _, f := range list {
		fd, ok := sockets[f.src]
		if !ok {
			var err error
			if fd, err = s.port.Share(f.src); err != nil {
				fd = -1 // the address was removed
			}
			sockets[f.src] = fd
		}
		if fd >= 0 {
			_ = unix.Sendto(fd, f.b, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, f.dst)
		}
	}
	for _, fd := range sockets {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}
