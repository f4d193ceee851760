package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/internal/inside"
	"github.com/gorxe/gorxe/internal/osnet"
	"github.com/gorxe/gorxe/internal/service"
	"github.com/gorxe/gorxe/internal/status"
	"github.com/gorxe/gorxe/roce"
)

// ServiceName is the name of the hidden command that ServiceCommand returns.
const ServiceName = "run-service"

// detachFlag makes the command start the service in another process, and end.
const detachFlag = "detach"

// ServiceCommand returns the command of the node service that "gorxe run" starts. It ends after its
// last program. version is that of gorxe.
func ServiceCommand(version string) *cobra.Command {
	var detached bool
	cmd := &cobra.Command{
		Use:    ServiceName + " NAME SOCKET",
		Hidden: true,
		Args:   cli.Named("NAME", "SOCKET"),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			report := os.NewFile(readyFD, "report")
			if detached {
				err = detach(args, report)
			} else {
				err = serve(cmd.Context(), args[0], args[1], version, report)
			}
			if err != nil {
				fmt.Fprintln(report, err) // nobody reads it if the service was ready
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&detached, detachFlag, false, "serve in another process")
	return cmd
}

// detach starts the service in a process that does not descend from 'gorxe run', because this
// process, its parent, ends. Otherwise signals to the program that has started the service would
// end it for all others.
func detach(args []string, report *os.File) error {
	// The program's descriptors, such as locks and pipes of a shell script, would remain open as
	// long as the service runs. If a container forbids the call, they do.
	_ = unix.CloseRange(readyFD+1, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	c := &exec.Cmd{Path: "/proc/self/exe", Args: append([]string{os.Args[0], ServiceName}, args...),
		ExtraFiles: []*os.File{report}}
	osnet.BeforeStart()
	if err := c.Start(); err != nil {
		return fmt.Errorf("start a node service: %w", err)
	}
	return nil
}

// firstMember is how long the service waits for its first member.
const firstMember = 20 * time.Second

// serve runs the service until its last member has left. It writes a line to report when programs
// can join, and closes report.
func serve(ctx context.Context, name, path, version string, report io.WriteCloser) (err error) {
	// Otherwise tools like ss show the process as "exe", because it was started as /proc/self/exe.
	_ = os.WriteFile("/proc/self/comm", []byte("gorxe"), 0)
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
	wait := firstMember
	if _, err := io.WriteString(report, ready); err != nil {
		// A signal has ended the 'gorxe run' that waited. Another one may have joined already, so
		// the service ends as it does without members: with the lock.
		wait = 0
	}
	if err := report.Close(); err != nil {
		return err
	}
	for patience := time.After(wait); ; patience = nil {
		select {
		case <-s.Empty():
		case <-patience:
		case <-dev.Done():
			return dev.Err()
		case <-ctx.Done():
			return nil
		}
		// Programs join with the lock. Without members nobody is about to join now.
		release, err := service.Lock(ctx, path)
		switch {
		case cli.Interrupted(ctx):
			return nil
		case err != nil:
			return err
		}
		if !s.HasMembers() {
			unlock = release
			return nil
		}
		release(false)
	}
}
