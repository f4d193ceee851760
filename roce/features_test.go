package roce

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/gorxe/gorxe/loopback"
)

// selective returns whether a QP uses selective repeat.
func selective(t *testing.T, q *QP) bool {
	t.Helper()
	a, err := q.Query()
	must(t, err)
	return a.Selective
}

// featurePair returns two endpoints that support selective repeat or not.
func featurePair(t *testing.T, a, b bool) connPair {
	t.Helper()
	k := connPair{link: newLink(t, rigConfig{}.link)}
	k.a = newEnd(t, newDevice(t, k.link, 0, WithSelectiveRepeat(a)), rigConfig{})
	k.b = newEnd(t, newDevice(t, k.link, 1, WithSelectiveRepeat(b)), rigConfig{})
	addrs := k.link.Port(1).Addrs()
	k.addr = netip.AddrPortFrom(addrs[len(addrs)-1].Addr(), testPort)
	return k
}

// dialWith connects the QPs by Dial and Accept with private data. It returns what the sides read.
func (k connPair) dialWith(t *testing.T, request, reply []byte) (gotRequest, gotReply []byte) {
	t.Helper()
	l := k.listen(t)
	defer l.Close()
	ctx := within(t)
	accepted := make(chan error, 1)
	go func() {
		accepted <- func() error {
			r, err := l.Accept(ctx)
			if err != nil {
				return err
			}
			gotRequest = r.PrivateData()
			_, err = r.Accept(ctx, k.b.qp, AcceptOptions{PrivateData: reply})
			return err
		}()
	}()
	c, err := k.a.Dial(ctx, k.addr, k.a.qp, DialOptions{PrivateData: request})
	must(t, errors.Join(err, <-accepted))
	return gotRequest, c.PrivateData()
}

// write checks that the connection of the pair works.
func (k connPair) write(t *testing.T) {
	t.Helper()
	must(t, k.a.qp.PostSend(SendWR{Op: OpWrite, Flags: Signaled, Inline: []byte("x"),
		RemoteAddr: k.b.mr.Addr(), RKey: k.b.mr.RKey()}))
	pollOK(t, 0, WCWrite, k.a.cq)
}

// A connection uses selective repeat if both devices support it, however it is connected.
func TestSelectiveRepeatNegotiation(t *testing.T) {
	for _, c := range []struct{ a, b bool }{
		{true, true}, {true, false}, {false, true}, {false, false},
	} {
		want := c.a && c.b
		check := func(how string, k connPair) {
			t.Helper()
			if a, b := selective(t, k.a.qp), selective(t, k.b.qp); a != want || b != want {
				t.Errorf("%s, supported %v and %v: used %v and %v", how, c.a, c.b, a, b)
			}
			k.write(t)
		}
		k := featurePair(t, c.a, c.b)
		connect(t, k.a.qp, k.b.qp)
		check("Connect", k)

		k = featurePair(t, c.a, c.b)
		request, reply := k.dialWith(t, []byte("ask"), []byte("answer"))
		check("Dial", k)
		if !bytes.Equal(request, append([]byte("ask"), make([]byte, 53)...)) ||
			!bytes.Equal(reply, append([]byte("answer"), make([]byte, 190)...)) {
			t.Errorf("private data % x and % x, want only the application's", request, reply)
		}
	}
}

// Private data that fills its field leaves no space for the offer or its acceptance. It arrives
// unchanged, and the connection uses go-back-N on both sides.
func TestSelectiveRepeatWithFullPrivateData(t *testing.T) {
	full := bytes.Repeat([]byte{0xab}, 196)
	for _, c := range []struct {
		request, reply int
		want           bool
	}{{48, 188, true}, {49, 0, false}, {56, 0, false}, {0, 189, false}, {0, 196, false}} {
		k := featurePair(t, true, true)
		request, reply := k.dialWith(t, full[:c.request], full[:c.reply])
		if a, b := selective(t, k.a.qp), selective(t, k.b.qp); a != c.want || b != c.want {
			t.Errorf("%d and %d bytes: selective repeat %v and %v, want %v", c.request, c.reply,
				a, b, c.want)
		}
		if !bytes.Equal(bytes.TrimRight(request, "\x00"), full[:c.request]) ||
			!bytes.Equal(bytes.TrimRight(reply, "\x00"), full[:c.reply]) {
			t.Errorf("%d and %d bytes: got % x and % x", c.request, c.reply, request, reply)
		}
		k.write(t)
	}
}

// QPConfig.GoBackN refuses selective repeat for one QP, and UC and UD QPs never offer it. A peer
// that does not know features is a peer without any.
func TestSelectiveRepeatPerQP(t *testing.T) {
	k := featurePair(t, true, true)
	create := func(c QPConfig) *QP {
		t.Helper()
		c.SendCQ = k.a.cq
		q, err := k.a.CreateQP(k.a.pd, c)
		must(t, err)
		return q
	}
	if f := create(QPConfig{}).Local().Features; f != SelectiveRepeat {
		t.Errorf("Local().Features = %#x, want SelectiveRepeat", f)
	}
	for _, c := range []QPConfig{{GoBackN: true}, {Type: UC}, {Type: UD}} {
		if f := create(c).Local().Features; f != 0 {
			t.Errorf("%+v: Local().Features = %#x, want 0", c, f)
		}
	}
	q := create(QPConfig{GoBackN: true})
	connect(t, q, k.b.qp)
	if selective(t, q) || selective(t, k.b.qp) {
		t.Error("a connection uses selective repeat although one QP refuses it")
	}

	old := k.a.qp.Local()
	old.Features = 0
	q, err := k.b.CreateQP(k.b.pd, QPConfig{SendCQ: k.b.cq})
	must(t, err)
	must(t, q.Connect(within(t), old, ConnectOptions{}))
	if selective(t, q) {
		t.Error("a connection to a peer without features uses selective repeat")
	}
	// Connecting again negotiates again.
	must(t, q.Modify(&Attr{State: StateReset}, AttrState))
	must(t, q.Connect(within(t), k.a.qp.Local(), ConnectOptions{}))
	if !selective(t, q) {
		t.Error("the second connection does not use selective repeat")
	}
}

// An Endpoint without features has the JSON of versions that did not know them, which can be read.
func TestEndpointFeaturesJSON(t *testing.T) {
	e := Endpoint{QPN: 17, PSN: 3, GID: GIDFromAddr(netip.MustParseAddr("10.0.0.1")),
		MTU: 1024, PKey: DefaultPKey}
	b, err := json.Marshal(e)
	must(t, err)
	if strings.Contains(string(b), "features") {
		t.Errorf("JSON without features: %s", b)
	}
	var got Endpoint
	must(t, json.Unmarshal(b, &got))
	if got != e {
		t.Errorf("read %+v, want %+v", got, e)
	}
	e.Features = SelectiveRepeat
	b, err = json.Marshal(e)
	must(t, err)
	if !strings.Contains(string(b), `"features":["selective-repeat"]`) {
		t.Errorf("JSON with selective repeat: %s", b)
	}
	must(t, json.Unmarshal(b, &got))
	if got != e {
		t.Errorf("read %+v, want %+v", got, e)
	}
}

// If only one side uses selective repeat, against the rules, the connection still delivers
// everything.
func TestSelectiveRepeatOnOneSide(t *testing.T) {
	link := newLink(t, loopback.Config{Seed: 1, Plan: loopback.Plan{Loss: 0.05}})
	a, b := newEnd(t, newDevice(t, link, 0), rigConfig{}), newEnd(t, newDevice(t, link, 1), rigConfig{})
	remote := a.qp.Local()
	must(t, a.qp.Connect(within(t), b.qp.Local(), ConnectOptions{}))
	remote.Features = 0
	must(t, b.qp.Connect(within(t), remote, ConnectOptions{}))
	if !selective(t, a.qp) || selective(t, b.qp) {
		t.Fatal("both sides agree")
	}
	const n, size = 20, 32 << 10
	for i := range n {
		for _, s := range [][2]*end{{a, b}, {b, a}} {
			want := fill(s[0].mr.Bytes()[:size], uint64(i))
			must(t, s[0].qp.PostSend(SendWR{Op: OpWrite, Flags: Signaled,
				SGEs:       []SGE{s[0].mr.SGE(0, size)},
				RemoteAddr: s[1].mr.Addr() + size, RKey: s[1].mr.RKey()}))
			pollOK(t, 0, WCWrite, s[0].cq)
			if !bytes.Equal(s[1].mr.Bytes()[size:], want) {
				t.Fatalf("WRITE %d arrived with other data", i)
			}
		}
	}
}
