package cm

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"testing"
)

// negotiate sends a request of a to b and answers it. change edits the REQ and the REP on their
// way. It returns what each side learns.
func negotiate(t *testing.T, offer, limit Features, request, reply []byte,
	change func(*MAD)) (req, rep Event, a AcceptParams) {
	t.Helper()
	x, y := pair(t)
	p := x.params(y)
	p.Features, p.PrivateData = offer, request
	id, err := x.m.Connect(0, p)
	x.must(err)
	mads := x.sends(AttrREQ)
	change(&mads[0])
	y.hears(0, x, mads...)
	req = y.event(EventConnectRequest)
	a, ok := req.Request.Negotiate(Limits{MTU: 4096, Features: limit, PrivateLen: len(reply)})
	if !ok {
		t.Fatal("the path MTU is refused")
	}
	a.QPN, a.PSN, a.PrivateData = 0x222, 0x654321, reply
	y.must(y.m.Accept(0, req.ID, &a))
	mads = y.sends(AttrREP)
	change(&mads[0])
	x.hears(0, y, mads...)
	rep = x.event(EventConnectResponse)
	if got := p.ActiveQP(rep.Response).Features; got != rep.Response.Features {
		t.Errorf("ActiveQP(): features %#x, want %#x", got, rep.Response.Features)
	}
	if got := req.Request.PassiveQP(&a).Features; got != a.Features {
		t.Errorf("PassiveQP(): features %#x, want %#x", got, a.Features)
	}
	x.inState(id, StateREPRcvd)
	return req, rep, a
}

func unchanged(*MAD) {}

// padded returns data with zeros up to n bytes.
func padded(data []byte, n int) []byte {
	return append(bytes.Clone(data), make([]byte, n-len(data))...)
}

// Both sides use a feature if both support it and the private data of both leaves space for the
// trailer. The users never see the trailer.
func TestFeatures(t *testing.T) {
	const reqLen = REQPrivateLen - IPCMHeaderLen
	full := bytes.Repeat([]byte{0xee}, REPPrivateLen)
	for _, c := range []struct {
		name          string
		offer, limit  Features
		request, data []byte
		offered, used Features
	}{
		{"both", 1, 1, nil, nil, 1, 1},
		{"only the active side", 1, 0, []byte("a"), []byte("b"), 1, 0},
		{"only the passive side", 0, 1, []byte("a"), []byte("b"), 0, 0},
		{"neither", 0, 0, nil, nil, 0, 0},
		{"unknown features", 0xff, 1, nil, nil, 1, 1},
		{"longest data", 1, 1, full[:reqLen-8], full[:REPPrivateLen-8], 1, 1},
		{"full request", 1, 1, full[:reqLen-7], nil, 0, 0},
		{"full reply", 1, 1, nil, full[:REPPrivateLen-7], 1, 0},
		{"full data", 1, 1, full[:reqLen], full, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			req, rep, a := negotiate(t, c.offer, c.limit, c.request, c.data, unchanged)
			if got := req.Request.Features; got != c.offered {
				t.Errorf("the request offers %#x, want %#x", got, c.offered)
			}
			if a.Features != c.used || rep.Response.Features != c.used {
				t.Errorf("the passive side uses %#x, the active side %#x, want %#x", a.Features,
					rep.Response.Features, c.used)
			}
			if want := padded(c.request, reqLen); !bytes.Equal(req.PrivateData, want) {
				t.Errorf("request: private data % x, want % x", req.PrivateData, want)
			}
			if want := padded(c.data, REPPrivateLen); !bytes.Equal(rep.PrivateData, want) {
				t.Errorf("reply: private data % x, want % x", rep.PrivateData, want)
			}
		})
	}
}

// A trailer counts only in the message that it was made for.
func TestForeignTrailers(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var offer [trailerLen]byte
	private := func(m *MAD) []byte {
		if m.Attribute() == AttrREQ {
			return m[MADLen-REQPrivateLen:]
		}
		return m[24+36:][:REPPrivateLen]
	}
	for name, c := range map[string]struct {
		change        func(*MAD)
		offered, used Features
	}{
		// A proxy passes the private data of both messages on, between two other QPs.
		"other QPN": {func(m *MAD) {
			if m.Attribute() == AttrREQ {
				m[24+34] ^= 1
			} else {
				m[24+14] ^= 1
			}
		}, 0, 0},
		"other PSN of the REP": {func(m *MAD) {
			if m.Attribute() == AttrREP {
				m[24+22] ^= 1
			}
		}, 1, 0},
		// The peer echoes the private data of the request, at the start or at the end of the field.
		"echo": {func(m *MAD) {
			p := private(m)
			if m.Attribute() == AttrREQ {
				offer = [trailerLen]byte(p[len(p)-trailerLen:])
				return
			}
			clear(p)
			copy(p[48:], offer[:])
			copy(p[len(p)-trailerLen:], offer[:])
		}, 1, 0},
		"random bytes": {func(m *MAD) {
			p := private(m)
			for i := range trailerLen {
				p[len(p)-trailerLen+i] = byte(rng.Uint32())
			}
		}, 0, 0},
		"bit error in the check": {func(m *MAD) { p := private(m); p[len(p)-1] ^= 0x80 }, 0, 0},
		"peer without features": {func(m *MAD) {
			p := private(m)
			clear(p[len(p)-trailerLen:])
		}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			req, rep, _ := negotiate(t, 1, 1, []byte("a"), []byte("b"), c.change)
			if req.Request.Features != c.offered || rep.Response.Features != c.used {
				t.Errorf("features %#x in the request and %#x in the reply, want %#x and %#x",
					req.Request.Features, rep.Response.Features, c.offered, c.used)
			}
		})
	}
}

// A reply cannot accept more than was offered, and its private data must leave space for the
// trailer.
func TestAcceptFeatures(t *testing.T) {
	x, y := pair(t)
	x.connect(0, y)
	y.hears(0, x, x.sends(AttrREQ)...)
	id := y.event(EventConnectRequest).ID
	a := acceptance
	a.Features = SelectiveRepeat
	if err := y.m.Accept(0, id, &a); err == nil {
		t.Error("Accept() = nil for features that were not offered")
	}
	y.must(y.m.Accept(0, id, &acceptance))

	x, y = pair(t)
	p := x.params(y)
	p.Features = SelectiveRepeat
	_, err := x.m.Connect(0, p)
	x.must(err)
	y.hears(0, x, x.sends(AttrREQ)...)
	id = y.event(EventConnectRequest).ID
	a.PrivateData = make([]byte, REPPrivateLen-trailerLen+1)
	if err := y.m.Accept(0, id, &a); err == nil {
		t.Error("Accept() = nil for private data that leaves no space for the trailer")
	}
	a.PrivateData = a.PrivateData[1:]
	y.must(y.m.Accept(0, id, &a))
}

// A request for UC carries no offer.
func TestFeaturesUC(t *testing.T) {
	x, y := pair(t)
	p := x.params(y)
	p.Features, p.Transport = SelectiveRepeat, UC
	_, err := x.m.Connect(0, p)
	x.must(err)
	y.hears(0, x, x.sends(AttrREQ)...)
	e := y.event(EventConnectRequest)
	if e.Request.Features != 0 || !bytes.Equal(e.PrivateData, padded(p.PrivateData, 56)) {
		t.Errorf("features %#x, private data % x; want none", e.Request.Features, e.PrivateData)
	}
}

func TestFeaturesJSON(t *testing.T) {
	for _, c := range []struct {
		text string
		want Features
	}{
		{`[]`, 0}, {`null`, 0}, {`["selective-repeat"]`, SelectiveRepeat},
		{`["later","selective-repeat","selective-repeat"]`, SelectiveRepeat},
	} {
		f := Features(0xff)
		if err := json.Unmarshal([]byte(c.text), &f); err != nil || f != c.want {
			t.Errorf("Unmarshal(%s) = %#x, %v; want %#x", c.text, f, err, c.want)
		}
	}
	for _, text := range []string{`1`, `"selective-repeat"`, `[1]`, `{}`} {
		if err := json.Unmarshal([]byte(text), new(Features)); err == nil {
			t.Errorf("Unmarshal(%s) = nil, want an error", text)
		}
	}
	for f, want := range map[Features]string{
		0: `[]`, SelectiveRepeat: `["selective-repeat"]`, 0xff: `["selective-repeat"]`,
	} {
		if b, err := json.Marshal(f); err != nil || string(b) != want {
			t.Errorf("Marshal(%#x) = %s, %v; want %s", uint8(f), b, err, want)
		}
	}
}
