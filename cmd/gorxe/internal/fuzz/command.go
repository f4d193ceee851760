package fuzz

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/internal/packetfuzz"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/xdp"
)

// Limits and defaults of the flags.
const (
	defaultCount = 10_000
	maxCount     = 1_000_000_000
	maxRate      = 1_000_000
	max24        = 1<<24 - 1
)

type flags struct {
	device     device.Flags
	target     string
	yes        bool
	skip       []string
	seed       uint64
	from, only uint64
	count      cli.Int
	rate       cli.Int
	via        cli.Choice
	viaPort    cli.Int
	check      cli.Choice
	port       cli.Int
	every      cli.Int
	timeout    cli.Duration
	qpn, psn   cli.Int
	rkey       uint32
	addr       uint64
	length     cli.Size
	mtu        cli.MTU
	json       bool
}

// Command returns the command "gorxe fuzz".
func Command() *cobra.Command {
	f := new(flags)
	cmd := &cobra.Command{
		Use:   "fuzz -d IFACE --target HOST --yes",
		Short: "Send hostile packets to a RoCEv2 stack of your own and check that it survives",
		Long: `Send hostile packets to a RoCEv2 stack of your own: the kernel's rxe, gorxe, or a NIC.
A faulty stack may crash, and the host with it. Use this command only on machines that
you own, on a network that you own.

Each case is a few packets: truncated headers, wrong lengths and pads, requests and
ACKs outside the window, messages out of order, malformed MADs, IP fragments, options
and extension headers, and valid packets with random errors. Most cases go to a
connection that gorxe opens to the host's rping server, so they pass the first checks
of the stack.

Before, during and after the run, gorxe checks that the host serves a new honest peer:
with --check rping the host needs 'rping -s -P' or 'gorxe up', with --check ping it
needs 'gorxe up'. Run rping in a loop, because it ends when one of its connections fails
in a way that it does not expect: while :; do rping -s -P; done. The exit status is 0 if the host served until the end, 1 if not.

The cases depend only on --seed and their numbers. To find the case that stopped a
host, repeat a part of the run with --from and --count, then single cases with --only.`,
		Example: `  # ten thousand cases to a host that runs 'rping -s -P' or 'gorxe up'
  gorxe fuzz -d eth0 --target 10.0.0.2 --yes

  # an hour's work, slowly, with a check after every 100 cases
  gorxe fuzz -d eth0 --target 10.0.0.2 --yes --count 100000 --rate 100 --check-every 100

  # attack the memory of 'ib_write_bw', which runs in a loop on the host
  gorxe fuzz -d eth0 --target 10.0.0.2 --yes --via perftest

  # case 4217 of an earlier run again
  gorxe fuzz -d eth0 --target 10.0.0.2 --yes --seed 42 --only 4217

  # a queue pair and memory that another program has created on the host
  gorxe fuzz -d eth0 --target 10.0.0.2 --yes --qpn 17 --psn 4711 --rkey 0x1234 \
    --addr 0x7f0000000000 --len 64k`,
		Args: cli.Named(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.validate(cmd); err != nil {
				return err
			}
			return f.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f.register(cmd)
	return cmd
}

func (f *flags) register(cmd *cobra.Command) {
	f.count = cli.Int{N: defaultCount, Min: 1, Max: maxCount}
	f.rate = cli.Int{N: packetfuzz.DefaultRate, Min: 1, Max: maxRate}
	f.every = cli.Int{N: packetfuzz.DefaultCheckEvery, Min: 1, Max: maxCount}
	f.timeout = cli.Duration{D: packetfuzz.DefaultPatience, Min: 10 * time.Millisecond,
		Max: time.Hour}
	f.check = cli.Choice{Value: packetfuzz.CheckRping,
		Words: []string{packetfuzz.CheckRping, packetfuzz.CheckPing}}
	f.via = cli.Choice{Value: packetfuzz.ViaRping,
		Words: []string{packetfuzz.ViaRping, packetfuzz.ViaPerftest}}
	f.qpn, f.psn = cli.Int{Min: 1, Max: max24}, cli.Int{Max: max24}
	f.length = cli.Size{Max: math.MaxUint32}
	fs := cmd.Flags()
	fs.StringVarP(&f.device.Iface, "dev", "d", "", "network interface (required)")
	fs.StringVar(&f.target, "target", "", "host to attack (required)")
	fs.BoolVar(&f.yes, "yes", false,
		"confirm that you own the host and that it may crash (required)")
	fs.Uint64Var(&f.seed, "seed", 0,
		"seed of all cases (default: a random one, which the output shows)")
	fs.Uint64Var(&f.from, "from", 0, "number of the first case")
	fs.Uint64Var(&f.only, "only", 0, "send only the case with this number")
	fs.VarP(&f.count, "count", "c", "number of cases")
	fs.Var(&f.rate, "rate", "largest number of frames per second")
	fs.Var(&f.via, "via",
		"attack the queue pair of a connection to rping, or to a perftest server "+
			"such as ib_write_bw, which also gives access to memory")
	cli.PortVar(fs, &f.viaPort, "via-port", "", 0,
		"port of that server (default: RDMA port 7174 of rping, TCP port 18515 of perftest)")
	fs.StringSliceVar(&f.skip, "skip", nil,
		"kinds of cases not to send, for example because the host "+
			"is known not to survive them: "+strings.Join(packetfuzz.Kinds(), ", "))
	fs.Var(&f.check, "check", "how to check that the host serves: rping or ping (gorxe up)")
	cli.PortVar(fs, &f.port, "port", "p", 0,
		"port of the check (default: RDMA port 7174 of rping, TCP port of gorxe up)")
	fs.Var(&f.every, "check-every", "number of cases between two checks")
	fs.VarP(&f.timeout, "timeout", "t", "time limit of each of the three attempts of a check")
	fs.Var(&f.qpn, "qpn", "attack this queue pair of the host instead of a connection")
	fs.Var(&f.psn, "psn", "with --qpn: PSN that the queue pair expects next")
	fs.Uint32Var(&f.rkey, "rkey", 0, "with --qpn: R_Key of memory that its peer may access")
	fs.Uint64Var(&f.addr, "addr", 0, "with --qpn: address of that memory")
	fs.Var(&f.length, "len", "with --qpn: size of that memory")
	fs.Var(&f.mtu, "mtu", "with --qpn: its path MTU (default 1024)")
	cli.HideDefaults(fs, "port", "via-port", "qpn", "psn", "len", "mtu")
	f.device.RegisterGID(fs, "x")
	f.device.Register(fs)
	cli.JSONVar(fs, &f.json, "print the report as one line of JSON")
}

// validate checks flags that depend on each other.
func (f *flags) validate(cmd *cobra.Command) error {
	set := cmd.Flags().Changed
	switch {
	case f.device.Iface == "":
		return cli.Usagef("the network interface is missing: choose it with -d")
	case f.device.Datapath.Value == roce.PortUDP.String():
		return cli.Usagef("the kernel does not send faulty packets over UDP sockets: use --datapath xdp")
	case f.target == "":
		return cli.Usagef("the host to attack is missing: name it with --target")
	case !f.yes:
		return cli.Usagef("a faulty stack may crash %s: "+
			"confirm with --yes that you own it and that it may", f.target)
	case set("only") && (set("from") || set("count")):
		return cli.Usagef("--only sends one case: use it without --from and --count")
	}
	for _, name := range []string{"psn", "rkey", "addr", "len", "mtu"} {
		if set(name) && !set("qpn") {
			return cli.Usagef("--%s describes a queue pair: use it with --qpn", name)
		}
	}
	for _, name := range f.skip {
		if !slices.Contains(packetfuzz.Kinds(), name) {
			return cli.Usagef("--skip: no kind of cases is named %q: choose from %s", name,
				strings.Join(packetfuzz.Kinds(), ", "))
		}
	}
	if !set("seed") {
		f.seed = rand.Uint64()
	}
	if set("only") {
		f.from, f.count.N = f.only, 1
	}
	return nil
}

func (f *flags) run(ctx context.Context, stdout, stderr io.Writer) error {
	peer, err := f.device.FindPeer(ctx, f.target)
	if err != nil {
		return err
	}
	port, err := xdp.Open(f.device.Iface, f.device.XDP())
	if err != nil {
		return err
	}
	bar := cli.NewBar(stderr, int64(f.count.N), "cases", false)
	c := packetfuzz.Config{
		Port: port, Target: peer.Addr, GID: f.device.GIDIndex, Seed: f.seed, First: f.from,
		Count: uint64(f.count.N), Rate: f.rate.N, Check: f.check.Value, CheckPort: f.port.N,
		CheckEvery: uint64(f.every.N), Progress: func() { bar.Add(1) },
		PKey: bth.PKey(f.device.PKey), Options: f.device.Options(),
		Patience: f.timeout.D, Skip: f.skip, Via: f.via.Value, ViaPort: f.viaPort.N,
	}
	if f.qpn.N != 0 {
		c.Aim = &packetfuzz.Aim{QPN: bth.QPN(f.qpn.N), PSN: bth.PSN(f.psn.N), MTU: bth.MTU(f.mtu.N),
			Addr: f.addr, RKey: bth.RKey(f.rkey), Len: uint32(f.length.Bytes)}
	}
	if !f.json {
		c.Started = func() {
			fmt.Fprintf(stdout, "%s from %d to %v over %s, seed %d, at most %d frames/s\n",
				cli.Count(f.count.N, "case"), f.from, peer.Addr, f.device.Iface, f.seed, f.rate.N)
		}
	}
	r, err := packetfuzz.Run(ctx, c)
	bar.Clear()
	err = f.explain(r, err)
	switch {
	case r.LastCheck == 0 && !r.Serving && r.Cases == 0: // it never began
		return err
	case f.json:
		return errors.Join(err, cli.JSON(stdout, r))
	}
	return errors.Join(err, write(stdout, r))
}

// explain adds to an error what the user can do.
func (f *flags) explain(r *packetfuzz.Report, err error) error {
	switch {
	case errors.Is(err, packetfuzz.ErrNotServing) && f.check.Value == packetfuzz.CheckPing:
		return fmt.Errorf("%w: start 'gorxe up' there", err)
	case errors.Is(err, packetfuzz.ErrNotServing):
		return fmt.Errorf("%w: start 'rping -s -P' or 'gorxe up' there", err)
	case errors.Is(err, packetfuzz.ErrStopped):
		first := r.First + r.LastCheck
		return fmt.Errorf("%w: when it serves again, repeat the cases since the last good check "+
			"with --seed %d --from %d --count %d --check-every 1", err, r.Seed, first,
			r.First+r.Cases-first)
	}
	return err
}
