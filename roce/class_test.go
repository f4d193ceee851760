package roce

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce/cm"
)

// vlanPort is a port in a VLAN.
type vlanPort struct {
	*loopback.Port
	tci uint16
}

func (p vlanPort) Info() driver.Info {
	i := p.Port.Info()
	i.VLAN = p.tci & bth.MaskVLANID
	return i
}

func (p vlanPort) Resolve(ctx context.Context, src, dst netip.Addr) (driver.Hop, error) {
	h, err := p.Port.Resolve(ctx, src, dst)
	h.VLAN = p.tci
	return h, err
}

// classSide configures one side of a classRun.
type classSide struct {
	opts    []Option
	qp      int // QPConfig.Class
	connect PathOptions
	vlan    uint16 // tag control information; 0: none
}

// classRun connects an active side and a passive side in virtual time, by Dial and Accept or by
// Connect, WRITEs and READs, and returns how the packets of each side are marked: DSCP, ECN bits
// and PCP, "dscp 40 ecn 2 pcp 5". MADs have their own entries, "cm dscp 40 ecn 0 pcp 5". It also
// returns the classes of both QPs.
func classRun(t *testing.T, sides [2]classSide, dial bool) (marks [2][]string, classes [2]uint8) {
	t.Helper()
	link := newLink(t, loopback.Config{Virtual: true, Seed: 1})
	sim, ctx := loopback.NewSim(link), context.Background()
	var seen [2]map[string]bool
	var ends [2]*end
	for i, s := range sides {
		port := vlanPort{link.Port(i), s.vlan}
		d, err := New(port, append([]Option{
			WithExpert(Expert{Clock: link.Now, Wait: sim.Wait})}, s.opts...)...)
		must(t, err)
		t.Cleanup(func() { d.Close() })
		sim.Add(d)
		ends[i] = newEnd(t, d, rigConfig{qp: QPConfig{Class: s.qp}})
		seen[i] = map[string]bool{}
		dec, p := new(frame.Decoder), new(bth.Packet)
		link.SetFilter(i, 1-i, func(f []byte) loopback.Action {
			if dec.Decode(f, p) != frame.ReasonOK {
				t.Errorf("side %d sent a frame that is not a RoCEv2 packet", i)
				return loopback.Pass
			}
			mark := fmt.Sprintf("dscp %d ecn %d", p.TrafficClass>>2, p.TrafficClass&3)
			if p.HasVLAN {
				mark += fmt.Sprintf(" pcp %d", p.VLAN>>13)
			}
			if p.BTH.DestQP() == bth.QPNGSI {
				mark = "cm " + mark
			}
			seen[i][mark] = true
			return loopback.Pass
		})
	}
	a, b := ends[0], ends[1]
	if dial {
		l, err := b.Listen(netip.AddrPortFrom(netip.Addr{}, testPort), ListenOptions{})
		must(t, err)
		sim.Go(func() {
			r, err := l.Accept(ctx)
			must(t, err)
			_, err = r.Accept(ctx, b.qp,
				AcceptOptions{ConnectOptions: ConnectOptions{PathOptions: sides[1].connect}})
			must(t, err)
		})
		sim.Go(func() {
			_, err := a.Dial(ctx, netip.AddrPortFrom(link.Port(1).Addrs()[0].Addr(), testPort), a.qp,
				DialOptions{ConnectOptions: ConnectOptions{PathOptions: sides[0].connect}})
			must(t, err)
		})
		must(t, sim.Run(time.Minute))
	} else {
		for i, e := range ends {
			must(t, e.qp.Connect(ctx, ends[1-i].qp.Local(),
				ConnectOptions{PathOptions: sides[i].connect}))
		}
	}
	sim.Go(func() {
		for _, op := range []Op{OpWrite, OpRead} {
			must(t, a.qp.PostSend(SendWR{Op: op, Flags: Signaled, SGEs: []SGE{a.mr.SGE(0, 60000)},
				RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}))
			var wcs [1]WC
			_, err := a.cq.Wait(ctx, wcs[:])
			if must(t, err); wcs[0].Status != Success {
				t.Errorf("%v: %v", op, wcs[0].Status)
			}
		}
	})
	must(t, sim.Run(time.Minute))
	for i := range marks {
		marks[i] = slices.Sorted(maps.Keys(seen[i]))
		attr, err := ends[i].qp.Query()
		must(t, err)
		classes[i] = attr.Class
		if c := ends[i].Counters(); c.Classes[attr.Class].SentPkts != c.SentPkts ||
			c.Get(fmt.Sprintf("class%d_sent_bytes", attr.Class)) != c.SentBytes {
			t.Errorf("side %d sent %d packets and %d bytes, in class %d %+v", i, c.SentPkts,
				c.SentBytes, attr.Class, c.Classes[attr.Class])
		}
	}
	return marks, classes
}

// mapWith returns the default class map with another DSCP and PCP for one class.
func mapWith(class int, dscp, pcp uint8) Option {
	m := DefaultClassMap()
	m.DSCP[class], m.PCP[class] = dscp, pcp
	return WithClassMap(m)
}

// All packets of a connection, with ACKs and READ responses, carry the DSCP and PCP of its class.
// The passive side adopts the class of the active one unless it has chosen another one. ECN stays
// as without classes.
func TestClassOnTheWire(t *testing.T) {
	class := func(c int) PathOptions { return PathOptions{Class: c} }
	for _, c := range []struct {
		name    string
		sides   [2]classSide
		classes [2]uint8
		want    [2]string // of the QPs' packets
	}{
		{"none", [2]classSide{}, [2]uint8{}, [2]string{"dscp 0 ecn 2", "dscp 0 ecn 2"}},
		{"of the active QP", [2]classSide{{qp: 5}}, [2]uint8{5, 5},
			[2]string{"dscp 40 ecn 2", "dscp 40 ecn 2"}},
		{"of both QPs", [2]classSide{{qp: 5}, {qp: 2}}, [2]uint8{5, 2},
			[2]string{"dscp 40 ecn 2", "dscp 16 ecn 2"}},
		{"refused", [2]classSide{{qp: 5}, {connect: class(-1)}}, [2]uint8{5, 0},
			[2]string{"dscp 40 ecn 2", "dscp 0 ecn 2"}},
		{"withdrawn", [2]classSide{{qp: 5, connect: class(-1)}, {qp: 1}}, [2]uint8{0, 1},
			[2]string{"dscp 0 ecn 2", "dscp 8 ecn 2"}},
		{"that a QP refuses", [2]classSide{{qp: 5}, {qp: -1}}, [2]uint8{5, 0},
			[2]string{"dscp 40 ecn 2", "dscp 0 ecn 2"}},
		{"of the devices", [2]classSide{{opts: []Option{WithDefaultClass(6)}},
			{opts: []Option{WithDefaultClass(1)}}}, [2]uint8{6, 1},
			[2]string{"dscp 48 ecn 2", "dscp 8 ecn 2"}},
		{"that a device refuses", [2]classSide{{qp: 5}, {opts: []Option{WithDefaultClass(-1)}}},
			[2]uint8{5, 0}, [2]string{"dscp 40 ecn 2", "dscp 0 ecn 2"}},
		{"of one device, but not of the QPs", [2]classSide{
			{opts: []Option{WithDefaultClass(6)}, qp: 3},
			{opts: []Option{WithDefaultClass(6)}, qp: -1}}, [2]uint8{3, 0},
			[2]string{"dscp 24 ecn 2", "dscp 0 ecn 2"}},
		{"of a map", [2]classSide{{qp: 7, opts: []Option{mapWith(7, 46, 7)}},
			{opts: []Option{mapWith(7, 46, 7)}}}, [2]uint8{7, 7},
			[2]string{"dscp 46 ecn 2", "dscp 46 ecn 2"}},
		{"in a VLAN", [2]classSide{{qp: 6, vlan: 9}, {vlan: 9}}, [2]uint8{6, 6},
			[2]string{"dscp 48 ecn 2 pcp 6", "dscp 48 ecn 2 pcp 6"}},
		{"PCP of a map", [2]classSide{{qp: 6, vlan: 9, opts: []Option{mapWith(6, 1, 4)}},
			{vlan: 9, opts: []Option{mapWith(6, 1, 3)}}}, [2]uint8{6, 6},
			[2]string{"dscp 1 ecn 2 pcp 4", "dscp 1 ecn 2 pcp 3"}},
		{"PCP of the network", [2]classSide{{vlan: 4<<13 | 9}, {vlan: 9}}, [2]uint8{},
			[2]string{"dscp 0 ecn 2 pcp 4", "dscp 0 ecn 2 pcp 0"}},
	} {
		for _, dial := range []bool{false, true} {
			marks, classes := classRun(t, c.sides, dial)
			if classes != c.classes {
				t.Errorf("class %s, Dial %v: QPs have the classes %d, want %d", c.name, dial, classes,
					c.classes)
			}
			for i, want := range c.want {
				list := []string{want}
				if dial {
					list = []string{"cm " + strings.Replace(want, "ecn 2", "ecn 0", 1), want}
				}
				if !slices.Equal(marks[i], list) {
					t.Errorf("class %s, Dial %v: side %d marks packets %q, want %q", c.name, dial, i,
						marks[i], list)
				}
			}
		}
	}
}

// The options of one connection choose the class and the traffic class. What Accept finds in the
// request determines only the DSCP and the class.
func TestClassOfDialAndAccept(t *testing.T) {
	for _, c := range []struct {
		name         string
		dial, accept PathOptions
		passive      []Option
		classes      [2]uint8
		want         [2]string
	}{
		{name: "class", dial: PathOptions{Class: 7}, classes: [2]uint8{7, 7},
			want: [2]string{"dscp 56 ecn 2", "dscp 56 ecn 2"}},
		{name: "other class", dial: PathOptions{Class: 3}, accept: PathOptions{Class: 6},
			classes: [2]uint8{3, 6}, want: [2]string{"dscp 24 ecn 2", "dscp 48 ecn 2"}},
		{name: "traffic class", dial: PathOptions{TrafficClass: 26<<2 | 1}, classes: [2]uint8{0, 3},
			want: [2]string{"dscp 26 ecn 1", "dscp 26 ecn 2"}},
		{name: "traffic class wins", dial: PathOptions{Class: 7, TrafficClass: 26 << 2},
			accept: PathOptions{TrafficClass: 10 << 2}, classes: [2]uint8{7, 3},
			want: [2]string{"dscp 26 ecn 2", "dscp 10 ecn 2"}},
		{name: "ECN bits only", dial: PathOptions{Class: 7, TrafficClass: 1},
			accept: PathOptions{TrafficClass: 1}, classes: [2]uint8{7, 7},
			want: [2]string{"dscp 56 ecn 1", "dscp 56 ecn 1"}},
		{name: "DSCP that the passive side does not know", dial: PathOptions{Class: 7},
			passive: []Option{WithClassMap(ClassMap{})}, classes: [2]uint8{7, 7},
			want: [2]string{"dscp 56 ecn 2", "dscp 56 ecn 2"}},
		{name: "map of the passive side", dial: PathOptions{Class: 7}, accept: PathOptions{Class: 7},
			passive: []Option{mapWith(7, 46, 5)}, classes: [2]uint8{7, 7},
			want: [2]string{"dscp 56 ecn 2", "dscp 46 ecn 2"}},
	} {
		marks, classes := classRun(t, [2]classSide{{connect: c.dial},
			{connect: c.accept, opts: c.passive}}, true)
		if classes != c.classes {
			t.Errorf("%s: QPs have the classes %d, want %d", c.name, classes, c.classes)
		}
		for i := range marks {
			got := slices.DeleteFunc(marks[i], func(m string) bool { return strings.HasPrefix(m, "cm") })
			if !slices.Equal(got, []string{c.want[i]}) {
				t.Errorf("%s: side %d marks packets %q, want %q", c.name, i, got, c.want[i])
			}
		}
	}
}

// No traffic class in a request, whatever its bits, leads to a class that does not exist or to
// packets that a switch seems to have marked.
func TestAdoptAnyTrafficClass(t *testing.T) {
	k := newConnPair(t, rigConfig{})
	for _, m := range []ClassMap{DefaultClassMap(), {}, {DSCP: [NumClasses]uint8{7: 46}}} {
		k.b.classMap = m
		for tc := range 256 {
			for sl := range 16 {
				r := &Request{dev: k.b.Device,
					req: &cm.Request{TrafficClass: uint8(tc), SL: uint8(sl)}}
				var o PathOptions
				r.adopt(k.b.qp, &o)
				got, pcp, err := k.b.marking(&o)
				want := uint8(tc) &^ ecnMask
				if want == 0 { // the peer has chosen none
					want = m.DSCP[o.Class] << dscpShift
				}
				if err != nil || o.Class < 0 || got != want || pcp != m.PCP[o.Class] {
					t.Fatalf("traffic class %#x, SL %d: class %d, traffic class %#x, PCP %d, %v",
						tc, sl, o.Class, got, pcp, err)
				}
			}
		}
	}
}

func TestClassMap(t *testing.T) {
	m := DefaultClassMap()
	for dscp := range uint8(64) {
		if got := m.Class(dscp, 0); got != int(dscp/8) {
			t.Errorf("Class(%d, 0) = %d, want %d", dscp, got, dscp/8)
		}
	}
	// Classes 2, 5 and 7 share a DSCP.
	m.DSCP[2], m.DSCP[5], m.DSCP[7], m.PCP[2] = 46, 46, 46, 1
	for _, c := range []struct {
		dscp, pcp uint8
		want      int
	}{{46, 7, 7}, {46, 5, 5}, {46, 1, 2}, {46, 0, 2}, {46, 6, 2}, {48, 6, 6}, {48, 0, 6}, {47, 7, 5},
		{40, 0, 5}, {56, 7, 7}, {0, 0, 0}, {0, 7, 0}, {255, 255, 7}} {
		if got := m.Class(c.dscp, c.pcp); got != c.want {
			t.Errorf("Class(%d, %d) = %d, want %d", c.dscp, c.pcp, got, c.want)
		}
	}
	d := newDevice(t, newLink(t, loopback.Config{}), 0, WithClassMap(m))
	if d.ClassMap() != m {
		t.Errorf("ClassMap() = %v, want %v", d.ClassMap(), m)
	}
	for _, bad := range []ClassMap{{DSCP: [NumClasses]uint8{3: 64}}, {PCP: [NumClasses]uint8{7: 8}}} {
		d, err := New(newLink(t, loopback.Config{}).Port(0), WithClassMap(bad))
		if !errors.Is(err, ErrClassMap) || d != nil {
			t.Errorf("New() = %v with the class map %v, want ErrClassMap", err, bad)
		}
	}
}

// A class out of range is an error before anything is sent, and 7 is in range.
func TestClassOutOfRange(t *testing.T) {
	k := newConnPair(t, rigConfig{})
	for _, from := range []int{0, 1} {
		k.link.SetFilter(from, 1-from, func([]byte) loopback.Action {
			t.Error("a frame was sent")
			return loopback.Drop
		})
	}
	ctx, local := within(t), k.b.qp.Local()
	for _, c := range []int{8, 9, 1 << 20} {
		o := PathOptions{Class: c}
		_, path, err1 := k.a.ResolvePath(ctx, -1, local.GID, o)
		_, err2 := k.a.CreateAH(ctx, AHAttr{Remote: local.GID, PathOptions: o})
		_, err3 := k.a.Dial(ctx, k.addr, k.a.qp,
			DialOptions{ConnectOptions: ConnectOptions{PathOptions: o}})
		err4 := k.a.qp.Connect(ctx, local, ConnectOptions{PathOptions: o})
		_, err5 := k.a.CreateQP(k.a.pd, QPConfig{SendCQ: k.a.cq, Class: c})
		for i, err := range []error{err1, err2, err3, err4, err5} {
			if !errors.Is(err, ErrClass) || !strings.Contains(err.Error(), "choose 0 to 7") {
				t.Errorf("class %d, call %d: %v, want ErrClass", c, i+1, err)
			}
		}
		if path != 0 {
			t.Errorf("ResolvePath returned a path MTU with its error")
		}
	}
	_, err := New(newLink(t, loopback.Config{}).Port(0), WithDefaultClass(8))
	if !errors.Is(err, ErrClass) {
		t.Errorf("New with the default class 8: %v, want ErrClass", err)
	}
	local.Class = 8
	if err := k.a.qp.Connect(ctx, local, ConnectOptions{}); !errors.Is(err, ErrClass) {
		t.Errorf("Connect to an endpoint with class 8: %v, want ErrClass", err)
	}
	q, err := k.a.CreateQP(k.a.pd, QPConfig{SendCQ: k.a.cq, Class: 7})
	if must(t, err); q.Local().Class != 7 {
		t.Errorf("Local().Class = %d, want 7", q.Local().Class)
	}
}

// A configuration of classes and the rate of a QP are checked before anything is created.
func TestClassConfigOutOfRange(t *testing.T) {
	for _, bad := range []ClassConfig{{Order: 2}, {Preempt: -2}, {Rate: MinRate - 1},
		{Rate: MaxRate + 1}, {Rate: MinRate, Burst: -1}, {Rate: MinRate, Burst: MaxBurst + 1},
		{Burst: 1}} {
		d, err := New(newLink(t, loopback.Config{}).Port(0), WithClasses([NumClasses]ClassConfig{3: bad}))
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "class 3") || d != nil {
			t.Errorf("New() = %v with the class %+v, want ErrInvalid", err, bad)
		}
	}
	good := ClassConfig{Order: FIFO, Preempt: PreemptAtEnd, Rate: MaxRate, Burst: MaxBurst}
	d := newDevice(t, newLink(t, loopback.Config{}), 0,
		WithClasses([NumClasses]ClassConfig{7: good}))
	e := newEnd(t, d, rigConfig{qp: QPConfig{Rate: MaxRate, Burst: MaxBurst}})
	if a, err := e.qp.Query(); err != nil || a.Rate != MaxRate || a.Burst != MaxBurst {
		t.Errorf("Query() = %d bytes per second, burst %d, %v", a.Rate, a.Burst, err)
	}
	for _, c := range []QPConfig{{Rate: MinRate - 1}, {Rate: MaxRate + 1}, {Burst: 1}} {
		c.SendCQ = e.cq
		if _, err := d.CreateQP(e.pd, c); !errors.Is(err, ErrInvalidAttr) {
			t.Errorf("CreateQP with rate %d, burst %d: %v, want ErrInvalidAttr", c.Rate, c.Burst, err)
		}
	}
}

// The class is in the JSON of an endpoint only if there is one, so old peers accept the others.
// Their endpoints mean class 0.
func TestEndpointClassJSON(t *testing.T) {
	for class, want := range map[uint8]bool{0: false, 7: true} {
		b, err := json.Marshal(Endpoint{QPN: 2, Class: class})
		must(t, err)
		if got := strings.Contains(string(b), `"class":7`); got != want ||
			strings.Contains(string(b), "class") != want {
			t.Errorf("class %d in JSON: %s", class, b)
		}
		var e Endpoint
		if must(t, json.Unmarshal(b, &e)); e.Class != class {
			t.Errorf("class %d after JSON, want %d", e.Class, class)
		}
	}
}

// Datagrams carry the DSCP of their address handle, and a reply that of the datagram, without its
// ECN bits.
func TestClassOfDatagrams(t *testing.T) {
	a, b := newRig(t, rigConfig{typ: UD, link: loopback.Config{}, opts: []Option{
		WithProgress(Manual), mapWith(7, 46, 7)}})
	ctx := within(t)
	local, err := b.localGID(-1, GID{})
	must(t, err)
	for _, c := range []struct {
		o    PathOptions
		want uint8
	}{
		{PathOptions{}, 0}, {PathOptions{Class: 3}, 24 << 2}, {PathOptions{Class: 7}, 46 << 2},
		{PathOptions{Class: 7, TrafficClass: 26 << 2}, 26 << 2},
		{PathOptions{Class: 1, TrafficClass: 3}, 8<<2 | 3}, {PathOptions{Class: -1}, 0},
	} {
		ah, err := a.CreateAH(ctx, AHAttr{Remote: local.GID, PathOptions: c.o})
		must(t, err)
		must(t, b.qp.PostRecv(RecvWR{SGEs: []SGE{b.mr.SGE(0, 100)}}))
		must(t, a.qp.PostSend(SendWR{Op: OpSend, AH: ah, RemoteQPN: b.qp.QPN(), RemoteQKey: 0x1234,
			Inline: []byte("x")}))
		wc := poll(t, 1, b.cq, a.cq)[0]
		grh := b.mr.Bytes()[:GRHLen]
		if _, _, tc, _ := parseGRH(grh); tc != c.want {
			t.Errorf("%+v: datagram with traffic class %#x, want %#x", c.o, tc, c.want)
		}
		reply, err := b.CreateAHFromWC(ctx, &wc, grh)
		must(t, err)
		if got := reply.Path().Address().TrafficClass; got != c.want&^ecnMask {
			t.Errorf("%+v: reply with traffic class %#x, want %#x", c.o, got, c.want&^ecnMask)
		}
	}
	d := newDevice(t, newLink(t, loopback.Config{}), 0, WithDefaultClass(2))
	for class, want := range map[int]uint8{0: 16, 3: 24, -1: 0} {
		ah, err := d.CreateAH(ctx, AHAttr{Remote: local.GID, PathOptions: PathOptions{Class: class}})
		must(t, err)
		if got := ah.Path().Address().TrafficClass; got != want<<2 {
			t.Errorf("class %d on a device of class 2: DSCP %d, want %d", class, got>>2, want)
		}
	}
}

// The passive side sends READ responses in the class that the active side has chosen: those of a
// small urgent READ do not wait for those of large ones.
func TestAdoptedClassIsServedFirst(t *testing.T) {
	latency := func(class int) time.Duration {
		link := newLink(t, loopback.Config{Virtual: true, Seed: 1,
			Plan: loopback.Plan{Delay: 5 * time.Microsecond}})
		must(t, link.SetBandwidth(1, 1e9))
		sim, ctx := loopback.NewSim(link), context.Background()
		var ends [2]*end
		var urgent [2]*QP
		for i := range ends {
			d := newDevice(t, link, i, WithExpert(Expert{Clock: link.Now, Wait: sim.Wait}))
			sim.Add(d)
			ends[i] = newEnd(t, d, rigConfig{mem: 8 << 20})
			cq, err := d.CreateCQ(16)
			must(t, err)
			c := QPConfig{SendCQ: cq}
			if i == 0 {
				c.Class = class
			}
			urgent[i], err = d.CreateQP(ends[i].pd, c)
			must(t, err)
		}
		a, b := ends[0], ends[1]
		connect(t, a.qp, b.qp)
		connect(t, urgent[0], urgent[1])
		var took int64
		read := func(q *QP, n int) {
			must(t, q.PostSend(SendWR{Op: OpRead, Flags: Signaled, SGEs: []SGE{a.mr.SGE(0, n)},
				RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}))
			var wcs [1]WC
			_, err := q.send.Wait(ctx, wcs[:])
			if must(t, err); wcs[0].Status != Success {
				t.Errorf("READ of %d bytes: %v", n, wcs[0].Status)
			}
		}
		sim.Go(func() { read(a.qp, 8<<20) })
		sim.Go(func() {
			for range 20 {
				must(t, sim.Sleep(time.Millisecond))
				start := link.Now()
				read(urgent[0], 1000)
				took = max(took, link.Now()-start)
			}
		})
		must(t, sim.Run(time.Minute))
		return time.Duration(took)
	}
	// The packet takes 9 us and the round trip 10 us. At most two packets of 4 KiB precede it, 33
	// us each.
	if urgent := latency(7); urgent > 100*time.Microsecond {
		t.Errorf("READ of 1000 bytes in class 7 took up to %v, want at most 100 us", urgent)
	}
	if equal := latency(0); equal < 200*time.Microsecond {
		t.Errorf("READ of 1000 bytes in class 0 took at most %v: the test shows nothing", equal)
	}
}
