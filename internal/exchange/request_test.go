package exchange

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gorxe/gorxe/roce"
)

func featureQP(f roce.Features) QP {
	q := goodQP()
	q.Endpoint.Features = f
	return q
}

// A server sends its features to clients that have some, and only to them.
func TestRequestWithFeatures(t *testing.T) {
	requested := make(chan []QP, 1)
	s := &Server{
		CheckGID: func(context.Context, netip.Addr, roce.GID) error { return nil },
		Services: map[string]Handler{
			"ping": func(ctx context.Context, c *Conn, m *Message) error {
				requested <- m.QPs
				return c.Send(ctx,
					&Message{Kind: KindAccept, QPs: []QP{featureQP(roce.SelectiveRepeat)}})
			},
		}}
	addr := server(t, s)
	for _, f := range []roce.Features{0, roce.SelectiveRepeat} {
		c, err := Dial(t.Context(), addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		got, err := c.Request(t.Context(), "ping", 1, []QP{featureQP(f)})
		if err != nil || len(got) != 1 || got[0].Endpoint.Features != f {
			t.Errorf("features %#x: Request() = %+v, %v", f, got, err)
		}
		if q := <-requested; q[0].Endpoint.Features != f {
			t.Errorf("features %#x: the server got %#x", f, q[0].Endpoint.Features)
		}
	}
}

// oldServer answers requests as a version of gorxe that does not know features.
type oldServer struct {
	requests atomic.Int32
	field    string // that it does not know
}

func (s *oldServer) serve(nc net.Conn) {
	defer nc.Close()
	line, err := bufio.NewReader(nc).ReadBytes('\n')
	if err != nil {
		return
	}
	s.requests.Add(1)
	m := &Message{Gorxe: Version, Kind: KindAccept, QPs: []QP{goodQP()}}
	if bytes.Contains(line, []byte(s.field)) {
		m.Kind = KindError
		m.Error = fmt.Sprintf("%v: it sent %q... (json: unknown field %s)", ErrGarbage, line[:60],
			s.field)
	}
	b, _ := json.Marshal(m)
	_, _ = nc.Write(append(b, '\n'))
}

func (s *oldServer) start(t *testing.T) (addr string) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for nc, err := ln.Accept(); err == nil; nc, err = ln.Accept() {
			s.serve(nc)
		}
	}()
	return ln.Addr().String()
}

// A client repeats its request without features to a server that does not know them.
func TestRequestToOldServer(t *testing.T) {
	for _, c := range []struct {
		features roce.Features
		field    string
		requests int32
		fails    bool
	}{
		{roce.SelectiveRepeat, `"features"`, 2, false},
		{0, `"features"`, 1, false},
		{roce.SelectiveRepeat, `"buffer"`, 1, true}, // another reason
	} {
		s := &oldServer{field: c.field}
		conn, err := Dial(t.Context(), s.start(t))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		sent := []QP{featureQP(c.features), featureQP(0)}
		before := slices.Clone(sent)
		got, err := conn.Request(t.Context(), "ping", 1, sent)
		if n := s.requests.Load(); n != c.requests || (err != nil) != c.fails {
			t.Errorf("%+v: %d requests, error %v", c, n, err)
		}
		if !c.fails && (len(got) != 1 || got[0] != goodQP()) {
			t.Errorf("%+v: Request() = %+v", c, got)
		}
		if c.fails && !strings.Contains(fmt.Sprint(err), c.field) {
			t.Errorf("%+v: the error %v does not name the field", c, err)
		}
		if !slices.Equal(sent, before) {
			t.Errorf("%+v: Request changed the caller's queue pairs", c)
		}
	}
}
