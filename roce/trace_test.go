package roce

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/loopback"
)

// traced collects TraceEvents.
type traced struct {
	mu     sync.Mutex
	events []TraceEvent
}

func (l *traced) add(e TraceEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, e)
}

// kinds returns kind and operation of the events of a QP, and forgets all events.
func (l *traced) kinds(qpn QPN) (list []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.events {
		if e.QPN == qpn {
			list = append(list, e.Kind.String()+" "+e.Op)
		}
	}
	l.events = nil
	return list
}

// A trace shows a work request from posting to the completion, at both sides.
func TestTrace(t *testing.T) {
	var device, one traced
	a, b := newRig(t, rigConfig{opts: []Option{WithProgress(Manual), WithTrace(device.add)}})
	other, err := a.CreateQP(a.pd, QPConfig{})
	must(t, err)
	must(t, b.qp.Trace(one.add))
	must(t, other.Trace(one.add))
	device.kinds(0)

	must(t, b.qp.PostRecv(RecvWR{ID: 4, SGEs: []SGE{b.mr.SGE(0, 100)}}))
	must(t, a.qp.PostSend(SendWR{ID: 3, Op: OpSend, Flags: Signaled, SGEs: []SGE{a.mr.SGE(0, 10),
		a.mr.SGE(50, 20)}}))
	pollOK(t, 3, WCSend, a.cq, b.cq)
	pollOK(t, 4, WCRecv, b.cq, a.cq)
	events := device.events
	want := "post SEND, sent RC SEND Only, rcvd RC Acknowledge, done SEND"
	// On a slow machine packets are sent again.
	if got := strings.Join(slices.Compact(device.kinds(a.qp.QPN())), ", "); got != want {
		t.Errorf("events of the sender: %s, want %s", got, want)
	}
	want = "recv RECV, rcvd RC SEND Only, sent RC Acknowledge, done RECV"
	if got := strings.Join(slices.Compact(one.kinds(b.qp.QPN())), ", "); got != want {
		t.Errorf("events of the receiver: %s, want %s", got, want)
	}
	for _, e := range events {
		if e.QPN != a.qp.QPN() {
			continue
		}
		switch {
		case e.Kind == TracePostSend && (e.ID != 3 || e.Bytes != 30),
			e.Kind == TraceCompletion && (e.ID != 3 || e.Bytes != 30 || e.Status != Success),
			e.Kind == TraceSent && (e.Bytes != 30 || !e.AckReq || e.PSN != a.qp.psn() ||
				e.Remote != b.qp.Local().GID),
			e.Kind == TraceReceived && (e.Ack != bth.ACKNoLimit.String() ||
				e.Remote != b.qp.Local().GID),
			e.Time <= 0, e.Time > deadline:
			t.Errorf("event %+v", e)
		}
		if s := e.String(); !strings.Contains(s, e.Op) || !strings.Contains(s, e.Kind.String()) {
			t.Errorf("String() = %q", s)
		}
	}

	must(t, b.qp.Trace(nil))
	must(t, a.qp.PostSend(SendWR{ID: 5, Op: OpWrite, Flags: Signaled, SGEs: []SGE{a.mr.SGE(0, 8)},
		RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}))
	pollOK(t, 5, WCWrite, a.cq, b.cq)
	if got := one.kinds(b.qp.QPN()); got != nil {
		t.Errorf("events after Trace(nil): %q", got)
	}
	must(t, other.Close())
	if err := other.Trace(one.add); !errors.Is(err, ErrClosed) {
		t.Errorf("Trace() of a closed QP = %v, want ErrClosed", err)
	}
}

// Nothing is left of a trace when QP or device are closed, so that the data path is as before.
func TestTraceEnds(t *testing.T) {
	before, hooks := tracing.Load(), postHooks.Load()
	link := newLink(t, loopback.Config{})
	d, err := New(link.Port(0), WithTrace(func(TraceEvent) {}))
	must(t, err)
	e := newEnd(t, newDevice(t, link, 1), rigConfig{})
	must(t, e.qp.Trace(func(TraceEvent) {}))
	if n := tracing.Load() - before; n != 2 {
		t.Errorf("%d devices trace, want 2", n)
	}
	must(t, e.qp.Close())
	must(t, d.Close())
	if n, h := tracing.Load()-before, postHooks.Load()-hooks; n != 0 || h != 0 {
		t.Errorf("%d devices trace after Close, %d hooks", n, h)
	}
}

// The connection manager's messages are traced as packets of QP 1. Tracing in virtual time has its
// times.
func TestTraceInVirtualTime(t *testing.T) {
	var log traced
	link := newLink(t, loopback.Config{Virtual: true,
		Plan: loopback.Plan{Delay: time.Millisecond}})
	sim := loopback.NewSim(link)
	var ends [2]*end
	for i := range ends {
		ends[i] = newEnd(t, newDevice(t, link, i, WithTrace(log.add),
			WithExpert(Expert{Clock: link.Now, Wait: sim.Wait})), rigConfig{})
		sim.Add(ends[i].Device)
	}
	l, err := ends[1].Listen(netip.AddrPort{}, ListenOptions{})
	must(t, err)
	sim.Go(func() {
		r, err := l.Accept(t.Context())
		must(t, err)
		_, err = r.Accept(t.Context(), ends[1].qp, AcceptOptions{})
		must(t, err)
	})
	sim.Go(func() {
		_, err := ends[0].Dial(t.Context(), l.Addr(), ends[0].qp, DialOptions{})
		must(t, err)
	})
	must(t, sim.Run(time.Minute))
	var sent, received time.Duration
	for _, e := range log.events {
		if e.QPN == bth.QPNGSI && e.Kind == TraceSent && sent == 0 {
			sent = e.Time
		}
		if e.QPN == bth.QPNGSI && e.Kind == TraceReceived && received == 0 {
			received = e.Time
		}
	}
	if sent == 0 || received-sent != time.Millisecond {
		t.Errorf("first message sent at %v, received at %v; want a difference of 1 ms", sent, received)
	}
}
