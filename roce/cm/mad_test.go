package cm

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"testing"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/bth/bthtest"
	"github.com/gorxe/gorxe/frame"
)

// captured is a MAD that the kernel's connection manager sent.
type captured struct {
	from Addr // as its receiver sees it
	mad  MAD
}

// capturedMADs returns the MADs to QP1 in a capture.
func capturedMADs(t testing.TB, name string) []captured {
	t.Helper()
	var all []captured
	d, p := new(frame.Decoder), new(bth.Packet)
	for _, f := range bthtest.Frames(t, name) {
		if d.Decode(f, p) != frame.ReasonOK || p.BTH.DestQP() != bth.QPNGSI {
			continue
		}
		m, err := ParseMAD(p.Payload)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		all = append(all, captured{Addr{GIDPair: bth.GIDPair{Local: p.Dst, Remote: p.Src},
			QPN: p.DETH().SrcQP(), PKey: p.BTH.PKey()}, *m})
	}
	return all
}

// recode decodes a MAD and encodes the result.
func recode(m *MAD) (out MAD) {
	switch m.Attribute() {
	case AttrREQ:
		r := new(REQ)
		r.Decode(m)
		r.Encode(&out, m.TID())
	case AttrMRA:
		r := new(MRA)
		r.Decode(m)
		r.Encode(&out, m.TID())
	case AttrREJ:
		r := new(REJ)
		r.Decode(m)
		r.Encode(&out, m.TID())
	case AttrREP:
		r := new(REP)
		r.Decode(m)
		r.Encode(&out, m.TID())
	case AttrRTU:
		r := new(RTU)
		r.Decode(m)
		r.Encode(&out, m.TID())
	case AttrDREQ:
		r := new(DREQ)
		r.Decode(m)
		r.Encode(&out, m.TID())
	case AttrDREP:
		r := new(DREP)
		r.Decode(m)
		r.Encode(&out, m.TID())
	case AttrSIDRREQ:
		r := new(SIDRREQ)
		r.Decode(m)
		r.Encode(&out, m.TID())
	case AttrSIDRREP:
		r := new(SIDRREP)
		r.Decode(m)
		r.Encode(&out, m.TID())
	case AttrLAP:
		r := new(LAP)
		r.Decode(m)
		r.Encode(&out, m.TID())
	case AttrAPR:
		r := new(APR)
		r.Decode(m)
		r.Encode(&out, m.TID())
	}
	return out
}

func TestRecodeCapturedMADs(t *testing.T) {
	seen := map[Attribute]int{}
	for _, name := range bthtest.Names(t) {
		for i, c := range capturedMADs(t, name) {
			a := c.mad.Attribute()
			seen[a]++
			if got := recode(&c.mad); got != c.mad {
				t.Errorf("%s, MAD %d (%v):\n got %x\nwant %x", name, i+1, a, got, c.mad)
			}
			if c.from.QPN != bth.QPNGSI || c.from.PKey != bth.DefaultPKey {
				t.Errorf("%s, MAD %d: from QP %v, P_Key %#x", name, i+1, c.from.QPN, c.from.PKey)
			}
		}
	}
	for _, a := range []Attribute{AttrREQ, AttrREP, AttrRTU, AttrREJ, AttrDREQ, AttrDREP} {
		if seen[a] == 0 {
			t.Errorf("no %v in the captures", a)
		}
	}
}

// TestREQFields compares a captured REQ with the output of tshark.
func TestREQFields(t *testing.T) {
	c := capturedMADs(t, "rdmacm_rping_connect.pcap")[0]
	var got REQ
	got.Decode(&c.mad)
	if tid := c.mad.TID(); tid != 0x24f7dfaaa {
		t.Errorf("TID %#x", tid)
	}
	var h IPCMHeader
	if err := h.Decode((*[IPCMHeaderLen]byte)(got.Private[:])); err != nil {
		t.Fatal(err)
	}
	a, b := netip.MustParseAddr("10.77.0.1"), netip.MustParseAddr("10.77.0.2")
	if want := (IPCMHeader{netip.AddrPortFrom(a, 0x942e), b}); h != want {
		t.Errorf("rdma_cm header %v, want %v", h, want)
	}
	got.Private = [REQPrivateLen]byte{}
	want := REQ{
		LocalID: 0xaafa7d4f, Service: TCPService(7174), GUID: 0x505400fffe770001, QPN: 0x33,
		ResponderResources: 1, InitiatorDepth: 1,
		RemoteTimeout: 20, PSN: 0x7ed48d, LocalTimeout: 20, RetryCount: 7, PKey: 0xffff, MTU: 3,
		RNRRetry: 7, MaxCMRetries: 15,
		Primary: Path{LocalLID: 0xffff, RemoteLID: 0xffff, LocalGID: bth.GIDFromAddr(a),
			RemoteGID: bth.GIDFromAddr(b),
			FlowLabel: 0x20d98, HopLimit: 64, AckTimeout: 19},
	}
	if got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// TestREPFields compares a captured REP with the output of tshark.
func TestREPFields(t *testing.T) {
	c := capturedMADs(t, "rdmacm_rping_connect.pcap")[1]
	var got REP
	got.Decode(&c.mad)
	want := REP{LocalID: 0x27e26508, RemoteID: 0xaafa7d4f, QPN: 0x33, PSN: 0x6731e4,
		ResponderResources: 1, InitiatorDepth: 1,
		AckDelay: 15, RNRRetry: 7, GUID: 0x505400fffe770002}
	if got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// TestFieldsDoNotOverlap decodes random bytes as messages and encodes them again. No two fields may
// overlap, and none may reach beyond the MAD.
func TestFieldsDoNotOverlap(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, v := range []struct {
		attr   Attribute
		msg    any
		encode func(m *MAD)
		decode func(m *MAD) any
	}{
		testMessage[REQ](AttrREQ), testMessage[MRA](AttrMRA), testMessage[REJ](AttrREJ),
		testMessage[REP](AttrREP),
		testMessage[RTU](AttrRTU), testMessage[DREQ](AttrDREQ), testMessage[DREP](AttrDREP),
		testMessage[SIDRREQ](AttrSIDRREQ),
		testMessage[SIDRREP](AttrSIDRREP), testMessage[LAP](AttrLAP), testMessage[APR](AttrAPR),
	} {
		for range 200 {
			var noise, m MAD
			for i := range noise {
				noise[i] = byte(r.Uint32())
			}
			// Random bytes give the fields of a random message.
			want := v.decode(&noise)
			reflect.ValueOf(v.msg).Elem().Set(reflect.ValueOf(want).Elem())
			v.encode(&m)
			if got := v.decode(&m); !reflect.DeepEqual(got, want) {
				t.Fatalf("%v: wrote %+v, read %+v", v.attr, want, got)
			}
			if m.Attribute() != v.attr || recode(&m) != m {
				t.Fatalf("%v changes when it is recoded", v.attr)
			}
			if _, err := ParseMAD(m[:]); err != nil {
				t.Fatalf("%v: %v", v.attr, err)
			}
		}
	}
}

type codable interface {
	Decode(m *MAD)
	Encode(m *MAD, tid uint64)
}

func testMessage[T any](a Attribute) (v struct {
	attr   Attribute
	msg    any
	encode func(m *MAD)
	decode func(m *MAD) any
}) {
	msg := new(T)
	v.attr, v.msg = a, msg
	v.encode = func(m *MAD) { any(msg).(codable).Encode(m, 7) }
	v.decode = func(m *MAD) any {
		p := new(T)
		any(p).(codable).Decode(m)
		return p
	}
	return v
}

func TestParseMADRefuses(t *testing.T) {
	good := capturedMADs(t, "rdmacm_reject.pcap")[0].mad
	for _, c := range []struct {
		name string
		bad  func(b []byte) []byte
		want error
	}{
		{"nothing", func(b []byte) []byte { return nil }, ErrMADLength},
		{"one byte less", func(b []byte) []byte { return b[:255] }, ErrMADLength},
		{"one byte more", func(b []byte) []byte { return append(b, 0) }, ErrMADLength},
		{"base version 2", func(b []byte) []byte { b[0] = 2; return b }, ErrMADVersion},
		{"subnet management", func(b []byte) []byte { b[1] = 1; return b }, ErrClass},
		{"class version 1", func(b []byte) []byte { b[2] = 1; return b }, ErrClassVersion},
		{"method Get", func(b []byte) []byte { b[3] = 1; return b }, ErrMethod},
		{"ClassPortInfo", func(b []byte) []byte { b[17] = 1; return b }, ErrAttribute},
		{"attribute before REQ", func(b []byte) []byte { b[17] = 0xf; return b }, ErrAttribute},
		{"attribute after APR", func(b []byte) []byte { b[17] = 0x1b; return b }, ErrAttribute},
		{"high byte set", func(b []byte) []byte { b[16] = 1; return b }, ErrAttribute},
	} {
		m := good
		if _, err := ParseMAD(c.bad(m[:])); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	if _, err := ParseMAD(good[:]); err != nil {
		t.Error(err)
	}
}

func TestIPCMHeader(t *testing.T) {
	for _, h := range []IPCMHeader{
		{netip.MustParseAddrPort("10.77.0.1:4711"), netip.MustParseAddr("10.77.0.2")},
		{netip.MustParseAddrPort("[fd77::1]:65535"), netip.MustParseAddr("fd77::2")},
	} {
		var b [IPCMHeaderLen]byte
		h.Encode(&b)
		var got IPCMHeader
		if err := got.Decode(&b); err != nil || got != h {
			t.Errorf("%v became %v, %v", h, got, err)
		}
		for _, bad := range [][2]byte{{0x10, b[1]}, {0, 0x50}, {0, 0}} {
			b[0], b[1] = bad[0], bad[1]
			if err := got.Decode(&b); !errors.Is(err, ErrIPCMHeader) {
				t.Errorf("first bytes %x: %v", bad, err)
			}
		}
	}
}

func TestServiceIDs(t *testing.T) {
	for _, c := range []struct {
		s    ServiceID
		num  uint64
		text string
	}{
		{TCPService(7174), 0x0000000001061c06, "tcp:7174"},
		{UDPService(7174), 0x0000000001111c06, "udp:7174"},
		{0x1000000001061c06, 0x1000000001061c06, "0x1000000001061c06"},
	} {
		if uint64(c.s) != c.num || c.s.String() != c.text {
			t.Errorf("%#x %v, want %#x %s", uint64(c.s), c.s, c.num, c.text)
		}
	}
}

func TestNames(t *testing.T) {
	for got, want := range map[string]string{
		ReasonStaleConnection.String():  "stale connection (reason 10)",
		ReasonInvalidServiceID.String(): "invalid service ID (reason 8)",
		ReasonConsumer.String():         "consumer reject (reason 28)",
		Reason(34).String():             "reason 34",
		Reason(999).String():            "reason 999",
		AttrSIDRREP.String():            "SIDR_REP",
		Attribute(1).String():           "attribute 0x0001",
		SIDRNoQP.String():               "no QP available",
		StateTimeWait.String():          "TIME-WAIT",
		EventClosed.String():            "closed",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
