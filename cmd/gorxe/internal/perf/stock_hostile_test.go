package perf

import (
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/gorxe/gorxe/cmd/gorxe/internal/oob"
	"github.com/gorxe/gorxe/cmd/gorxe/internal/perftest"
	"github.com/gorxe/gorxe/roce"
)

// What a stranger says on TCP port 18515, up to the point where a queue pair exists: the server's user hears what it was, and
// nothing is left of it. (Package perftest tries many more; here it is about what they cost.)
func TestHostileTCP(t *testing.T) {
	const (
		hello = "6.06\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
		setup = hello + "\x00\x00\x10\x00\x00\x00\x00@5\x00"
		key   = "0000:0001:00004a:df2588:00002730:00005596a624e000:00:00:00:00:00:00:00:00:00:00:ff:ff:0a:4d:00:01:00000000:\x00"
		other = "0000:0001:00004b:df2588:00002730:00005596a624e000:00:00:00:00:00:00:00:00:00:00:ff:ff:0a:4d:00:01:00000000:\x00"
	)
	r := newRigOf(t, roce.Auto, roce.WithMaxQP(maxTestQPs))
	r.free = r.room(t)
	for _, c := range []struct {
		name, says string
		want       error
		text       string
	}{
		{"nothing", "", oob.ErrGone, ""},
		{"HTTP", "GET / HTTP/1.1\r\n\r\n", perftest.ErrGarbage, `"GET / HTTP/1.1`},
		{"a version of long ago", "5.33" + hello[4:], perftest.ErrVersion, `"5.33"`},
		{"a version of the far future, with a step of its own", "9.99" + hello[4:] + "\x00\x00\x10\x00\x00\x00\x00@5\x00{\"tests\"", perftest.ErrGarbage, `"{`},
		{"a page of 1 GiB", hello + "\x40\x00\x00\x00", perftest.ErrProtocol, "1073741824"},
		{"garbage for a key", setup + "hello, this is not a key", perftest.ErrGarbage, "hello, this"},
		{"one key and half", setup + key + key[:50], perftest.ErrProtocol, "0000:0001"},
		{"two queue pairs, and gone", setup + key + other, errNoTest, ""},
		{"garbage after the keys", setup + key + other + key + "\xff\xff", perftest.ErrGarbage, `\xff\xff`},
		{"a barrier, and gone", setup + key + key + key + key, nil, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			nc, err := net.Dial("tcp", r.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			_ = nc.SetDeadline(time.Now().Add(10 * time.Second))
			if _, err := io.WriteString(nc, c.says); err != nil {
				t.Fatal(err)
			}
			if err := nc.(*net.TCPConn).CloseWrite(); err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, nc) // until it hangs up
			if c.want == nil {
				r.noneLeft(t)
				return
			}
			select {
			case err := <-r.failed:
				if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
					t.Errorf("the server says %v, want %v with %q", err, c.want, c.text)
				}
			case <-time.After(10 * time.Second):
				t.Error("the server says nothing")
			}
			r.noneLeft(t)
		})
	}
}

// A server that has its client says so to another one in gorxe's words, before either has said which exchange it speaks.
func TestBusyServer(t *testing.T) {
	r := newRig(t, roce.Auto)
	p, _, err := parse(t, []string{"write-bw"})
	if err != nil {
		t.Fatal(err)
	}
	for range oob.DefaultPerPeer {
		c, err := dial(t.Context(), r.client, r.flags, r.addr, p, stockOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer c.close(nil)
	}
	_, err = dial(t.Context(), r.client, r.flags, r.addr, p, stockOptions{})
	if !errors.Is(err, oob.ErrRemote) || !strings.Contains(err.Error(), "busy") {
		t.Errorf("got %v, want to hear that the server is busy", err)
	}
}
