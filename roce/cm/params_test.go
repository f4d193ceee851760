package cm

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/gorxe/gorxe/bth"
)

func TestPrivateDataTooLong(t *testing.T) {
	long := make([]byte, 300)
	a, b := pair(t)
	p := a.params(b)
	for n, ok := range map[int]bool{56: true, 57: false} {
		p.PrivateData = long[:n]
		if _, err := a.m.Connect(0, p); (err == nil) != ok ||
			(!ok && !errors.Is(err, ErrPrivateData)) {
			t.Errorf("Connect with %d bytes: %v", n, err)
		}
	}
	p.Service, p.PrivateData = 12345, long[:REQPrivateLen] // no rdma_cm header
	if _, err := a.m.Connect(0, p); err != nil {
		t.Error(err)
	}
	for s, f := range map[State]func(u *subject) error{
		StateREQRcvd: func(u *subject) error { p := acceptance; p.PrivateData = long[:197]; return u.m.Accept(0, u.id, &p) },
		StateMRAREQSent: func(u *subject) error {
			return u.m.Reject(0, u.id, ReasonConsumer, nil,
				long[:149])
		},
		StateREPRcvd:     func(u *subject) error { return u.m.Ready(0, u.id, long[:225]) },
		StateEstablished: func(u *subject) error { return u.m.Disconnect(0, u.id, long[:221]) },
	} {
		u := reach(t, s)
		if err := f(u); !errors.Is(err, ErrPrivateData) {
			t.Errorf("%v: %v", s, err)
		}
		u.inState(u.id, s)
		u.sends()
	}
}

func TestParamsOutOfRange(t *testing.T) {
	a, b := pair(t)
	for i, spoil := range []func(p *ConnectParams){
		func(p *ConnectParams) { p.QPN = 1 },
		func(p *ConnectParams) { p.QPN = 1 << 24 },
		func(p *ConnectParams) { p.PSN = 1 << 24 },
		func(p *ConnectParams) { p.MTU = 1000 },
		func(p *ConnectParams) { p.RetryCount = 8 },
		func(p *ConnectParams) { p.RNRRetry = 8 },
		func(p *ConnectParams) { p.MaxRetries = 16 },
		func(p *ConnectParams) { p.AckTimeout = 32 },
		func(p *ConnectParams) { p.ResponseTimeout = 32 },
		func(p *ConnectParams) { p.FlowLabel = 1 << 20 },
		func(p *ConnectParams) { p.SL = 16 },
		func(p *ConnectParams) { p.Transport = 2 },
		func(p *ConnectParams) { p.Remote = bth.GID{} },
		func(p *ConnectParams) { p.Remote = bth.GID{0: 0xfd, 15: 1} },
	} {
		p := a.params(b)
		spoil(p)
		if _, err := a.m.Connect(0, p); !errors.Is(err, ErrParams) {
			t.Errorf("case %d: %v", i, err)
		}
	}
	a.empty()
	for i, spoil := range []func(p *AcceptParams){
		func(p *AcceptParams) { p.QPN = 0 },
		func(p *AcceptParams) { p.RNRRetry = 8 },
		func(p *AcceptParams) { p.ResponderResources = 3 }, // the REQ's initiator depth is 2
		func(p *AcceptParams) { p.InitiatorDepth = 5 },     // the REQ's responder resources are 4
	} {
		u := reach(t, StateREQRcvd)
		p := acceptance
		spoil(&p)
		if err := u.m.Accept(0, u.id, &p); !errors.Is(err, ErrParams) {
			t.Errorf("case %d: %v", i, err)
		}
		u.inState(u.id, StateREQRcvd)
	}
}

// The passive side learns every traffic class and service level, at the offsets of the message (IBA
// 12.6.5).
func TestTrafficClass(t *testing.T) {
	const offTrafficClass, offSL = MADHeaderLen + 92, MADHeaderLen + 94
	for class := range 256 {
		a, b := pair(t)
		p := a.params(b)
		p.TrafficClass, p.SL = uint8(class), uint8(class)&maxSL
		_, err := a.m.Connect(0, p)
		a.must(err)
		mads := a.sends(AttrREQ)
		if m := mads[0]; m[offTrafficClass] != p.TrafficClass || m[offSL]>>4 != p.SL {
			t.Fatalf("traffic class %#x and SL %d in the REQ, want %#x and %d", m[offTrafficClass],
				m[offSL]>>4, p.TrafficClass, p.SL)
		}
		b.hears(0, a, mads...)
		if r := b.event(EventConnectRequest).Request; r.TrafficClass != p.TrafficClass ||
			r.SL != p.SL {
			t.Fatalf("traffic class %#x and SL %d in the event, want %#x and %d", r.TrafficClass,
				r.SL, p.TrafficClass, p.SL)
		}
	}
}

func TestNegotiation(t *testing.T) {
	r := &Request{MTU: 1024, ResponderResources: 4, InitiatorDepth: 2, RNRRetry: 3, RetryCount: 6,
		AckTimeout: 15, QPN: 5, PSN: 9, FlowControl: true}
	p, ok := r.Negotiate(Limits{MTU: 4096, ResponderResources: 16, InitiatorDepth: 3, RNRRetry: 7})
	if !ok || p.ResponderResources != 2 || p.InitiatorDepth != 3 || p.RNRRetry != 7 ||
		!p.FlowControl {
		t.Errorf("%+v, %v", p, ok)
	}
	p.PSN = 77
	if q, want := r.PassiveQP(&p), (QPAttributes{RemoteQPN: 5, RQPSN: 77, SQPSN: 9, MTU: 1024,
		MaxRdAtomic: 3, MaxDestRdAtomic: 2,
		Timeout: 15, RetryCount: 6, RNRRetry: 3}); q != want {
		t.Errorf("passive %+v, want %+v", q, want)
	}
	c := &ConnectParams{MTU: 1024, PSN: 9, ResponderResources: 4, InitiatorDepth: 2, RetryCount: 6,
		AckTimeout: 15}
	resp := &Response{QPN: 8, PSN: 77, ResponderResources: 2, InitiatorDepth: 9, RNRRetry: 7,
		AckDelay: 16}
	if q, want := c.ActiveQP(resp), (QPAttributes{RemoteQPN: 8, RQPSN: 9, SQPSN: 77, MTU: 1024,
		MaxRdAtomic: 2, MaxDestRdAtomic: 4,
		Timeout: 16, RetryCount: 6, RNRRetry: 7}); q != want {
		t.Errorf("active %+v, want %+v", q, want)
	}
	// A REP has no field for the path MTU, so a request with a larger one must be refused.
	if _, ok := r.Negotiate(Limits{MTU: 512}); ok {
		t.Error("path MTU 1024 granted over 512")
	}
	reason, info := RejectMTU(512)
	if e := (Event{Kind: EventRejected, Reason: reason, Info: info}); e.RejectedMTU() != 512 {
		t.Errorf("path MTU %d of the REJ", e.RejectedMTU())
	}
	for _, c := range [][3]uint8{{18, 15, 19}, {14, 14, 16}, {14, 15, 16}, {10, 15, 15},
		{30, 31, 31}, {31, 31, 31}, {0, 0, 2}} {
		if got := AckTimeout(c[0], c[1]); got != c[2] {
			t.Errorf("AckTimeout(%d, %d) = %d, want %d", c[0], c[1], got, c[2])
		}
	}
}

func TestCommandsOutOfRange(t *testing.T) {
	u := reach(t, StateREQRcvd)
	if err := u.m.SendMRA(u.now, u.id, 32); !errors.Is(err, ErrParams) {
		t.Errorf("MRA: %v", err)
	}
	if err := u.m.SendMRA(u.now, 1, 20); !errors.Is(err, ErrUnknownID) {
		t.Errorf("MRA: %v", err)
	}
	if err := u.m.Reject(u.now, u.id, ReasonConsumer, make([]byte, InfoLen+1), nil); !errors.Is(err,
		ErrParams) {
		t.Errorf("REJ: %v", err)
	}
	u.sends()
	for i, p := range []SIDRParams{
		{Local: gidA, Remote: gidB, ResponseTimeout: 32},
		{Local: gidA, Remote: gidB, MaxRetries: 16},
		{Local: gidA},
	} {
		if _, err := u.m.Resolve(0, &p); !errors.Is(err, ErrParams) {
			t.Errorf("Resolve %d: %v", i, err)
		}
	}
	if _, err := u.m.Resolve(0,
		&SIDRParams{Local: gidA, Remote: gidB, Service: UDPService(1),
			PrivateData: make([]byte, 181)}); !errors.Is(err, ErrPrivateData) {
		t.Error(err)
	}
	// The error names the current state.
	if err := u.m.Ready(u.now, u.id, nil); !errors.Is(err, ErrState) ||
		!strings.HasSuffix(err.Error(), "it is in REQ Rcvd") {
		t.Error(err)
	}
}

// TestInvalidREPs: an invalid REP does not change the connection.
func TestInvalidREPs(t *testing.T) {
	for _, spoil := range []func(r *REP){
		func(r *REP) { r.LocalID = 0 },
		func(r *REP) { r.QPN = 0 },
		func(r *REP) { r.QPN = bth.QPNMulticast },
	} {
		u := reach(t, StateREQSent)
		m := u.message(AttrREP, 0)
		var r REP
		r.Decode(&m)
		spoil(&r)
		r.Encode(&m, u.tid)
		u.hears(u.now, u.peer, m)
		u.inState(u.id, StateREQSent)
		if u.m.c.Malformed != 1 {
			t.Errorf("%+v is not counted", r)
		}
	}
	a, b := sidrPair(t)
	id := a.resolve(b, UDPService(port))
	for _, r := range []SIDRREP{{RequestID: id, Service: UDPService(port + 1), QPN: 5},
		{RequestID: id, Service: UDPService(port), QPN: 1}} {
		var m MAD
		r.Encode(&m, 1)
		a.hears(0, b, m)
		a.inState(id, StateSIDRREQSent)
	}
}

// TestAckTimeoutFromPeer: the requester chooses the Local ACK Timeout of this side's QP, within
// bounds.
func TestAckTimeoutFromPeer(t *testing.T) {
	for asked, want := range map[uint8]uint8{0: MaxAckTimeout, 1: 1, 14: 14, 19: 19, 20: 20, 21: 20,
		31: 20} {
		if q := (&Request{AckTimeout: asked}).PassiveQP(&AcceptParams{}); q.Timeout != want {
			t.Errorf("requested %d: timeout %d, want %d", asked, q.Timeout, want)
		}
	}
	// The peer's ACK delay lengthens the timeout, within the same bounds. A longer timeout of this
	// side's user stays.
	for _, c := range []struct{ own, delay, want uint8 }{{14, 3, 14}, {14, 16, 16},
		{0, 15, DefaultAckTimeout}, {14, 31, MaxAckTimeout}, {25, 31, 25}} {
		if q := (&ConnectParams{AckTimeout: c.own}).ActiveQP(&Response{AckDelay: c.delay}); q.Timeout != c.want {
			t.Errorf("%d with an ACK delay of %d: timeout %d, want %d", c.own, c.delay, q.Timeout,
				c.want)
		}
	}
}

// TestCounterNames: each counter has one name.
func TestCounterNames(t *testing.T) {
	typ := reflect.TypeFor[Counters]()
	for i := range typ.NumField() {
		var c Counters
		f, want := reflect.ValueOf(&c).Elem().Field(i), 1
		if f.Kind() == reflect.Array {
			want = f.Len()
			for k := range want {
				f.Index(k).SetUint(7)
			}
		} else {
			f.SetUint(7)
		}
		names := map[string]bool{}
		for n, v := range c.All() {
			if v == 7 {
				names[n] = true
			}
		}
		if len(names) != want {
			t.Errorf("%s has the names %v", typ.Field(i).Name, names)
		}
	}
}
