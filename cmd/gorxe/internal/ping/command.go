package ping

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/internal/exchange"
	"github.com/gorxe/gorxe/roce"
)

// The bounds and defaults of the flags.
const (
	defaultBytes    = 64
	defaultInterval = time.Second
	defaultTimeout  = 2 * time.Second
	minTimeout      = time.Millisecond
	maxTime         = time.Hour
	maxCount        = 1_000_000_000
)

type flags struct {
	nic      device.Flags
	dev      string
	count    cli.Int
	interval cli.Duration
	timeout  cli.Duration
	size     cli.Size
	port     cli.Int
	json     bool
	rping    bool
}

// Command is "gorxe ping".
func Command() *cobra.Command {
	f := new(flags)
	cmd := &cobra.Command{
		Use:   "ping HOST",
		Short: "Measure RDMA round trips to a host that runs gorxe up",
		Long: `Measure RDMA round trips to a host that runs 'gorxe up'.

Each ping is an RC SEND that the other end SENDs back; the bytes are compared. It
ends after -c pings, or with Ctrl-C, and prints a summary. Lost packets are sent again
by RC: they make a round trip slow and are counted as retransmissions. The exit status is
0 if every ping was answered, else 1.`,
		Example: `  # ten pings of 4 KiB
  gorxe ping 10.0.0.2 -c 10 -s 4k

  # as fast as answers come, summary as JSON
  gorxe ping 10.0.0.2 -c 10000 -i 0 --json

  # a host with a hardware NIC or the kernel's rxe that runs 'rping -s'
  gorxe ping 10.0.0.3 --rping -c 10

  # a link-local IPv6 peer
  gorxe ping fe80::5054:ff:fe12:3456 -I eth0`,
		Args: cli.Named("HOST"),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args[0]) },
	}
	f.count = cli.Int{Min: 1, Max: maxCount}
	f.interval = cli.Duration{D: defaultInterval, Min: 0, Max: maxTime}
	f.timeout = cli.Duration{D: defaultTimeout, Min: minTimeout, Max: maxTime}
	f.size = cli.Size{Bytes: defaultBytes, Min: 0, Max: maxBytes}
	f.port = cli.Int{N: exchange.DefaultPort, Min: 1, Max: 65535}
	fs := cmd.Flags()
	fs.VarP(&f.count, "count", "c", "stop after so many pings (default: at Ctrl-C)")
	fs.Lookup("count").DefValue = ""
	fs.VarP(&f.interval, "interval", "i", "time between two pings; a bare number is seconds, 0 sends the next when the answer is there")
	fs.VarP(&f.size, "size", "s", "bytes of a ping")
	fs.VarP(&f.timeout, "timeout", "t", "how long to wait for an answer")
	fs.StringVarP(&f.nic.Iface, "interface", "I", "", "network interface (default: the one on the route to HOST)")
	fs.StringVarP(&f.dev, "dev", "d", "", "the same as --interface")
	fs.VarP(&f.port, "port", "p", "TCP port of gorxe up")
	fs.BoolVar(&f.rping, "rping", false, "speak rping's protocol over rdma_cm, with any RDMA host that runs 'rping -s' or gorxe up; -p is then its RDMA port (default 7174)")
	f.nic.RegisterGID(fs, "x")
	f.nic.Register(fs)
	fs.BoolVar(&f.json, "json", false, "print the summary as one line of JSON, and nothing else")
	return cmd
}

// Summary is what --json prints. Times are in microseconds.
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
	Retransmits uint64   `json:"retransmits"`
}

// pinger is the command while it runs.
type pinger struct {
	f     *flags
	out   io.Writer
	peer  *device.Peer
	addr  string
	dev   *roce.Device
	link  *link // nil: to be connected
	sum   Summary
	times *cli.Latency
}

func (f *flags) run(cmd *cobra.Command, host string) (err error) {
	ctx := cmd.Context()
	if f.dev != "" {
		if f.nic.Iface != "" && f.nic.Iface != f.dev {
			return cli.Usagef("-I %s and -d %s mean the same: give one of them", f.nic.Iface, f.dev)
		}
		f.nic.Iface = f.dev
	}
	p := &pinger{f: f, out: cmd.OutOrStdout(), times: cli.NewLatency()}
	if p.peer, err = device.FindPeer(ctx, host, f.nic.Iface); err != nil {
		return err
	}
	f.nic.Iface = p.peer.Iface
	p.addr = net.JoinHostPort(p.peer.Addr.String(), strconv.Itoa(f.port.N))
	progress := roce.Manual
	if f.rping {
		progress = roce.Auto // the server reads and writes our memory by itself
	}
	if p.dev, err = f.nic.Open(progress); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.dev.Close()) }()
	if f.rping {
		return p.rping(ctx)
	}
	if err := p.connect(ctx); err != nil {
		return err
	}
	defer p.disconnect()
	info := p.dev.Info()
	p.sum = Summary{
		Host: host, Interface: info.Name, Datapath: info.Datapath, PathMTU: p.link.s.PathMTU(), Bytes: f.size.Int(),
	}
	if !f.json {
		fmt.Fprintf(p.out, "RDMA ping %s (%v): %d bytes by RC SEND over %s (%s), path MTU %d\n",
			host, p.peer.Addr, p.sum.Bytes, info.Name, info.Datapath, p.sum.PathMTU)
	}
	p.loop(ctx)
	return p.finish()
}

// connect opens the connection within the time-out of a ping, but not less than TCP needs.
func (p *pinger) connect(ctx context.Context) error {
	l, err := connect(ctx, p.dev, &p.f.nic, p.addr, Params{Bytes: p.f.size.Int()})
	if err != nil {
		return err
	}
	l.replied = p.replied
	p.link = l
	return nil
}

func (p *pinger) disconnect() {
	if p.link != nil {
		p.link.close()
		p.link = nil
	}
}

// loop sends pings until the count is reached or ctx ends. A broken connection is
// opened again for the next ping.
func (p *pinger) loop(ctx context.Context) {
	for seq := 1; p.f.count.N == 0 || seq <= p.f.count.N; seq++ {
		start := time.Now()
		err := p.one(ctx, seq)
		if ctx.Err() != nil {
			if p.link != nil {
				p.sum.Sent -= len(p.link.sent) // nobody waited for these
			}
			return
		}
		if err != nil {
			p.say("seq=%d: %v\n", seq, err)
			p.disconnect()
		}
		if seq == p.f.count.N {
			break
		}
		next := start.Add(p.f.interval.D)
		if p.link == nil {
			if next.Before(start.Add(minTimeout)) {
				next = start.Add(p.f.timeout.D) // -i 0 is no reason to hammer on a closed door
			}
			if !sleep(ctx, time.Until(next)) {
				return
			}
		} else if err := p.link.await(ctx, next, false); err != nil && ctx.Err() == nil {
			p.say("%v\n", err)
			p.disconnect()
		}
	}
	if p.link != nil {
		// The last ones may be late; nobody is interested in why not, the summary tells.
		_ = p.link.await(ctx, time.Now().Add(p.f.timeout.D), true)
	}
}

func (p *pinger) one(ctx context.Context, seq int) error {
	p.sum.Sent++
	if p.link == nil {
		if err := p.connect(ctx); err != nil {
			return err
		}
	}
	deadline := time.Now().Add(p.f.timeout.D)
	if err := p.link.room(ctx, deadline); err != nil {
		return err
	}
	if err := p.link.ping(seq); err != nil {
		return err
	}
	if err := p.link.await(ctx, deadline, true); err != nil {
		return err
	}
	if len(p.link.sent) > 0 {
		p.say("seq=%d: no answer in %v, yet\n", seq, p.f.timeout.D)
	}
	return nil
}

func (p *pinger) replied(f flight, rtt time.Duration) {
	p.sum.Received++
	p.times.Record(rtt)
	p.say("%d bytes from %v: seq=%d time=%.1f us\n", p.f.size.Int(), p.peer.Addr, f.seq, cli.Micros(rtt))
}

func (p *pinger) say(format string, args ...any) {
	if !p.f.json {
		fmt.Fprintf(p.out, format, args...)
	}
}

// finish prints the summary.
func (p *pinger) finish() error {
	s, t := &p.sum, p.times
	s.Retransmits = p.dev.Counters().Retransmits
	if s.Sent > 0 {
		s.Loss = cli.Round(float64(s.Sent-s.Received)/float64(s.Sent), 6)
	}
	s.Min, s.Max = cli.Micros(t.Min()), cli.Micros(t.Max())
	s.Avg = cli.Round(cli.Micros(t.Mean()), 3)
	s.P50, s.P99 = cli.Micros(t.Percentile(50)), cli.Micros(t.Percentile(99))
	if p.f.json {
		if err := cli.JSON(p.out, s); err != nil {
			return err
		}
	} else {
		p.say("\n--- %s RDMA ping statistics ---\n", s.Host)
		p.say("%d sent, %d received, %s lost, %d packets sent again\n", s.Sent, s.Received, cli.FormatPercent(s.Loss), s.Retransmits)
		if s.Received > 0 {
			p.say("min/avg/p50/p99/max = %.1f/%.1f/%.1f/%.1f/%.1f us\n", s.Min, s.Avg, s.P50, s.P99, s.Max)
		}
	}
	if s.Received < s.Sent {
		return fmt.Errorf("%d of %s not answered", s.Sent-s.Received, cli.Count(s.Sent, "ping"))
	}
	return nil
}

// sleep waits for d, and tells whether ctx let it.
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
