package pingpong

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/roce"
)

// The examples' defaults, and bounds.
const (
	defaultPort    = 18515
	defaultIters   = 1000
	defaultDepth   = 500
	defaultMTU     = 1024
	defaultBytes   = 4096
	defaultUDBytes = 2048
	defaultSRQQPs  = 16

	maxBytes = 1 << 20
	maxIters = 1_000_000_000
	maxDepth = 1 << 14
)

var kinds = []string{"rc", "uc", "ud", "srq"}

type flags struct {
	nic   device.Flags
	port  cli.Int
	size  cli.Size
	mtu   cli.Int
	iters cli.Int
	depth cli.Int
	qps   cli.Int
	check bool
	json  bool
}

// Command is "gorxe pingpong".
func Command() *cobra.Command {
	f := new(flags)
	cmd := &cobra.Command{
		Use:   "pingpong rc|uc|ud|srq [HOST]",
		Short: "Play ping-pong with ibv_rc_pingpong and its siblings",
		Long: `Play ping-pong with rdma-core's examples: 'pingpong rc' is the other end of
ibv_rc_pingpong, and likewise uc, ud and srq. With HOST this end is the client;
without, it serves one client and ends.

The flags are those of the examples. Both ends need the same -s, -n, -m and, for
srq, -q; an example on RoCE needs -g with the index of a GID.`,
		Example: `  # here, and on the other host: ibv_rc_pingpong -g 1 HERE
  gorxe pingpong rc -d eth0

  # there: ibv_ud_pingpong -g 1 -s 1024; and here
  gorxe pingpong ud -s 1024 THERE`,
		Args:      cli.Named("KIND (rc, uc, ud or srq)", "[HOST]"),
		ValidArgs: kinds,
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := f.rules(args[0])
			if err != nil {
				return err
			}
			host := ""
			if len(args) == 2 {
				host = args[1]
			}
			return f.run(cmd.Context(), r, host, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f.port = cli.Int{N: defaultPort, Min: 1, Max: 65535}
	f.size = cli.Size{Min: 1, Max: maxBytes}
	f.mtu = cli.Int{N: defaultMTU, Min: 256, Max: 4096}
	f.iters = cli.Int{N: defaultIters, Min: 1, Max: maxIters}
	f.depth = cli.Int{N: defaultDepth, Min: 1, Max: maxDepth}
	f.qps = cli.Int{Min: 1, Max: srqLines}
	fs := cmd.Flags()
	fs.VarP(&f.port, "port", "p", "TCP port on which the two ends meet")
	fs.StringVarP(&f.nic.Iface, "dev", "d", "", "network interface (default: the one on the route to HOST, or the only one)")
	fs.VarP(&f.size, "size", "s", "bytes of a message (default 4 KiB, ud 2 KiB)")
	fs.VarP(&f.mtu, "mtu", "m", "path MTU: 256, 512, 1024, 2048 or 4096")
	fs.VarP(&f.iters, "iters", "n", "messages each way")
	fs.VarP(&f.depth, "rx-depth", "r", "receives to post at a time")
	fs.VarP(&f.qps, "num-qp", "q", "queue pairs, srq only (default 16)")
	fs.BoolVarP(&f.check, "check", "c", false, "compare what comes back with what was sent (client of rc, uc, ud)")
	for _, name := range []string{"size", "num-qp"} {
		fs.Lookup(name).DefValue = ""
	}
	f.nic.RegisterGID(fs, "g")
	f.nic.Register(fs)
	fs.BoolVar(&f.json, "json", false, "print the result as one line of JSON, and nothing else")
	return cmd
}

// rules checks what the user said.
func (f *flags) rules(kind string) (*rules, error) {
	r := &rules{
		kind: kind, bytes: f.size.Int(), mtu: roce.MTU(f.mtu.N), qps: 1, depth: f.depth.N, iters: f.iters.N, check: f.check,
	}
	switch {
	case !slices.Contains(kinds, kind):
		return nil, cli.Usagef("there is no pingpong %q: choose %s", kind, strings.Join(kinds, ", "))
	case !r.mtu.Valid():
		return nil, cli.Usagef("path MTU %d: choose 256, 512, 1024, 2048 or 4096", f.mtu.N)
	case kind != "srq" && f.qps.N != 0:
		return nil, cli.Usagef("-q is for srq: %s plays on one queue pair", kind)
	}
	if kind == "srq" {
		if r.qps = f.qps.N; r.qps == 0 {
			r.qps = defaultSRQQPs
		}
		if r.depth < r.qps {
			return nil, cli.Usagef("%d receives do not do for %d queue pairs: raise -r", r.depth, r.qps)
		}
	}
	if r.bytes == 0 {
		if r.bytes = defaultBytes; kind == "ud" {
			r.bytes = defaultUDBytes
		}
	}
	return r, nil
}

// Result is what --json prints.
type Result struct {
	Kind      string   `json:"kind"`
	Role      string   `json:"role"`
	Interface string   `json:"interface"`
	PathMTU   roce.MTU `json:"path_mtu"`
	Bytes     int      `json:"bytes"`
	QPs       int      `json:"qps"`
	Iters     int      `json:"iters"`
	Seconds   float64  `json:"seconds"`
	Mbits     float64  `json:"mbit_per_s"`
	Micros    float64  `json:"us_per_iter"`
}

func (f *flags) run(ctx context.Context, r *rules, host string, out, diag io.Writer) (err error) {
	var addr netip.Addr
	if host != "" {
		peer, err := device.FindPeer(ctx, host, f.nic.Iface)
		if err != nil {
			return err
		}
		addr, f.nic.Iface = peer.Addr, peer.Iface
	} else if f.nic.Iface == "" {
		if f.nic.Iface, err = device.Only(); err != nil {
			return err
		}
	}
	dev, err := f.nic.Open(roce.Manual)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	ctx, stop := device.WhileThere(ctx, dev)
	defer stop()
	if r.kind == "ud" && r.bytes > int(dev.Info().ActiveMTU) {
		return fmt.Errorf("a datagram of %d bytes does not fit the path MTU of %s, %d: choose a smaller -s on both ends", r.bytes, f.nic.Iface, dev.Info().ActiveMTU)
	}
	if f.json {
		out = jsonOnly{out}
	}
	game := func(conn net.Conn) error {
		defer conn.Close()
		return play(ctx, dev, &f.nic, r, conn, host != "", out)
	}
	if host == "" {
		return f.serve(ctx, diag, game)
	}
	conn, err := f.dial(ctx, addr)
	if err != nil {
		return err
	}
	return game(conn)
}

// jsonOnly marks an output that wants nothing but the result.
type jsonOnly struct{ io.Writer }

// dial connects to the server.
func (f *flags) dial(ctx context.Context, addr netip.Addr) (net.Conn, error) {
	d := net.Dialer{Timeout: exchangeTime}
	at := net.JoinHostPort(addr.String(), strconv.Itoa(f.port.N))
	c, err := d.DialContext(ctx, "tcp", at)
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if op := new(net.OpError); errors.As(err, &op) {
			err = op.Err
		}
		return nil, fmt.Errorf("cannot reach %s: %w: is the server started there, without a host name?", at, err)
	}
	return c, nil
}

// serve waits for one client and plays with it. Who speaks something else, or nothing, is told of and does not end the wait.
func (f *flags) serve(ctx context.Context, diag io.Writer, game func(net.Conn) error) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", ":"+strconv.Itoa(f.port.N))
	if err != nil {
		return fmt.Errorf("%w: choose another port with -p on both ends", err)
	}
	defer l.Close()
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	return serveOn(ctx, l, diag, game)
}

func serveOn(ctx context.Context, l net.Listener, diag io.Writer, game func(net.Conn) error) error {
	for {
		c, err := l.Accept()
		if ctx.Err() != nil {
			if err == nil {
				c.Close()
			}
			return context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		peer := c.RemoteAddr()
		err = game(c)
		if !errors.As(err, new(strange)) {
			return err
		}
		fmt.Fprintf(diag, "gorxe pingpong: %v: %v\n", peer, err)
	}
}

// play is one game, from the exchange to the result.
func play(ctx context.Context, dev *roce.Device, fl *device.Flags, r *rules, conn net.Conn, client bool, out io.Writer) (err error) {
	p := &player{rules: *r, dev: dev, flags: fl}
	done := false
	defer func() { err = errors.Join(err, p.close(done)) }()
	say := func(format string, args ...any) {
		if _, quiet := out.(jsonOnly); !quiet {
			fmt.Fprintf(out, format, args...)
		}
	}
	local := conn.LocalAddr().(*net.TCPAddr).AddrPort().Addr()
	if client {
		if err := p.prepare(local); err != nil {
			return err
		}
		peer, err := tellFirst(ctx, conn, r.kind, p.destinations())
		if err != nil {
			return err
		}
		if err := p.connect(ctx, peer); err != nil {
			return err
		}
	} else if err := hearFirst(ctx, conn, r.kind, func(peer []destination) ([]destination, error) {
		if err := peer[0].check(); err != nil {
			return nil, err
		}
		// The client may have come by TCP over one IP version and play over the other.
		if peer[0].gid.IsIPv4() != local.Unmap().Is4() {
			local = sameFamily(peer[0].gid)
		}
		if err := p.prepare(local); err != nil {
			return nil, err
		}
		return p.destinations(), p.connect(ctx, peer)
	}); err != nil {
		return err
	}
	for i, d := range p.destinations() {
		say("  local address:  %v\n  remote address: %v\n", d, p.peer[i])
	}
	took, err := p.play(ctx, client)
	if err != nil {
		return err
	}
	done = true
	return report(out, p.result(client, took), say)
}

// sameFamily is an address that no interface has, of the GID's IP version: GIDFor then takes the first GID of that version.
func sameFamily(g roce.GID) netip.Addr {
	if g.IsIPv4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

func (p *player) result(client bool, took time.Duration) *Result {
	res := &Result{
		Kind: p.kind, Role: "server", Interface: p.dev.Info().Name, PathMTU: p.mtu, Bytes: p.bytes, QPs: p.rules.qps, Iters: p.iters,
		Seconds: took.Seconds(),
	}
	if client {
		res.Role = "client"
	}
	res.Mbits = cli.Round(float64(p.bytes)*float64(p.iters)*2*8/took.Seconds()/1e6, 3)
	res.Micros = cli.Round(took.Seconds()*1e6/float64(p.iters), 3)
	return res
}

// report prints the two lines that the examples print.
func report(out io.Writer, r *Result, say func(string, ...any)) error {
	if j, ok := out.(jsonOnly); ok {
		return cli.JSON(j.Writer, r)
	}
	say("%d bytes in %.2f seconds = %.2f Mbit/sec\n", 2*r.Bytes*r.Iters, r.Seconds, r.Mbits)
	say("%d iters in %.2f seconds = %.2f usec/iter\n", r.Iters, r.Seconds, r.Micros)
	return nil
}
