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

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/internal/osnet"
	"github.com/gorxe/gorxe/internal/pcap"
	"github.com/gorxe/gorxe/xdp"
)

const (
	maxFrame  = 64 << 10 // length of the kernel's longest packet
	recvBytes = 8 << 20  // requested size of the socket buffer, for bursts
	vlanLen   = 4
	macsLen   = 12
)

// socket is a live source. Unlike gopacket's, it ends with a context, filters from the first frame,
// supports all interfaces at once, and reinserts the VLAN tags that the kernel removes.
type socket struct {
	f    *os.File
	raw  syscall.RawConn
	stop func() bool
	ctx  context.Context

	buf   []byte // vlanLen free bytes, then the frame
	oob   []byte
	names map[int]string
	drops int
	c     Capture
}

func findInterface(name string) (*net.Interface, error) {
	intf, err := net.InterfaceByName(osnet.MainName(name))
	if err != nil {
		return nil, fmt.Errorf("no such file or interface %q: 'gorxe devices' lists the interfaces",
			name)
	}
	if intf.Flags&net.FlagUp == 0 {
		return nil, fmt.Errorf("%s is down: bring it up with 'ip link set %s up'", name, name)
	}
	return intf, nil
}

// Bypassed reports whether an XDP program is attached to an interface. A packet socket there sees
// neither the packets that the program redirects to AF_XDP nor those that AF_XDP sends.
func Bypassed(iface string) bool {
	d, err := xdp.Probe(iface, 0)
	return err == nil && d.Program != 0
}

// listen opens a packet socket on one interface, or on all if intf is nil, until ctx ends.
func listen(ctx context.Context, intf *net.Interface) (Source, error) {
	// Protocol 0: the socket receives nothing before its filter and options are set.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if errors.Is(err, unix.EPERM) {
		return nil, errors.New("capturing on an interface needs CAP_NET_RAW: run as root, or give a capture file")
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
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		prog); err != nil {
		return fmt.Errorf("packet filter: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1); err != nil {
		return fmt.Errorf("VLAN tags: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1); err != nil {
		return fmt.Errorf("time stamps: %w", err)
	}
	// With a smaller buffer more frames may be lost, but they are counted.
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, recvBytes) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, recvBytes)
	}
	addr := &unix.SockaddrLinklayer{Protocol: binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL}),
		Ifindex: index}
	if err := unix.Bind(fd, addr); err != nil {
		return fmt.Errorf("packet socket: %w", err)
	}
	return nil
}

// roceFilter accepts UDP to port 4791 over IPv4 and IPv6, and all frames that still have a VLAN
// tag. The kernel removes the tag of most frames before the filter runs.
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

func (s *socket) Next() (*Capture, error) {
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
			return nil, fmt.Errorf("packet socket: %w", wait)
		case errors.Is(err, unix.ENETDOWN):
			return nil, errors.New("the interface went down")
		case err != nil:
			return nil, fmt.Errorf("packet socket: %w", err)
		}
		ll, ok := from.(*unix.SockaddrLinklayer)
		if !ok || ll.Hatype != unix.ARPHRD_ETHER && ll.Hatype != unix.ARPHRD_LOOPBACK {
			continue // not an Ethernet interface
		}
		return s.fill(n, s.oob[:oobn], ll.Ifindex)
	}
}

// fill returns the capture for n received bytes with the control messages oob.
func (s *socket) fill(n int, oob []byte, index int) (*Capture, error) {
	cut := min(n, maxFrame)
	s.c = Capture{
		Frame: s.buf[vlanLen : vlanLen+cut], Iface: s.name(index),
		Info: pcap.Info{Time: time.Now(), Length: n},
	}
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("packet socket: %w", err)
	}
	for _, m := range messages {
		switch {
		case m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SO_TIMESTAMPNS:
			s.c.Info.Time = timespec(m.Data, s.c.Info.Time)
		case m.Header.Level == unix.SOL_PACKET && m.Header.Type == unix.PACKET_AUXDATA:
			s.insertVLAN(m.Data)
		}
	}
	return &s.c, nil
}

// timespec parses a struct timespec with 64-bit fields.
func timespec(b []byte, fallback time.Time) time.Time {
	if len(b) != 16 {
		return fallback
	}
	return time.Unix(int64(binary.NativeEndian.Uint64(b)), int64(binary.NativeEndian.Uint64(b[8:])))
}

// insertVLAN reinserts the VLAN tag that the kernel removed. aux is a struct tpacket_auxdata:
// status, length and captured length of 32 bits each, then MAC offset, network offset, tag control
// information and tag protocol of 16 bits each.
func (s *socket) insertVLAN(aux []byte) {
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
	if len(s.c.Frame) < macsLen {
		return
	}
	s.c.Info.Length += vlanLen
	s.c.Frame = s.buf[:vlanLen+len(s.c.Frame)]
	copy(s.c.Frame, s.buf[vlanLen:vlanLen+macsLen])
	binary.BigEndian.PutUint16(s.c.Frame[macsLen:], tpid)
	binary.BigEndian.PutUint16(s.c.Frame[macsLen+2:], binary.NativeEndian.Uint16(aux[16:]))
}

// name returns the name of an interface. It asks the kernel once for each.
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

func (s *socket) Live() bool { return true }

func (s *socket) Lost() int {
	_ = s.raw.Control(func(fd uintptr) {
		// Reading the counters resets them.
		if st, err := unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET,
			unix.PACKET_STATISTICS); err == nil {
			s.drops += int(st.Drops)
		}
	})
	return s.drops
}

func (s *socket) Close() error {
	s.stop()
	return s.f.Close()
}
