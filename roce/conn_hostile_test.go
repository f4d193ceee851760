package roce

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce/cm"
)

// takeBack is how the peer of wish(i) ends its request before it was answered.
func takeBack(i int) []byte {
	j := cm.REJ{LocalID: cm.CommID(i + 1), Message: cm.AnswersOther, Reason: cm.ReasonTimeout, InfoLen: 8}
	binary.BigEndian.PutUint64(j.Info[:], uint64(i+1)) // its GUID
	var m cm.MAD
	j.Encode(&m, uint64(i+1))
	return m[:]
}

// Requests whose senders take them back, or wait no longer, leave the listener's queue: they neither take the place of
// honest ones nor bother the program.
func TestRequestsTakenBack(t *testing.T) {
	k := newTalkers(t, rigConfig{link: loopback.Config{Ports: 3}})
	l, err := k.b.Listen(netip.AddrPortFrom(netip.Addr{}, testPort), ListenOptions{Backlog: 16})
	if err != nil {
		t.Fatal(err)
	}
	s := &stranger{port: k.link.Port(2), to: k.link.Port(1)}
	src := netip.MustParseAddr("fd77::bad")
	for i := range 64 {
		s.say(t, src, wish(i))
		if i%4 != 0 { // the others run out of time, after 2 x 67 ms
			s.say(t, src, takeBack(i))
		}
	}
	for end := time.Now().Add(deadline); k.b.Counters().CM.Received[cm.AttrREJ.Index()] < 48 || k.b.left().talks > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%+v", k.b.left())
		}
	}
	if l.queue.pending() {
		t.Error("requests that are over wait for Accept")
	}
	ctx := within(t)
	served := make(chan error, 1)
	go func() {
		r, err := l.Accept(ctx)
		if err == nil {
			_, err = r.Accept(ctx, k.b.qp, AcceptOptions{})
		}
		served <- err
	}()
	_, err = k.a.Dial(ctx, k.addr, k.a.qp, DialOptions{})
	if err := errors.Join(err, <-served); err != nil {
		t.Errorf("the honest peer: %v", err)
	}
}

// A peer is who it is on the wire, whatever its request says (wish claims to be fd77::9).
func TestPeerCannotLieAboutItsAddress(t *testing.T) {
	k := newTalkers(t, rigConfig{link: loopback.Config{Ports: 3}})
	l := k.listen(t)
	s := &stranger{port: k.link.Port(2), to: k.link.Port(1)}
	s.say(t, netip.MustParseAddr("fd77::bad"), wish(1))
	r, err := l.Accept(within(t))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := r.RemoteAddr(), netip.MustParseAddrPort("[fd77::bad]:9"); got != want {
		t.Errorf("the request is from %v, want %v", got, want)
	}
	if got := r.Params().Source; got != netip.MustParseAddrPort("[fd77::9]:9") {
		t.Errorf("its claim is %v", got)
	}
}
