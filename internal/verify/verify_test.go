package verify

import (
	"testing"

	"github.com/gorxe/gorxe/roce"
)

func TestReceive(t *testing.T) {
	for name, c := range map[string]struct {
		wc   roce.WC
		m    Message
		want bool
	}{
		"SEND": {roce.WC{Opcode: roce.WCRecv, ByteLen: 5, SrcQP: 3},
			Message{Op: roce.OpSend, Len: 5, SrcQP: 3}, true},
		"UD": {roce.WC{Opcode: roce.WCRecv, ByteLen: 45, Flags: roce.WCGRH},
			Message{Op: roce.OpSend, Len: 5, UD: true}, true},
		"WRITE imm": {roce.WC{Opcode: roce.WCRecvWriteImm, Flags: roce.WCWithImm, Imm: 7},
			Message{Op: roce.OpWriteImm, Imm: 7}, true},
		"SEND inv": {roce.WC{Opcode: roce.WCRecv, Flags: roce.WCWithInv, InvKey: 9},
			Message{Op: roce.OpSendInv, InvKey: 9}, true},
		"opcode": {roce.WC{Opcode: roce.WCRecvWriteImm}, Message{Op: roce.OpSend}, false},
		"length": {roce.WC{Opcode: roce.WCRecv, ByteLen: 4}, Message{Op: roce.OpSend, Len: 5},
			false},
		"no GRH": {roce.WC{Opcode: roce.WCRecv, ByteLen: 40}, Message{Op: roce.OpSend, UD: true},
			false},
		"no imm": {roce.WC{Opcode: roce.WCRecv}, Message{Op: roce.OpSendImm}, false},
		"wrong imm": {roce.WC{Opcode: roce.WCRecv, Flags: roce.WCWithImm, Imm: 1},
			Message{Op: roce.OpSendImm}, false},
		"extra imm": {roce.WC{Opcode: roce.WCRecv, Flags: roce.WCWithImm}, Message{Op: roce.OpSend},
			false},
		"wrong key": {roce.WC{Opcode: roce.WCRecv, Flags: roce.WCWithInv, InvKey: 1},
			Message{Op: roce.OpSendInv}, false},
		"source QP": {roce.WC{Opcode: roce.WCRecv, SrcQP: 1}, Message{Op: roce.OpSend}, false},
	} {
		if got := Receive(&c.wc, &c.m); (got == "") != c.want {
			t.Errorf("%s: Receive() = %q, want a match: %v", name, got, c.want)
		}
	}
}

func TestSend(t *testing.T) {
	wc := roce.WC{Opcode: roce.WCRead, ByteLen: 3}
	if got := Send(&wc, roce.OpRead, 3); got != "" {
		t.Errorf("Send() = %q, want a match", got)
	}
	if Send(&wc, roce.OpRead, 4) == "" || Send(&wc, roce.OpWrite, 3) == "" {
		t.Error("Send() matches a completion of another length or opcode")
	}
}

func TestAtomic(t *testing.T) {
	for _, c := range []struct {
		op                          roce.Op
		old, compare, swapAdd, want uint64
	}{
		{roce.OpFetchAdd, ^uint64(0), 0, 2, 1},
		{roce.OpCmpSwap, 5, 5, 8, 8},
		{roce.OpCmpSwap, 5, 6, 8, 5},
	} {
		if got := Atomic(c.op, c.old, c.compare, c.swapAdd); got != c.want {
			t.Errorf("Atomic(%v, %d, %d, %d) = %d, want %d", c.op, c.old, c.compare, c.swapAdd, got,
				c.want)
		}
	}
}

func TestDiff(t *testing.T) {
	for _, c := range []struct {
		a, b       string
		start, end int
	}{{"", "", 0, 0}, {"abc", "abc", 0, 0}, {"abc", "abd", 2, 3}, {"xbcx", "abcd", 0, 4},
		{"abcd", "axyd", 1, 3}} {
		if start, end := Diff([]byte(c.a), []byte(c.b)); start != c.start || end != c.end {
			t.Errorf("Diff(%q, %q) = %d, %d, want %d, %d", c.a, c.b, start, end, c.start, c.end)
		}
	}
}
