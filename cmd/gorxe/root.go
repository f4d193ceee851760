package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gorxe/gorxe/cmd/gorxe/internal/bench"
	"github.com/gorxe/gorxe/cmd/gorxe/internal/demo"
	"github.com/gorxe/gorxe/cmd/gorxe/internal/devices"
	"github.com/gorxe/gorxe/cmd/gorxe/internal/dump"
	"github.com/gorxe/gorxe/cmd/gorxe/internal/flow"
	"github.com/gorxe/gorxe/cmd/gorxe/internal/fuzz"
	"github.com/gorxe/gorxe/cmd/gorxe/internal/perf"
	"github.com/gorxe/gorxe/cmd/gorxe/internal/ping"
	"github.com/gorxe/gorxe/cmd/gorxe/internal/pingpong"
	"github.com/gorxe/gorxe/cmd/gorxe/internal/ps"
	"github.com/gorxe/gorxe/cmd/gorxe/internal/recv"
	runcommand "github.com/gorxe/gorxe/cmd/gorxe/internal/run"
	"github.com/gorxe/gorxe/cmd/gorxe/internal/send"
	"github.com/gorxe/gorxe/cmd/gorxe/internal/sim"
	"github.com/gorxe/gorxe/cmd/gorxe/internal/statusbyte"
	"github.com/gorxe/gorxe/cmd/gorxe/internal/up"
	"github.com/gorxe/gorxe/internal/cli"
)

// version is set by the build of a release: -ldflags "-X main.version=v1.2.3".
var version = ""

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "gorxe",
		Short: "A software RDMA NIC: RoCEv2 in user space over AF_XDP",
		Long: `gorxe turns an ordinary Linux network interface into an RDMA NIC: standard RoCEv2 in
user space over AF_XDP, without kernel modules or cgo. Other traffic of the interface is
not affected.

Exit status: 0 success, 1 failure, 2 wrong usage.`,
		Example: `  gorxe demo                        # all operations on a temporary veth pair (as root)
  gorxe up eth0                     # use this interface as an RDMA NIC
  gorxe ping 10.0.0.2               # from another host
  gorxe perf write-bw 10.0.0.2`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			msg := fmt.Sprintf("no such command %q", args[0])
			// Cobra returns all commands within a distance, in the order of their names. The
			// nearest ones come first here: "upp" means "up", not "dump".
			for distance := 1; distance <= 2; distance++ {
				cmd.SuggestionsMinimumDistance = distance
				if like := cmd.SuggestionsFor(args[0]); len(like) > 0 {
					msg += fmt.Sprintf(": did you mean %q?", like[0])
					break
				}
			}
			return cli.Usagef("%s", msg)
		},
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		Version: build().String(),
	}
	cmd.SetVersionTemplate("gorxe {{.Version}}\n")
	cmd.Annotations = map[string]string{cli.VersionKey: build().Version}
	cmd.AddCommand(
		demo.Command(), up.Command(), ps.Command(), ps.TopCommand(), devices.Command(), ping.Command(), perf.Command(),
		pingpong.Command(), runcommand.Command(), runcommand.ServiceCommand(build().Version), send.Command(), recv.Command(), bench.Command(), sim.Command(),
		statusbyte.Command(), flow.Command(),
		dump.Command(), fuzz.Command(), versionCommand(),
	)
	cmd.SetHelpCommand(helpCommand())
	setCompletion(cmd)
	return cmd
}

// helpCommand replaces cobra's command, which does not report a wrong name by its exit status.
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "help [COMMAND]",
		Short:   "Print the help text of a command",
		Example: "  gorxe help perf",
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) (names []string,
			_ cobra.ShellCompDirective) {
			found, _, err := cmd.Root().Find(args)
			for _, c := range found.Commands() {
				if err == nil && c.IsAvailableCommand() {
					names = append(names, c.Name())
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			found, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return cli.Usagef("no such command %q", strings.Join(args, " "))
			}
			found.InitDefaultHelpFlag()
			return found.Help()
		},
	}
}

// setCompletion makes cobra's command "completion" report wrong arguments as the others do.
func setCompletion(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		if cmd.Name() != "completion" {
			continue
		}
		var shells []string
		for _, shell := range cmd.Commands() {
			shell.Args = cli.Named()
			shells = append(shells, shell.Name())
		}
		cmd.Args = func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return cli.Usagef("no such shell %q: choose %s", args[0],
					strings.Join(shells, ", "))
			}
			return nil
		}
		cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	}
}

func versionCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  gorxe version --json",
		Args:    cli.Named(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := build()
			if asJSON {
				return cli.JSON(cmd.OutOrStdout(), v)
			}
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "gorxe", v)
			return err
		},
	}
	cli.JSONVar(cmd.Flags(), &asJSON, "print one JSON object")
	return cmd
}

// buildInfo describes the binary.
type buildInfo struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func (b buildInfo) String() string {
	return fmt.Sprintf("%s (%s, %s)", b.Version, b.Go, b.Platform)
}

func build() buildInfo {
	b := buildInfo{Version: version, Go: runtime.Version(), Platform: runtime.GOOS + "/" +
		runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if b.Version == "" {
		b.Version = "(devel)"
		if ok && info.Main.Version != "" {
			b.Version = info.Main.Version
		}
	}
	if ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				b.Revision = s.Value
			}
		}
	}
	return b
}
