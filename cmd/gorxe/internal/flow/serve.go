package flow

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"

	"github.com/spf13/cobra"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/internal/flowplan"
	"github.com/gorxe/gorxe/internal/guard"
	"github.com/gorxe/gorxe/roce"
)

type serveFlags struct {
	device  device.Flags
	access  guard.Flags
	confine device.Confinement
	port    cli.Int
	json    bool
}

func serveCommand() *cobra.Command {
	f := new(serveFlags)
	cmd := &cobra.Command{
		Use:   "serve FILE",
		Short: "Receive the messages of flows from another host",
		Long: `Receive the messages of a description from 'gorxe flow run FILE HOST' on another host, and discard
them, until interrupted. Both sides need the same flows. The flows use consecutive RDMA ports, which are
independent of TCP ports. Each flow has one sender at a time.

The server accepts senders in the subnets of its interface, see --allow and --deny. When its sockets are
open, it drops its privileges and prints what it kept.`,
		Example: `  gorxe flow serve flows.yaml -d eth0
  gorxe flow run flows.yaml 10.0.0.2        # on the other host`,
		Args: cli.Named("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := load(cmd, args[0])
			if err != nil {
				return err
			}
			return f.run(cmd.Context(), p, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	fs := cmd.Flags()
	cli.PortVar(fs, &f.port, "port", "p", flowplan.DefaultPort, "RDMA port of the first flow")
	f.device.RegisterIface(fs, "the only usable one")
	f.access.Register(fs)
	f.device.Register(fs)
	f.confine.Register(fs, device.DefaultUser)
	cli.JSONVar(fs, &f.json, "print one line of JSON for each sender that has ended")
	return cmd
}

// received is what --json prints.
type received struct {
	Flow     string     `json:"flow"`
	Peer     netip.Addr `json:"peer"`
	Messages uint64     `json:"messages"`
	Bytes    uint64     `json:"bytes"`
	Error    string     `json:"error,omitempty"`
}

func (f *serveFlags) run(ctx context.Context, p *flowplan.Plan, out, diag io.Writer) (err error) {
	if f.port.N+len(p.Flows) > endPort {
		return cli.Usagef("--port %d: %d flows need more ports than there are", f.port.N,
			len(p.Flows))
	}
	if err := f.device.SetDefaultIface(); err != nil {
		return err
	}
	dev, err := f.device.OpenContext(ctx, roce.Auto)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	ctx, stop := device.WhilePresent(ctx, dev)
	defer stop()
	peers := f.access.Guard(dev)
	err = flowplan.Serve(ctx, p, dev, flowplan.ServeConfig{
		Port: uint16(f.port.N), Permits: peers.Permits,
		Refused: peers.Limit(func(peer netip.AddrPort, err error) {
			fmt.Fprintf(diag, "A request of %v was refused: %v.\n", peer.Addr(), err)
		}),
		Listening: func() error {
			if err := f.confine.ApplyAndLog(diag); err != nil {
				return err
			}
			fmt.Fprintf(diag, "%s (%s) receives %s on RDMA ports from %d, from %v.\n",
				f.device.Iface, dev.Info().Datapath, cli.Count(len(p.Flows), "flow"), f.port.N,
				peers)
			return nil
		},
		Ended: func(r flowplan.Received) {
			if r.Err == nil || peers.ShowSession(r.Peer) {
				f.report(r, out)
			}
		},
	})
	if err == nil && !cli.Interrupted(ctx) {
		err = context.Cause(ctx)
	}
	return err
}

// endPort is the number after the highest RDMA port.
const endPort = 1 << 16

// report prints what a sender has sent.
func (f *serveFlags) report(r flowplan.Received, out io.Writer) {
	line := received{Flow: r.Flow, Peer: r.Peer, Messages: r.Messages, Bytes: r.Bytes}
	if r.Err != nil {
		line.Error = r.Err.Error()
	}
	if f.json {
		_ = cli.JSON(out, &line)
		return
	}
	fmt.Fprintf(out, "%s from %v: %s, %d bytes", r.Flow, r.Peer,
		cli.Count(int(r.Messages), "message"), r.Bytes)
	if r.Err != nil {
		fmt.Fprintf(out, ", %v", r.Err)
	}
	fmt.Fprintln(out)
}
