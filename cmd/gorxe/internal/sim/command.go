package sim

import (
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/papers/kit"
)

// Command returns the command "gorxe sim".
func Command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sim",
		Short: "Simulate lossy, long and shared networks, or the hardware of a paper",
		Long: `Run a simulation. Nothing is measured on this machine: the same configuration gives the same numbers
everywhere. "network" is about gorxe's bandwidth and fairness on lossy, long and shared networks;
"prefetch" is a model of RDMA hardware and prints its results beside those of its paper.`,
		Example: `  gorxe sim network
  gorxe sim prefetch`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return cli.Usagef("there is no simulation %q: choose network or prefetch", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(networkCommand(), prefetchCommand())
	return cmd
}

// checkPlot checks the prefix of the files that a plot is drawn into, which is the value of --plot.
// It removes an extension, because both formats are drawn.
func checkPlot(name *string) error {
	if ext := kit.PlotFormat(*name); ext != "" {
		*name = (*name)[:len(*name)-len("."+ext)]
	}
	base := filepath.Base(*name)
	if *name == "" || strings.HasSuffix(*name, "/") || base == "." || base == ".." {
		return cli.Usagef("--plot: a prefix is missing, as in --plot figures")
	}
	return kit.CheckPlot(*name, true)
}
