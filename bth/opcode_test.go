package bth

import (
	"slices"
	"strings"
	"testing"
)

// known is the IBA opcode table (IBA 9.2.1 and 9.3, annexes A17 and A19), written out independently
// of the table in the package: the name, the header length, and the extension headers with their
// offsets.
var known = []struct {
	opcode  uint8
	name    string
	pos     string // F first, M middle, L last, O only
	len     uint8
	headers string
}{
	{0x00, "RC SEND First", "F", 12, ""},
	{0x01, "RC SEND Middle", "M", 12, ""},
	{0x02, "RC SEND Last", "L", 12, ""},
	{0x03, "RC SEND Last with Immediate", "L", 16, "ImmDt@12"},
	{0x04, "RC SEND Only", "O", 12, ""},
	{0x05, "RC SEND Only with Immediate", "O", 16, "ImmDt@12"},
	{0x06, "RC RDMA WRITE First", "F", 28, "RETH@12"},
	{0x07, "RC RDMA WRITE Middle", "M", 12, ""},
	{0x08, "RC RDMA WRITE Last", "L", 12, ""},
	{0x09, "RC RDMA WRITE Last with Immediate", "L", 16, "ImmDt@12"},
	{0x0a, "RC RDMA WRITE Only", "O", 28, "RETH@12"},
	{0x0b, "RC RDMA WRITE Only with Immediate", "O", 32, "RETH@12 ImmDt@28"},
	{0x0c, "RC RDMA READ Request", "O", 28, "RETH@12"},
	{0x0d, "RC RDMA READ response First", "F", 16, "AETH@12"},
	{0x0e, "RC RDMA READ response Middle", "M", 12, ""},
	{0x0f, "RC RDMA READ response Last", "L", 16, "AETH@12"},
	{0x10, "RC RDMA READ response Only", "O", 16, "AETH@12"},
	{0x11, "RC Acknowledge", "O", 16, "AETH@12"},
	{0x12, "RC ATOMIC Acknowledge", "O", 24, "AETH@12 AtomicAckETH@16"},
	{0x13, "RC CmpSwap", "O", 40, "AtomicETH@12"},
	{0x14, "RC FetchAdd", "O", 40, "AtomicETH@12"},
	{0x16, "RC SEND Last with Invalidate", "L", 16, "IETH@12"},
	{0x17, "RC SEND Only with Invalidate", "O", 16, "IETH@12"},
	{0x1c, "RC FLUSH", "O", 32, "FETH@12 RETH@16"},
	{0x1d, "RC ATOMIC WRITE", "O", 28, "RETH@12"},
	{0x20, "UC SEND First", "F", 12, ""},
	{0x21, "UC SEND Middle", "M", 12, ""},
	{0x22, "UC SEND Last", "L", 12, ""},
	{0x23, "UC SEND Last with Immediate", "L", 16, "ImmDt@12"},
	{0x24, "UC SEND Only", "O", 12, ""},
	{0x25, "UC SEND Only with Immediate", "O", 16, "ImmDt@12"},
	{0x26, "UC RDMA WRITE First", "F", 28, "RETH@12"},
	{0x27, "UC RDMA WRITE Middle", "M", 12, ""},
	{0x28, "UC RDMA WRITE Last", "L", 12, ""},
	{0x29, "UC RDMA WRITE Last with Immediate", "L", 16, "ImmDt@12"},
	{0x2a, "UC RDMA WRITE Only", "O", 28, "RETH@12"},
	{0x2b, "UC RDMA WRITE Only with Immediate", "O", 32, "RETH@12 ImmDt@28"},
	{0x64, "UD SEND Only", "O", 20, "DETH@12"},
	{0x65, "UD SEND Only with Immediate", "O", 24, "DETH@12 ImmDt@20"},
	{0x81, "CNP", "O", 12, ""},
}

func TestOpcodeTable(t *testing.T) {
	rest := map[Opcode]bool{}
	for o := range 256 {
		rest[Opcode(o)] = true
	}
	for _, w := range known {
		o := Opcode(w.opcode)
		i := o.Info()
		delete(rest, o)
		if !i.Known || i.Opcode != o || o.String() != w.name || i.HeaderLen != w.len {
			t.Errorf("%#02x: %q, %d bytes, known %v; want %q, %d bytes", w.opcode, o, i.HeaderLen,
				i.Known, w.name, w.len)
		}
		if got := headersOf(i); got != w.headers {
			t.Errorf("%v: headers %q, want %q", o, got, w.headers)
		}
		if start, end := strings.Contains("FO", w.pos), strings.Contains("LO",
			w.pos); i.Start != start || i.End != end {
			t.Errorf("%v: start %v end %v, want %v %v", o, i.Start, i.End, start, end)
		}
		if want := strings.HasSuffix(w.name, "Immediate"); i.HasImm != want {
			t.Errorf("%v: HasImm %v", o, i.HasImm)
		}
		if want := strings.HasSuffix(w.name, "Invalidate"); i.HasInv != want {
			t.Errorf("%v: HasInv %v", o, i.HasInv)
		}
	}
	for o := range rest {
		if i := o.Info(); i == nil || i.Known || !strings.HasPrefix(o.String(), "unknown 0x") ||
			headersOf(i) != "" {
			t.Errorf("%#02x = %+v, want an unknown opcode without headers", uint8(o), i)
		}
	}
	if s := Opcode(0xff).String(); s != "unknown 0xff" {
		t.Errorf("Opcode(0xff).String() = %q", s)
	}
}

func headersOf(i *OpcodeInfo) string {
	type at struct {
		off  uint8
		name string
	}
	hs := []at{
		{i.RETH, "RETH@"}, {i.AETH, "AETH@"}, {i.AtomicETH, "AtomicETH@"},
		{i.AtomicAckETH, "AtomicAckETH@"},
		{i.ImmDt, "ImmDt@"}, {i.IETH, "IETH@"}, {i.DETH, "DETH@"}, {i.FETH, "FETH@"},
	}
	hs = slices.DeleteFunc(hs, func(h at) bool { return h.off == 0 })
	slices.SortFunc(hs, func(a, b at) int { return int(a.off) - int(b.off) })
	var s []string
	for _, h := range hs {
		s = append(s, h.name+string('0'+h.off/10)+string('0'+h.off%10))
	}
	return strings.Join(s, " ")
}

func TestDirections(t *testing.T) {
	responses := []Opcode{
		RCReadResponseFirst, RCReadResponseMiddle, RCReadResponseLast, RCReadResponseOnly, RCAck,
		RCAtomicAck,
	}
	noPayload := []Opcode{RCReadRequest, RCAck, RCAtomicAck, RCCmpSwap, RCFetchAdd, RCFlush, CNP}
	for _, w := range known {
		o := Opcode(w.opcode)
		i := o.Info()
		response := slices.Contains(responses, o)
		if i.Response != response || i.Request != (!response && o != CNP) {
			t.Errorf("%v: request %v, response %v", o, i.Request, i.Response)
		}
		if i.HasPayload == slices.Contains(noPayload, o) {
			t.Errorf("%v: HasPayload %v", o, i.HasPayload)
		}
	}
}

// RequestOpcode inverts OpcodeInfo. FIRST and MIDDLE do not depend on imm and inv.
func TestRequestOpcode(t *testing.T) {
	for _, w := range known {
		i := Opcode(w.opcode).Info()
		if got := RequestOpcode(i.Transport, i.Op, i.Start, i.End, i.HasImm,
			i.HasInv); got != i.Opcode {
			t.Errorf("RequestOpcode of the position of %v = %v", i.Opcode, got)
		}
	}
	for _, c := range []struct {
		t                    Transport
		op                   Operation
		start, end, imm, inv bool
		want                 Opcode
	}{
		{RC, OpSend, true, false, true, false, RCSendFirst},
		{RC, OpSend, false, false, false, true, RCSendMiddle},
		{RC, OpSend, false, true, false, true, RCSendLastInv},
		{UC, OpWrite, false, false, true, false, UCWriteMiddle},
		{UC, OpWrite, true, true, true, false, UCWriteOnlyImm},
		{UC, OpSend, true, true, false, true, OpcodeNone},  // UC has no SEND with invalidate
		{RC, OpSend, true, true, true, true, OpcodeNone},   // mutually exclusive
		{RC, OpWrite, true, true, false, true, OpcodeNone}, // only SEND has an invalidate variant
		{UC, OpReadRequest, true, true, false, false, OpcodeNone},
		{UD, OpSend, true, false, false, false, OpcodeNone}, // a UD message is one packet
		{UD, OpSend, true, true, true, false, UDSendOnlyImm},
		{TransportNone, OpSend, true, true, false, false, OpcodeNone},
		{Transport(200), OpSend, true, true, false, false, OpcodeNone},
		{RC, Operation(200), true, true, false, false, OpcodeNone},
	} {
		if got := RequestOpcode(c.t, c.op, c.start, c.end, c.imm, c.inv); got != c.want {
			t.Errorf("%v %v start %v end %v imm %v inv %v: %v, want %v", c.t, c.op, c.start, c.end,
				c.imm, c.inv, got, c.want)
		}
	}
}

func TestLongestHeader(t *testing.T) {
	longest := 0
	for o := range 256 {
		longest = max(longest, int(Opcode(o).Info().HeaderLen))
	}
	if longest != MaxHeaderLen {
		t.Errorf("longest header is %d bytes, MaxHeaderLen = %d", longest, MaxHeaderLen)
	}
}

func TestTransportAndOperationNames(t *testing.T) {
	for want, got := range map[string]string{
		"RC": RC.String(), "UC": UC.String(), "UD": UD.String(), "none": TransportNone.String(),
		"transport 9": Transport(9).String(),
		"SEND":        OpSend.String(), "RDMA READ Request": OpReadRequest.String(),
		"ATOMIC WRITE": OpAtomicWrite.String(),
		"CNP":          OpCNP.String(), "operation 99": Operation(99).String(),
	} {
		if got != want {
			t.Errorf("String() = %q, want %q", got, want)
		}
	}
}
