// Package run is the command "gorxe run", which runs a program with an emulated RDMA device.
package run

import (
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/internal/service"
)

type flags struct {
	device device.Flags
	faults faults
	trace  bool
	stats  bool
	limits device.Limits
	socket string // of the node service; service.NoSocket: none; "": the standard one
}

// Command returns the command "gorxe run".
func Command() *cobra.Command {
	f := new(flags)
	cmd := &cobra.Command{
		Use:   "run [flags] -- PROGRAM [ARGUMENT]...",
		Short: "Run a program of libibverbs on an emulated RDMA device",
		Long: `Run an unmodified program of libibverbs or librdmacm, and all processes that it
starts, on an emulated RDMA device. The kernel needs no RDMA support, and the program
needs nothing but rdma-core's libraries. No privileges are needed: without them the
device uses UDP sockets.

The program sees one device, rxe0, with the addresses of the interface as GIDs. It joins
the node service of the interface ('gorxe up'). If there is none, gorxe starts one for the
programs of this user, which ends after the last of them. So several programs share an
address, and can connect to each other. With --datapath xdp, --mode or --socket none
the program has the addresses alone. The other side may also be gorxe, the kernel's rxe
or a hardware NIC.

The exit status is that of the program, and 128 plus the number of the signal if a signal
ended it. Signals are forwarded to the program. gorxe ends after the program and all
processes that it started.

--loss, --duplicate, --reorder, --corrupt, --delay and --jitter apply to packets that the
device sends.`,
		Example: `  gorxe run -- ibv_devinfo -v

  # two programs on one host
  gorxe run -- ib_write_bw -x 0
  gorxe run -- ib_write_bw -x 0 127.0.0.1

  # a shell in which all programs see the device
  gorxe run --dev eth0 -- bash

  # 1 % loss, the same packets in each run, recorded in a file
  gorxe run --loss 1% --seed 7 --pcap x.pcap -- ibv_rc_pingpong -g 0 10.0.0.2`,
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) == 0:
				return cli.Usagef("PROGRAM is missing")
			case args[0] == "":
				return cli.Usagef("PROGRAM is empty") // probably an unset variable of a script
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.check(); err != nil {
				return err
			}
			path, err := exec.LookPath(args[0])
			var e *exec.Error
			switch {
			case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
				return fmt.Errorf("no such program: %s", args[0])
			case errors.As(err, &e):
				return fmt.Errorf("%s cannot be executed: %w", args[0], e.Err)
			case err != nil:
				return err
			}
			status, err := f.run(cmd.Context(), path, args, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			return cli.Exit(status)
		},
	}
	fs := cmd.Flags()
	fs.SetInterspersed(false)
	f.device.RegisterIface(fs, "lo")
	f.device.Register(fs)
	fs.Var(&f.device.Datapath, "port", fs.Lookup("datapath").Usage)
	_ = fs.MarkHidden("port") // a second name of --datapath
	f.faults.register(fs)
	f.limits.Register(fs, "the program")
	fs.StringVar(&f.socket, "socket", "", "socket of the node service to join, or none: do not share "+
		"the addresses with other programs (default: that of the interface)")
	fs.BoolVar(&f.trace, "trace", false, "print a line for each verbs call on stderr")
	fs.BoolVar(&f.stats, "stats", false, "print counters on stderr at the end")
	return cmd
}

// check refuses a device that --socket contradicts.
func (f *flags) check() error {
	joins := f.socket != "" && f.socket != service.NoSocket
	switch {
	case joins && f.device.Iface != "":
		return cli.Usagef("--socket %s and --dev exclude each other, because the service has an "+
			"interface: leave out one of them", f.socket)
	case f.socket == service.NoSocket && filepath.IsAbs(f.device.Iface):
		return cli.Usagef("--socket %s and --dev %s exclude each other: leave out one of them",
			service.NoSocket, f.device.Iface)
	}
	return nil
}
