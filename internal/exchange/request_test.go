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

// newQP returns a queue pair with features and a class.
func newQP(f roce.Features, class uint8) QP {
	q := goodQP()
	q.Endpoint.Features, q.Endpoint.Class = f, class
	return q
}

// A server sends features and classes to clients that have some, and only to them.
func TestRequestWithNewFields(t *testing.T) {
	requested := make(chan []QP, 1)
	s := &Server{
		CheckGID: func(context.Context, netip.Addr, roce.GID) error { return nil },
		Services: map[string]Handler{
			"ping": func(ctx context.Context, c *Conn, m *Message) error {
				requested <- m.QPs
				return c.Send(ctx,
					&Message{Kind: KindAccept, QPs: []QP{newQP(roce.SelectiveRepeat, 7)}})
			},
		}}
	addr := server(t, s)
	for _, sent := range []QP{newQP(0, 0), newQP(roce.SelectiveRepeat, 0), newQP(0, 7),
		newQP(roce.SelectiveRepeat, 7)} {
		c, err := Dial(t.Context(), addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		got, err := c.Request(t.Context(), "ping", 1, []QP{sent})
		if err != nil || len(got) != 1 || got[0] != sent {
			t.Errorf("Request(%+v) = %+v, %v", sent, got, err)
		}
		if q := <-requested; q[0] != sent {
			t.Errorf("the server got %+v, want %+v", q[0], sent)
		}
	}
}

// oldServer answers requests as a version of gorxe that does not know some fields.
type oldServer struct {
	requests atomic.Int32
	unknown  []string // the fields that it does not know, in quotes
}

func (s *oldServer) serve(nc net.Conn) {
	defer nc.Close()
	line, err := bufio.NewReader(nc).ReadBytes('\n')
	if err != nil {
		return
	}
	s.requests.Add(1)
	m := &Message{Gorxe: Version, Kind: KindAccept, QPs: []QP{goodQP()}}
	for _, field := range s.unknown {
		if bytes.Contains(line, []byte(field)) {
			m.Kind = KindError
			m.Error = fmt.Sprintf("%v: it sent %q... (json: unknown field %s)", ErrGarbage,
				line[:60], field)
			break
		}
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

// A client repeats its request without the fields that an old server does not know.
func TestRequestToOldServer(t *testing.T) {
	features, class := `"features"`, `"class"`
	for _, c := range []struct {
		qp       QP
		unknown  []string
		requests int32
		fails    bool
	}{
		{newQP(roce.SelectiveRepeat, 0), []string{features, class}, 2, false},
		{newQP(0, 0), []string{features, class}, 1, false},
		{newQP(0, 5), []string{class}, 2, false},
		{newQP(roce.SelectiveRepeat, 5), []string{class}, 2, false},
		{newQP(roce.SelectiveRepeat, 5), []string{features, class}, 3, false},
		{newQP(roce.SelectiveRepeat, 5), []string{class, features}, 3, false},
		{newQP(roce.SelectiveRepeat, 5), []string{`"buffer"`}, 1, true}, // another reason
	} {
		s := &oldServer{unknown: c.unknown}
		conn, err := Dial(t.Context(), s.start(t))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		sent := []QP{c.qp, newQP(0, 0)}
		before := slices.Clone(sent)
		got, err := conn.Request(t.Context(), "ping", 1, sent)
		if n := s.requests.Load(); n != c.requests || (err != nil) != c.fails {
			t.Errorf("%+v: %d requests, error %v", c, n, err)
		}
		if !c.fails && (len(got) != 1 || got[0] != goodQP()) {
			t.Errorf("%+v: Request() = %+v", c, got)
		}
		if c.fails && !strings.Contains(fmt.Sprint(err), c.unknown[0]) {
			t.Errorf("%+v: the error %v does not name the field", c, err)
		}
		if !slices.Equal(sent, before) {
			t.Errorf("%+v: Request changed the caller's queue pairs", c)
		}
	}
}
