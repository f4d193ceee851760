//go:build linux

package main

import (
	"encoding/json"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gorxe/gorxe/interop/guest/wire"
)

// controller is the other side of an agent that runs commands on this host.
type controller struct {
	t    *testing.T
	conn net.Conn
}

func newController(t *testing.T) *controller {
	t.Helper()
	mine, its := net.Pipe()
	t.Cleanup(func() { mine.Close() })
	go func() { _ = newAgent(its).serve() }()
	c := &controller{t, mine}
	_ = mine.SetDeadline(time.Now().Add(30 * time.Second))
	if f, err := wire.Read(mine); err != nil || f.Kind != wire.Hello {
		t.Fatalf("instead of Hello: %v %v", f.Kind, err)
	}
	return c
}

func (c *controller) send(k wire.Kind, process uint32, payload []byte) {
	c.t.Helper()
	if err := wire.Write(c.conn,
		wire.Frame{Kind: k, Process: process, Payload: payload}); err != nil {
		c.t.Fatal(err)
	}
}

func (c *controller) run(process uint32, argv ...string) {
	c.t.Helper()
	if err := wire.WriteJSON(c.conn, wire.Run, process, wire.Command{Argv: argv}); err != nil {
		c.t.Fatal(err)
	}
}

// end reads frames until a process has ended and returns its output by kind.
func (c *controller) end(process uint32) (out map[wire.Kind]string, o wire.Outcome) {
	c.t.Helper()
	out = map[wire.Kind]string{}
	for {
		f, err := wire.Read(c.conn)
		if err != nil {
			c.t.Fatal(err)
		}
		if f.Process != process {
			continue
		}
		if f.Kind == wire.Exit {
			if err := json.Unmarshal(f.Payload, &o); err != nil {
				c.t.Fatal(err)
			}
			return out, o
		}
		out[f.Kind] += string(f.Payload)
	}
}

func TestOutputAndStatus(t *testing.T) {
	c := newController(t)
	c.run(1, "sh", "-c", "echo to stdout; echo to stderr >&2; exit 3")
	out, o := c.end(1)
	if out[wire.Stdout] != "to stdout\n" || out[wire.Stderr] != "to stderr\n" || o.Status != 3 {
		t.Errorf("%q, %+v", out, o)
	}
}

func TestLongOutputIsComplete(t *testing.T) {
	c := newController(t)
	c.run(1, "sh", "-c", "head -c 300000 /dev/zero")
	if out, o := c.end(1); len(out[wire.Stdout]) != 300000 || o.Status != 0 {
		t.Errorf("%d bytes, %+v", len(out[wire.Stdout]), o)
	}
}

func TestInputReachesTheRightProcess(t *testing.T) {
	c := newController(t)
	c.run(1, "cat")
	c.run(2, "cat")
	c.send(wire.Stdin, 2, []byte("for two"))
	c.send(wire.Stdin, 1, []byte("for one"))
	c.send(wire.StdinEOF, 2, nil)
	if out, _ := c.end(2); out[wire.Stdout] != "for two" {
		t.Errorf("%q", out)
	}
	c.send(wire.StdinEOF, 1, nil)
	if _, o := c.end(1); o.Status != 0 {
		t.Errorf("%+v", o)
	}
}

func TestSignalKillsChildrenToo(t *testing.T) {
	c := newController(t)
	c.run(1, "sh", "-c", "sleep 1000 & echo started; wait")
	if f, err := wire.Read(c.conn); err != nil || string(f.Payload) != "started\n" {
		t.Fatalf("%q, %v", f.Payload, err)
	}
	start := time.Now()
	c.send(wire.Signal, 1, []byte{byte(syscall.SIGKILL)})
	if _, o := c.end(1); o.Status != 128+int(syscall.SIGKILL) ||
		time.Since(start) > 10*time.Second {
		t.Errorf("%+v after %v", o, time.Since(start))
	}
}

// A command's background process with open output does not delay the command's end.
func TestBackgroundDoesNotDelayExit(t *testing.T) {
	c := newController(t)
	start := time.Now()
	c.run(1, "sh", "-c", "sleep 5 & echo done")
	if out, _ := c.end(1); out[wire.Stdout] != "done\n" || time.Since(start) > 4*time.Second {
		t.Errorf("%q after %v", out, time.Since(start))
	}
}

func TestStartFails(t *testing.T) {
	c := newController(t)
	for i, argv := range [][]string{{"/nowhere/at/all"}, {}} {
		c.run(uint32(i), argv...)
		if _, o := c.end(uint32(i)); o.Status != 127 || o.Error == "" {
			t.Errorf("%q: %+v", argv, o)
		}
	}
	c.send(wire.Run, 9, []byte("no JSON"))
	if _, o := c.end(9); o.Status != 127 || !strings.Contains(o.Error, "invalid") {
		t.Errorf("%+v", o)
	}
	c.send(wire.Stdin, 77, []byte("for nobody")) // must not end the agent
	c.run(10, "true")
	if _, o := c.end(10); o.Status != 0 {
		t.Errorf("%+v", o)
	}
}
