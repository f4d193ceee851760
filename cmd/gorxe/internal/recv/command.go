package recv

import (
	"math"

	"github.com/spf13/cobra"

	"github.com/gorxe/gorxe/cmd/gorxe/internal/copyflags"
	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/internal/guard"
)

const (
	defaultSessions = 16
	maxSessions     = 1024
)

// flags are the flags of the command.
type flags struct {
	copyflags.Flags

	access      guard.Flags
	confine     device.Confinement
	dir         string
	once        bool
	allowPull   bool
	allowDelete bool
	sessions    cli.Int
	files       cli.Int
	bytes       cli.Size
	changed     func(name string) bool // whether the user set a flag
}

// Command returns the command "gorxe recv".
func Command() *cobra.Command {
	f := new(flags)
	cmd := &cobra.Command{
		Use:   "recv",
		Short: "Store the files that 'gorxe send' on other hosts sends",
		Long: `Store the files that 'gorxe send' on other hosts sends, below a directory that no name leaves, until
interrupted. With --allow-pull, also send files from there. The data is NOT ENCRYPTED: use it in
networks that you trust. Without --token-file, everyone whose address is permitted can store files
(see --allow and --deny; the default is the subnets of the interface).

A file gets its name when its checksum was verified and it is on disk. Until then, a file from 4 MiB
is in a file .gorxe-*.part in the same directory, from which the sender resumes an interrupted copy.

When its sockets are open, recv drops its privileges and prints what it kept. It can then access only
DIR. With --user, it stores files as that user, who must be able to write to DIR; otherwise it keeps
its user. The setuid, setgid and sticky bits of files are not preserved.

With --dir -, recv writes one file to standard output and exits.`,
		Example: `  gorxe recv -d eth0 --dir /data
  gorxe recv -d eth0 --dir /data --token-file /etc/gorxe.token --allow 10.1.0.0/16
  gorxe recv -d eth0 --dir - | tar x`,
		Args: cli.Named(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			f.changed = cmd.Flags().Changed
			return f.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	fs := cmd.Flags()
	f.Register(fs, "the only usable one")
	f.sessions = cli.Int{N: defaultSessions, Min: 1, Max: maxSessions}
	f.files = cli.Int{Min: 0, Max: math.MaxInt64}
	f.bytes = cli.Size{Min: 0, Max: math.MaxInt64}
	fs.StringVar(&f.dir, "dir", "",
		"directory for the files, which must exist, or - for standard output")
	fs.BoolVar(&f.once, "once", false, "serve one sender, and exit with its status")
	fs.BoolVar(&f.allowPull, "allow-pull", false, "let clients read files (send --from)")
	fs.BoolVar(&f.allowDelete, "allow-delete", false, "let senders delete files (send --delete)")
	fs.Var(&f.Overwrite, "overwrite",
		"most that senders may replace: never, older (files that are "+
			"older than the sender's) or always")
	fs.Var(&f.sessions, "max-sessions",
		"serve at most this number of senders at a time, half of it "+
			"from one address")
	fs.Var(&f.files, "max-files",
		"accept at most this number of files and directories of one sender "+
			"(default: no limit)")
	fs.Var(&f.bytes, "max-bytes",
		"accept at most this number of bytes of one sender (default: no limit)")
	f.access.Register(fs)
	f.confine.Register(fs, "root, if it stores files, otherwise "+device.DefaultUser)
	cli.JSONVar(fs, &f.JSON, "print one line of JSON for each sender that has ended")
	cli.HideDefaults(fs, "max-files", "max-bytes")
	return cmd
}
