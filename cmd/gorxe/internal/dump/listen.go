package dump

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/google/gopacket"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/bth"
)

const (
	maxFrame  = 64 << 10 // the kernel hands over no longer packet
	recvBytes = 8 << 20  // socket buffer asked for: rides out bursts
	vlanLen   = 4
	macsLen   = 12
)

// socket listens on a packet socket. Unlike gopacket's own it can be interrupted,
// filters before the first frame, hears all interfaces at once, and puts VLAN tags
// back where the kernel took them from.
type socket struct {
	f    *os.File
	raw  syscall.RawConn
	stop func() bool
	ctx  context.Context

	buf   []byte // vlanLen spare bytes in front of the frame
	oob   []byte
	names map[int]string
	drops int
	c     capture
}

func findInterface(name string) (*net.Interface, error) {
	intf, err := net.InterfaceByName(name)
	if err != nil {
		return nil, fmt.Errorf("there is no file and no interface %q: 'gorxe devices' lists the interfaces", name)
	}
	if intf.Flags&net.FlagUp == 0 {
		return nil, fmt.Errorf("%s is down: bring it up with 'ip link set %s up'", name, name)
	}
	return intf, nil
}

// listen opens a packet socket on one interface, or on all if intf is nil. The end
// of ctx ends it.
func listen(ctx context.Context, intf *net.Interface) (source, error) {
	// Protocol 0 keeps the socket deaf until filter and options are set.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if errors.Is(err, unix.EPERM) {
		return nil, errors.New("listening needs CAP_NET_RAW: run it as root, or give a capture file")
	}
	if err != nil {
		return nil, fmt.Errorf("packet socket: %w", err)
	}
	s := &socket{
		f: os.NewFile(uintptr(fd), "packet socket"), ctx: ctx, names: map[int]string{},
		buf: make([]byte, vlanLen+maxFrame), oob: make([]byte, 256),
	}
	index := 0
	if intf != nil {
		index = intf.Index
		s.names[index] = intf.Name
	}
	if err := configure(fd, index); err != nil {
		s.f.Close()
		return nil, err
	}
	if s.raw, err = s.f.SyscallConn(); err != nil {
		s.f.Close()
		return nil, err
	}
	s.stop = context.AfterFunc(ctx, func() { s.f.SetReadDeadline(time.Unix(1, 0)) })
	return s, nil
}

func configure(fd, index int) error {
	filter, err := roceFilter()
	if err != nil {
		return err
	}
	prog := &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, prog); err != nil {
		return fmt.Errorf("packet filter: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1); err != nil {
		return fmt.Errorf("VLAN tags: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1); err != nil {
		return fmt.Errorf("time stamps: %w", err)
	}
	// A smaller buffer than asked for only loses frames sooner, and those are counted.
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, recvBytes) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, recvBytes)
	}
	addr := &unix.SockaddrLinklayer{Protocol: binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL}), Ifindex: index}
	if err := unix.Bind(fd, addr); err != nil {
		return fmt.Errorf("listening: %w", err)
	}
	return nil
}

// roceFilter lets UDP to port 4791 through, over IPv4 and IPv6, and whatever still
// has a VLAN tag: the kernel takes the tag off most frames before.
func roceFilter() ([]unix.SockFilter, error) {
	const accept, drop = 14, 15
	to := func(at, target int) uint8 { return uint8(target - at - 1) }
	prog, err := bpf.Assemble([]bpf.Instruction{
		0:  bpf.LoadAbsolute{Off: macsLen, Size: 2},
		1:  bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.ETH_P_8021Q, SkipTrue: to(1, accept)},
		2:  bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.ETH_P_IPV6, SkipTrue: to(2, 9)},
		3:  bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.ETH_P_IP, SkipFalse: to(3, drop)},
		4:  bpf.LoadAbsolute{Off: 14 + 9, Size: 1},
		5:  bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.IPPROTO_UDP, SkipFalse: to(5, drop)},
		6:  bpf.LoadMemShift{Off: 14},
		7:  bpf.LoadIndirect{Off: 14 + 2, Size: 2},
		8:  bpf.Jump{Skip: uint32(to(8, 13))},
		9:  bpf.LoadAbsolute{Off: 14 + 6, Size: 1},
		10: bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.IPPROTO_UDP, SkipFalse: to(10, drop)},
		11: bpf.LoadConstant{Dst: bpf.RegX, Val: 40},
		12: bpf.LoadIndirect{Off: 14 + 2, Size: 2},
		13: bpf.JumpIf{Cond: bpf.JumpEqual, Val: bth.Port, SkipFalse: to(13, drop)},
		14: bpf.RetConstant{Val: maxFrame},
		15: bpf.RetConstant{Val: 0},
	})
	if err != nil {
		return nil, fmt.Errorf("packet filter: %w", err)
	}
	filter := make([]unix.SockFilter, len(prog))
	for i, p := range prog {
		filter[i] = unix.SockFilter{Code: p.Op, Jt: p.Jt, Jf: p.Jf, K: p.K}
	}
	return filter, nil
}

func (s *socket) next() (*capture, error) {
	for {
		var n, oobn int
		var from unix.Sockaddr
		var err error
		wait := s.raw.Read(func(fd uintptr) bool {
			n, oobn, _, from, err = unix.Recvmsg(int(fd), s.buf[vlanLen:], s.oob, unix.MSG_TRUNC)
			return err != unix.EAGAIN
		})
		switch {
		case wait != nil && s.ctx.Err() != nil:
			return nil, io.EOF
		case wait != nil:
			return nil, fmt.Errorf("listening: %w", wait)
		case errors.Is(err, unix.ENETDOWN):
			return nil, errors.New("the interface went down")
		case err != nil:
			return nil, fmt.Errorf("listening: %w", err)
		}
		ll, ok := from.(*unix.SockaddrLinklayer)
		if !ok || ll.Hatype != unix.ARPHRD_ETHER && ll.Hatype != unix.ARPHRD_LOOPBACK {
			continue // of all interfaces, some are not Ethernet
		}
		return s.fill(n, s.oob[:oobn], ll.Ifindex)
	}
}

// fill makes a capture of n received bytes and the kernel's remarks on them.
func (s *socket) fill(n int, oob []byte, index int) (*capture, error) {
	cut := min(n, maxFrame)
	s.c = capture{
		frame: s.buf[vlanLen : vlanLen+cut], iface: s.name(index),
		info: gopacket.CaptureInfo{Timestamp: time.Now(), CaptureLength: cut, Length: n},
	}
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("listening: %w", err)
	}
	for _, m := range messages {
		switch {
		case m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SO_TIMESTAMPNS:
			s.c.info.Timestamp = timespec(m.Data, s.c.info.Timestamp)
		case m.Header.Level == unix.SOL_PACKET && m.Header.Type == unix.PACKET_AUXDATA:
			s.untake(m.Data)
		}
	}
	return &s.c, nil
}

// timespec reads a struct timespec; its two fields are equally long.
func timespec(b []byte, fallback time.Time) time.Time {
	if len(b) != 16 {
		return fallback
	}
	return time.Unix(int64(binary.NativeEndian.Uint64(b)), int64(binary.NativeEndian.Uint64(b[8:])))
}

// untake puts the VLAN tag back that the kernel took off, as struct
// tpacket_auxdata tells it: status and lengths are 32 bits each, then 16 bits each
// of offsets, tag control information, tag protocol.
func (s *socket) untake(aux []byte) {
	if len(aux) < 20 {
		return
	}
	status := binary.NativeEndian.Uint32(aux)
	if status&unix.TP_STATUS_VLAN_VALID == 0 {
		return
	}
	tpid := uint16(unix.ETH_P_8021Q)
	if status&unix.TP_STATUS_VLAN_TPID_VALID != 0 {
		tpid = binary.NativeEndian.Uint16(aux[18:])
	}
	if s.c.info.CaptureLength < macsLen {
		return
	}
	s.c.info.CaptureLength += vlanLen
	s.c.info.Length += vlanLen
	s.c.frame = s.buf[:s.c.info.CaptureLength]
	copy(s.c.frame, s.buf[vlanLen:vlanLen+macsLen])
	binary.BigEndian.PutUint16(s.c.frame[macsLen:], tpid)
	binary.BigEndian.PutUint16(s.c.frame[macsLen+2:], binary.NativeEndian.Uint16(aux[16:]))
}

// name returns an interface's name, asking the kernel once for each.
func (s *socket) name(index int) string {
	if n, ok := s.names[index]; ok {
		return n
	}
	n := fmt.Sprintf("if%d", index)
	if intf, err := net.InterfaceByIndex(index); err == nil {
		n = intf.Name
	}
	s.names[index] = n
	return n
}

func (s *socket) live() bool { return true }

func (s *socket) lost() int {
	_ = s.raw.Control(func(fd uintptr) {
		// Reading these counters sets them to zero.
		if st, err := unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
			s.drops += int(st.Drops)
		}
	})
	return s.drops
}

func (s *socket) Close() error {
	s.stop()
	return s.f.Close()
}
