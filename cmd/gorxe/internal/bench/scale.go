package bench

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/papers/prefetch/scale"
)

func scaleCommand() *cobra.Command {
	c := scale.DefaultConfig()
	qps := counts{list: c.QPs, min: 1, max: scale.MaxCount}
	mrs := counts{list: c.MRs, min: 1, max: scale.MaxCount}
	windows := counts{list: c.Windows, max: scale.MaxWindow}
	burst := cli.Int{N: c.Burst, Min: 1, Max: scale.MaxBurst}
	var orders []string
	for _, o := range c.Orders {
		orders = append(orders, string(o))
	}
	cmd := &cobra.Command{
		Use:   "scale",
		Short: "Measure the message rate with thousands of QPs and memory regions",
		Long: `Measure the rate of 64 B WRITEs over 1 to 65,536 QPs and memory regions, with the engine's prefetching
off and on. Each message uses another QP or region than the previous one. The measurements alternate,
round by round, on two devices of this process, which have all QPs and regions from the start. Values
are medians; ratios are relative to 64 QPs or 64 MRs.`,
		Example: `  gorxe bench scale
  gorxe bench scale --plot scale.svg
  sudo gorxe bench scale --link veth --qps 16384 --mrs 16384
  gorxe bench scale --mrs none --window 0,2,4,8,16,32`,
		Args: cli.Named(),
	}
	f := newFlags(cmd, &c.Options, 1000, onePlot)
	f.addDuration("duration of a measurement")
	f.addLink("memory, or veth: AF_XDP on a veth pair (needs root)")
	fs := cmd.Flags()
	fs.Var(&qps, "qps", "numbers of QPs, 1 to 65536, or none")
	fs.Var(&mrs, "mrs", "numbers of memory regions, 1 to 65536, or none")
	fs.StringSliceVar(&orders, "order", orders, "orders: rr (round robin), random")
	fs.Var(&windows, "window", "prefetch windows in QPs; 0: off")
	fs.Var(&burst, "burst", "messages in a row to one QP")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if fs.Changed("plot") && c.Plot == "" {
			return cli.Usagef("--plot has no file name, as in --plot scale.svg")
		}
		c.QPs, c.MRs, c.Windows, c.Burst = qps.list, mrs.list, windows.list, burst.N
		c.Orders = nil
		for _, o := range orders {
			c.Orders = append(c.Orders, scale.Order(o))
		}
		return execute(cmd, f, func(ctx context.Context, stderr io.Writer) (*scale.Report, error) {
			return scale.Run(ctx, c, stderr)
		})
	}
	return cmd
}

// counts is the value of a flag: a list of numbers from min to max, or none.
type counts struct {
	list     []int
	min, max int
	set      bool
}

// Set implements pflag.Value.
func (c *counts) Set(text string) error {
	if !c.set {
		c.list, c.set = nil, true // replace the default
	}
	if text == "none" {
		c.list = nil
		return nil
	}
	for _, s := range strings.Split(text, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(s))
		if err != nil || n < c.min || n > c.max {
			return fmt.Errorf("%q is not a number from %d to %d: give such numbers, as in %d,%d, or none",
				s, c.min, c.max, c.min, c.max)
		}
		if !slices.Contains(c.list, n) {
			c.list = append(c.list, n)
		}
	}
	return nil
}

// String implements pflag.Value.
func (c *counts) String() string {
	if len(c.list) == 0 {
		return "none"
	}
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(c.list), " ", ","), "[]")
}

// Type implements pflag.Value.
func (c *counts) Type() string { return "numbers" }
