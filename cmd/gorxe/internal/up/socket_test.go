package up

import (
	"errors"
	"strings"
	"testing"

	"github.com/gorxe/gorxe/cmd/gorxe/internal/usagetest"
	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/internal/service"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/udp"
)

func TestSocketFlags(t *testing.T) {
	for text, want := range map[string]string{"0666": "0666", "660": "0660", "0": "0000"} {
		var m socketMode
		if err := m.Set(text); err != nil || m.String() != want {
			t.Errorf("Set(%q) = %v, %v; want %s", text, &m, err, want)
		}
	}
	usagetest.Fails(t, Command, map[string]string{
		"a --socket-mode 888":                                  "in octal",
		"a --socket-mode 1777":                                 "in octal",
		"a --socket-mode rw":                                   "in octal",
		"127.0.0.1 --socket-group no-such-group":               "there is no group",
		"127.0.0.1 --socket /x --socket-group -1":              "there is no group",
		"127.0.0.1 --socket /does/not/exist/s":                 "/does/not/exist",
		"127.0.0.1 --socket none --program-qps 1":              "--program-qps is about programs",
		"127.0.0.1 --socket none --program-rate 1Gb/s":         "--program-rate is about programs",
		"127.0.0.1 --socket none --user-programs 1":            "--user-programs is about programs",
		"127.0.0.1 --socket none --socket-mode 0666":           "--socket-mode is about programs",
		"/run/gorxe/eth0.sock":                                 "name an interface",
		"a --metrics host":                                     "PORT or ADDR:PORT",
		"127.0.0.1 --socket none --metrics 198.51.100.1:9464 ": "choose another address or port",
	})
	for name, want := range map[string]int{"": 0, "12": 12, "root": 0} {
		if got, err := groupID(name); err != nil || got != want {
			t.Errorf("groupID(%q) = %d, %v; want %d", name, got, err, want)
		}
	}
}

// The error of a second service says where the first one is, and how to join it.
func TestSecondService(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	f := &device.Flags{Iface: udp.RandomLoopback().String(), GIDIndex: device.AnyGID}
	var first, second node
	dev, err := first.open(f, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(first.close(), dev.Close()); err != nil {
			t.Error(err)
		}
	}()
	path := service.DefaultPath(f.Iface)
	if first.socket() != path {
		t.Fatalf("the socket is %q (%s), want %q", first.socket(), first.describe(), path)
	}
	_, err = second.open(f, nil)
	if err == nil || !strings.Contains(err.Error(), "-d "+path) ||
		!errors.Is(err, roce.ErrPortInUse) {
		t.Errorf("a second service: %v, want ErrPortInUse with the path %s", err, path)
	}
}
