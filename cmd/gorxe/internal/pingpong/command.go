package pingpong

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/internal/guard"
	"github.com/gorxe/gorxe/internal/pingpong"
	sessions "github.com/gorxe/gorxe/internal/session"
	"github.com/gorxe/gorxe/roce"
)

// Defaults of the example programs, and the bounds of the flags.
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

var kinds = []string{string(pingpong.RC), string(pingpong.UC), string(pingpong.UD),
	string(pingpong.SRQ)}

type flags struct {
	device  device.Flags
	access  guard.Flags
	confine device.Confinement
	port    cli.Int
	size    cli.Size
	mtu     cli.MTU
	iters   cli.Int
	depth   cli.Int
	qps     cli.Int
	check   bool
	json    bool
}

// Command returns the command "gorxe pingpong".
func Command() *cobra.Command {
	f := new(flags)
	cmd := &cobra.Command{
		Use:   "pingpong rc|uc|ud|srq [HOST]",
		Short: "Exchange messages with ibv_rc_pingpong and similar programs",
		Long: `Exchange messages with the example programs of rdma-core: 'pingpong rc' works with
ibv_rc_pingpong, and uc, ud and srq with their counterparts. With HOST this is the
client. Without HOST it is the server, which serves one client and exits. It
accepts clients in the subnets of its interface, see --allow and --deny.

The flags are those of the example programs. Both sides need the same -s, -n, -m
and, for srq, -q. On RoCE the example programs need -g with the index of a GID. The
sides do not tell each other the traffic class (--class).`,
		Example: `  # on this host; then, on the other host: ibv_rc_pingpong -g 1 HOST
  gorxe pingpong rc -d eth0

  # on the other host: ibv_ud_pingpong -g 1 -s 1024; then, on this host
  gorxe pingpong ud -s 1024 HOST`,
		Args:              cli.Named("KIND (rc, uc, ud or srq)", "[HOST]"),
		ValidArgsFunction: cli.CompleteFirst(kinds),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := f.config(args[0])
			if err != nil {
				return err
			}
			host := ""
			if len(args) == 2 {
				host = args[1]
				if err := cli.CheckClient(cmd.Flags()); err != nil {
					return err
				}
			}
			out := cli.NewOutput(cmd.OutOrStdout())
			return out.Result(f.run(cmd.Context(), c, host, out, cmd.ErrOrStderr()))
		},
	}
	f.size = cli.Size{Min: 1, Max: maxBytes}
	f.mtu = cli.MTU{N: defaultMTU}
	f.iters = cli.Int{N: defaultIters, Min: 1, Max: maxIters}
	f.depth = cli.Int{N: defaultDepth, Min: 1, Max: maxDepth}
	f.qps = cli.Int{Min: 1, Max: pingpong.MaxQPs}
	fs := cmd.Flags()
	cli.PortVar(fs, &f.port, "port", "p", defaultPort,
		"TCP port for the exchange between client and server")
	f.device.RegisterIface(fs, "that of the route to HOST, or the only usable one")
	fs.VarP(&f.size, "size", "s", "size of a message in bytes (default 4 KiB, ud 2 KiB)")
	fs.VarP(&f.mtu, "mtu", "m", "path MTU: 256, 512, 1024, 2048 or 4096")
	fs.VarP(&f.iters, "iters", "n", "number of messages in each direction")
	fs.VarP(&f.depth, "rx-depth", "r", "number of receives to post")
	fs.VarP(&f.qps, "num-qp", "q", "number of queue pairs, srq only (default 16)")
	fs.BoolVarP(&f.check, "check", "c", false,
		"compare the data that comes back with the data sent (client of rc, uc, ud)")
	cli.HideDefaults(fs, "size", "num-qp")
	f.device.RegisterGID(fs, "g")
	f.access.Register(fs)
	f.device.Register(fs)
	f.device.Classes.RegisterClass(fs, "traffic class of what this side sends, 0 to 7; 7 is the most "+
		"urgent (default 0)")
	f.confine.Register(fs, device.DefaultUser)
	cli.JSONVar(fs, &f.json, "print only the result, as one line of JSON")
	return cmd
}

// config checks the flags and turns them into the configuration of a session.
func (f *flags) config(kind string) (pingpong.Config, error) {
	c := pingpong.Config{
		Kind: pingpong.Kind(kind), Bytes: f.size.Int(), MTU: roce.MTU(f.mtu.N), QPs: 1,
		RecvDepth:  f.depth.N,
		Iterations: f.iters.N, Check: f.check, GID: f.device.GIDIndex.Choose,
	}
	switch {
	case !slices.Contains(kinds, kind):
		return c, cli.Usagef("no such kind %q: choose %s", kind, strings.Join(kinds, ", "))
	case c.Kind != pingpong.SRQ && f.qps.N != 0:
		return c, cli.Usagef("-q is for srq only: %s uses one queue pair", kind)
	}
	if c.Kind == pingpong.SRQ {
		if c.Check {
			return c, cli.Usagef("-c is for rc, uc and ud: srq does not compare the data")
		}
		if c.QPs = f.qps.N; c.QPs == 0 {
			c.QPs = defaultSRQQPs
		}
		if c.RecvDepth < c.QPs {
			return c, cli.Usagef("%d receives are too few for %d queue pairs: increase -r",
				c.RecvDepth, c.QPs)
		}
	}
	if c.Bytes == 0 {
		if c.Bytes = defaultBytes; c.Kind == pingpong.UD {
			c.Bytes = defaultUDBytes
		}
	}
	return c, nil
}

func (f *flags) run(ctx context.Context, c pingpong.Config, host string, out,
	diag io.Writer) (err error) {
	var peer *device.Peer // nil: this side is the server
	if host != "" {
		peer, err = f.device.FindPeer(ctx, host)
	} else {
		err = f.device.SetDefaultIface()
	}
	if err != nil {
		return err
	}
	dev, err := f.device.OpenContext(ctx, roce.Manual)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	ctx, stop := device.WhilePresent(ctx, dev)
	defer stop()
	if c.Kind == pingpong.UD && c.Bytes > int(dev.Info().ActiveMTU) {
		return fmt.Errorf("a datagram of %d bytes does not fit the path MTU of %s, %d: choose a smaller -s on both sides",
			c.Bytes, f.device.Iface, dev.Info().ActiveMTU)
	}
	s := &session{Config: c, dev: dev, client: peer != nil, json: f.json, out: out}
	if s.client {
		conn, err := pingpong.Dial(ctx, peer.Addr, f.port.N)
		if err != nil {
			return err
		}
		return s.run(ctx, conn)
	}
	l, err := pingpong.Listen(ctx, f.port.N)
	if err != nil {
		return err
	}
	defer l.Close()
	if err := f.confine.ApplyAndLog(diag); err != nil {
		return err
	}
	s.CheckGID = sessions.CheckGID(dev)
	g := f.access.Guard(dev)
	return pingpong.Serve(ctx, l, c.Kind, g, func(conn net.Conn) error { return s.run(ctx, conn) },
		g.Limit(func(peer netip.AddrPort, err error) {
			fmt.Fprintf(diag, "gorxe pingpong: %v: %v\n", peer, err)
		}))
}

// session runs a session and prints its result.
type session struct {
	pingpong.Config
	dev    *roce.Device
	client bool
	json   bool
	out    io.Writer
}

func (s *session) run(ctx context.Context, conn net.Conn) error {
	defer conn.Close()
	role := pingpong.Server
	if s.client {
		role = pingpong.Client
	}
	if !s.json {
		s.Connected = func(local, remote []pingpong.Address) {
			for i, l := range local {
				fmt.Fprintf(s.out, "  local address:  %v\n  remote address: %v\n", l, remote[i])
			}
		}
	}
	took, err := role(ctx, s.dev, s.Config, conn)
	if err != nil {
		return err
	}
	return s.report(took)
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

// report prints the result: as JSON, or as the two lines of the example programs.
func (s *session) report(took time.Duration) error {
	r := Result{
		Kind: string(s.Kind), Role: "server", Interface: s.dev.Info().Name, PathMTU: s.MTU,
		Bytes: s.Bytes, QPs: s.QPs,
		Iters: s.Iterations, Seconds: took.Seconds(),
		Mbits:  cli.Round(float64(s.Bytes)*float64(s.Iterations)*2*8/took.Seconds()/1e6, 3),
		Micros: cli.Round(took.Seconds()*1e6/float64(s.Iterations), 3),
	}
	if s.client {
		r.Role = "client"
	}
	if s.json {
		return cli.JSON(s.out, &r)
	}
	fmt.Fprintf(s.out, "%d bytes in %.2f seconds = %.2f Mbit/sec\n", 2*r.Bytes*r.Iters, r.Seconds,
		r.Mbits)
	fmt.Fprintf(s.out, "%d iters in %.2f seconds = %.2f usec/iter\n", r.Iters, r.Seconds, r.Micros)
	return nil
}
