package status

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/inside"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

// pair is two devices on a link in memory, with a connected RC queue pair each.
type pair struct {
	dev [2]*roce.Device
	qp  [2]*roce.QP
	mr  [2]*roce.MR
}

func newPair(t *testing.T) *pair {
	t.Helper()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	link, err := loopback.NewLink(loopback.Config{})
	check(err)
	p := new(pair)
	for i := range p.dev {
		p.dev[i], err = roce.New(link.Port(i))
		check(err)
		t.Cleanup(func() { _ = p.dev[i].Close() })
		pd, err := p.dev[i].AllocPD()
		check(err)
		p.qp[i], err = p.dev[i].CreateQP(pd, roce.QPConfig{})
		check(err)
		p.mr[i], err = pd.RegisterMR(make([]byte, messageSize), roce.LocalWrite)
		check(err)
	}
	for i := range p.qp {
		check(p.qp[i].Connect(t.Context(), p.qp[1-i].Local(), roce.ConnectOptions{}))
	}
	return p
}

const messageSize = 16

// send makes the first device send at least n messages of messageSize, until it has measured a
// round trip: those of retransmitted packets are not measured.
func (p *pair) send(t *testing.T, n int) {
	t.Helper()
	measured := func() bool {
		var b body
		if err := json.Unmarshal(inside.Report(p.dev[0], 0), &b); err != nil {
			t.Fatal(err)
		}
		return b.RTTs.total() > 0
	}
	for i := 0; i < n || !measured(); i++ {
		if i > 1000 {
			t.Fatal("no round trip was measured")
		}
		if err := p.qp[1].PostRecv(roce.RecvWR{SGEs: []roce.SGE{p.mr[1].SGE(0, messageSize)}}); err != nil {
			t.Fatal(err)
		}
		if err := p.qp[0].PostSend(roce.SendWR{Op: roce.OpSend, Flags: roce.Signaled,
			SGEs: []roce.SGE{p.mr[0].SGE(0, messageSize)}}); err != nil {
			t.Fatal(err)
		}
		if err := p.qp[0].Drain(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
}

// A snapshot describes the device, and has the rates since the one before.
func TestSnapshot(t *testing.T) {
	p := newPair(t)
	now := time.Unix(1e9, 0)
	k := NewCollector(Config{Device: p.dev[0], Name: "test", Version: "v1", Socket: "/s",
		now: func() time.Time { return now }})
	p.send(t, 3)
	if s := k.Snapshot(); s.Programs[0].Rates != nil || s.Programs[0].Counters["sent_pkts"] != 0 {
		t.Errorf("Snapshot() within MaxAge = %+v, want the first one", s.Programs[0])
	}
	now = now.Add(2 * time.Second)
	s := k.Snapshot()
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	if s.Version != "v1" || s.Socket != "/s" || s.Device.Name != p.dev[0].Info().Name ||
		len(s.Device.Addresses) == 0 || len(s.Programs) != 1 {
		t.Fatalf("Snapshot() = %s", text)
	}
	g := s.Programs[0]
	if g.Name != "test" || g.Slot != 0 || g.Error != "" || g.Objects.QPs != 1 || len(g.QPs) != 1 ||
		g.Omitted != 0 || g.Counters["completions"] == 0 {
		t.Fatalf("Snapshot() = %s", text)
	}
	if want := float64(g.Counters["sent_pkts"]) / 2; g.Rates == nil || g.Rates.SentPkts != want {
		t.Errorf("rates %+v, want %v packets per second", g.Rates, want)
	}
	q := g.QPs[0]
	if q.QPN != p.qp[0].QPN() || q.RemoteQPN != p.qp[1].QPN() || q.State != "RTS" || q.Type != "RC" ||
		q.Rates == nil || q.Rates.Requested != float64(q.Requested)/2 || q.Requested < 3 ||
		q.SentBytes < 3*messageSize || q.Rates.SentBytes != float64(q.SentBytes)/2 {
		t.Errorf("queue pair %+v, rates %+v", q, q.Rates)
	}
	if q.RTTs == nil || *q.RTTs != g.RTTs {
		t.Errorf("the only queue pair has the round trips %+v, its program %+v", q.RTTs, g.RTTs)
	}
	if n := g.RTTs.total(); n == 0 || g.RTTs.P50 <= 0 || g.RTTs.P99 < g.RTTs.P50 || g.RTTs.Sum <= 0 {
		t.Errorf("round trips %+v", g.RTTs)
	}
	var again Snapshot
	if err := json.Unmarshal(text, &again); err != nil {
		t.Error(err)
	}
	if text2, _ := json.Marshal(&again); string(text2) != string(text) {
		t.Errorf("the snapshot changes in JSON: %s, then %s", text, text2)
	}
}

// Callers that wait while a program does not answer share the snapshot.
func TestSlowSnapshot(t *testing.T) {
	p := newPair(t)
	now, asked := time.Unix(1e9, 0), 0
	k := NewCollector(Config{Device: p.dev[0], now: func() time.Time { return now },
		Members: func() []Report {
			asked++
			now = now.Add(2 * MaxAge)
			return nil
		}})
	if k.Snapshot(); asked != 1 {
		t.Errorf("programs were asked %d times, want 1", asked)
	}
	now = now.Add(MaxAge)
	if k.Snapshot(); asked != 2 {
		t.Errorf("after MaxAge programs were asked %d times, want 2", asked)
	}
}

// Clients that ask for the same part of a snapshot share its text, because it may be large.
func TestSharedText(t *testing.T) {
	now := time.Unix(1e9, 0)
	k := NewCollector(Config{Device: newPair(t).dev[0], now: func() time.Time { return now }})
	k.c.Members = func() []Report { return []Report{{Slot: 1, UID: 7, Name: "own"}} }
	now = now.Add(MaxAge)
	all, own, other := k.text(everybody), k.text(7), k.text(8)
	if &all[0] != &k.text(everybody)[0] || &own[0] != &k.text(7)[0] {
		t.Error("two clients get different copies")
	}
	for i, c := range []struct {
		text     []byte
		programs int
	}{{all, 2}, {own, 1}, {other, 0}} {
		var s Snapshot
		if err := json.Unmarshal(c.text, &s); err != nil || len(s.Programs) != c.programs {
			t.Errorf("text %d has %d programs, want %d; %v", i, len(s.Programs), c.programs, err)
		}
	}
	now = now.Add(MaxAge)
	if &all[0] == &k.text(everybody)[0] {
		t.Error("the text of the next snapshot is that of the last one")
	}
}

// The JSON keys are stable: programs may depend on them.
func TestSnapshotKeys(t *testing.T) {
	s := Snapshot{Programs: []Program{{Rates: &Rates{}, Error: "e", QPs: []QP{{Rates: &QPRates{}}}}},
		Socket: "/s"}
	text, err := json.Marshal(&s)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range strings.Fields(`time version started socket device programs rtt_bounds_ns
		name datapath mtu path_mtu up queues addresses slot pid uid joined error objects counters
		rates rtts qps qps_omitted pds cqs srqs mrs memory_bytes sent_bytes rcvd_bytes sent_pkts
		rcvd_pkts retransmits completions counts sum_ns p50_ns p99_ns qpn remote remote_qpn type state
		path_mtu class window_packets in_flight_packets rtt_ns min_rtt_ns delivery_rate
		requested_psns accepted_psns metered`) {
		if !strings.Contains(string(text), `"`+key+`":`) {
			t.Errorf("the JSON has no key %q", key)
		}
	}
}

// Reports of other programs cannot claim what is not theirs, nor make a snapshot large.
func TestHostileReports(t *testing.T) {
	const slot = 3
	qp := func(n int, more string) string { return fmt.Sprintf(`{"qpn":%d%s}`, n, more) }
	own := slot << slotShift
	join := func(list ...string) string { return `{"qps":[` + strings.Join(list, ",") + `]}` }
	var many []string
	for i := range 2 * MaxQPs {
		many = append(many, qp(own+i, ""))
	}
	for _, test := range []struct {
		body string
		qps  []int
		err  error
	}{
		{"", nil, errSilent},
		{"{", nil, errBody},
		{`[]`, nil, errBody},
		{`{"counters":{"sent_pkts":-1}}`, nil, errBody},
		{`{"counters":{"<b>":1,"sent_pkts":2},"objects":{"qps":-5}}`, nil, nil},
		{join(qp(own+1, ""), qp(own+1, ""), qp(own, ""), qp(own+2, "")), []int{own + 1, own + 2}, nil},
		{join(qp(1, ""), qp((slot+1)<<slotShift, ""), qp(own|1<<24, "")), nil, nil},
		{join(qp(own, `,"type":"<b>","state":"rts"`)), []int{own}, nil},
		{join(qp(own, `,"rates":{"retransmits":1}`)), nil, nil},
		{join(qp(own, `,"remote":"nonsense"`)), nil, errBody},
		{strings.Repeat(`{"qps":[`, 20000), nil, errBody},
	} {
		r := Report{Slot: slot, Name: "a\x1b[2Jb\u202e" + strings.Repeat("x", 100), Body: []byte(test.body)}
		p := r.program(maxAllQPs)
		var got []int
		for _, q := range p.QPs {
			got = append(got, int(q.QPN))
			if q.Type+q.State != "" {
				t.Errorf("%.60s: type %q, state %q, want none", test.body, q.Type, q.State)
			}
		}
		if !slices.Equal(got, test.qps) || (test.err == nil) != (p.Error == "") ||
			(test.err != nil && p.Error != test.err.Error()) {
			t.Errorf("%.60s: queue pairs %x, error %q; want %x, %v", test.body, got, p.Error, test.qps,
				test.err)
		}
		if len(p.Name) > maxName || strings.ContainsFunc(p.Name, func(c rune) bool {
			return c < ' ' || c > '~'
		}) || p.Omitted < 0 {
			t.Errorf("%.60s: name %q, %d omitted", test.body, p.Name, p.Omitted)
		}
		if n := len(p.Counters); n > 1 || (n == 1 && p.Counters["sent_pkts"] != 2) {
			t.Errorf("%.60s: counters %v", test.body, p.Counters)
		}
	}
	r := Report{Slot: slot, Body: []byte(strings.Replace(join(many...), "{", `{"objects":{"qps":600},`, 1))}
	if p := r.program(maxAllQPs); len(p.QPs) != MaxQPs || p.Omitted != 600-MaxQPs {
		t.Errorf("a report of %d queue pairs gives %d, %d omitted", len(many), len(p.QPs), p.Omitted)
	}
	if p := r.program(7); len(p.QPs) != 7 || p.Omitted != 593 {
		t.Errorf("a report of %d queue pairs gives %d, %d omitted, want 7", len(many), len(p.QPs),
			p.Omitted)
	}
}

// The memory that a report needs does not depend on the number of queue pairs in it.
func TestLongReport(t *testing.T) {
	r := Report{Slot: 1, Body: []byte(`{"qps":[{}` + strings.Repeat(",{}", 80_000) + `]}`)}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	p := r.program(maxAllQPs)
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 8<<20 || p.Error != "" {
		t.Errorf("program() allocates %d bytes, error %q; want at most 8 MiB", n, p.Error)
	}
}

// Text of another process cannot control a terminal.
func TestClean(t *testing.T) {
	const evil = "a\x1b[2J\u009b\u202e"
	s := Snapshot{Version: evil, Socket: evil,
		Device: Device{MAC: evil, DeviceInfo: roce.DeviceInfo{Name: evil, Datapath: evil, Note: evil,
			Port: evil, PortReason: evil, Service: evil},
			Addresses: []roce.GIDEntry{{Addr: netip.MustParseAddr("fe80::1%" + evil), Kind: evil}}},
		Programs: []Program{{Name: evil, Error: evil, Counters: map[string]uint64{evil: 1, "x": 2},
			QPs: []QP{{Type: evil, State: evil}}}}}
	s.clean()
	if text := fmt.Sprintf("%+v", s); printable(text, len(text)) != text {
		t.Errorf("clean() leaves %q", text)
	}
	if n := s.Programs[0].Counters; len(n) != 1 || n["x"] != 2 {
		t.Errorf("clean() leaves counters %v", n)
	}
}

// FuzzReport checks that no report breaks a snapshot.
func FuzzReport(f *testing.F) {
	f.Add(uint8(0), []byte(`{"counters":{"sent_pkts":1},"qps":[{"qpn":5,"state":"RTS"}]}`))
	f.Add(uint8(1), []byte(`{"rtts":{"counts":[1,2],"sum_ns":-1},"objects":{"qps":3}}`))
	f.Fuzz(func(t *testing.T, slot uint8, text []byte) {
		r := Report{Slot: slot, Body: text}
		p := r.program(10)
		if len(p.QPs) > 10 || p.Omitted < 0 {
			t.Errorf("%d queue pairs, %d omitted", len(p.QPs), p.Omitted)
		}
		if _, err := json.Marshal(&Snapshot{Programs: []Program{p}}); err != nil {
			t.Error(err)
		}
	})
}

// Members appear in a snapshot beside the device's own program. Rates do not mix programs that have
// had the same slot.
func TestMembers(t *testing.T) {
	p := newPair(t)
	now := time.Unix(1e9, 0)
	body := inside.Report(p.dev[1], MaxQPs)
	member := Report{Slot: 9, PID: 77, UID: 1000, Name: "peer", Joined: now, Body: body}
	k := NewCollector(Config{Device: p.dev[0], Members: func() []Report { return []Report{member} },
		now: func() time.Time { return now }})
	now = now.Add(time.Second)
	s := k.Snapshot()
	if len(s.Programs) != 2 || s.Programs[1].Slot != 9 || s.Programs[1].Rates == nil ||
		s.Programs[1].Objects.QPs != 1 {
		t.Fatalf("Snapshot() = %+v", s.Programs)
	}
	if own := s.For(1000); len(own.Programs) != 1 || own.Programs[0].PID != 77 {
		t.Errorf("For(1000) = %+v, want the member", own.Programs)
	}
	if own := s.For(s.Programs[0].UID); len(own.Programs) != 0 {
		t.Errorf("For() of the service's user = %+v, want nothing", own.Programs)
	}
	member.PID++
	now = now.Add(time.Second)
	if s := k.Snapshot(); s.Programs[1].Rates != nil {
		t.Errorf("a new program has rates %+v", s.Programs[1].Rates)
	}
	member.Body = nil
	now = now.Add(time.Second)
	if s := k.Snapshot(); s.Programs[1].Error == "" {
		t.Error("a program that does not answer has no error")
	}
}

func TestAddress(t *testing.T) {
	for text, want := range map[string]string{
		"9464": "127.0.0.1:9464", ":9464": "127.0.0.1:9464", "0.0.0.0:1": "0.0.0.0:1",
		"[::]:9464": "[::]:9464", "host:80": "host:80", "localhost:0": "localhost:0",
	} {
		var a Address
		if err := a.Set(text); err != nil || a.String() != want || !a.IsSet() {
			t.Errorf("Set(%q) = %v, %v; want %s", text, &a, err, want)
		}
	}
	for _, text := range []string{"", "host", "host:", "::1", "1.2.3.4", "host:x", "host:65536", "-1"} {
		var a Address
		if err := a.Set(text); err == nil || a.IsSet() {
			t.Errorf("Set(%q) = %v, want an error", text, &a)
		}
	}
}
