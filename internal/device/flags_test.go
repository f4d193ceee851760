package device

import (
	"testing"

	"github.com/spf13/pflag"
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
