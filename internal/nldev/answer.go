package nldev

import (
	"bytes"
	"iter"

	"golang.org/x/sys/unix"
)

// Protocol is the number of NETLINK_RDMA.
const Protocol = unix.NETLINK_RDMA

// Device describes an RDMA device with one port.
type Device struct {
	Name      string
	Interface string
	Index     int // of the network interface
	Up        bool
	GUID      [8]byte // of the node, in network byte order

	Uverbs uint64 // device number of the verbs device, as unix.Mkdev returns it
	CM     uint64 // device number of rdma_cm; 0: there is none

	Objects  func() Objects            // of the processes that use the device; nil: there are none
	Counters iter.Seq2[string, uint64] // names and values; nil: there are none
}

// Numbers of the protocol: client, commands and attributes.
const (
	client = 5

	cmdGet        = 1
	cmdPortGet    = 5
	cmdSysGet     = 6
	cmdResGet     = 9
	cmdGetChardev = 15
	cmdStatGet    = 17

	attrDevIndex     = 1
	attrDevName      = 2
	attrPortIndex    = 3
	attrCapFlags     = 4
	attrFWVersion    = 5
	attrNodeGUID     = 6
	attrSysImageGUID = 7
	attrPortState    = 12
	attrPortPhys     = 13
	attrNodeType     = 14
	attrSummary      = 15
	attrSummaryEntry = 16
	attrSummaryName  = 17
	attrSummaryCurr  = 18
	attrNetIndex     = 50
	attrNetName      = 51
	attrNetnsMode    = 66
	attrProtocol     = 67
	attrChardevType  = 69
	attrChardevName  = 70
	attrChardevABI   = 71
	attrChardev      = 72
	attrDriverID     = 73
	attrStatRes      = 75
	attrStats        = 80
	attrStatsEntry   = 81
	attrStatsName    = 82
	attrStatsValue   = 83
	attrDIM          = 84
	attrCopyOnFork   = 93
)

// Values of attributes.
const (
	nodeCA     = 1  // RDMA_NODE_IB_CA
	driverRXE  = 14 // RDMA_DRIVER_RXE
	uverbsABI  = 2  // RXE_UVERBS_ABI_VERSION
	cmABI      = 4  // RDMA_USER_CM_ABI_VERSION
	stateDown  = 1
	stateUp    = 4 // active
	physDown   = 3 // disabled
	physLinkUp = 5
	deviceID   = 0 // index of the only device
	portID     = 1 // index of its only port
)

// Answer returns the messages that answer the request in b, each a datagram. pid is the port ID of
// the socket that sent it.
func Answer(b []byte, pid uint32, d *Device) [][]byte {
	h, ok := parseHeader(b)
	if !ok || h.kind>>10 != client {
		return [][]byte{status(h, b, pid, -int32(unix.EINVAL))}
	}
	in := attrs(b[headerSize:h.length])
	dump := h.flags&unix.NLM_F_DUMP == unix.NLM_F_DUMP
	reply := header{kind: h.kind, seq: h.seq, pid: pid}
	if dump {
		reply.flags = unix.NLM_F_MULTI
	}
	if v, ok := in[attrDevIndex]; ok && !(len(v) == 4 && order.Uint32(v) == deviceID) {
		return [][]byte{status(h, b, pid, -int32(unix.EINVAL))}
	}
	m := newMessage(reply)
	cmd := h.kind & 0x3ff
	if _, ok := in[attrStatRes]; ok && cmd == cmdStatGet {
		cmd = 0 // the counters of objects
	}
	switch cmd {
	case cmdGet:
		d.identity(m)
		m.u32(attrPortIndex, 1) // number of ports
		d.attributes(m)
	case cmdPortGet:
		d.identity(m)
		m.u32(attrPortIndex, portID)
		d.port(m)
	case cmdSysGet:
		m.u8(attrNetnsMode, 1) // shared
		m.u8(attrCopyOnFork, 1)
	case cmdResGet:
		d.identity(m)
		d.resources(m)
	case cmdStatGet:
		d.identity(m)
		m.u32(attrPortIndex, portID)
		d.counters(m)
	case cmdGetChardev:
		if !d.chardev(m, in) {
			return [][]byte{status(h, b, pid, -int32(unix.EINVAL))}
		}
	default:
		if dump {
			return append(d.list(cmd, reply), done(h, pid))
		}
		return [][]byte{status(h, b, pid, -int32(unix.EOPNOTSUPP))}
	}
	out := [][]byte{m.bytes()}
	switch {
	case dump:
		out = append(out, done(h, pid))
	case h.flags&unix.NLM_F_ACK != 0:
		out = append(out, status(h, b, pid, 0))
	}
	return out
}

// status returns an NLMSG_ERROR message. An error of 0 is an acknowledgment.
func status(h header, request []byte, pid uint32, e int32) []byte {
	m := newMessage(header{kind: unix.NLMSG_ERROR, seq: h.seq, pid: pid})
	m.b = order.AppendUint32(m.b, uint32(e))
	var head [headerSize]byte
	copy(head[:], request)
	m.b = append(m.b, head[:]...)
	return m.bytes()
}

// done returns the end of a list.
func done(h header, pid uint32) []byte {
	m := newMessage(header{kind: unix.NLMSG_DONE, flags: unix.NLM_F_MULTI, seq: h.seq, pid: pid})
	m.b = append(m.b, 0, 0, 0, 0)
	return m.bytes()
}

func (d *Device) identity(m *message) {
	m.u32(attrDevIndex, deviceID)
	m.text(attrDevName, d.Name)
}

func (d *Device) attributes(m *message) {
	m.u64(attrCapFlags, 0)
	m.text(attrFWVersion, "")
	m.raw(attrNodeGUID, hostOrder(d.GUID))
	m.raw(attrSysImageGUID, hostOrder(d.GUID))
	m.u8(attrNodeType, nodeCA)
	m.u8(attrDIM, 0)
	m.text(attrProtocol, "roce")
}

// hostOrder returns a GUID as the attributes have it: a 64-bit number.
func hostOrder(g [8]byte) []byte {
	var v uint64
	for _, b := range g {
		v = v<<8 | uint64(b)
	}
	return order.AppendUint64(nil, v)
}

func (d *Device) port(m *message) {
	state, phys := uint8(stateDown), uint8(physDown)
	if d.Up {
		state, phys = stateUp, physLinkUp
	}
	m.u8(attrPortState, state)
	m.u8(attrPortPhys, phys)
	m.u32(attrNetIndex, uint32(d.Index))
	m.text(attrNetName, d.Interface)
}

func (d *Device) resources(m *message) {
	m.nested(attrSummary, func() {
		for name, n := range d.objects().counts {
			m.nested(attrSummaryEntry, func() {
				m.text(attrSummaryName, name)
				m.u64(attrSummaryCurr, uint64(n))
			})
		}
	})
}

func (d *Device) counters(m *message) {
	if d.Counters == nil {
		return
	}
	m.nested(attrStats, func() {
		for name, v := range d.Counters {
			m.nested(attrStatsEntry, func() {
				m.text(attrStatsName, name)
				m.u64(attrStatsValue, v)
			})
		}
	})
}

// chardev adds the character device that a request names.
func (d *Device) chardev(m *message, in map[uint16][]byte) bool {
	name, _, _ := bytes.Cut(in[attrChardevType], []byte{0})
	switch {
	case string(name) == "uverbs":
		m.text(attrChardevName, "uverbs0")
		m.u64(attrChardevABI, uverbsABI)
		m.u64(attrChardev, d.Uverbs)
		m.u32(attrDriverID, driverRXE)
	case string(name) == "rdma_cm" && d.CM != 0:
		m.text(attrChardevName, "rdma_cm")
		m.u64(attrChardevABI, cmABI)
		m.u64(attrChardev, d.CM)
	default:
		return false
	}
	return true
}
