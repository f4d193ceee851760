package nldev

import (
	"bytes"
	"maps"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

var device = &Device{Name: "rxe0", Interface: "eth0", Index: 7, Up: true,
	GUID: [8]byte{1, 2, 3, 4, 5, 6, 7, 8}, Uverbs: 231<<8 | 192,
	Counters: func(yield func(string, uint64) bool) { yield("sent_pkts", 1<<40) }}

// request builds a request.
func request(cmd, flags uint16, add func(*message)) []byte {
	m := newMessage(header{kind: client<<10 | cmd, flags: flags, seq: 9})
	if add != nil {
		add(m)
	}
	return m.bytes()
}

// answer decodes the answers: the types of the messages, and the attributes of the first.
func answer(t *testing.T, b []byte) (kinds []uint16, first map[uint16][]byte) {
	t.Helper()
	for i, m := range Answer(b, 77, device) {
		h, ok := parseHeader(m)
		if !ok || int(h.length) != len(m) || h.seq != 9 && h.seq != 0 || h.pid != 77 {
			t.Fatalf("answer %d has header %+v and %d bytes", i, h, len(m))
		}
		kinds = append(kinds, h.kind)
		if i == 0 {
			first = attrs(m[headerSize:])
		}
	}
	return kinds, first
}

// entries returns the contents of the attributes in a table.
func entries(table []byte) (list [][]byte) {
	for b := table; len(b) >= attrSize; {
		n := int(order.Uint16(b))
		list = append(list, b[attrSize:n])
		b = b[min(len(b), aligned(n)):]
	}
	return list
}

func TestDevices(t *testing.T) {
	kinds, a := answer(t, request(cmdGet, unix.NLM_F_REQUEST|unix.NLM_F_DUMP, nil))
	if len(kinds) != 2 || kinds[1] != unix.NLMSG_DONE {
		t.Fatalf("dump of devices has messages %v, want a device and the end", kinds)
	}
	if got := string(a[attrDevName]); got != "rxe0\x00" {
		t.Errorf("name = %q, want rxe0", got)
	}
	if got := order.Uint64(a[attrNodeGUID]); got != 0x0102030405060708 {
		t.Errorf("node GUID = %#x, want 0x0102030405060708", got)
	}
	if got := order.Uint32(a[attrPortIndex]); got != 1 {
		t.Errorf("ports = %d, want 1", got)
	}
}

func TestPort(t *testing.T) {
	kinds, a := answer(t, request(cmdPortGet, unix.NLM_F_REQUEST|unix.NLM_F_ACK, func(m *message) {
		m.u32(attrDevIndex, deviceID)
		m.u32(attrPortIndex, 1)
	}))
	if len(kinds) != 2 || kinds[1] != unix.NLMSG_ERROR {
		t.Fatalf("messages %v, want a port and an acknowledgment", kinds)
	}
	if a[attrPortState][0] != stateUp || string(a[attrNetName]) != "eth0\x00" ||
		order.Uint32(a[attrNetIndex]) != 7 {
		t.Errorf("port has attributes %v", a)
	}
}

func TestChardev(t *testing.T) {
	ask := func(name string) ([]uint16, map[uint16][]byte) {
		return answer(t, request(cmdGetChardev, unix.NLM_F_REQUEST, func(m *message) {
			m.u32(attrDevIndex, deviceID)
			m.text(attrChardevType, name)
		}))
	}
	_, a := ask("uverbs")
	if string(a[attrChardevName]) != "uverbs0\x00" || order.Uint32(a[attrDriverID]) != driverRXE ||
		order.Uint64(a[attrChardev]) != device.Uverbs {
		t.Errorf("uverbs has attributes %v", a)
	}
	for _, name := range []string{"rdma_cm", "umad", ""} {
		if kinds, _ := ask(name); len(kinds) != 1 || kinds[0] != unix.NLMSG_ERROR {
			t.Errorf("%q: messages %v, want an error", name, kinds)
		}
	}
}

func TestResources(t *testing.T) {
	defer func() { device.Objects = nil }()
	device.Objects = func() Objects { return Objects{QPs: make([]QP, 3)} }
	_, a := answer(t, request(cmdResGet, unix.NLM_F_REQUEST, nil))
	want := map[string]uint64{"pd": 0, "cq": 0, "qp": 3, "cm_id": 0, "mr": 0, "srq": 0, "ctx": 0}
	got := map[string]uint64{}
	for _, b := range entries(a[attrSummary]) {
		entry := attrs(b)
		name := string(bytes.TrimRight(entry[attrSummaryName], "\x00"))
		got[name] = order.Uint64(entry[attrSummaryCurr])
	}
	if !maps.Equal(got, want) {
		t.Errorf("summary = %v, want %v", got, want)
	}
}

func TestCounters(t *testing.T) {
	link := func(m *message) {
		m.u32(attrDevIndex, deviceID)
		m.u32(attrPortIndex, portID)
	}
	_, a := answer(t, request(cmdStatGet, unix.NLM_F_REQUEST|unix.NLM_F_ACK, link))
	entry := attrs(attrs(a[attrStats])[attrStatsEntry])
	if string(entry[attrStatsName]) != "sent_pkts\x00" ||
		order.Uint64(entry[attrStatsValue]) != 1<<40 || order.Uint32(a[attrPortIndex]) != portID {
		t.Errorf("attributes %v, want 1<<40 sent_pkts of port 1", a)
	}
	kinds, _ := answer(t, request(cmdStatGet, unix.NLM_F_REQUEST, func(m *message) {
		link(m)
		m.u32(attrStatRes, 1)
	}))
	if len(kinds) != 1 || kinds[0] != unix.NLMSG_ERROR {
		t.Errorf("counters of QPs: messages %v, want an error", kinds)
	}
}

// A list has all objects, up to a limit, in messages that programs can receive.
func TestObjects(t *testing.T) {
	defer func() { device.Objects = nil }()
	const n = 200
	o := Objects{PDs: []PD{{1, 2, 99}}, CQs: []CQ{{3, 256, 1, 99}}, MRs: []MR{{4, 1, 1 << 33, 99}},
		IDs: []ID{{ID: 5, QPN: 6, Type: 2, State: IDListen, Space: 0x106, PID: 99,
			Source: netip.MustParseAddrPort("10.0.0.1:258"), Dest: netip.MustParseAddrPort("[::1]:3")}},
		SRQs: []SRQ{{8, 1, []uint32{2, 3}, 99}}, Contexts: []Context{{9, 99}}}
	for i := range uint32(n) {
		o.QPs = append(o.QPs, QP{Number: i, PD: 1, Type: 2, State: 3, Remote: 7, PID: 99})
	}
	device.Objects = func() Objects { return o }
	for cmd, want := range map[uint16]struct {
		table, entry uint16
		attrs        map[uint16]uint64
	}{
		cmdPDs:      {attrPDs, attrPD, map[uint16]uint64{attrPDID: 1, attrUses: 2}},
		cmdCQs:      {attrCQs, attrCQ, map[uint16]uint64{attrCQID: 3, attrEntries: 256, attrUses: 1}},
		cmdMRs:      {attrMRs, attrMR, map[uint16]uint64{attrMRID: 4, attrPDID: 1, attrLength: 1 << 33}},
		cmdSRQs:     {attrSRQs, attrSRQ, map[uint16]uint64{attrSRQID: 8, attrPDID: 1, attrType: 0}},
		cmdContexts: {attrContexts, attrContext, map[uint16]uint64{attrContextID: 9}},
		cmdIDs: {attrIDs, attrID, map[uint16]uint64{attrIDID: 5, attrQPN: 6, attrType: 2,
			attrState: 8, attrSpace: 0x106, attrSource: 0x0100_000a_0201_0002,
			attrDest: 0x0300_000a}},
		cmdQPs: {attrQPs, attrQP, map[uint16]uint64{attrPDID: 1, attrType: 2, attrState: 3,
			attrRemoteQPN: 7, attrPortIndex: portID}},
	} {
		_, a := answer(t, request(cmd, unix.NLM_F_REQUEST|unix.NLM_F_DUMP, nil))
		got := attrs(attrs(a[want.table])[want.entry])
		want.attrs[attrPID] = 99
		for kind, v := range want.attrs {
			b := append(append([]byte{}, got[kind]...), make([]byte, 8)...)
			if order.Uint64(b) != v || got[kind] == nil {
				t.Errorf("list %d: attribute %d = % x, want %d", cmd, kind, got[kind], v)
			}
		}
	}
	seen := 0
	for _, m := range Answer(request(cmdQPs, unix.NLM_F_REQUEST|unix.NLM_F_DUMP, nil), 77, device) {
		if len(m) > 4096 {
			t.Errorf("a message has %d bytes, want at most 4096", len(m))
		}
		seen += len(entries(attrs(m[headerSize:])[attrQPs]))
	}
	if seen != n {
		t.Errorf("the messages have %d QPs, want %d", seen, n)
	}
}

// Malformed and unknown requests get an error.
func TestErrors(t *testing.T) {
	good := request(cmdGet, unix.NLM_F_REQUEST, nil)
	long := append([]byte{}, good...)
	long[0] = 200
	other := append([]byte{}, good...)
	order.PutUint16(other[4:], 3<<10|cmdGet)
	for name, b := range map[string][]byte{
		"empty": nil, "short": good[:10], "too long": long, "another client": other,
		"unknown command": request(300, unix.NLM_F_REQUEST, nil),
		"unknown device": request(cmdGet, 0, func(m *message) {
			m.u32(attrDevIndex, 5)
		}),
	} {
		out := Answer(b, 77, device)
		if h, ok := parseHeader(out[0]); len(out) != 1 || !ok || h.kind != unix.NLMSG_ERROR {
			t.Errorf("%s: answer % x, want an error", name, out)
		}
	}
	kinds, _ := answer(t, request(10, unix.NLM_F_REQUEST|unix.NLM_F_DUMP, nil))
	if len(kinds) != 1 || kinds[0] != unix.NLMSG_DONE {
		t.Errorf("dump of QPs has messages %v, want an empty list", kinds)
	}
}

// Attributes with wrong lengths end the list.
func TestAttributes(t *testing.T) {
	for _, b := range [][]byte{{1}, {3, 0, 1, 0}, {8, 0, 1, 0}, {255, 255, 1, 0, 1, 2}} {
		if m := attrs(b); len(m) != 0 {
			t.Errorf("attrs(% x) = %v, want none", b, m)
		}
	}
}
