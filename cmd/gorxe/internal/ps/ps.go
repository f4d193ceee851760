package ps

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/gorxe/gorxe/internal/cli"
)

// Command returns the command "gorxe ps".
func Command() *cobra.Command {
	var s services
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "List the programs of node services and their queue pairs",
		Long: `List the programs that use the devices of node services (gorxe up), and their queue
pairs: peer, state, round trip time (RTT), window, and packets sent, received and
retransmitted. It asks the services at the standard paths, /run/gorxe/NAME.sock and
$XDG_RUNTIME_DIR/gorxe/NAME.sock.

Root, and the user who started a service, see all programs. Other users see their own.`,
		Example: `  gorxe ps

  # all queue pairs that have retransmitted packets
  gorxe ps --json | jq '.[].programs[].qps[] | select(.retransmits > 0)'`,
		Args: cli.Named(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, failed := s.read(cmd.Context())
			if list == nil {
				return failed
			}
			if asJSON {
				return errors.Join(cli.JSON(cmd.OutOrStdout(), list), failed)
			}
			if len(list) == 0 && failed == nil {
				_, err := fmt.Fprintln(cmd.ErrOrStderr(), none)
				return err
			}
			for i, one := range list {
				if i > 0 {
					_, _ = io.WriteString(cmd.OutOrStdout(), "\n")
				}
				if err := write(cmd.OutOrStdout(), one); err != nil {
					return err
				}
			}
			return failed
		},
	}
	s.register(cmd.Flags())
	cli.JSONVar(cmd.Flags(), &asJSON, "print one JSON array with an object for each service")
	return cmd
}
