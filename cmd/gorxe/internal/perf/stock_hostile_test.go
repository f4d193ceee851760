package perf

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/exchange"
	"github.com/gorxe/gorxe/internal/perftest"
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
	r := newRigOf(t, roce.Auto, roce.WithExpert(roce.Expert{MaxQP: maxTestQPs}))
	r.free = r.room(t)
	for _, c := range []struct {
		name, says string
		want       error
		text       string
	}{
		{"nothing", "", exchange.ErrGone, ""},
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

// A stranger who stops in the middle of what perftest says first does not keep a client from a server for one client, whichever
// exchange it speaks.
func TestStrangerKeepsNobodyOut(t *testing.T) {
	r := newRig(t, roce.Auto)
	r.serveOne(t)
	for _, half := range []string{"6", "6.06", "{"} {
		nc, err := net.Dial("tcp", r.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		if _, err := io.WriteString(nc, half); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(50 * time.Millisecond) // so that the server has met them
	p, runs, err := parse(t, []string{"write-bw", "-n", "100", "-s", "1k"})
	if err != nil {
		t.Fatal(err)
	}
	r.host.Want, r.host.Size = p, p.Bytes
	r.measureStock(t, p, stockOptions{}, runs[0])
	// The place comes free after the client has its result.
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		pr, err := dialPair(t, r, p)
		if err == nil {
			defer pr.close(nil)
			_, err = pr.once(t.Context(), runs[0])
		}
		if err == nil {
			return
		}
		if !strings.Contains(err.Error(), "busy with another client") || time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// Of clients that come to a server for one client side by side, as they can by rdma_cm, the first to begin has it; that another one is
// turned away does not end the server.
func TestOneTest(t *testing.T) {
	ctx, end := context.WithCancelCause(t.Context())
	p, _, err := parse(t, []string{"write-bw"})
	if err != nil {
		t.Fatal(err)
	}
	read, _, err := parse(t, []string{"read-bw"})
	if err != nil {
		t.Fatal(err)
	}
	o := &once{want: p, out: &printer{w: io.Discard, json: true}, end: end}
	if err := o.begin(read, nil, nil); err == nil || errors.Is(err, errTaken) {
		t.Errorf("a client of another test: %v", err)
	}
	if err := o.begin(p, nil, nil); err != nil {
		t.Errorf("a client: %v", err)
	}
	if err := o.begin(p, nil, nil); !errors.Is(err, errTaken) || ctx.Err() != nil {
		t.Errorf("a second client: %v; and the server: %v", err, context.Cause(ctx))
	}
	if o.over(nil); !errors.Is(context.Cause(ctx), errServed) {
		t.Errorf("the server ended by %v", context.Cause(ctx))
	}
}

// serveOne makes r's clients meet a server that has one place.
func (r *rig) serveOne(t *testing.T) {
	t.Helper()
	ln, err := exchange.Listen(t.Context(), "", 0)
	if err != nil {
		t.Fatal(err)
	}
	r.addr = fmt.Sprintf("127.0.0.1:%d", ln.Addr().(*net.TCPAddr).Port)
	srv := &exchange.Server{Sessions: 1, Services: map[string]exchange.Handler{Service: r.host.Serve}, Detect: r.host.Greet}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(ctx, ln) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// A server that has its client says so to another one in gorxe's words, before either has said which exchange it speaks.
func TestBusyServer(t *testing.T) {
	r := newRig(t, roce.Auto)
	p, _, err := parse(t, []string{"write-bw"})
	if err != nil {
		t.Fatal(err)
	}
	for range exchange.DefaultPerPeer {
		c, err := dial(t.Context(), r.client, r.flags, r.addr, p, stockOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer c.close(nil)
	}
	_, err = dial(t.Context(), r.client, r.flags, r.addr, p, stockOptions{})
	if !errors.Is(err, exchange.ErrRemote) || !strings.Contains(err.Error(), "busy") {
		t.Errorf("got %v, want to hear that the server is busy", err)
	}
}
