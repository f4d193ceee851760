package device

import (
	"slices"
	"testing"

	"github.com/spf13/pflag"

	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

// The flags select what the device's queue pairs do. Without flags the device has its defaults.
func TestTransportFlags(t *testing.T) {
	for _, c := range []struct {
		args       []string
		selective  bool
		congestion roce.CongestionControl
	}{
		{nil, true, roce.CongestionAdaptive},
		{[]string{"--selective-repeat", "--congestion", "adaptive"}, true, roce.CongestionAdaptive},
		{[]string{"--selective-repeat=true", "--congestion=none"}, true, roce.CongestionNone},
		{[]string{"--selective-repeat=false", "--congestion=dcqcn"}, false, roce.CongestionDCQCN},
	} {
		var tr Transport
		fs := pflag.NewFlagSet("", pflag.ContinueOnError)
		tr.Register(fs)
		if err := fs.Parse(c.args); err != nil {
			t.Fatal(err)
		}
		link, err := loopback.NewLink(loopback.Config{})
		if err != nil {
			t.Fatal(err)
		}
		dev, err := roce.New(link.Port(0),
			slices.Concat([]roce.Option{roce.WithSelectiveRepeat(true)}, tr.Options())...)
		if err != nil {
			t.Fatal(err)
		}
		defer dev.Close()
		pd, err := dev.AllocPD()
		if err != nil {
			t.Fatal(err)
		}
		cq, err := dev.CreateCQ(1)
		if err != nil {
			t.Fatal(err)
		}
		q, err := dev.CreateQP(pd, roce.QPConfig{SendCQ: cq, SendDepth: 1, RecvDepth: 1})
		if err != nil {
			t.Fatal(err)
		}
		a, err := q.Query()
		if err != nil {
			t.Fatal(err)
		}
		offered := q.Local().Features == roce.SelectiveRepeat
		if offered != c.selective || a.Congestion != c.congestion {
			t.Errorf("%q: selective repeat %v and %v, want %v and %v", c.args, offered,
				a.Congestion, c.selective, c.congestion)
		}
	}
}

func TestTransportFlagsRefuse(t *testing.T) {
	var tr Transport
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	tr.Register(fs)
	for _, arg := range []string{"--selective-repeat=off", "--selective-repeat=",
		"--congestion=reno", "--congestion="} {
		if err := fs.Parse([]string{arg}); err == nil || tr != (Transport{}) {
			t.Errorf("Parse(%q) = %v and %+v, want an error", arg, err, tr)
		}
	}
}
