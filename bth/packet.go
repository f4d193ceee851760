package bth

import "errors"

// Errors of Packet.Parse.
var (
	ErrTruncated = errors.New("bth: packet is too short for its headers or its fixed payload")
	ErrOpcode    = errors.New("bth: opcode is not an RC, UC, UD or CNP opcode")
	ErrVersion   = errors.New("bth: transport header version is not 0")
	ErrPad       = errors.New("bth: pad count is larger than the payload")
)

// Packet is a parsed packet. Its slices are views of the receive buffer and are valid until that
// buffer is released. It contains no locks; reuse one Packet per goroutine.
type Packet struct {
	BTH     BTH         // first byte of the BTH to the end of the pad, without ICRC
	Info    *OpcodeInfo // never nil after Parse
	Payload []byte      // without pad; includes the 16 reserved bytes of a CNP

	// frame.Decoder sets the following fields.

	Src, Dst     GID
	NetHeader    []byte // the IP header as received: 20 or 40 bytes
	SrcPort      uint16 // UDP source port
	TrafficClass uint8  // IPv4 TOS or IPv6 traffic class; the ECN bits are the low two
	HopLimit     uint8
	SrcMAC       [6]byte
	// tag control information: 3 bits priority, 1 bit DEI, 12 bits VLAN ID; 0: no tag
	VLAN    uint16
	HasVLAN bool
}

// VLANID returns the ID of the packet's VLAN. It is 0 if the frame was untagged or had only a
// priority tag, which belongs to no VLAN (IEEE 802.1Q).
func (p *Packet) VLANID() uint16 { return p.VLAN & MaskVLANID }

// MaskVLANID selects the VLAN ID in the tag control information.
const MaskVLANID = 0xfff

// zeros is the view of a header that a packet does not have.
var zeros [MaxHeaderLen]byte

// Parse reads b, which spans the BTH to the end of the pad, and sets BTH, Info and Payload. It
// returns nil, ErrTruncated, ErrVersion, ErrOpcode or ErrPad. It does not allocate. After an error
// the accessors are still safe: BTH is b (zeros if b is shorter than a BTH), Info describes an
// unknown opcode, and Payload is empty.
func (p *Packet) Parse(b []byte) error {
	if len(b) < HeaderLen {
		return p.refuse(zeros[:HeaderLen], ErrTruncated)
	}
	info := &opcodes[b[0]]
	if b[1]&maskVersion != 0 {
		return p.refuse(b, ErrVersion)
	}
	if !info.Known {
		return p.refuse(b, ErrOpcode)
	}
	n := len(b) - int(info.HeaderLen)
	if n < 0 {
		return p.refuse(b, ErrTruncated)
	}
	// The pad extends the payload, so it must not reach into the headers (IBA 9.2.4).
	n -= int(b[1] >> shiftPad & 3)
	if n < 0 {
		return p.refuse(b, ErrPad)
	}
	if n < int(info.MinPayload) {
		return p.refuse(b, ErrTruncated)
	}
	p.BTH = b
	p.Info = info
	p.Payload = b[info.HeaderLen:][:n]
	return nil
}

// refuse leaves the packet in a state in which no accessor panics.
func (p *Packet) refuse(b []byte, err error) error {
	p.BTH, p.Info, p.Payload = b, &invalid, nil
	return err
}

// ext returns the n bytes at off, or zeros if the opcode has no such header.
func (p *Packet) ext(off uint8, n int) []byte {
	if off == 0 {
		return zeros[:n]
	}
	return p.BTH[off:][:n]
}

// RETH returns the RDMA header. Like the accessors below, it returns a view of zeros if the packet
// has no such header.
func (p *Packet) RETH() RETH { return p.ext(p.Info.RETH, RETHLen) }

// AETH returns the acknowledge header.
func (p *Packet) AETH() AETH { return p.ext(p.Info.AETH, AETHLen) }

// AtomicETH returns the atomic request header.
func (p *Packet) AtomicETH() AtomicETH { return p.ext(p.Info.AtomicETH, AtomicETHLen) }

// AtomicAckETH returns the atomic acknowledge header.
func (p *Packet) AtomicAckETH() AtomicAckETH { return p.ext(p.Info.AtomicAckETH, AtomicAckETHLen) }

// ImmDt returns the immediate data.
func (p *Packet) ImmDt() ImmDt { return p.ext(p.Info.ImmDt, ImmDtLen) }

// IETH returns the invalidate header.
func (p *Packet) IETH() IETH { return p.ext(p.Info.IETH, IETHLen) }

// DETH returns the datagram header.
func (p *Packet) DETH() DETH { return p.ext(p.Info.DETH, DETHLen) }

// FETH returns the flush header.
func (p *Packet) FETH() FETH { return p.ext(p.Info.FETH, FETHLen) }
