package perf

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/netip"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/internal/exchange"
	"github.com/gorxe/gorxe/internal/perf"
	"github.com/gorxe/gorxe/internal/session"
	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/roce"
)

func parse(t *testing.T, args string) (*flags, *perf.Params) {
	t.Helper()
	f := new(flags)
	fs := pflag.NewFlagSet("perf", pflag.ContinueOnError)
	f.register(fs)
	a := strings.Fields(args)
	if err := fs.Parse(a[1:]); err != nil {
		t.Fatal(err)
	}
	p, _, err := f.test.Test(fs, a[0])
	if err != nil {
		t.Fatal(err)
	}
	return f, p
}

func TestFlagsOutOfRange(t *testing.T) {
	for _, args := range []string{"-p 0", "-p 65536", "-x -1", "-x 256"} {
		fs := pflag.NewFlagSet("perf", pflag.ContinueOnError)
		new(flags).register(fs)
		if err := fs.Parse(strings.Fields(args)); err == nil {
			t.Errorf("%s: no error", args)
		}
	}
}

// The columns are aligned with their titles, as in perftest.
func TestColumns(t *testing.T) {
	var b bytes.Buffer
	o := &printer{w: &b}
	o.printTitles(false)
	printRow(&b, &perf.Row{Bytes: 65536, Iterations: 5000, BandwidthColumns: &perf.BandwidthColumns{
		Peak: 1000, Average: 900, Unit: perf.UnitMB, MsgRate: 0.0144,
	}})
	o.printTitles(true)
	printRow(&b, &perf.Row{Bytes: 8, Iterations: 1000, LatencyColumns: &perf.LatencyColumns{
		Min: 1, Max: 9, Typical: 2, Avg: 2.5, StdDev: .1, P99: 3, P999: 4,
	}})
	want := []string{
		" #bytes        #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]",
		" 65536         5000           1000.00            900.00                0.014400",
		" #bytes        #iterations       t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]" +
			"    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]",
		" 8             1000                     1.00           9.00             2.00           2.50" +
			"             0.10                   3.00                     4.00",
	}
	got := strings.Split(strings.TrimRight(b.String(), "\n"), "\n")
	for i := range want {
		if i >= len(got) || got[i] != want[i] {
			t.Fatalf("got\n%s\nwant\n%s", b.String(), strings.Join(want, "\n"))
		}
	}
}

// The foot shows how the local side has used the network.
func TestFoot(t *testing.T) {
	for _, c := range []struct {
		network session.Network
		want    string
	}{
		{session.Network{Congestion: roce.CongestionDCQCN, Window: 1},
			" Lost packets: go-back-N, 0 retransmitted, 0 of them needlessly\n" +
				" Congestion: dcqcn, 0 ECN marks received, 0 CNPs sent, 0 received\n" +
				" RTT: 0.00 usec, window: 1 packet\n"},
		{session.Network{SelectiveRepeat: true, RTT: 12.345, Window: 300, Rate: 9.87,
			Retransmits: 4, Spurious: 3, Marked: 2, CNPsSent: 1, CNPsRcvd: 5},
			" Lost packets: selective repeat, 4 retransmitted, 3 of them needlessly\n" +
				" Congestion: adaptive, 2 ECN marks received, 1 CNPs sent, 5 received\n" +
				" RTT: 12.35 usec, window: 300 packets, largest delivery rate: 9.87 Gb/sec\n"},
	} {
		var b bytes.Buffer
		o := &printer{w: &b, headed: true}
		row := &perf.Row{BandwidthColumns: &perf.BandwidthColumns{}, Network: &c.network}
		if err := o.row(row); err != nil {
			t.Fatal(err)
		}
		b.Reset()
		o.foot()
		if want := ruler + "\n" + c.want + ruler + "\n"; b.String() != want {
			t.Errorf("foot() printed\n%s\nwant\n%s", b.String(), want)
		}
	}
}

// A path MTU that is smaller than requested is mentioned in the head.
func TestHeadMentionsReducedMTU(t *testing.T) {
	tb, err := testbed.New(testbed.Config{MTU: 1500}) // path MTU 1024
	if err != nil {
		t.Fatal(err)
	}
	defer tb.Close()
	for args, want := range map[string]bool{"write-bw -m 4096": true, "write-bw -m 1024": false,
		"write-lat": false} {
		_, p := parse(t, args)
		cfg := p.SessionConfig()
		cfg.GID = device.AnyGID
		s, err := session.New(tb.Dev[0], netip.IPv4Unspecified(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		var head bytes.Buffer
		(&printer{w: &head}).head(p, s, []exchange.QP{s.LocalQP(0)})
		if got := strings.Contains(head.String(),
			"Path MTU 1024, not 4096 as -m requests"); got != want {
			t.Errorf("%s: the head is\n%s", args, head.String())
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// If several clients arrive at the same time, the first one is served. Refusing another one does
// not end the server.
func TestOnlySession(t *testing.T) {
	ctx, end := context.WithCancelCause(t.Context())
	_, p := parse(t, "write-bw")
	_, read := parse(t, "read-bw")
	o := &onlySession{want: p, out: &printer{w: io.Discard, json: true}, end: end}
	if err := o.started(read, nil, nil); !errors.Is(err, perf.ErrParams) {
		t.Errorf("client of another test: %v, want ErrParams", err)
	}
	if err := o.started(p, nil, nil); err != nil {
		t.Errorf("first client: %v", err)
	}
	if err := o.started(p, nil, nil); !errors.Is(err, errTaken) || ctx.Err() != nil {
		t.Errorf("second client: %v, and the server ended with %v", err, context.Cause(ctx))
	}
	if o.ended(nil); !errors.Is(context.Cause(ctx), errServed) {
		t.Errorf("the server ended with %v, want errServed", context.Cause(ctx))
	}
}
