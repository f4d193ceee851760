package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/internal/inside"
	"github.com/gorxe/gorxe/internal/service"
	"github.com/gorxe/gorxe/internal/status"
	"github.com/gorxe/gorxe/roce"
)

// ServiceName is the name of the hidden command that ServiceCommand returns.
const ServiceName = "run-service"

// ServiceCommand returns the command of the node service that "gorxe run" starts. It ends after its
// last program. version is that of gorxe.
func ServiceCommand(version string) *cobra.Command {
	return &cobra.Command{
		Use:    ServiceName + " NAME SOCKET",
		Hidden: true,
		Args:   cli.Named("NAME", "SOCKET"),
		RunE: func(cmd *cobra.Command, args []string) error {
			report := os.NewFile(readyFD, "report")
			err := serve(cmd.Context(), args[0], args[1], version, report)
			fmt.Fprintln(report, err) // nobody reads it if the service was ready
			return err
		},
	}
}

// firstMember is how long the service waits for its first member.
const firstMember = 20 * time.Second

// serve runs the service until its last member has left. It writes a line to report when programs
// can join, and closes report.
func serve(ctx context.Context, name, path, version string, report io.WriteCloser) (err error) {
	unlock := func(bool) {}
	defer func() { unlock(true) }() // after the service has ended
	s, err := service.New(path, service.Options{})
	if err != nil {
		return err
	}
	f := device.Flags{Iface: name}
	f.Datapath.Value = roce.PortUDP.String()
	dev, err := f.Open(roce.Auto, inside.Host(s).(roce.Option))
	if err != nil {
		return errors.Join(err, s.Close())
	}
	// The members learn first that the service ends.
	defer func() { err = errors.Join(err, s.Close(), dev.Close()) }()
	status.NewCollector(status.Config{Device: dev, Name: "gorxe run", Version: version}).Serve(s)
	if _, err := io.WriteString(report, ready); err != nil {
		return err
	}
	if err := report.Close(); err != nil {
		return err
	}
	for patience := time.After(firstMember); ; patience = nil {
		select {
		case <-s.Empty():
		case <-patience:
		case <-dev.Done():
			return dev.Err()
		case <-ctx.Done():
			return nil
		}
		// Programs join with the lock. Without members nobody is about to join now.
		release, err := service.Lock(path)
		if err != nil {
			return err
		}
		if !s.HasMembers() {
			unlock = release
			return nil
		}
		release(false)
	}
}
