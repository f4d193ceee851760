package up

import (
	"testing"

	"github.com/gorxe/gorxe/cmd/gorxe/internal/usagetest"
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
