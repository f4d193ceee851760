//go:build interop

package interop_test

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"github.com/gorxe/gorxe/roce"
)

// rsocket is gorxe's side of a stream of librdmacm's rsockets (rdma-core, rsocket.c). Data goes by
// RDMA WRITE with immediate into the peer's ring. The peer grants space in its ring by writing into
// a list of two entries.
//
// The immediate of a data message is its length. That of a grant is opGrant and the number of data
// messages that the granter has space for, counted from the start.
type rsocket struct {
	*cmEnd
	sent     uint16 // data messages
	maySend  uint16 // as counted by the peer's grants
	entry    int    // of the list: where the next data goes
	list     roce.RemoteBuffer
	listNext int // entry of the peer's list for the next grant

	got       int    // bytes received and not yet taken
	taken     int    // bytes taken since the last grant of memory
	read      int    // offset in the ring
	granted   int    // offset of the half that is granted next
	messages  uint16 // data messages taken
	noted     uint16 // those that the last grant reported
	lengths   []int  // of received data messages
	nextRecv  uint64
	nextSend  uint64
	peerCount uint8 // the byte that the peer sends next (rstream -T v)
	ownCount  uint8
}

// The layout of an rsocket's memory, and its sizes.
const (
	rsList    = 0 // two entries of {address 8, key 4, length 4}
	rsGrant   = 64
	rsRing    = slot
	rsRingLen = 2 * slot
	rsSend    = 4 * slot
	rsRecvs   = 256

	opGrant   = 4
	opControl = 7
	opShift   = 29
)

func newRsocket(t *testing.T, r *rig, v variant) *rsocket {
	s := &rsocket{cmEnd: newCMEnd(t, r, v, roce.RC), granted: rsRingLen / 2, taken: rsRingLen / 2,
		listNext: 1}
	s.recv(0, rsRecvs, 0, 8, 0) // an immediate takes a receive but no memory
	s.nextRecv = rsRecvs
	return s
}

// hello returns the private data of REQ and REP: struct rs_conn_data, big endian.
func (s *rsocket) hello() []byte {
	b := []byte{1, 0} // version; flags: little endian host
	b = binary.BigEndian.AppendUint16(b, rsRecvs)
	b = append(b, 0, 0, 0, 0)
	b = binary.BigEndian.AppendUint64(b, s.mr.Addr()+rsList)
	b = binary.BigEndian.AppendUint32(b, uint32(s.mr.RKey()))
	b = binary.BigEndian.AppendUint32(b, 2)
	b = binary.BigEndian.AppendUint64(b, s.mr.Addr()+rsRing)
	b = binary.BigEndian.AppendUint32(b, uint32(s.mr.RKey()))
	return binary.BigEndian.AppendUint32(b, rsRingLen/2)
}

// greet processes the peer's hello.
func (s *rsocket) greet(b []byte) {
	s.t.Helper()
	if len(b) < 40 || b[0] != 1 {
		s.t.Fatalf("the peer's private data is no rsocket's: % x", b)
	}
	s.maySend = binary.BigEndian.Uint16(b[2:])
	s.list = roce.RemoteBuffer{Addr: binary.BigEndian.Uint64(b[8:]),
		RKey: roce.RKey(binary.BigEndian.Uint32(b[16:])), Len: 32}
	s.mr.Store64(rsList, binary.BigEndian.Uint64(b[24:]))
	s.mr.Store64(rsList+8,
		uint64(binary.BigEndian.Uint32(b[36:]))<<32|uint64(binary.BigEndian.Uint32(b[32:])))
}

// grant reports space to the peer when half of the ring or of the receives is free again.
func (s *rsocket) grant() {
	s.t.Helper()
	freeSpace := s.taken >= rsRingLen/2
	if !freeSpace && s.messages-s.noted < rsRecvs/2 {
		return
	}
	s.noted = s.messages
	w := work{op: roce.OpWriteImm, id: s.nextSend,
		imm: opGrant<<opShift | uint32(s.messages+rsRecvs), raddr: s.list.Addr,
		rkey: uint32(s.list.RKey)}
	if freeSpace {
		b := s.mr.Bytes()[rsGrant:]
		binary.LittleEndian.PutUint64(b, s.mr.Addr()+rsRing+uint64(s.granted))
		binary.LittleEndian.PutUint32(b[8:], uint32(s.mr.RKey()))
		binary.LittleEndian.PutUint32(b[12:], rsRingLen/2)
		w.off, w.size = rsGrant, 16
		w.raddr += uint64(16 * s.listNext)
		s.listNext ^= 1
		s.granted = (s.granted + rsRingLen/2) % rsRingLen
		s.taken -= rsRingLen / 2
	}
	s.push(w)
}

func (s *rsocket) push(w work) {
	s.t.Helper()
	s.post(w)
	expect(s.t, "gorxe", s, sendQueue, s.nextSend, 1)
	s.nextSend++
}

// hear processes one message of the peer.
func (s *rsocket) hear() {
	s.t.Helper()
	w := s.poll(recvQueue, 1, patience)
	if len(w) != 1 || w[0].status != success {
		s.t.Fatalf("rsocket: waited for the peer: %+v", w)
	}
	s.recv(s.nextRecv, 1, 0, 8, 0)
	s.nextRecv++
	switch data := int(w[0].imm & (1<<opShift - 1)); w[0].imm >> opShift {
	case 0:
		s.got += data
		s.lengths = append(s.lengths, data)
	case opGrant:
		s.maySend = uint16(data)
	case opControl:
		s.t.Fatalf("rsocket: the peer ends the stream with %d", data)
	}
}

// take receives n bytes, which must continue the sequence.
func (s *rsocket) take(n int) {
	s.t.Helper()
	for n > 0 {
		s.grant()
		for s.got == 0 {
			s.hear()
		}
		k := min(n, s.got, rsRingLen-s.read)
		for i, b := range s.mr.Bytes()[rsRing+s.read:][:k] {
			if b != s.peerCount {
				s.t.Fatalf("rsocket: byte %d of a piece is %#x, want %#x", i, b, s.peerCount)
			}
			s.peerCount++
		}
		n, s.got, s.taken, s.read = n-k, s.got-k, s.taken+k, (s.read+k)%rsRingLen
		for left := k; left > 0 && len(s.lengths) > 0; {
			d := min(left, s.lengths[0])
			left -= d
			if s.lengths[0] -= d; s.lengths[0] == 0 {
				s.lengths, s.messages = s.lengths[1:], s.messages+1
			}
		}
	}
}

// give sends the next n bytes of the sequence.
func (s *rsocket) give(n int) {
	s.t.Helper()
	for n > 0 {
		s.grant()
		addr, rest := s.mr.Load64(rsList+16*s.entry), s.mr.Load64(rsList+16*s.entry+8)
		length := int(rest >> 32)
		if length == 0 || s.sent == s.maySend {
			s.hear()
			continue
		}
		k := min(n, length, slot)
		for i := range k {
			s.mr.Bytes()[rsSend+i] = s.ownCount
			s.ownCount++
		}
		s.push(work{op: roce.OpWriteImm, id: s.nextSend, off: rsSend, size: k, imm: uint32(k),
			raddr: addr, rkey: uint32(rest)})
		s.sent++
		s.mr.Store64(rsList+16*s.entry, addr+uint64(k))
		s.mr.Store64(rsList+16*s.entry+8, uint64(length-k)<<32|rest&(1<<32-1))
		if length == k {
			s.entry ^= 1
		}
		n -= k
	}
}

// bye reports that this side sends no more.
func (s *rsocket) bye() {
	s.t.Helper()
	s.push(work{op: roce.OpWriteImm, id: s.nextSend, imm: opControl << opShift, raddr: s.list.Addr,
		rkey: uint32(s.list.RKey)})
}

// rstream's numbers: -I iterations of -C transfers of -S bytes in each direction.
const (
	rsIters, rsTransfers, rsSize = 3, 40, 5000
)

var rstream = fmt.Sprintf("rstream -I %d -C %d -S %d -T v", rsIters, rsTransfers, rsSize)

func rstreamClient(t *testing.T, r *rig, v variant) {
	s := newRsocket(t, r, v)
	conn, err := r.dev.Dial(within(t), netip.AddrPortFrom(r.Guests[0].Addr(v.v6), portCmatose),
		s.qp, roce.DialOptions{PrivateData: s.hello()})
	s.must(err)
	s.conn = conn
	s.greet(conn.PrivateData())
	s.give(16)
	s.take(16)
	for range rsIters {
		for range rsTransfers {
			s.give(rsSize)
		}
		for range rsTransfers {
			s.take(rsSize)
		}
	}
	s.bye()
	s.ended()
}

func rstreamServer(t *testing.T, r *rig, v variant) {
	l := r.listen(t, v, portCmatose)
	s := newRsocket(t, r, v)
	req, err := l.Accept(within(t))
	s.must(err)
	s.greet(req.PrivateData())
	s.conn, err = req.Accept(within(t), s.qp, roce.AcceptOptions{PrivateData: s.hello()})
	s.must(err)
	s.take(16)
	s.give(16)
	for range rsIters {
		for range rsTransfers {
			s.take(rsSize)
		}
		for range rsTransfers {
			s.give(rsSize)
		}
	}
	s.bye()
	s.ended()
}
