package device

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/roce"
)

// Commands that join a node service, or start one, do not if the flags ask for AF_XDP.
func TestWantsXDP(t *testing.T) {
	for args, want := range map[string]bool{
		"": false, "--datapath=udp": false, "--datapath=auto": false, "--mode=auto": false,
		"--datapath=xdp": true, "--mode=native": true, "--mode=generic": true,
	} {
		var f Flags
		fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
		f.Register(fs)
		if args != "" {
			if err := fs.Parse([]string{args}); err != nil {
				t.Fatal(err)
			}
		}
		if got := f.WantsXDP(); got != want {
			t.Errorf("WantsXDP() with %q = %v, want %v", args, got, want)
		}
	}
	if new(Flags).WantsXDP() {
		t.Error("WantsXDP() of a command without these flags = true, want false")
	}
}

// AF_XDP on one address is wrong usage, and the error names the flags.
func TestXDPOnAddress(t *testing.T) {
	for _, flag := range []string{"--datapath=xdp", "--mode=native"} {
		f := Flags{Iface: "127.0.0.1"}
		fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
		f.Register(fs)
		if err := fs.Parse([]string{flag}); err != nil {
			t.Fatal(err)
		}
		dev, err := f.Open(roce.Auto)
		if err == nil {
			_ = dev.Close()
		}
		if cli.Status(err) != cli.StatusUsage || !strings.Contains(err.Error(), "--datapath") {
			t.Errorf("%s: Open() = %v", flag, err)
		}
	}
}
