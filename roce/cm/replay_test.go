package cm

import (
	"testing"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/bth/bthtest"
	"github.com/gorxe/gorxe/frame"
)

// replay plays one side of a captured exchange with a CM. The CM must send what that side sent,
// byte for byte, given the random numbers of the kernel. It receives what the other side sent.
type replay struct {
	*side
	talk   []captured
	random []uint64
	ids    map[CommID]CommID // captured communication IDs of this side to those of the CM
	outbox []MAD
	now    Time
}

func (r *replay) rand() uint64 {
	if len(r.random) == 0 {
		r.t.Fatal("unexpected call of Rand")
	}
	v := r.random[0]
	r.random = r.random[1:]
	return v
}

func TestCapturedExchanges(t *testing.T) {
	for _, name := range []string{"rdmacm_rping_connect.pcap", "v6_rdmacm_rping.pcap",
		"rdmacm_ucmatose.pcap", "rdmacm_reject.pcap",
		"rdmacm_write_bw.pcap", "mtu4096_rdmacm_write_bw.pcap"} {
		talk := capturedMADs(t, name)
		active, passive := talk[0].from.Remote, talk[0].from.Local
		for role, gid := range map[string]bth.GID{"active": active, "passive": passive} {
			t.Run(name+"/"+role,
				func(t *testing.T) { replayRole(t, talk, gid, name == "rdmacm_reject.pcap") })
		}
	}
}

func replayRole(t *testing.T, talk []captured, self bth.GID, noListener bool) {
	r := &replay{talk: talk, ids: map[CommID]CommID{}}
	guid := GUID(0x505400fffe770001)
	if self != talk[0].from.Remote {
		guid++
	}
	r.side = newSide(t, self, guid, 0, func(c *Config) { c.Rand = r.rand })
	if !noListener {
		for i := range talk {
			if talk[i].mad.Attribute() == AttrREQ {
				var q REQ
				q.Decode(&talk[i].mad)
				_, _ = r.m.Listen(ListenParams{Service: q.Service}) // may be listening already
			}
		}
	}
	for i := range talk {
		r.now += Time(1e6)
		if c := &talk[i]; c.from.Remote == self {
			r.say(i)
		} else {
			r.hear(i)
		}
		r.outbox = append(r.outbox, r.drain()...)
	}
	if len(r.outbox) != 0 || len(r.random) != 0 {
		t.Fatalf("left over: %s, %d random numbers", trace(r.outbox, nil), len(r.random))
	}
	r.until(r.now, r.idle)
	for {
		ev, ok := r.m.PollEvent()
		if !ok {
			break
		}
		if ev.Kind != EventClosed {
			t.Errorf("event %v at the end", ev.Kind)
		}
	}
	r.empty()
	for _, n := range r.m.c.Retransmitted {
		if n != 0 {
			t.Errorf("repeated %v", r.m.c.Retransmitted)
		}
	}
}

// say makes the CM send message i, which this side sent.
func (r *replay) say(i int) {
	r.t.Helper()
	mad := &r.talk[i].mad
	if len(r.outbox) == 0 {
		r.command(i)
		r.outbox = r.drain()
	}
	if len(r.outbox) == 0 {
		r.t.Fatalf("MAD %d, %v: nothing sent", i+1, mad.Attribute())
	}
	if got := r.outbox[0]; got != *mad {
		r.t.Fatalf("MAD %d, %v:\n got %x\nwant %x", i+1, mad.Attribute(), got, *mad)
	}
	r.outbox = r.outbox[1:]
}

// command calls the command that makes a CM send message i.
func (r *replay) command(i int) {
	r.t.Helper()
	mad := &r.talk[i].mad
	id := mad.LocalID()
	switch mad.Attribute() {
	case AttrREQ:
		var q REQ
		q.Decode(mad)
		r.random = append(r.random, uint64(q.LocalID), mad.TID())
		got, err := r.m.Connect(r.now, connectParams(&q))
		r.must(err)
		if got != q.LocalID {
			r.t.Fatalf("ID %#x", got)
		}
	case AttrREP:
		var q REP
		q.Decode(mad)
		r.must(r.m.Accept(r.now, id,
			&AcceptParams{QPN: q.QPN, PSN: q.PSN, ResponderResources: q.ResponderResources,
				InitiatorDepth: q.InitiatorDepth, RNRRetry: q.RNRRetry, FlowControl: q.FlowControl,
				SRQ: q.SRQ, PrivateData: q.Private[:]}))
	case AttrRTU:
		r.must(r.m.Ready(r.now, id, nil))
	case AttrDREQ:
		r.random = append(r.random, mad.TID())
		r.must(r.m.Disconnect(r.now, id, nil))
	case AttrDREP:
		r.must(r.m.Disconnect(r.now, id, nil))
	default:
		r.t.Fatalf("no command sends a %v", mad.Attribute())
	}
}

// connectParams returns the parameters of this REQ.
func connectParams(q *REQ) *ConnectParams {
	var h IPCMHeader
	_ = h.Decode((*[IPCMHeaderLen]byte)(q.Private[:]))
	return &ConnectParams{
		Local: q.Primary.LocalGID, Remote: q.Primary.RemoteGID, Service: q.Service,
		SourcePort: h.Src.Port(), Transport: q.Transport,
		QPN: q.QPN, PSN: q.PSN, PKey: q.PKey, MTU: bth.MTUFromEnum(q.MTU),
		ResponderResources: q.ResponderResources,
		InitiatorDepth:     q.InitiatorDepth, RetryCount: q.RetryCount, RNRRetry: q.RNRRetry,
		FlowControl: q.FlowControl, SRQ: q.SRQ,
		AckTimeout: q.Primary.AckTimeout, ResponseTimeout: q.RemoteTimeout,
		MaxRetries: q.MaxCMRetries, FlowLabel: q.Primary.FlowLabel,
		TrafficClass: q.Primary.TrafficClass, SL: q.Primary.SL, HopLimit: q.Primary.HopLimit,
		PrivateData: q.Private[IPCMHeaderLen:],
	}
}

// hear passes message i of the other side to the CM and checks its event.
func (r *replay) hear(i int) {
	r.t.Helper()
	c := &r.talk[i]
	want := map[Attribute]EventKind{AttrREQ: EventConnectRequest, AttrREP: EventConnectResponse,
		AttrRTU: EventEstablished,
		AttrREJ: EventRejected, AttrDREQ: EventDisconnected,
		AttrDREP: EventDisconnected}[c.mad.Attribute()]
	switch c.mad.Attribute() {
	case AttrREQ: // the communication ID in the REP
		for _, later := range r.talk[i:] {
			if later.mad.Attribute() == AttrREP && later.mad.RemoteID() == c.mad.LocalID() {
				r.random = append(r.random, uint64(later.mad.LocalID()))
				break
			}
		}
		if len(r.m.listeners) == 0 {
			want = EventNone
		}
	case AttrDREQ: // this side sent its own DREQ before it received this one
		for j, later := range r.talk[i:] {
			if later.mad.Attribute() == AttrDREQ && later.mad.LocalID() == c.mad.RemoteID() {
				r.command(i + j)
				r.outbox = append(r.outbox, r.drain()...)
				break
			}
		}
	case AttrDREP:
		if r.m.State(c.mad.RemoteID()) == StateTimeWait { // both sides sent a DREQ
			want = EventNone
		}
	}
	if err := r.m.HandleMAD(r.now, c.from, c.mad[:]); err != nil {
		r.t.Fatal(err)
	}
	if want == EventNone {
		r.quiet()
		return
	}
	ev := r.event(want)
	switch ev.Kind {
	case EventConnectRequest:
		r.checkRequest(&ev, &c.mad)
	case EventRejected:
		if ev.Reason != ReasonInvalidServiceID {
			r.t.Errorf("rejected for %v", ev.Reason)
		}
		r.event(EventClosed)
	}
}

func (r *replay) checkRequest(ev *Event, mad *MAD) {
	r.t.Helper()
	var q REQ
	q.Decode(mad)
	e := ev.Request
	if e.Service != q.Service || e.QPN != q.QPN || e.PSN != q.PSN || e.MTU.Enum() != q.MTU ||
		e.AckTimeout != 19 || e.RNRRetry != q.RNRRetry ||
		e.RetryCount != q.RetryCount || e.InitiatorDepth != q.InitiatorDepth ||
		e.Addr.Remote != q.Primary.LocalGID {
		r.t.Errorf("request %+v", *e)
	}
	if e.Source.Addr() != q.Primary.LocalGID.Addr() ||
		e.Destination.Addr() != q.Primary.RemoteGID.Addr() ||
		e.Destination.Port() != q.Service.Port() {
		r.t.Errorf("from %v to %v", e.Source, e.Destination)
	}
	if len(ev.PrivateData) != REQPrivateLen-IPCMHeaderLen {
		r.t.Errorf("%d bytes of private data", len(ev.PrivateData))
	}
}

// TestStartingPSNs compares the starting PSNs of the kernel's QPs after the exchange with
// QPAttributes. A message contains the PSN with which its receiver starts.
func TestStartingPSNs(t *testing.T) {
	for _, name := range []string{"rdmacm_rping_connect.pcap", "v6_rdmacm_rping.pcap",
		"rdmacm_ucmatose.pcap"} {
		talk := capturedMADs(t, name)
		var req REQ
		var rep REP
		req.Decode(&talk[0].mad)
		rep.Decode(&talk[1].mad)
		r := req.event(&packet{from: talk[0].from})
		passive := r.PassiveQP(&AcceptParams{QPN: rep.QPN, PSN: rep.PSN})
		active := connectParams(&req).ActiveQP(&Response{QPN: rep.QPN, PSN: rep.PSN})
		if passive.RQPSN != active.SQPSN || passive.SQPSN != active.RQPSN ||
			passive.RemoteQPN != req.QPN || active.RemoteQPN != rep.QPN {
			t.Errorf("%s: %+v does not fit %+v", name, active, passive)
		}
		first := map[bth.GID]bth.PSN{} // first PSN of requests, by sender
		d, p := new(frame.Decoder), new(bth.Packet)
		for _, f := range bthtest.Frames(t, name) {
			if d.Decode(f, p) != frame.ReasonOK || p.Info.Transport != bth.RC || !p.Info.Request {
				continue
			}
			if _, ok := first[p.Src]; !ok {
				first[p.Src] = p.BTH.PSN()
			}
		}
		if len(first) == 0 {
			t.Errorf("%s: no data", name)
		}
		for gid, psn := range first {
			want := active.SQPSN
			if gid == talk[0].from.Local {
				want = passive.SQPSN
			}
			if psn != want {
				t.Errorf("%s: %v begins with %v, want %v", name, gid, psn, want)
			}
		}
	}
}
