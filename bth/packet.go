package bth

import "errors"

// Why Parse refuses a packet.
var (
	ErrTruncated = errors.New("packet ends inside its headers or its fixed payload: drop it")
	ErrOpcode    = errors.New("opcode is not one of RC, UC, UD or CNP: drop the packet")
	ErrVersion   = errors.New("transport version is not 0: drop the packet")
	ErrPad       = errors.New("pad count is larger than the payload: drop the packet")
)

// Packet is a parsed packet: views into the receive buffer, valid until that
// buffer is released. It is a plain value without locks; reuse one per thread.
type Packet struct {
	BTH     BTH         // from the BTH's first byte to the end of the pad, without ICRC
	Info    *OpcodeInfo // never nil after Parse
	Payload []byte      // without pad; a CNP's 16 reserved bytes count as payload

	// The rest is filled by roce/frame.

	Src, Dst     GID
	NetHeader    []byte // the IP header as received: 20 bytes or 40
	SrcPort      uint16 // UDP
	TrafficClass uint8  // IPv4 TOS or IPv6 traffic class, the ECN bits in the low two
	HopLimit     uint8
	SrcMAC       [6]byte
	VLAN         uint16 // tag control information: priority 3 bits, DEI 1, VLAN ID 12
	HasVLAN      bool
}

// zeros stands in for headers that a packet does not have.
var zeros [MaxHeaderLen]byte

// Parse reads b, which reaches from the BTH to the end of the pad, and sets BTH,
// Info and Payload. It returns nil or one of ErrTruncated, ErrVersion, ErrOpcode,
// ErrPad, and never allocates. After an error the accessors are still safe: BTH
// shows b (zeros if b is shorter than a BTH), Info is an unknown opcode's, there
// is no payload.
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
	// IBA 9.2.4: the pad fills up the payload, so it cannot reach into the headers.
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

// refuse leaves the packet in a state in which no accessor can panic. It stays a call, out of the way of good packets.
//
//go:noinline
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

// RETH returns the RDMA header; like all below, a view of zeros if the packet has none.
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
