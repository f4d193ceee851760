package core

import (
	"encoding/binary"
	"errors"
	"strings"
	"testing"
)

// victim is a machine whose peer is a test.
type victim struct {
	*testing.T
	m     *Machine
	now   Time
	acked uint32 // control messages of the machine that the peer has processed
	last  map[Type][]byte
}

const (
	victimBlocks = 4
	victimPeer   = 3 // blocks of the peer's sink
)

// newVictim returns a machine in the given mode. Both sinks have granted what they can, the peer
// has opened session 1, and the machine has opened its session 1 and sent two blocks.
func newVictim(t *testing.T, mode Mode) *victim {
	t.Helper()
	m, err := New(1, Config{Mode: mode, BlockSize: 1000, QPs: 2, SourceBlocks: 5, Sessions: 3})
	if err != nil {
		t.Fatal(err)
	}
	v := &victim{T: t, m: m, now: 1, last: map[Type][]byte{}}
	err = m.Accept(Pool{Addr: simBase, Stride: 2000, Key: simKey, Blocks: victimBlocks})
	if err != nil {
		t.Fatal(err)
	}
	v.pump()
	v.send(TypeAccept, v.accept(mode, victimPeer))
	o, err := m.Open(nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		i, _ := m.GetFree(o)
		if _, err := m.Send(o, i, 10); err != nil {
			t.Fatal(err)
		}
	}
	v.pump()
	v.send(TypeOpen, u32s(1))
	if m.Err() != nil {
		t.Fatal(m.Err())
	}
	return v
}

// accept returns the body of an Accept. In Proactive mode it grants all blocks but one.
func (v *victim) accept(mode Mode, blocks uint32) []byte {
	b := u32s(1000, blocks, 3, uint32(mode)<<24)
	for i := range blocks - 1 {
		if mode == Proactive {
			b = append(b, grantOf(i|1<<16)...)
		}
	}
	return b
}

func u32s(list ...uint32) (b []byte) {
	for _, n := range list {
		b = binary.BigEndian.AppendUint32(b, n)
	}
	return b
}

func grantOf(id uint32) []byte { return append(u32s(id, 7), make([]byte, 8)...) }

// raw sends a message with given acknowledgments.
func (v *victim) raw(t Type, ack, taken uint32, body []byte) {
	var w builder
	w.begin(t, ack, taken)
	v.m.HandleControl(v.now, append(w.message()[:controlHeader:controlHeader], body...))
}

// send sends a well-formed message of any length.
func (v *victim) send(t Type, body []byte) {
	var w builder
	w.begin(t, v.acked, 0)
	b := append(w.b[:controlHeader:controlHeader], body...)
	binary.BigEndian.PutUint32(b[4:], uint32(len(body)))
	v.m.HandleControl(v.now, b)
	v.pump()
}

// pump does what the machine wants. All its SENDs and posts succeed.
func (v *victim) pump() {
	var a Action
	for v.m.Poll(v.now, &a) {
		switch a.Kind {
		case DoControl:
			v.last[Type(binary.BigEndian.Uint16(a.Msg))] = append([]byte(nil),
				a.Msg[controlHeader:]...)
			v.acked++
			v.m.ControlDone()
		case DoWrite:
			v.m.Posted(a.Block, true)
		case DoRead:
			v.m.Arrived(v.now, a.Imm, 0, &Header{Session: 1, Len: 10})
		case DoCloseQP:
			v.m.QPFailed(a.QP, nil)
			v.m.QPClosed(a.QP)
		}
	}
}

// block announces block i with the first grant.
func (v *victim) block(i, length uint32, h Header) {
	v.m.Arrived(v.now, 1<<16|i, length, &h)
	v.pump()
}

// TestViolations checks that each violation ends the connection with ErrPeer and tells the peer.
func TestViolations(t *testing.T) {
	for name, c := range map[string]struct {
		mode Mode
		do   func(v *victim)
		want string
	}{
		"short": {do: func(v *victim) { v.m.HandleControl(1, make([]byte, 15)) },
			want: "15 bytes"},
		"long": {do: func(v *victim) { v.m.HandleControl(1, make([]byte, MaxControl+1)) },
			want: "4097 bytes"},
		"version": {do: func(v *victim) {
			b := make([]byte, controlHeader)
			b[1], b[2] = byte(TypeAck), 9
			v.m.HandleControl(1, b)
		}, want: "version 9"},
		"type 0":       {do: func(v *victim) { v.send(0, nil) }, want: "type 0"},
		"unknown type": {do: func(v *victim) { v.send(endTypes, nil) }, want: "type 16"},
		"length": {do: func(v *victim) { v.raw(TypeMessage, 0, 0, []byte{1}) },
			want: "Message has length 0 and 1 bytes"},
		"too short for its type": {do: func(v *victim) { v.send(TypeEnd, u32s(1)) },
			want: "End with"},
		"half an entry": {do: func(v *victim) { v.send(TypeDone, make([]byte, 6)) },
			want: "Done with"},
		"body of an Ack": {do: func(v *victim) { v.send(TypeAck, u32s(1)) },
			want: "Ack with"},
		"long text": {do: func(v *victim) { v.send(TypeBye, make([]byte, MaxText+1)) },
			want: "Bye with"},
		"processes messages that were not sent": {do: func(v *victim) {
			v.raw(TypeAck, v.acked+1, 0, nil)
		}, want: "processed"},
		"takes back acknowledgments": {do: func(v *victim) {
			v.raw(TypeAck, v.acked, 0, nil)
			v.raw(TypeAck, v.acked-1, 0, nil)
		}, want: "processed"},
		"takes messages that were not sent": {do: func(v *victim) {
			v.raw(TypeAck, v.acked, 1,
				nil)
		},
			want: "taken 1 messages of 0"},
		"flood of control messages": {do: func(v *victim) {
			for range ControlDepth + 2 { // the machine cannot acknowledge them
				v.raw(TypeAck, v.acked, 0, nil)
			}
		}, want: "more than 64 control messages"},
		"flood of messages": {do: func(v *victim) {
			for range MessageWindow + 1 {
				v.send(TypeMessage, []byte("x"))
			}
		}, want: "more than 64 messages"},
		"empty message": {do: func(v *victim) { v.send(TypeMessage, nil) }, want: "empty"},

		"second Accept": {do: func(v *victim) { v.send(TypeAccept, v.accept(Proactive, 2)) },
			want: "second Accept"},
		"grants a block twice": {do: func(v *victim) {
			v.send(TypeGrant, append(u32s(3, 0), grantOf(2|1<<16)...))
			v.send(TypeGrant, append(u32s(4, 0), grantOf(2|2<<16)...))
		}, want: "block 2 twice"},
		"grants a block that does not exist": {do: func(v *victim) {
			v.send(TypeGrant, append(u32s(3, 0), grantOf(victimPeer)...))
		}, want: "block 3 of 3"},
		"grants a block in use": {mode: Paper, do: func(v *victim) {
			v.send(TypeGrant, append(u32s(1, 1), grantOf(0|1<<16)...))
			v.send(TypeGrant, append(u32s(2, 1), grantOf(0|2<<16)...))
		}, want: "block 0 twice"},
		"wrong number of grants": {do: func(v *victim) {
			v.send(TypeGrant, append(u32s(9, 0), grantOf(2|1<<16)...))
		}, want: "9 grants, this side 3"},
		"no grants": {do: func(v *victim) { v.send(TypeGrant, u32s(2, 0)) }, want: "0 grants"},
		"answers no request": {do: func(v *victim) {
			v.send(TypeGrant, append(u32s(3, 1), grantOf(2|1<<16)...))
		}, want: "credit 1, 0 were"},

		"consumes more than was sent": {do: func(v *victim) { v.send(TypeConsumed, u32s(1, 3)) },
			want: "consumed 3"},
		"consumes of no session": {do: func(v *victim) { v.send(TypeConsumed, u32s(2, 0)) },
			want: "session 2"},
		"done too early": {do: func(v *victim) { v.send(TypeDone, u32s(1)) }, want: "not ended"},
		"refuses no session": {do: func(v *victim) { v.send(TypeRefuse, u32s(2)) },
			want: "session 2"},

		"opens a session again": {do: func(v *victim) { v.send(TypeOpen, u32s(1)) },
			want: "session 1 after 1"},
		"skips a session": {do: func(v *victim) { v.send(TypeOpen, u32s(3)) },
			want: "session 3 after 1"},
		"too many sessions": {do: func(v *victim) {
			for i := range uint32(4) {
				v.send(TypeOpen, u32s(2+i))
			}
		}, want: "more than 3 open"},
		"ends no session": {do: func(v *victim) { v.send(TypeEnd, u32s(2, 0, 0)) },
			want: "session 2"},
		"ends a session twice": {do: func(v *victim) {
			v.send(TypeEnd, u32s(1, 5, 0))
			v.send(TypeEnd, u32s(1, 6, 0))
		}, want: "session 1 again"},
		"ends before the last block": {do: func(v *victim) {
			v.block(0, 74, Header{Session: 1, Len: 10})
			v.send(TypeEnd, u32s(1, 0, 0))
		}, want: "after 0 blocks, and 1 have arrived"},
		"more blocks than it said": {do: func(v *victim) {
			v.send(TypeEnd, u32s(1, 1, 0))
			v.block(0, 74, Header{Session: 1, Len: 10})
			v.block(1, 74, Header{Session: 1, Seq: 1, Len: 10})
		}, want: "more than 1 blocks"},
		"finishes with open sessions": {do: func(v *victim) { v.send(TypeFinish, nil) },
			want: "1 open"},

		"announces a block that is not granted": {mode: OnDemand, do: func(v *victim) {
			v.block(0, 74, Header{Session: 1, Len: 10})
		}, want: "not granted"},
		"announces a block that does not exist": {do: func(v *victim) {
			v.block(victimBlocks, 74, Header{Session: 1, Len: 10})
		}, want: "not granted"},
		"repeats a FIN": {do: func(v *victim) {
			v.block(0, 74, Header{Session: 1, Len: 10})
			v.block(0, 74, Header{Session: 1, Seq: 1, Len: 10})
		}, want: "announced before"},
		"repeats a FIN after the block was granted again": {do: func(v *victim) {
			v.block(0, 74, Header{Session: 1, Len: 10})
			var it Item
			for v.m.GetReady(&it) {
				if it.Kind == Data {
					_ = v.m.PutReady(it.Block)
				}
			}
			v.pump()
			v.block(0, 74, Header{Session: 1, Seq: 1, Len: 10})
		}, want: "announced before"},
		"repeats a Fin message": {mode: Paper, do: func(v *victim) {
			v.send(TypeRequest, u32s(1))
			v.send(TypeFin, u32s(1<<16, 1<<16))
		}, want: "announced before"},
		"sends a Fin message": {do: func(v *victim) { v.send(TypeFin, u32s(1<<16)) },
			want: "proactive"},
		"lies about the length": {do: func(v *victim) {
			v.block(0, 74, Header{Session: 1, Len: 11})
		}, want: "10 bytes has the length 11"},
		"lies about a huge length": {mode: Paper, do: func(v *victim) {
			v.send(TypeRequest, u32s(1))
			v.m.snk.blocks[0].reading = true
			v.block(0, 0, Header{Session: 1, Len: 1 << 31})
		}, want: "2147483648"},
		"repeats a sequence number": {do: func(v *victim) {
			v.block(0, 74, Header{Session: 1, Len: 10})
			v.block(1, 74, Header{Session: 1, Len: 10})
		}, want: "repeated"},
		"skips sequence numbers": {do: func(v *victim) {
			v.block(0, 74, Header{Session: 1, Seq: 2 * victimBlocks, Len: 10})
		}, want: "out of sequence"},
		"a block of no session": {do: func(v *victim) {
			v.block(0, 74, Header{Session: 5, Len: 10})
		}, want: "session 5"},
		"a block of session 0": {do: func(v *victim) {
			v.block(0, 74, Header{Len: 10})
		}, want: "session 0"},

		"flood of requests": {mode: Paper, do: func(v *victim) {
			for i := range uint32(victimBlocks + 2) {
				v.send(TypeRequest, u32s(1+i))
			}
		}, want: "credit 6 after 5"},
		"absurd request": {mode: OnDemand, do: func(v *victim) { v.send(TypeRequest, u32s(1<<31)) },
			want: "2147483648"},
		"request in proactive mode": {do: func(v *victim) { v.send(TypeRequest, u32s(1)) },
			want: "proactive"},
		"a QP that does not exist": {do: func(v *victim) { v.send(TypeQPDown, u32s(2)) },
			want: "data QP 2"},
		"a QP that fails twice": {do: func(v *victim) {
			v.send(TypeQPDown, u32s(0))
			v.send(TypeQPDown, u32s(0))
		}, want: "failed before"},
		"state of a QP that works": {do: func(v *victim) { v.send(TypeQPState, u32s(0, 1)) },
			want: "not failed"},
	} {
		t.Run(name, func(t *testing.T) {
			v := newVictim(t, c.mode)
			c.do(v)
			err := v.m.Err()
			if !errors.Is(err, ErrPeer) || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("Err() = %v, want ErrPeer with %q", err, c.want)
			}
			v.pump()
			if bye := string(v.last[TypeBye]); bye != cut(err.Error()) {
				t.Errorf("the peer was told %q", bye)
			}
		})
	}
}

// TestAbsurdAccept checks counts in the first message of a sink.
func TestAbsurdAccept(t *testing.T) {
	for _, body := range [][]byte{
		u32s(1000, 0, 3, 0), u32s(1000, MaxBlocks+1, 3, 0), u32s(1000, 1<<31, 3, 0),
		u32s(1000, 4, 0, 0), u32s(1000, 4, MaxSessions+1, 0), u32s(1001, 4, 3, 0),
		u32s(1000, 4, 3, 1<<24),
	} {
		m, err := New(1, Config{BlockSize: 1000, QPs: 1, SourceBlocks: 1})
		if err != nil {
			t.Fatal(err)
		}
		v := &victim{T: t, m: m, now: 1, last: map[Type][]byte{}}
		v.send(TypeAccept, body)
		if !errors.Is(m.Err(), ErrPeer) {
			t.Errorf("Accept %x: %v, want ErrPeer", body, m.Err())
		}
	}
}

// TestBye checks that the reason of the peer is the error, and that a Bye without one is ErrClosed.
func TestBye(t *testing.T) {
	v := newVictim(t, Proactive)
	v.send(TypeBye, []byte("disk full"))
	var abort *AbortError
	if !errors.As(v.m.Err(), &abort) || abort.Text != "disk full" {
		t.Errorf("Err() = %v, want an AbortError with the peer's words", v.m.Err())
	}
	v = newVictim(t, Proactive)
	v.send(TypeBye, nil)
	if !errors.Is(v.m.Err(), ErrClosed) {
		t.Errorf("Err() = %v, want ErrClosed", v.m.Err())
	}
}

// TestFinished checks that a Finish counts as received when a message of the peer says so, even if
// the peer has closed the connection before the NIC's acknowledgment.
func TestFinished(t *testing.T) {
	m, err := New(1, Config{BlockSize: 1000, QPs: 1, SourceBlocks: 1})
	if err != nil {
		t.Fatal(err)
	}
	m.Finish()
	var a Action
	if !m.Poll(1, &a) || a.Kind != DoControl || m.Finished() {
		t.Fatalf("Poll() = %+v, Finished() = %v, want a Finish to send", a, m.Finished())
	}
	v := &victim{T: t, m: m}
	v.raw(TypeAck, 0, 0, nil)
	if m.Finished() {
		t.Error("Finished() = true before the peer has the message")
	}
	v.raw(TypeBye, 1, 0, nil)
	if !m.Finished() || !errors.Is(m.Err(), ErrClosed) {
		t.Errorf("Finished() = %v, Err() = %v, want true and ErrClosed", m.Finished(), m.Err())
	}
}

// TestSilence checks that a silent peer is detected in time, that this side says something often
// enough, and that a pause of the driver does not count.
func TestSilence(t *testing.T) {
	m, err := New(0, Config{BlockSize: 1000, QPs: 1, SourceBlocks: 1, Silence: 1000})
	if err != nil {
		t.Fatal(err)
	}
	v := &victim{T: t, m: m, last: map[Type][]byte{}}
	sent := 0
	run := func(until Time) {
		for m.Timeout() <= until && m.Err() == nil {
			v.now = m.Timeout()
			before := m.Counters.ControlSent
			m.HandleTimeout(v.now)
			v.pump()
			sent += int(m.Counters.ControlSent - before)
		}
		v.now = until
	}
	run(900)
	if m.Err() != nil || sent < 3 {
		t.Fatalf("after 900 of 1000: %v, %d messages sent, want at least 3", m.Err(), sent)
	}
	v.send(TypeAck, nil)
	run(1800)
	if m.Err() != nil {
		t.Fatalf("after a sign of life: %v", m.Err())
	}
	v.now = 10000 // the driver did not run
	m.HandleTimeout(v.now)
	if m.Err() != nil {
		t.Fatalf("after a pause of this side: %v", m.Err())
	}
	run(10900)
	if !errors.Is(m.Err(), ErrSilent) {
		t.Errorf("Err() = %v, want ErrSilent", m.Err())
	}
}

// TestConfig checks configurations out of range.
func TestConfig(t *testing.T) {
	good := Config{BlockSize: 1000, QPs: 1, SourceBlocks: 1}
	for name, change := range map[string]func(c *Config){
		"mode":      func(c *Config) { c.Mode = numModes },
		"block":     func(c *Config) { c.BlockSize = MinBlockSize - 1 },
		"large":     func(c *Config) { c.BlockSize = MaxBlockSize + 1 },
		"no QPs":    func(c *Config) { c.QPs = 0 },
		"many QPs":  func(c *Config) { c.QPs = MaxQPs + 1 },
		"no blocks": func(c *Config) { c.SourceBlocks = 0 },
		"blocks":    func(c *Config) { c.SourceBlocks = MaxBlocks + 1 },
		"QP depth":  func(c *Config) { c.QPDepth = -1 },
		"sessions":  func(c *Config) { c.Sessions = -1 },
		"more":      func(c *Config) { c.Sessions = MaxSessions + 1 },
		"negative":  func(c *Config) { c.Silence = -1 },
	} {
		c := good
		change(&c)
		if _, err := New(1, c); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: New() = %v, want ErrConfig", name, err)
		}
	}
	m, err := New(1, good)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []Pool{
		{Blocks: 0, Stride: 2000}, {Blocks: MaxBlocks + 1, Stride: 2000}, {Blocks: 1, Stride: 1000},
		{Blocks: 2, Stride: 2000, Addr: 1<<64 - 3000},
	} {
		if err := m.Accept(p); !errors.Is(err, ErrConfig) {
			t.Errorf("Accept(%+v) = %v, want ErrConfig", p, err)
		}
	}
}

// TestCalls checks calls of the program that are not allowed.
func TestCalls(t *testing.T) {
	v := newVictim(t, Proactive)
	m := v.m
	o := m.src.sessions[1]
	i, ok := m.GetFree(o)
	if !ok {
		t.Fatal("no free block")
	}
	if _, err := m.Send(o, i, 1001); !errors.Is(err, ErrLength) {
		t.Errorf("Send() of 1001 bytes = %v, want ErrLength", err)
	}
	if err := m.PutFree(i); err != nil {
		t.Error(err)
	}
	if err := m.PutFree(i); !errors.Is(err, ErrBlock) {
		t.Errorf("PutFree() again = %v, want ErrBlock", err)
	}
	if _, err := m.Send(o, i, 1); !errors.Is(err, ErrBlock) {
		t.Errorf("Send() of a free block = %v, want ErrBlock", err)
	}
	if err := m.PutReady(0); !errors.Is(err, ErrBlock) {
		t.Errorf("PutReady() = %v, want ErrBlock", err)
	}
	if err := m.SendMessage(nil); !errors.Is(err, ErrLength) {
		t.Errorf("SendMessage() of nothing = %v, want ErrLength", err)
	}
	if err := m.SendMessage(make([]byte, MaxMessage+1)); !errors.Is(err, ErrLength) {
		t.Errorf("SendMessage() = %v, want ErrLength", err)
	}
	if _, err := m.Open(make([]byte, MaxParams+1)); !errors.Is(err, ErrLength) {
		t.Errorf("Open() = %v, want ErrLength", err)
	}
	for range 2 {
		if _, err := m.Open(nil); err != nil {
			t.Error(err)
		}
	}
	if _, err := m.Open(nil); !errors.Is(err, ErrSessions) {
		t.Errorf("Open() of a fourth session = %v, want ErrSessions", err)
	}
	m.End(o)
	i, _ = m.GetFree(nil)
	if _, err := m.Send(o, i, 1); !errors.Is(err, ErrEnded) {
		t.Errorf("Send() after End = %v, want ErrEnded", err)
	}
	m.Finish()
	if _, err := m.Open(nil); !errors.Is(err, ErrEnded) {
		t.Errorf("Open() after Finish = %v, want ErrEnded", err)
	}
	if err := m.RefuseSession(7, ""); !errors.Is(err, ErrEnded) {
		t.Errorf("RefuseSession() = %v, want ErrEnded", err)
	}
	if err := m.Accept(Pool{Blocks: 1, Stride: 2000}); !errors.Is(err, ErrConfig) {
		t.Errorf("Accept() again = %v, want ErrConfig", err)
	}
	gone := errors.New("gone")
	m.Kill(gone)
	if _, err := m.Open(nil); !errors.Is(err, gone) {
		t.Errorf("Open() after Kill = %v", err)
	}
	if m.Timeout() != Never {
		t.Errorf("Timeout() after Kill = %d", m.Timeout())
	}
}
