package packetfuzz

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/frame"
)

// answerKind is a kind of packet that the host sends to an attacked connection.
type answerKind int

const (
	answerACK answerKind = iota
	answerRNR
	answerSequence
	answerInvalid
	answerAccess
	answerOperation
	answerRead
	answerAtomic
	answerRequest
	answerMAD
	answerOther
	numAnswers
)

var answerNames = [numAnswers]string{
	answerACK:       "ACK",
	answerRNR:       "RNR NAK",
	answerSequence:  "NAK: PSN sequence error",
	answerInvalid:   "NAK: invalid request",
	answerAccess:    "NAK: remote access error",
	answerOperation: "NAK: remote operational error",
	answerRead:      "READ response",
	answerAtomic:    "atomic response",
	answerRequest:   "request of its own",
	answerMAD:       "MAD",
	answerOther:     "other",
}

// fatal reports whether the host's queue pair is in the error state after such an answer.
func (k answerKind) fatal() bool {
	return k == answerInvalid || k == answerAccess || k == answerOperation
}

// batch is how many frames are sent at once.
const batch = 32

// tap is a port through which the fuzzer sends frames of its own and sees what arrives. The owner
// of the port does both, so no other goroutine touches the inner port.
type tap struct {
	driver.Port

	mu      sync.Mutex
	pending [][]byte // to be sent
	used    int      // of pending
	empty   chan struct{}

	sent, bytes, notSent atomic.Uint64
	answers              [numAnswers]atomic.Uint64

	aim     atomic.Uint32 // local QPN of the attacked connection
	psn     atomic.Int64  // that the host says it expects next; -1: nothing new
	dead    atomic.Bool   // the host refused a packet of the connection for good
	swallow atomic.Bool   // the device does not see the host's requests to the connection

	dec frame.Decoder
	pkt bth.Packet
}

func newTap(p driver.Port) *tap {
	t := &tap{Port: p, empty: make(chan struct{}, 1)}
	t.psn.Store(-1)
	return t
}

// Unwrap implements driver.Wrapper.
func (t *tap) Unwrap() driver.Port { return t.Port }

// follow starts to observe another connection; 0 means none.
func (t *tap) follow(qpn bth.QPN) {
	t.aim.Store(uint32(qpn))
	t.psn.Store(-1)
	t.dead.Store(false)
	t.swallow.Store(false)
}

// send queues a copy of a frame.
func (t *tap) send(f []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.used == len(t.pending) {
		t.pending = append(t.pending, nil)
	}
	t.pending[t.used] = append(t.pending[t.used][:0], f...)
	t.used++
}

// flush waits until everything queued has been sent, or the time is over.
func (t *tap) flush(d time.Duration) bool {
	end := time.NewTimer(d)
	defer end.Stop()
	for {
		t.mu.Lock()
		left := t.used
		t.mu.Unlock()
		if left == 0 {
			return true
		}
		t.Wake()
		select {
		case <-t.empty:
		case <-end.C:
			return false
		}
	}
}

// Receive implements driver.Port.
func (t *tap) Receive(bufs []driver.Buf) int {
	t.transmit()
	n := t.Port.Receive(bufs)
	if n == 0 || t.aim.Load() == 0 {
		return n
	}
	kept := 0
	for i := range n {
		if t.observe(bufs[i].B) {
			bufs[kept], bufs[i] = bufs[i], bufs[kept]
			kept++
		}
	}
	t.Port.Release(bufs[kept:n])
	return kept
}

// transmit sends what is queued, as far as there are buffers.
func (t *tap) transmit() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.used == 0 {
		return
	}
	done := 0
	for done < t.used {
		var bufs [batch]driver.Buf
		n := t.Port.Alloc(bufs[:min(batch, t.used-done)])
		if n == 0 {
			break
		}
		put := 0
		for i := range n {
			f := t.pending[done+i]
			if len(f) > len(bufs[i].B) || len(f) == 0 {
				continue
			}
			b := &bufs[put]
			*b, bufs[i] = bufs[i], *b
			b.B = b.B[:copy(b.B, f)]
			t.bytes.Add(uint64(len(f)))
			put++
		}
		t.Port.Free(bufs[put:n])
		sent, err := t.Port.Send(bufs[:put])
		t.sent.Add(uint64(sent))
		t.notSent.Add(uint64(n - sent))
		done += n
		if err != nil { // the port is closed or down: the device reports it
			done = t.used
		}
	}
	copy(t.pending, t.pending[done:t.used])
	if t.used -= done; t.used == 0 {
		select {
		case t.empty <- struct{}{}:
		default:
		}
	}
}

// observe counts a frame to the attacked connection or to QP1. It returns false if the device must
// not see the frame.
func (t *tap) observe(f []byte) bool {
	if t.dec.Decode(f, &t.pkt) != frame.ReasonOK {
		return true
	}
	p := &t.pkt
	if p.BTH.DestQP() == bth.QPNGSI {
		t.answers[answerMAD].Add(1)
		return true
	}
	if uint32(p.BTH.DestQP()) != t.aim.Load() {
		return true
	}
	k := kindOf(p)
	t.answers[k].Add(1)
	switch {
	case k == answerSequence:
		t.psn.Store(int64(p.BTH.PSN()))
	case k == answerACK:
		t.psn.Store(int64(p.BTH.PSN().Next()))
	case k.fatal():
		t.dead.Store(true)
	}
	return k != answerRequest || !t.swallow.Load()
}

func kindOf(p *bth.Packet) answerKind {
	switch o := p.BTH.Opcode(); {
	case o == bth.RCAck:
		return kindOfACK(p.AETH().Syndrome())
	case p.Info.Op == bth.OpReadResponse:
		return answerRead
	case o == bth.RCAtomicAck:
		return answerAtomic
	case p.Info.Transport == bth.RC:
		return answerRequest
	}
	return answerOther
}

func kindOfACK(s bth.Syndrome) answerKind {
	switch s.Kind() {
	case bth.SyndromeACK:
		return answerACK
	case bth.SyndromeRNR:
		return answerRNR
	case bth.SyndromeNAK:
		switch s.NAKCode() {
		case bth.NAKPSNSequence:
			return answerSequence
		case bth.NAKInvalidRequest:
			return answerInvalid
		case bth.NAKRemoteAccess:
			return answerAccess
		case bth.NAKRemoteOperational:
			return answerOperation
		}
	}
	return answerOther
}
