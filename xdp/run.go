//go:build linux

package xdp

import (
	"encoding/binary"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/frame"
)

const (
	// maxRun is the largest number of packets of a run (UDP_MAX_SEGMENTS).
	maxRun = 128
	// splitSlots is the number of buffers for packets of runs. The owner holds a batch at a time.
	splitSlots = 512
	// slotLen is enough for the longest packet with a VLAN tag and the next packet's BTH.
	slotLen = 4352
	// splitQueue marks the tokens of these buffers.
	splitQueue = 1 << 16

	minPacket = bth.HeaderLen + bth.ICRCLen                       // bytes after the UDP header
	maxPacket = bth.MaxHeaderLen + maxPathMTU + bth.ICRCLen       // the same
	maxHeader = etherLen + vlanLen + ipv6Len + udpLen             // before the BTH
	_         = uint(slotLen - maxHeader - maxPacket - minPacket) // compile-time check

	minPathMTU = 256
	maxPathMTU = 4096
)

// pool has the buffers for packets of runs, in the Go heap.
type pool struct {
	slab []byte
	free []uint32 // the most recently used last
}

func newPool() pool {
	p := pool{slab: make([]byte, splitSlots*slotLen), free: make([]uint32, splitSlots)}
	for i := range p.free {
		p.free[i] = uint32(splitSlots - 1 - i)
	}
	return p
}

func (p *pool) slot(i uint32) []byte { return p.slab[int(i)*slotLen:][:slotLen:slotLen] }

// splitter splits runs. A run is a frame that contains several packets of one flow after a single
// set of headers. All have the same length, only the last may be shorter. The kernel passes such
// frames uncut to sockets in generic mode: those sent with UDP_SEGMENT, and those that GRO has
// merged.
type splitter struct {
	pool
	decoder frame.Decoder
	packet  bth.Packet
	lengths [recentLengths]int // of packets of recent runs
	oldest  int                // index of the length to replace next
}

// run is the state of a run whose packets Receive returns. It is the first frame of the receive
// ring until all its packets have been returned.
type run struct {
	left    int // bytes after the headers that were not returned; 0: no run is in progress
	size    int // of each packet but the last, bytes
	count   int // packets that were returned
	id, add uint16
	piece   uint32 // descriptor of the next byte, counted from the first one
	off     int    // offset of the next byte in the descriptor's data

	headers
	head [maxHeader]byte
}

// headers describes the headers of a frame. ip is 0 if the frame has no headers of RoCEv2.
type headers struct {
	ip, udp, end int // offsets
	total        int // bytes after the UDP header
	partial      bool
}

// parse reads the headers of a frame of size bytes that begins with b. It is called for every
// frame, so it reads no more than necessary of those without a UDP checksum, which are no runs
// unless they are long.
func parse(b []byte, size int) (h headers) {
	if len(b) < etherLen+ipv4Len+udpLen+minPacket {
		return h
	}
	kind, ip, udp := offsets(b)
	if end := udp + udpLen; len(b) < end+minPacket ||
		b[udp+6]|b[udp+7] == 0 && size <= end+maxPacket {
		return h
	}
	h = headers{ip: ip, udp: udp, end: udp + udpLen}
	h.total = int(binary.BigEndian.Uint16(b[udp+4:])) - udpLen
	var length int
	var sum uint32
	switch kind {
	case etherIPv4:
		length = int(binary.BigEndian.Uint16(b[ip+2:])) - ipv4Len
		sum = sum16(b[ip+12 : udp])
	case etherIPv6:
		length = int(binary.BigEndian.Uint16(b[ip+4:]))
		sum = sum16(b[ip+8 : udp])
	default:
		return headers{}
	}
	if length != h.total+udpLen || h.end+h.total > size || h.total < minPacket {
		return headers{}
	}
	sum = fold(sum + protoUDP + uint32(length))
	h.partial = uint32(binary.BigEndian.Uint16(b[udp+6:])) == sum
	return h
}

// offsets returns the EtherType of the packet in a frame, and where its IP and UDP headers begin.
func offsets(b []byte) (kind uint16, ip, udp int) {
	ip = etherLen
	kind = binary.BigEndian.Uint16(b[etherTypeOff:])
	if kind == etherVLAN {
		ip += vlanLen
		kind = binary.BigEndian.Uint16(b[etherTypeOff+vlanLen:])
	}
	if kind == etherIPv6 {
		return kind, ip, ip + ipv6Len
	}
	return kind, ip, ip + ipv4Len
}

// sum16 adds the 16-bit words of b, which has an even length below 128 KiB.
func sum16(b []byte) (sum uint32) {
	for ; len(b) >= 2; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	return sum
}

func fold(sum uint32) uint32 {
	sum = sum>>16 + sum&0xffff
	return sum>>16 + sum&0xffff
}

// put writes the headers of a packet of n bytes to b.
func (r *run) put(b []byte, n int, id uint16) {
	copy(b, r.head[:r.end])
	ip := b[r.ip:r.udp]
	if len(ip) == ipv4Len {
		binary.BigEndian.PutUint16(ip[2:], uint16(ipv4Len+udpLen+n))
		binary.BigEndian.PutUint16(ip[4:], id)
		binary.BigEndian.PutUint16(ip[10:], 0)
		binary.BigEndian.PutUint16(ip[10:], ^uint16(fold(sum16(ip))))
	} else {
		binary.BigEndian.PutUint16(ip[4:], uint16(udpLen+n))
	}
	udp := b[r.udp:r.end]
	binary.BigEndian.PutUint16(udp[4:], uint16(udpLen+n))
	binary.BigEndian.PutUint16(udp[6:], 0) // the ICRC suffices
}

// verdict says what a frame is.
type verdict uint8

const (
	ordinary verdict = iota // one packet, or unknown bytes that fit in a buffer
	isRun
	forged // too long for a packet, and no run
	wait   // no buffer is free to find out
)

// inspect finds out what a frame of size bytes is. first is the index of its first
// descriptor among those that are ready.
func (p *Port) inspect(q *queue, first uint32, size int) verdict {
	d := q.rx.at(first)
	b := q.umem[d.Addr : d.Addr+uint64(d.Len)]
	h := parse(b, size)
	if h.ip == 0 || !h.partial && h.total <= maxPacket {
		return ordinary
	}
	s := &p.split
	if len(s.free) == 0 {
		return wait
	}
	slot := s.slot(s.free[len(s.free)-1])
	r := &q.run
	*r = run{headers: h, add: 1}
	copy(r.head[:], b[:h.end])
	if h.ip+ipv4Len == h.udp {
		r.id = binary.BigEndian.Uint16(b[h.ip+4:])
	}
	n := min(slotLen, h.end+h.total)
	r.read(q, first, slot[:n])
	r.piece, r.off = 0, 0
	if r.size = s.find(r, slot[:n]); r.size > 0 {
		r.left = h.total
		r.skip(q, first, h.end)
		return isRun
	}
	if size > p.capacity {
		return forged
	}
	return ordinary
}

// packets stores packets of the run in progress in bufs and returns their number.
func (p *Port) packets(q *queue, first uint32, bufs []driver.Buf) (n int) {
	s, r := &p.split, &q.run
	for ; n < len(bufs) && r.left > 0 && len(s.free) > 0; n++ {
		last := len(s.free) - 1
		index := s.free[last]
		s.free = s.free[:last]
		size := min(r.size, r.left)
		slot := s.slot(index)[:r.end+size]
		r.put(slot, size, r.id)
		r.read(q, first, slot[r.end:])
		if r.count == 1 {
			s.checkID(r, slot)
		}
		bufs[n] = driver.Buf{B: slot, Token: token(splitQueue, index)}
		r.left -= size
		r.id += r.add
		r.count++
	}
	return n
}

// checkID adapts r.add to the identifications of a run, with its second packet. The kernel numbers
// the packets that it cuts, but GRO may have merged packets that have the same identification.
func (s *splitter) checkID(r *run, b []byte) {
	if r.udp-r.ip != ipv4Len || s.decoder.Decode(b, &s.packet) != frame.ReasonICRC {
		return
	}
	n := len(b) - r.end
	if r.put(b, n, r.id-r.add); s.decoder.Decode(b, &s.packet) == frame.ReasonOK {
		r.id -= r.add
		r.add = 0
		return
	}
	r.put(b, n, r.id)
}

// read copies the next bytes of a frame to b and moves on.
func (r *run) read(q *queue, first uint32, b []byte) {
	for len(b) > 0 {
		d := q.rx.at(first + r.piece)
		n := copy(b, q.umem[d.Addr+uint64(r.off):d.Addr+uint64(d.Len)])
		b = b[n:]
		if r.off += n; r.off == int(d.Len) {
			r.piece, r.off = r.piece+1, 0
		}
	}
}

// skip moves n bytes on.
func (r *run) skip(q *queue, first uint32, n int) {
	r.off += n
	for {
		d := q.rx.at(first + r.piece)
		if r.off < int(d.Len) {
			return
		}
		r.off -= int(d.Len)
		r.piece++
	}
}
