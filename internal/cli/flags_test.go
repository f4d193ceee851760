package cli

import (
	"testing"

	"github.com/spf13/pflag"
)

// The flag for a port number also takes the values of --datapath, and keeps its number then.
func TestPortVar(t *testing.T) {
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	var port Int
	PortVar(fs, &port, "port", "p", 7, "")
	datapath := fs.String("datapath", "auto", "")
	if err := fs.Parse([]string{"--port", "udp", "-p", "9"}); err != nil || *datapath != "udp" ||
		port.N != 9 {
		t.Errorf("Parse() = %v, data path %q, port %d, want udp and 9", err, *datapath, port.N)
	}
	if err := fs.Parse([]string{"--port", "tcp"}); err == nil {
		t.Error("--port tcp was accepted")
	}
}
