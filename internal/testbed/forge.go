package testbed

import (
	"errors"
	"net/netip"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce/cm"
)

// Forger sends connection requests from a port of a link in memory and answers nothing, as a host
// does whose address an attacker uses. It must be used by one goroutine.
type Forger struct {
	port, to *loopback.Port
	enc      frame.Encoder
	sent     int // the ID of the last request

	// Source is the address that requests come from. NewForger sets it to the IPv4 address of the
	// port.
	Source netip.Addr
}

// NewForger returns a Forger at port from, without a device, that sends to port to.
func NewForger(l *loopback.Link, from, to int) *Forger {
	p := l.Port(from)
	return &Forger{port: p, to: l.Port(to), sent: from << 16, Source: ipv4(p)} // IDs are unique
}

// errNoBuffer means that the receiver holds all frames.
var errNoBuffer = errors.New("testbed: no transmit buffer: try again")

// REQ sends a new request for a connection to an RDMA port, with the longest time-outs that exist.
func (f *Forger) REQ(port uint16, private []byte) error {
	f.sent++
	src, dst := f.Source, ipv4(f.to)
	r := cm.REQ{
		LocalID: cm.CommID(f.sent), Service: cm.TCPService(port), GUID: cm.GUID(f.sent),
		QPN: bth.QPN(f.sent + 1), PKey: bth.DefaultPKey, MTU: bth.MTU(1024).Enum(),
		RemoteTimeout: 23, LocalTimeout: 23, MaxCMRetries: 15, RetryCount: 7,
	}
	h := cm.IPCMHeader{Src: netip.AddrPortFrom(src, 9), Dst: dst}
	h.Encode((*[cm.IPCMHeaderLen]byte)(r.Private[:]))
	copy(r.Private[cm.IPCMHeaderLen:], private)
	var m cm.MAD
	r.Encode(&m, uint64(f.sent))

	var in [64]driver.Buf
	f.port.Release(in[:f.port.Receive(in[:])])
	var buf [1]driver.Buf
	if f.port.Alloc(buf[:]) == 0 {
		return errNoBuffer
	}
	b := buf[0].B
	netLen := frame.PutHeaders(b, &frame.Address{
		SrcMAC: f.port.Info().MAC, DstMAC: f.to.Info().MAC, HopLimit: 64, SrcPort: 0xc001,
		Src: bth.GIDFromAddr(src), Dst: bth.GIDFromAddr(dst),
	})
	info := bth.UDSendOnly.Info()
	bth.PutBTH(b[netLen:],
		&bth.BTHFields{Opcode: bth.UDSendOnly, PKey: bth.DefaultPKey, DestQP: bth.QPNGSI})
	bth.PutDETH(b[netLen+int(info.DETH):], bth.QKeyGSI, bth.QPNGSI)
	n := netLen + int(info.HeaderLen)
	n += copy(b[n:], m[:])
	buf[0].B = b[:n+bth.ICRCLen]
	f.enc.Finish(buf[0].B, netLen)
	_, err := f.port.Send(buf[:])
	return err
}

func ipv4(p *loopback.Port) netip.Addr {
	for _, a := range p.Addrs() {
		if a.Addr().Is4() {
			return a.Addr()
		}
	}
	return netip.Addr{}
}
