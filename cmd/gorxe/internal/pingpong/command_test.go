package pingpong

import (
	"bytes"
	"encoding/json"
	"net"
	"strings"
	"testing"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/internal/pingpong"
	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/roce"
)

// The client prints JSON, the server the addresses and two lines.
func TestReport(t *testing.T) {
	manual := []roce.Option{roce.WithProgress(roce.Manual)}
	bed, err := testbed.New(testbed.Config{Options: manual})
	if err != nil {
		t.Fatal(err)
	}
	defer bed.Close()
	l, err := pingpong.Listen(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	f := flags{device: device.Flags{GIDIndex: device.AnyGID}, mtu: cli.MTU{N: 1024},
		iters: cli.Int{N: 200}, depth: cli.Int{N: 20}}
	c, err := f.config("rc")
	if err != nil {
		t.Fatal(err)
	}
	var clientOut, serverOut bytes.Buffer
	served := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err == nil {
			err = (&session{Config: c, dev: bed.Dev[1], out: &serverOut}).run(t.Context(), conn)
		}
		served <- err
	}()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	client := &session{Config: c, dev: bed.Dev[0], client: true, json: true, out: &clientOut}
	if err := client.run(t.Context(), conn); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
	var r Result
	if err := json.Unmarshal(clientOut.Bytes(), &r); err != nil || r.Kind != "rc" ||
		r.Role != "client" || r.Iters != 200 || r.Seconds <= 0 {
		t.Errorf("the client printed %q: %v", clientOut.String(), err)
	}
	for _, want := range []string{"local address:  LID 0x0000, QPN 0x", "200 iters in "} {
		if !strings.Contains(serverOut.String(), want) {
			t.Errorf("the server printed %q, want %q in it", serverOut.String(), want)
		}
	}
}

func TestUsage(t *testing.T) {
	for _, c := range []struct {
		f    flags
		kind string
	}{
		{flags{}, "xrc"},
		{flags{qps: cli.Int{N: 2}}, "rc"},
		{flags{qps: cli.Int{N: 30}, depth: cli.Int{N: 20}}, "srq"},
		{flags{check: true, depth: cli.Int{N: 500}}, "srq"},
	} {
		if _, err := c.f.config(c.kind); cli.Status(err) != cli.StatusUsage {
			t.Errorf("config(%q) = %v, want a usage error", c.kind, err)
		}
	}
}
