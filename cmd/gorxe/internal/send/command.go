package send

import (
	"math"
	"time"

	"github.com/spf13/cobra"

	"github.com/gorxe/gorxe/cmd/gorxe/internal/copyflags"
	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/filecopy/record"
	"github.com/gorxe/gorxe/transport/rftp"
)

// Values of --retry. The default covers a host that is suspended, or restarts, for a minute.
const (
	defaultRetry = 2 * time.Minute
	maxRetry     = 24 * time.Hour
)

// flags are the flags of the command.
type flags struct {
	copyflags.Flags

	class    cli.Int
	from     []string
	rules    []record.Rule
	limit    cli.Size
	retry    cli.Duration
	retryAll bool // the user has set retry
	dryRun   bool
	delete   bool
}

// Command returns the command "gorxe send".
func Command() *cobra.Command {
	f := new(flags)
	cmd := &cobra.Command{
		Use:   "send SOURCE... HOST:[TARGET] | send --from HOST:PATH... [TARGET]",
		Short: "Copy files and directories to 'gorxe recv' on another host, or from it",
		Long: `Copy files and directories to 'gorxe recv' on another host, or with --from from it. The data is
NOT ENCRYPTED: use it in networks that you trust. --token-file lets both sides prove who they are.

A source directory dir arrives as dir; dir/ sends its contents, as with rsync. A single file can get
another name. - is standard input, or with --from standard output. Names, permissions, times,
symbolic links, empty directories and holes are preserved; owners and hard links are not.

The receiver verifies a checksum of each block and of each file, writes the file to disk, and then
gives it its name, so no incomplete file ever appears. A file with the same size and modification
time is not sent again. After a failure of the network, the copy goes on by itself (--retry). To
resume an interrupted copy, run the same command again: what the receiver has verified of a large
file is not sent again, also after a crash of either host.

A file that cannot be read or stored is named and does not end the copy; the exit status is then 1.`,
		Example: `  gorxe recv -d eth0 --dir /data                  # on 10.0.0.2

  gorxe send bigfile dir/ 10.0.0.2:               # on another host
  gorxe send --exclude '*.o' src 10.0.0.2:backup
  tar c . | gorxe send - 10.0.0.2:copy.tar
  gorxe send --from 10.0.0.2:logs .               # needs recv --allow-pull`,
		Args: func(_ *cobra.Command, args []string) error { return f.checkArgs(args) },
		RunE: func(cmd *cobra.Command, args []string) error {
			f.retryAll = cmd.Flags().Changed("retry")
			return f.run(cmd.Context(), args, cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	fs := cmd.Flags()
	f.Register(fs, "that of the route to HOST")
	f.class = cli.Int{Max: rftp.MaxClass}
	f.retry = cli.Duration{D: defaultRetry, Max: maxRetry}
	f.limit = cli.Size{Min: 0, Max: math.MaxInt64}
	fs.StringArrayVar(&f.from, "from", nil,
		"copy this file or directory from HOST; may be repeated")
	fs.VarP(&f.limit, "limit", "l", "send at most this number of bytes per second, such as 100m "+
		"(default: no limit)")
	fs.Var(&f.Overwrite, "overwrite",
		"replace files that differ in size or time: never, older (if "+
			"the target is older) or always")
	fs.Var(ruleFlag{f, false}, "include", "copy names that match this pattern, even if a later "+
		"--exclude matches; may be repeated")
	fs.Var(ruleFlag{f, true}, "exclude",
		"do not copy names that match this pattern, such as *.o or "+
			"/build/; may be repeated")
	fs.BoolVarP(&f.dryRun, "dry-run", "n", false, "only list what would be copied or deleted")
	fs.BoolVar(&f.delete, "delete", false,
		"delete files in copied directories of the target that the source does not have")
	fs.Var(&f.class, "class",
		"traffic class of the data, 0 to 6; control messages use the next one")
	fs.Var(&f.retry, "retry",
		"after a failure of the network, go on when it works again within this time; if set, "+
			"also after other failures, and wait for a receiver that does not run yet")
	cli.JSONVar(fs, &f.JSON, "print the summary as one JSON object")
	cli.HideDefaults(fs, "limit", "class")
	return cmd
}

// ruleFlag is a flag value that appends to the rules, whose order matters.
type ruleFlag struct {
	f       *flags
	exclude bool
}

// Set implements pflag.Value.
func (r ruleFlag) Set(text string) error {
	rule := record.Rule{Exclude: r.exclude, Pattern: text}
	if _, err := compile([]record.Rule{rule}); err != nil {
		return err
	}
	r.f.rules = append(r.f.rules, rule)
	return nil
}

// String implements pflag.Value.
func (r ruleFlag) String() string { return "" }

// Type implements pflag.Value.
func (r ruleFlag) Type() string { return "pattern" }
