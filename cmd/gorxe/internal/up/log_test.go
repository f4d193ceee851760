package up

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

func TestLogFlags(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string // in the log of a device that is opened and closed
		none bool
	}{
		{nil, "", true},
		{[]string{"--log", "off"}, "", true},
		{[]string{"--log", "warn"}, "", true},
		{[]string{"--log", "info"}, `level=INFO msg="device opened"`, false},
		{[]string{"--log", "debug", "--log-format", "json"}, `"level":"INFO","msg":"device opened"`,
			false},
	} {
		var l logging
		fs := pflag.NewFlagSet("", pflag.ContinueOnError)
		l.register(fs)
		if err := fs.Parse(c.args); err != nil {
			t.Fatal(err)
		}
		var text bytes.Buffer
		link, err := loopback.NewLink(loopback.Config{})
		if err != nil {
			t.Fatal(err)
		}
		d, err := roce.New(link.Port(0), l.options(&text)...)
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		if got := text.String(); !strings.Contains(got, c.want) || (got == "") != c.none {
			t.Errorf("with %q the log is %q, want %q", c.args, got, c.want)
		}
	}
}

func TestLogFlagsRefuse(t *testing.T) {
	for _, args := range [][]string{{"--log", "loud"}, {"--log", "INFO+1"}, {"--log-format", "xml"}} {
		var l logging
		fs := pflag.NewFlagSet("", pflag.ContinueOnError)
		l.register(fs)
		if err := fs.Parse(args); err == nil || !strings.Contains(err.Error(), "write") {
			t.Errorf("Parse(%q) = %v, want an error that names the values", args, err)
		}
	}
}

// A format alone has no effect, so it is refused. With a log of any level it is accepted.
func TestLogFormatNeedsLog(t *testing.T) {
	for text, ok := range map[string]bool{"": true, "--log info": true, "--log-format text": false,
		"--log off --log-format json": false, "--log error --log-format json": true} {
		var l logging
		fs := pflag.NewFlagSet("", pflag.ContinueOnError)
		l.register(fs)
		if err := fs.Parse(strings.Fields(text)); err != nil {
			t.Fatal(err)
		}
		if err := l.check(); (err == nil) != ok {
			t.Errorf("with %q, check() = %v", text, err)
		}
	}
}
