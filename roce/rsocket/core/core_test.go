package core

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"testing"
)

// memory is what a peer writes into, from address base on.
type memory struct {
	base uint64
	b    []byte
}

func (m *memory) Load64(off int) uint64 { return binary.NativeEndian.Uint64(m.b[off:]) }

// side is a Stream with its memory. The list is at offset 0 and the ring at ringAt.
type side struct {
	*Stream
	mem  *memory
	send []byte
	wire []Write // that the other side has not received
	in   []byte  // what the program has read
}

const ringAt = 1 << 12

func newSide(base uint64, c Config) *side {
	m := &memory{base, make([]byte, ringAt+c.RingLen)}
	c.List, c.Ring = Buffer{Addr: base, Key: 1}, Buffer{Addr: base + ringAt, Key: 1}
	return &side{Stream: New(c, m), mem: m, send: make([]byte, c.SendLen)}
}

// newPair returns two sides that know each other.
func newPair(t testing.TB, a, b Config) [2]*side {
	t.Helper()
	s := [2]*side{newSide(1<<32, a), newSide(2<<32, b)}
	for i := range s {
		hello := s[1-i].Hello()
		h, err := ParseHello(append(hello.Append(nil), 9, 9))
		if err != nil || h != hello {
			t.Fatalf("ParseHello() = %+v, %v; want %+v", h, err, hello)
		}
		s[i].Open(h)
	}
	return s
}

// write sends as much of b as is possible now in pieces of at most piece bytes, of which some go
// into one WRITE, and returns how much.
func (s *side) write(b []byte, piece int) (n int) {
	for n < len(b) {
		off, k := s.Space()
		if k = min(k, len(b)-n, piece); k == 0 {
			if s.flush() {
				continue
			}
			break
		}
		copy(s.send[off:], b[n:n+k])
		s.Stage(k)
		n += k
	}
	return n
}

// flush sends what is staged.
func (s *side) flush() bool {
	if s.Staged() == 0 {
		return false
	}
	s.wire = append(s.wire, s.Send())
	return true
}

func (s *side) control() {
	s.flush()
	for w, ok := s.Control(); ok; w, ok = s.Control() {
		s.wire = append(s.wire, w)
	}
}

// deliver lets to receive the oldest WRITE of s.
func (s *side) deliver(t testing.TB, to *side) {
	t.Helper()
	w := s.wire[0]
	s.wire = s.wire[1:]
	payload := w.Inline[:min(w.Len, len(w.Inline))]
	if !w.IsInline && w.Len > 0 {
		payload = s.send[w.Off:][:w.Len]
	}
	if w.Len > 0 {
		at := w.Addr - to.mem.base
		if w.Key != 1 || at+uint64(w.Len) > uint64(len(to.mem.b)) {
			t.Fatalf("WRITE %+v is outside the peer's memory", w)
		}
		copy(to.mem.b[at:], payload)
	}
	if w.HasImm {
		if err := to.Received(w.Imm, w.Len); err != nil {
			t.Fatal(err)
		}
	}
	if w.Signaled {
		s.Completed(w.ID)
	}
}

// read reads up to n bytes.
func (s *side) read(n int) {
	for n > 0 {
		off, k := s.Readable()
		if k = min(k, n); k == 0 {
			return
		}
		s.in = append(s.in, s.mem.b[ringAt+off:][:k]...)
		s.Consume(k)
		n -= k
	}
}

func sideConfig(r *rand.Rand) Config {
	return Config{Credits: 2 + r.IntN(20), RingLen: 64 * (1 + r.IntN(10)), SendLen: 1 + r.IntN(300),
		SendDepth: 1 + r.IntN(10), Maps: r.IntN(3)}
}

// Two sides with random sizes exchange streams in random steps. Everything arrives, nothing waits
// forever, and no rule of the protocol is broken.
func TestStreams(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		s := newPair(t, sideConfig(r), sideConfig(r))
		var data, left [2][]byte
		for i := range data {
			data[i] = make([]byte, r.IntN(5000))
			for j := range data[i] {
				data[i][j] = byte(r.Uint32())
			}
			left[i] = data[i]
		}
		done := func() bool {
			return len(s[0].in) == len(data[1]) && len(s[1].in) == len(data[0]) &&
				s[0].PeerShutdown() && s[1].PeerShutdown()
		}
		for steps := 0; !done(); steps++ {
			if steps > 200_000 {
				t.Fatalf("seed %d: the streams do not end: %d of %d and %d of %d bytes", seed,
					len(s[0].in), len(data[1]), len(s[1].in), len(data[0]))
			}
			i := r.IntN(2)
			switch r.IntN(4) {
			case 0:
				n := s[i].write(left[i][:min(len(left[i]), r.IntN(200))], 1+r.IntN(200))
				if left[i] = left[i][n:]; len(left[i]) == 0 {
					s[i].flush()
					s[i].Shutdown()
				}
			case 1:
				s[i].read(r.IntN(200))
			case 2:
				s[i].control()
			default:
				if len(s[i].wire) > 0 {
					s[i].deliver(t, s[1-i])
				}
			}
		}
		for i := range s {
			if !bytes.Equal(s[i].in, data[1-i]) {
				t.Fatalf("seed %d: side %d has read other bytes than were sent", seed, i)
			}
		}
	}
}

// A peer whose host is big-endian gets its entries in its byte order.
func TestByteOrder(t *testing.T) {
	s := newPair(t, testConfig, testConfig)
	hello := s[1].Hello()
	hello.BigEndian = true
	s[0].Open(hello)
	w, ok := s[0].Control()
	got := parseBuffer(w.Inline[:], bigEndian)
	want := Buffer{Addr: 1<<32 + ringAt + 512, Key: 1, Len: 512}
	if !ok || w.Len != entryLen || got != want {
		t.Errorf("Control() = %+v, %t; its entry is %+v, want %+v", w, ok, got, want)
	}
	if w.Addr != 2<<32+entryLen {
		t.Errorf("the grant goes to %#x, want the second entry of the list", w.Addr)
	}
}

var testConfig = Config{Credits: 4, RingLen: 1024, SendLen: 1024, SendDepth: 8, Maps: 1}

// The second side that ends its direction disconnects, as librdmacm does.
func TestShutdown(t *testing.T) {
	s := newPair(t, testConfig, testConfig)
	for i := range s {
		s[i].control() // grants
		s[i].Shutdown()
		s[i].control()
		for len(s[i].wire) > 0 {
			s[i].deliver(t, s[1-i])
		}
	}
	if !s[1].PeerShutdown() || s[1].PeerDisconnected() {
		t.Error("the second side does not see the end of the stream, or more than that")
	}
	if !s[0].PeerDisconnected() || !s[0].Ended() || !s[1].Ended() || !s[1].Idle() {
		t.Error("the second Shutdown does not disconnect")
	}
	if _, ok := s[0].Control(); ok {
		t.Error("Control() has a message for a peer that has disconnected")
	}
}

// Nothing but the end of the stream is said after Shutdown, because a call of Map has failed then.
func TestMapAfterShutdown(t *testing.T) {
	s := newPair(t, testConfig, testConfig)
	if !s[0].OpenMap(Map{100, Buffer{Addr: 1<<32 + ringAt, Key: 1, Len: 10}}) {
		t.Fatal("OpenMap() = false")
	}
	s[0].Shutdown()
	s[0].control()
	for len(s[0].wire) > 0 {
		s[0].deliver(t, s[1])
	}
	if n := s[1].Mapped(100); n != 0 || !s[1].PeerShutdown() {
		t.Errorf("Mapped() = %d, and the peer has ended the stream: %v; want 0, true", n,
			s[1].PeerShutdown())
	}
}

func TestMaps(t *testing.T) {
	s := newPair(t, testConfig, testConfig)
	if !s[0].OpenMap(Map{100, Buffer{Addr: 1<<32 + ringAt, Key: 1, Len: 10}}) {
		t.Fatal("OpenMap() = false")
	}
	if s[0].OpenMap(Map{}) {
		t.Error("OpenMap() beyond the peer's table = true")
	}
	s[0].control()
	for len(s[0].wire) > 0 {
		s[0].deliver(t, s[1])
	}
	for off, want := range map[uint64]int{99: 0, 100: 10, 109: 1, 110: 0} {
		if got := s[1].Mapped(off); got != want {
			t.Errorf("Mapped(%d) = %d, want %d", off, got, want)
		}
	}
	w := s[1].SendMapped(103, 7)
	if w.Addr != 1<<32+ringAt+3 || w.HasImm || w.Len != 7 {
		t.Errorf("SendMapped() = %+v", w)
	}
}

// What an honest peer never sends is an error, and the stream remains usable for the program.
func TestProtocolErrors(t *testing.T) {
	grant := message(kindGrant, 5)
	for name, bad := range map[string][]struct {
		imm uint32
		n   int
	}{
		"unknown kind":             {{message(1, 0), 0}},
		"length differs":           {{message(kindData, 10), 11}},
		"more bytes than granted":  {{message(kindData, 513), 513}},
		"more messages":            {{1, 1}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, {1, 1}},
		"data after the end":       {{message(kindControl, controlShutdown), 0}, {1, 1}},
		"odd grant":                {{grant, 15}},
		"empty grant":              {{grant, entryLen}},
		"entry outside the table":  {{message(kindMap, 1), mapEntryLen}},
		"entry of another length":  {{message(kindMap, 0), 16}},
		"third buffer":             {{grant, entryLen}, {grant, entryLen}},
		"data message of 0, and 1": {{0, 0}, {1, 0}},
	} {
		s := newPair(t, testConfig, testConfig)[0]
		if name == "third buffer" {
			for i := range 2 * entryLen {
				s.mem.b[i] = 1
			}
		}
		var err error
		for _, m := range bad {
			err = errors.Join(err, s.Received(m.imm, m.n))
		}
		if !errors.Is(err, ErrProtocol) {
			t.Errorf("%s: Received() = %v, want %v", name, err, ErrProtocol)
		}
	}
	for name, change := range map[string]func([]byte) []byte{
		"short":         func(b []byte) []byte { return b[:HelloLen-1] },
		"version":       func(b []byte) []byte { b[0] = 2; return b },
		"no credits":    func(b []byte) []byte { b[2], b[3] = 0, 0; return b },
		"list too long": func(b []byte) []byte { b[20] = 1; return b },
		"list of one":   func(b []byte) []byte { b[23] = 1; return b },
		"no buffer":     func(b []byte) []byte { clear(b[36:]); return b },
	} {
		h := newPair(t, testConfig, testConfig)[0].Hello()
		if _, err := ParseHello(change(h.Append(nil))); !errors.Is(err, ErrProtocol) {
			t.Errorf("ParseHello() of a Hello with %s: %v, want %v", name, err, ErrProtocol)
		}
	}
}

// FuzzReceived gives a Stream arbitrary bytes as a peer's Hello, memory and messages, while the
// program uses it. It must not panic, and must not send more than is granted.
func FuzzReceived(f *testing.F) {
	h := newSide(0, testConfig).Hello()
	f.Add(h.Append(nil), []byte{0x80, 0, 0, 1, 16}, uint64(1))
	f.Add(h.Append(nil), []byte{0, 0, 0, 9, 9, 0xe0, 0, 0, 2, 0, 0xc0, 0, 0, 0, 24}, uint64(2))
	f.Fuzz(func(t *testing.T, hello, messages []byte, seed uint64) {
		h, err := ParseHello(hello)
		if err != nil {
			return
		}
		r := rand.New(rand.NewPCG(seed, 1))
		s := newSide(0, testConfig)
		s.Open(h)
		for ; len(messages) >= 5; messages = messages[5:] {
			for i := range ListLen(1) {
				s.mem.b[i] = byte(r.Uint32())
			}
			if s.Received(binary.BigEndian.Uint32(messages), int(messages[4])) != nil {
				return // the connection ends
			}
			s.write(make([]byte, r.IntN(100)), 1+r.IntN(100))
			s.read(r.IntN(100))
			s.control()
			if off := r.Uint64(); s.Mapped(off) > 0 {
				if _, n := s.MapSpace(); n > 0 {
					s.wire = append(s.wire, s.SendMapped(off, min(n, s.Mapped(off))))
				}
			}
			for _, w := range s.wire {
				if w.Len < 0 || w.Off < 0 || !w.IsInline && w.Off+w.Len > len(s.send) {
					t.Fatalf("WRITE %+v is outside the send buffer", w)
				}
				if w.Signaled {
					s.Completed(w.ID)
				}
			}
			s.wire = nil
		}
	})
}

// What is staged goes into one WRITE, as far as it is contiguous on both sides.
func TestStage(t *testing.T) {
	c := Config{Credits: 10, RingLen: 256, SendLen: 100, SendDepth: 10}
	s := newPair(t, c, c)
	a := s[0]
	if n := a.write(make([]byte, 90), 30); n != 90 || len(a.wire) != 0 || a.Staged() != 90 {
		t.Fatalf("%d bytes, %d WRITEs, %d staged; want 90 bytes staged", n, len(a.wire), a.Staged())
	}
	if a.flush(); a.InFlight(1) != 90 || a.InFlight(0) != 0 || a.InFlight(9) != 90 {
		t.Errorf("InFlight(1) = %d, InFlight(0) = %d, InFlight(9) = %d; want 90, 0, 90",
			a.InFlight(1), a.InFlight(0), a.InFlight(9))
	}
	if n := a.write(make([]byte, 90), 30); n != 10 || a.Staged() != 0 || len(a.wire) != 2 {
		t.Errorf("%d bytes, %d WRITEs, %d staged; want the 10 bytes to the end of the send buffer",
			n, len(a.wire), a.Staged())
	}
	if a.InFlight(1) != 10 || a.InFlight(2) != 100 {
		t.Errorf("InFlight(1) = %d, InFlight(2) = %d; want 10, 100", a.InFlight(1), a.InFlight(2))
	}
	for len(a.wire) > 0 {
		a.deliver(t, s[1])
	}
	if n := a.write(make([]byte, 90), 30); n != 28 || len(a.wire) != 1 || a.wire[0].Len != 28 {
		t.Errorf("%d bytes, WRITEs %+v; want the 28 bytes to the end of the target buffer", n, a.wire)
	}
}
