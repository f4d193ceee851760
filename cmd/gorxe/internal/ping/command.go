package ping

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/spf13/cobra"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/internal/exchange"
	"github.com/gorxe/gorxe/internal/ping"
	"github.com/gorxe/gorxe/roce"
)

// Limits and defaults of the flags.
const (
	defaultBytes    = 64
	defaultInterval = time.Second
	defaultTimeout  = 2 * time.Second
	minTimeout      = time.Millisecond
	maxTime         = time.Hour
	maxCount        = 1_000_000_000
)

type flags struct {
	device   device.Flags
	dev      string
	count    cli.Int
	interval cli.Duration
	timeout  cli.Duration
	size     cli.Size
	port     cli.Int
	json     bool
	rping    bool
}

// Pings of up to smallPing bytes need few buffers: the device gets rings of smallRing. The kernel
// uses them in turn, and the first use of each one is slow in some virtual machines.
const (
	smallPing = 1024
	smallRing = 64
)

// Command returns the command "gorxe ping".
func Command() *cobra.Command {
	f := new(flags)
	cmd := &cobra.Command{
		Use:   "ping HOST",
		Short: "Measure RDMA round-trip times to a host that runs gorxe up",
		Long: `Measure RDMA round-trip times to a host that runs 'gorxe up'.

Each ping is an RC SEND that the peer SENDs back. gorxe compares the data. Times are
those of a peer that is awake: an empty message precedes each ping, unless -i is 0.
Its own round trip, in which a sleeping peer wakes up, is shown as "wake". The
command ends after -c pings or with Ctrl-C, and prints a summary. RC retransmits
lost packets: they make a round trip slow and count as retransmissions. The exit
status is 0 if every ping was answered, and 1 otherwise.`,
		Example: `  # ten pings of 4 KiB
  gorxe ping 10.0.0.2 -c 10 -s 4k

  # without a pause between pings, summary as JSON
  gorxe ping 10.0.0.2 -c 10000 -i 0 --json

  # a host with a hardware NIC or the kernel's rxe that runs 'rping -s'
  gorxe ping 10.0.0.3 --rping -c 10

  # in the most urgent traffic class
  gorxe ping 10.0.0.2 --class 7

  # a link-local IPv6 address
  gorxe ping fe80::5054:ff:fe12:3456 -I eth0`,
		Args:              cli.Named("HOST"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			out := cli.NewOutput(cmd.OutOrStdout())
			return out.Result(f.run(cmd.Context(), args[0], out))
		},
	}
	f.register(cmd)
	return cmd
}

func (f *flags) register(cmd *cobra.Command) {
	f.count = cli.Int{Min: 1, Max: maxCount}
	f.interval = cli.Duration{D: defaultInterval, Min: 0, Max: maxTime}
	f.timeout = cli.Duration{D: defaultTimeout, Min: minTimeout, Max: maxTime}
	f.size = cli.Size{Bytes: defaultBytes, Min: 0, Max: ping.MaxBytes}
	fs := cmd.Flags()
	fs.VarP(&f.count, "count", "c", "number of pings (default: until Ctrl-C)")
	cli.HideDefaults(fs, "count")
	fs.VarP(&f.interval, "interval", "i",
		"time between two pings; a number without a unit means seconds, 0 sends the next ping after each reply")
	fs.VarP(&f.size, "size", "s", "bytes per ping")
	fs.VarP(&f.timeout, "timeout", "t", "how long to wait for a reply")
	fs.StringVarP(&f.device.Iface, "interface", "I", "",
		"network interface (default: that of the route to HOST)")
	fs.StringVarP(&f.dev, "dev", "d", "", "same as --interface")
	cli.PortVar(fs, &f.port, "port", "p", exchange.DefaultPort, "TCP port of gorxe up")
	fs.BoolVar(&f.rping, "rping", false,
		"use rping's protocol over rdma_cm, for any RDMA host that runs "+
			"'rping -s' or gorxe up; -p is then the RDMA port (default 7174)")
	f.device.RegisterGID(fs, "x")
	f.device.Register(fs)
	f.device.Classes.RegisterClass(fs, "traffic class of both sides, 0 to 7; 7 is the most urgent "+
		"(default 0)")
	cli.JSONVar(fs, &f.json, "print only the summary, as one line of JSON")
}

// Summary is the output of --json. Times are in microseconds.
type Summary struct {
	Host        string   `json:"host"`
	Interface   string   `json:"interface"`
	Datapath    string   `json:"datapath"`
	PathMTU     roce.MTU `json:"path_mtu"`
	Bytes       int      `json:"bytes"`
	Sent        int      `json:"sent"`
	Received    int      `json:"received"`
	Loss        float64  `json:"loss"` // fraction
	Min         float64  `json:"min_us"`
	Avg         float64  `json:"avg_us"`
	P50         float64  `json:"p50_us"`
	P99         float64  `json:"p99_us"`
	Max         float64  `json:"max_us"`
	WakeP50     float64  `json:"wake_p50_us,omitempty"`
	WakeMax     float64  `json:"wake_max_us,omitempty"`
	Retransmits uint64   `json:"retransmits"`
}

// pinger is the command while it runs.
type pinger struct {
	f      *flags
	out    io.Writer
	peer   *device.Peer
	dev    *roce.Device
	client *ping.Client // nil: not connected
	sum    Summary
	times  *cli.Latency
	wakes  *cli.Latency // round trips that woke the server
}

func (f *flags) run(ctx context.Context, host string, out io.Writer) (err error) {
	if f.dev != "" {
		if f.device.Iface != "" && f.device.Iface != f.dev {
			return cli.Usagef("-I %s and -d %s mean the same: use only one of them", f.device.Iface,
				f.dev)
		}
		f.device.Iface = f.dev
	}
	p := &pinger{f: f, out: out, times: cli.NewLatency(), wakes: cli.NewLatency()}
	if p.peer, err = f.device.FindPeer(ctx, host); err != nil {
		return err
	}
	progress := roce.Manual
	if f.rping {
		progress = roce.Auto // the server READs and WRITEs the local memory at any time
	}
	if f.size.Int() <= smallPing {
		f.device.RingSize = smallRing
	}
	if p.dev, err = f.device.OpenContext(ctx, progress); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.dev.Close()) }()
	info := p.dev.Info()
	p.sum = Summary{
		Host: host, Interface: info.Name, Datapath: info.Datapath, PathMTU: info.ActiveMTU,
		Bytes: f.size.Int(),
	}
	if f.rping {
		return p.runRping(ctx)
	}
	return p.runPing(ctx)
}

// addr returns the address of the server.
func (p *pinger) addr(port int) netip.AddrPort {
	return netip.AddrPortFrom(p.peer.Addr, uint16(port))
}

// replied counts a reply.
func (p *pinger) replied(seq int, rtt, wake time.Duration) {
	p.sum.Received++
	p.times.Record(rtt)
	woken := ""
	if wake > 0 {
		p.wakes.Record(wake)
		woken = fmt.Sprintf(" wake=%.1f us", cli.Micros(wake))
	}
	p.print("%d bytes from %v: seq=%d time=%.1f us%s\n", p.sum.Bytes, p.peer.Addr, seq,
		cli.Micros(rtt), woken)
}

func (p *pinger) print(format string, args ...any) {
	if !p.f.json {
		fmt.Fprintf(p.out, format, args...)
	}
}

// finish prints the summary. It returns an error if pings were lost.
func (p *pinger) finish() error {
	s, t := &p.sum, p.times
	s.Retransmits = p.dev.Counters().Retransmits
	if s.Sent > 0 {
		s.Loss = cli.Round(float64(s.Sent-s.Received)/float64(s.Sent), 6)
	}
	s.Min, s.Max = cli.Micros(t.Min()), cli.Micros(t.Max())
	s.Avg = cli.Round(cli.Micros(t.Mean()), 3)
	s.P50, s.P99 = cli.Micros(t.Percentile(50)), cli.Micros(t.Percentile(99))
	s.WakeP50, s.WakeMax = cli.Micros(p.wakes.Percentile(50)), cli.Micros(p.wakes.Max())
	if p.f.json {
		if err := cli.JSON(p.out, s); err != nil {
			return err
		}
	}
	p.print("\n--- %s RDMA ping statistics ---\n", s.Host)
	p.print("%d sent, %d received, %s lost, %d packets retransmitted\n",
		s.Sent, s.Received, cli.FormatPercent(s.Loss), s.Retransmits)
	if s.Received > 0 {
		p.print("min/avg/p50/p99/max = %.1f/%.1f/%.1f/%.1f/%.1f us\n", s.Min, s.Avg, s.P50, s.P99,
			s.Max)
	}
	if p.wakes.Count() > 0 {
		p.print("waking the server: p50/max = %.1f/%.1f us\n", s.WakeP50, s.WakeMax)
	}
	return s.lost()
}

// smallest is the smallest path MTU. Pings of up to this size pass through every network.
const smallest = 256

// lost returns an error if pings were not answered.
func (s *Summary) lost() error {
	if s.Received == s.Sent {
		return nil
	}
	advice := ""
	if s.Received == 0 {
		advice = ": check that nothing drops UDP port 4791"
	}
	if s.Received == 0 && s.Bytes > smallest {
		advice += ", and that the network carries packets of the path MTU: try a small -s"
	}
	return fmt.Errorf("%d of %s not answered%s", s.Sent-s.Received, cli.Count(s.Sent, "ping"), advice)
}

// sleep waits for d. It returns false if ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
