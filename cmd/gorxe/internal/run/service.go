package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/internal/osnet"
	"github.com/gorxe/gorxe/internal/service"
	"github.com/gorxe/gorxe/roce"
)

// open opens the device. It joins the node service of the interface. If there is none, it starts
// one for the programs of this user. It returns early if a signal ends ctx; gorxe ends then.
func (f *flags) open(ctx context.Context, diag io.Writer, opts []roce.Option) (*roce.Device,
	error) {
	d := f.device
	switch {
	case f.socket == service.NoSocket:
		return openDevice(ctx, diag, &d, append(opts, roce.WithoutService()))
	case f.socket != "":
		path, err := filepath.Abs(f.socket) // a relative one would be the name of an interface
		if err != nil {
			return nil, err
		}
		d.Iface = path
		return openDevice(ctx, diag, &d, opts)
	case filepath.IsAbs(d.Iface), d.WantsXDP():
		return openDevice(ctx, diag, &d, opts)
	}
	name := serviceName(d.Iface)
	path := service.DefaultPath(name)
	running := func() bool { return slices.ContainsFunc(service.PathsOf(d.Iface, 0), service.Answers) }
	unlock, failed := lock(ctx, diag, path)
	if failed == nil {
		defer func() { unlock(failed != nil) }()
		if !running() {
			failed = startService(ctx, diag, name, path)
		}
	}
	if cli.Interrupted(ctx) {
		return nil, cli.ErrInterrupted
	}
	if failed != nil && !running() {
		// A device on AF_XDP would take the packets of a service that has one of the addresses.
		if err := partServed(d.Iface, failed); err != nil {
			return nil, err
		}
	}
	dev, err := openDevice(ctx, diag, &d, opts)
	if err == nil && failed != nil && dev.Info().Service == "" {
		fmt.Fprintf(diag, "gorxe run: other programs cannot use %s at the same time: %v\n", d.Iface,
			failed)
	}
	return dev, err
}

// partServed returns an error that says how to use the service of one of an interface's addresses,
// or nil if there is no such service. failed is the error of starting a service of the interface.
func partServed(iface string, failed error) error {
	i, err := net.InterfaceByName(iface)
	if err != nil {
		return nil // iface is an address
	}
	for _, a := range osnet.AddrsOf(i) {
		if service.Serves(a) {
			return fmt.Errorf("a node service has the address %v of %s: join it with --dev %v, or "+
				"end it: %w", a, iface, a, failed)
		}
	}
	return nil
}

const (
	// notice is the time after which the command says what it waits for.
	notice = 3 * time.Second
	// lockPatience is how long the command waits for others that start or end the service. Each of
	// them needs a few seconds at most, if it is not stopped.
	lockPatience = 30 * time.Second
	// startPatience is how long a service may take to start.
	startPatience = 30 * time.Second
)

// waiting prints what the command waits for, unless the function that it returns is called soon.
func waiting(diag io.Writer, format string, args ...any) (stop func() bool) {
	return time.AfterFunc(notice, func() {
		fmt.Fprintf(diag, "gorxe run: waiting for "+format+"\n", args...)
	}).Stop
}

// lock locks the socket of a service.
func lock(ctx context.Context, diag io.Writer, path string) (unlock func(remove bool), err error) {
	name := service.LockPath(path)
	defer waiting(diag, "another gorxe run, which starts or ends a node service (`fuser %s` shows its "+
		"process)", name)()
	ctx, cancel := context.WithTimeoutCause(ctx, lockPatience,
		fmt.Errorf("another process has it for more than %v (`fuser %s`)", lockPatience, name))
	defer cancel()
	return service.Lock(ctx, path)
}

// openDevice opens the device of f.
func openDevice(ctx context.Context, diag io.Writer, f *device.Flags, opts []roce.Option) (
	*roce.Device, error) {
	defer waiting(diag, "the addresses of %s, or its node service", f.Iface)()
	f.OwnEvents = true // the program gets them
	return f.OpenContext(ctx, roce.Auto, opts...)
}

// serviceName returns the name of the service for a device: the interface, also if the device is
// one of its addresses. Addresses of no interface, such as 127.0.0.2, have services of their own.
func serviceName(name string) string {
	a, err := netip.ParseAddr(name)
	if err != nil {
		return name
	}
	list, err := net.Interfaces()
	if err != nil {
		return name
	}
	for i := range list {
		if (a.Zone() == "" || a.Zone() == list[i].Name) &&
			slices.Contains(osnet.AddrsOf(&list[i]), a.WithZone("").Unmap()) {
			return list[i].Name
		}
	}
	return name
}

// readyFD is the number of the descriptor on which a service reports that it is ready, or an error.
const readyFD = 3

// executable returns the program that is the service. A variable for tests.
var executable = os.Executable

// startService starts the service of this user, and returns when programs can join it. The process
// outlives this one if another program joins. One that is ready too late, or after ctx has ended,
// finds that nobody reads its report, and ends unless another program has joined.
func startService(ctx context.Context, diag io.Writer, name, path string) error {
	defer waiting(diag, "the node service of %s, which starts", name)()
	ctx, cancel := context.WithTimeoutCause(ctx, startPatience,
		fmt.Errorf("it is not ready after %v", startPatience))
	defer cancel()
	self, err := executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	defer context.AfterFunc(ctx, func() { _ = r.SetReadDeadline(time.Unix(1, 0)) })()
	cmd := exec.CommandContext(ctx, self, ServiceName, "--"+detachFlag, name, path)
	cmd.ExtraFiles = []*os.File{w}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // signals of the terminal do not end it
	osnet.BeforeStart()
	err = cmd.Start()
	_ = w.Close()
	if err != nil {
		return fmt.Errorf("start a node service: %w", err)
	}
	text, err := io.ReadAll(io.LimitReader(r, maxReport))
	_ = cmd.Wait() // it has started the service, or reported an error
	switch answer := string(text); {
	case answer == ready && err == nil:
		device.WarnXDP(diag, name)
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("start a node service: %w", context.Cause(ctx))
	case err != nil:
		return err
	case answer == "":
		return errors.New("start a node service: it ended early")
	default:
		return fmt.Errorf("start a node service: %s", strings.TrimSpace(answer))
	}
}

// What a service reports.
const (
	ready     = "ready\n"
	maxReport = 4 << 10
)
