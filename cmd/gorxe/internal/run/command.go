// Package run is the command "gorxe run", which runs a program with an emulated RDMA device.
package run

import (
	"os/exec"

	"github.com/spf13/cobra"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/device"
)

type flags struct {
	device device.Flags
	faults faults
	trace  bool
	stats  bool
}

// Command returns the command "gorxe run".
func Command() *cobra.Command {
	f := new(flags)
	cmd := &cobra.Command{
		Use:   "run [flags] -- PROGRAM [ARGUMENT]...",
		Short: "Run a program of libibverbs on an emulated RDMA device",
		Long: `Run an unmodified program of libibverbs, and all processes that it starts, on an
emulated RDMA device, without RDMA support in the kernel and without privileges.`,
		Example: `  gorxe run --dev eth0 -- ibv_devinfo -v

  # two programs on one host
  gorxe run --dev 127.0.0.1 -- ib_write_bw -d rxe0
  gorxe run --dev 127.0.0.2 -- ib_write_bw -d rxe0 127.0.0.1`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cli.Usagef("PROGRAM is missing")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := exec.LookPath(args[0])
			if err != nil {
				return err
			}
			status, err := f.run(path, args)
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
	f.faults.register(fs)
	fs.BoolVar(&f.trace, "trace", false, "print a line for each verbs call on stderr")
	fs.BoolVar(&f.stats, "stats", false, "print counters on stderr at the end")
	return cmd
}
