package service

import (
	"bytes"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// maxLines is the number of messages of an input. The service waits a second for a member that does
// not read many responses.
const maxLines = 64

// FuzzMessages sends the lines of the input to a service, each as a message, the even ones with a
// descriptor. The service must continue to serve another member.
func FuzzMessages(f *testing.F) {
	for _, text := range []string{
		`{"op":"socket","id":1,"addr":"127.0.0.1"}`, `{"op":"close","addr":"127.0.0.1"}`,
		`{"op":"resolve","id":2,"src":"127.0.0.1","dst":"::1"}`, `{"op":"mixed"}`,
		`{"op":"listen","id":3,"service":5}` + "\n" +
			`{"op":"unlisten","id":4,"service":5}`,
		`{"op":"will","key":7,"frame":"AAAA"}` + "\n" + `{"op":"will","key":7}`,
		`{"op":"report","id":7,"size":5,"frame":"AAAA"}`, `{"op":"status","id":8}`, `{"op":"leave"}`,
		`{"op":"join","id":9,"version":2}`, `{"op":"socket","id":1,"addr":"239.0.0.1"}`,
	} {
		f.Add([]byte(text), true)
		f.Add([]byte(text), false)
	}
	s := start(f, Options{})
	good := rawJoin(f, s)
	addr := s.port.Addrs()[0].Addr()
	f.Fuzz(func(t *testing.T, data []byte, joins bool) {
		conn, err := dial(s.Path())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		w := newWire(conn)
		if joins {
			_ = w.send(&message{Op: opJoin, ID: 1, Version: version}, -1)
		}
		for i, line := range bytes.Split(data, []byte("\n")) {
			if len(line) == 0 {
				continue
			}
			if i == maxLines {
				break
			}
			line = bytes.ReplaceAll(line, []byte("127.0.0.1"), []byte(addr.String()))
			var oob []byte
			if i%2 == 0 {
				oob = unix.UnixRights(0)
			}
			if _, _, err := conn.WriteMsgUnix(line, oob, nil); err != nil {
				break
			}
		}
		if _, err := good.Resolve(t.Context(), addr, addr); err != nil {
			t.Fatal(err)
		}
	})
}

func FuzzRoute(f *testing.F) {
	f.Add(make([]byte, 256))
	f.Add([]byte{1, 7, 2, 3})
	f.Fuzz(func(t *testing.T, b []byte) {
		l := listeners{5: {{slot: 3}}}
		if slot := route(b, netip.Addr{}, l); slot != 0 && len(b) != 256 {
			t.Errorf("route() = %d for %d bytes", slot, len(b))
		}
	})
}
