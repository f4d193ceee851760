package ps

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/gorxe/gorxe/cmd/gorxe/internal/usagetest"
	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/service"
	"github.com/gorxe/gorxe/internal/status"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/udp"
)

// example is the state of a service with two programs, of which one does not answer.
func example() *status.Snapshot {
	at := time.Unix(1e9, 0)
	qp := status.QP{Type: "RC", State: "RTS", RemoteQPN: 0x20009, Rates: &status.QPRates{Requested: 1500},
		RTTs: &status.Histogram{P50: 8192, P99: 65536},
		QPStats: roce.QPStats{QPN: 0x10005, Remote: roce.GIDFromAddr(netip.MustParseAddr("10.0.0.2")),
			RTT: 12345, Window: 64, Requested: 7, Retransmits: 3, SentBytes: 5 << 20, RcvdBytes: 100,
			Metered: true}}
	busy := qp
	busy.QPN, busy.Rates, busy.RTT = 0x10006, &status.QPRates{Requested: 2.5e6, SentBytes: 1e9}, 0
	idle := status.QP{Type: "UD", State: "INIT", QPStats: roce.QPStats{QPN: 0x10007}}
	s := &status.Snapshot{Time: at.Add(65 * time.Second), Socket: "/run/gorxe/eth0.sock",
		Device: status.Device{DeviceInfo: roce.DeviceInfo{Name: "eth0", Datapath: "udp", MTU: 1500,
			ActiveMTU: 1024, Up: true}},
		Programs: []status.Program{
			{Slot: 1, PID: 42, UID: 987654, Name: "server", Joined: at,
				Objects:  status.Objects{QPs: 5, MRs: 2, Memory: 3 << 20},
				Counters: map[string]uint64{"sent_bytes": 5 << 30, "retransmits": 3},
				Rates:    &status.Rates{SentBytes: 1.25e9, SentPkts: 1e6},
				RTTs:     status.Histogram{P50: 16384, P99: 131072},
				QPs:      []status.QP{qp, busy, idle}, Omitted: 2},
			{Slot: 2, PID: 43, UID: 987654, Name: "stopped", Joined: at, Error: "no answer"},
		}}
	s.Device.Addresses = []roce.GIDEntry{{Addr: netip.MustParseAddr("10.0.0.1")}}
	return s
}

// Ctrl-C ends the wait for a service that accepts connections, but does not answer.
func TestHungService(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, c := range []*cobra.Command{Command(), TopCommand()} {
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(50*time.Millisecond, func() { cancel(cli.ErrInterrupted) })
		start := time.Now()
		c.SetArgs([]string{"--socket", path})
		c.SilenceErrors, c.SilenceUsage = true, true
		err := c.ExecuteContext(ctx)
		if took := time.Since(start); !errors.Is(err, cli.ErrInterrupted) || took > 5*time.Second {
			t.Errorf("%s: %v after %v, want %v at once", c.Name(), err, took, cli.ErrInterrupted)
		}
	}
}

// line returns the fields of the line that contains text.
func line(t *testing.T, output, text string) string {
	t.Helper()
	for l := range strings.Lines(output) {
		if strings.Contains(l, text) {
			return strings.Join(strings.Fields(l), " ")
		}
	}
	t.Errorf("no line contains %q:\n%s", text, output)
	return ""
}

func TestTables(t *testing.T) {
	var b bytes.Buffer
	if err := write(&b, example()); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"eth0": "eth0: udp, link up, MTU 1500, path MTU 1024, 10.0.0.1; 2 programs at " +
			"/run/gorxe/eth0.sock",
		" 42 ":      "1 42 987654 server 1m05s 5 2 3.0M 5.0G 0B 3 16.4us 131us",
		" 43 ":      "2 43 987654 stopped 1m05s - - no answer",
		"0x010005":  "0x010005 server RC RTS 10.0.0.2 0x020009 0 5.0M 100B 7 0 3 12.3us 8.2us 65.5us 64",
		"0x010007":  "0x010007 server UD INIT - - 0 - - 0 0 0 - - - 0",
		"more not ": "2 queue pairs more not listed",
	} {
		if got := line(t, b.String(), text); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestPicture(t *testing.T) {
	for order, want := range [][]string{
		{"0x010006", "0x010005", "0x010007"}, {"0x010005", "0x010006", "0x010007"},
		{"0x010005", "0x010006", "0x010007"}, {"0x010005", "0x010006", "0x010007"},
	} {
		text := (&top{order: order}).picture([]*status.Snapshot{example()})
		var got []string
		for l := range strings.Lines(text) {
			if f := strings.Fields(l); len(f) > 0 && strings.HasPrefix(f[0], "0x") {
				got = append(got, f[0])
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("order %s: %v, want %v", orders[order].name, got, want)
		}
		if order > 0 {
			continue
		}
		for text2, want := range map[string]string{
			" 42 ":     "1 42 server 5 10.0Gb/s 0b/s 1.0M 0 0 0 16.4us 131us",
			"0x010006": "0x010006 server RTS 10.0.0.2 8.0Gb/s 0b/s 2.5M 0 0 3 - 8.2us 65.5us 64 0 -",
			"0x010007": "0x010007 server INIT - - - - - - 0 - - - 0 0 -",
		} {
			if got := line(t, text, text2); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		}
	}
	if got := (&top{}).picture(nil); !strings.Contains(got, "gorxe up") {
		t.Errorf("picture(nil) = %q", got)
	}
}

func TestFrame(t *testing.T) {
	got := frame("abcdef\nxyz\nlost\n", 4, 2)
	if want := home + "abcd" + clearLine + "\r\nxyz" + clearLine + clearRest; got != want {
		t.Errorf("frame() = %q, want %q", got, want)
	}
}

func TestUnits(t *testing.T) {
	for got, want := range map[string]string{
		size(0): "0B", size(1023): "1023B", size(1536): "1.5K", size(1 << 50): "1024T",
		bits(0): "0b/s", bits(12.5e9): "100Gb/s", count(999): "999", count(12345): "12.3k",
		duration(0): "-", duration(999): "999ns", duration(5e9): "5.0s",
		age(-time.Second): "0s", age(time.Hour): "1h00m", age(49 * time.Hour): "2d01h",
		number(0): "-", number(0xffffff): "0xffffff",
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// newService starts a service with a status at a path, and a program that has joined it.
func newService(t *testing.T, path string) (qpn roce.QPN) {
	t.Helper()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	addr := udp.RandomLoopback()
	port, err := udp.Open("lo", udp.Options{Addrs: []netip.Addr{addr}, Shared: true})
	check(err)
	dev, err := roce.New(port)
	check(err)
	t.Cleanup(func() { _ = dev.Close() })
	s, err := service.New(path, service.Options{})
	check(err)
	t.Cleanup(func() { _ = s.Close() })
	check(s.Start(port))
	status.NewCollector(status.Config{Device: dev, Name: "owner"}).Serve(s)

	joined, err := service.Join(path, service.JoinOptions{Name: "member"})
	check(err)
	member, err := roce.New(joined)
	check(err)
	t.Cleanup(func() { _ = member.Close() })
	pd, err := member.AllocPD()
	check(err)
	q, err := member.CreateQP(pd, roce.QPConfig{Type: roce.UD})
	check(err)
	return q.QPN()
}

func execute(t *testing.T, cmd *cobra.Command, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return out.String()
}

// The commands show the programs of a service.
func TestService(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	qpn := newService(t, path)
	var list []status.Snapshot
	var text string
	for range 20 { // on a busy machine a program may not answer in time
		text = execute(t, Command(), "--json", "--socket", path)
		list = nil
		if err := json.Unmarshal([]byte(text), &list); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		if !strings.Contains(text, `"error":`) {
			break
		}
	}
	if len(list) != 1 || len(list[0].Programs) != 2 || list[0].Programs[0].Name != "owner" {
		t.Fatalf("gorxe ps --json prints %s", text)
	}
	p := list[0].Programs[1]
	if p.Name != "member" || p.PID != os.Getpid() || p.UID != os.Getuid() || p.Error != "" ||
		len(p.QPs) != 1 || p.QPs[0].QPN != qpn || list[0].Socket != path {
		t.Errorf("gorxe ps --json prints %s", text)
	}
	for range 20 {
		text = execute(t, Command(), "--socket", path)
		if strings.Contains(text, fmt.Sprintf("0x%06x", uint32(qpn))) {
			break
		}
	}
	line(t, text, "member")
	line(t, text, fmt.Sprintf("0x%06x", uint32(qpn)))

	for range 20 {
		text = execute(t, TopCommand(), "--socket", path, "--interval", "1s") // no terminal
		if strings.Contains(line(t, text, "member"), "b/s") {
			return
		}
	}
	t.Errorf("gorxe top prints %s, want rates of the member", text)
}

// The commands show the services that answer beside one that does not.
func TestBrokenService(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("XDG_RUNTIME_DIR", dir)
	path := filepath.Join(dir, "gorxe", "s.sock")
	newService(t, path)
	broken := filepath.Join(filepath.Dir(path), "a.sock")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: broken, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	for _, cmd := range []*cobra.Command{Command(), TopCommand()} {
		var out bytes.Buffer
		cmd.SetOut(&out)
		cmd.SetErr(io.Discard)
		cmd.SetArgs(nil)
		if cmd.Name() == "top" {
			cmd.SetArgs([]string{"-i", "1s"})
		}
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), broken) {
			t.Errorf("%s: error %v, want one that names %s", cmd.Name(), err, broken)
		}
		line(t, out.String(), path)
	}
	if text := notice(errors.New("a\x1b[2J\nb")); text != "\na?[2J\nb\n" {
		t.Errorf("notice() = %q", text)
	}
}

// Without services, the commands say how to start one.
func TestNoService(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	if service.Sockets() == nil { // otherwise a service runs on this host
		for _, cmd := range []*cobra.Command{Command(), TopCommand()} {
			if text := execute(t, cmd); text != none+"\n" {
				t.Errorf("%s prints %q", cmd.Name(), text)
			}
		}
		if text := execute(t, Command(), "--json"); text != "[]\n" {
			t.Errorf("ps --json prints %q", text)
		}
	}
	usagetest.Fails(t, Command, map[string]string{"--socket /does/not/exist": "start a service (gorxe up)"})
	usagetest.Fails(t, TopCommand, map[string]string{
		"--socket /does/not/exist": "start a service (gorxe up)",
		"--interval 10ms":          "choose 1s to 1h",
	})
}
