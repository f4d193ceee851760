package statusbyte

import (
	"github.com/spf13/cobra"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/streams"
)

func tailCommand() *cobra.Command {
	var remove bool
	cmd := &cobra.Command{
		Use:   "tail DIR",
		Short: "Write the stream in a device's directory to stdout until it ends",
		Long: `Follow the directory that 'statusbyte recv' fills for a device: write the data of all
packets to stdout until the stream ends. With --remove, files are removed after they
were written, so that the directory does not fill up.

If packets are missing (a file number was skipped), tail prints a message on stderr,
continues, and exits with status 1 at the end.`,
		Example: `  gorxe statusbyte tail /data/device-003 --remove | ffmpeg -f rawvideo ...`,
		Args:    cli.Named("DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return streams.Tail(cmd.Context(), args[0], remove, cmd.OutOrStdout(),
				cmd.ErrOrStderr())
		},
	}
	cmd.Flags().BoolVar(&remove, "remove", false, "remove files after they were written")
	return cmd
}
