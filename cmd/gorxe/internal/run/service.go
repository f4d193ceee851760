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

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/service"
	"github.com/gorxe/gorxe/roce"
)

// open opens the device. It joins the node service of the interface. If there is none, it starts
// one for the programs of this user.
func (f *flags) open(ctx context.Context, diag io.Writer, opts []roce.Option) (*roce.Device,
	error) {
	d := f.device
	switch {
	case f.socket == service.NoSocket:
		return d.Open(roce.Auto, append(opts, roce.WithoutService())...)
	case f.socket != "":
		d.Iface = f.socket
		return d.Open(roce.Auto, opts...)
	case filepath.IsAbs(d.Iface), d.WantsXDP():
		return d.Open(roce.Auto, opts...)
	}
	name := serviceName(d.Iface)
	path := service.DefaultPath(name)
	unlock, failed := lock(ctx, path)
	if errors.Is(failed, cli.ErrInterrupted) {
		return nil, failed
	}
	if failed == nil {
		defer func() { unlock(failed != nil) }()
		if !slices.ContainsFunc(service.PathsOf(d.Iface, 0), service.Answers) {
			failed = startService(name, path)
		}
	}
	dev, err := d.Open(roce.Auto, opts...)
	if err == nil && failed != nil && dev.Info().Service == "" {
		fmt.Fprintf(diag, "gorxe run: other programs cannot use %s at the same time: %v\n", d.Iface,
			failed)
	}
	return dev, err
}

// lock locks the socket of a service. It returns early if a signal ends ctx; gorxe ends then.
func lock(ctx context.Context, path string) (unlock func(remove bool), err error) {
	type result struct {
		unlock func(remove bool)
		err    error
	}
	done := make(chan result, 1)
	go func() {
		unlock, err := service.Lock(path)
		done <- result{unlock, err}
	}()
	select {
	case r := <-done:
		return r.unlock, r.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
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
		addrs, err := list[i].Addrs()
		if err != nil {
			continue
		}
		for _, p := range addrs {
			n, ok := p.(*net.IPNet)
			if !ok {
				continue
			}
			b, _ := netip.AddrFromSlice(n.IP)
			if b.Unmap() == a.WithZone("").Unmap() && (a.Zone() == "" || a.Zone() == list[i].Name) {
				return list[i].Name
			}
		}
	}
	return name
}

// readyFD is the number of the descriptor on which a service reports that it is ready, or an error.
const readyFD = 3

// startService starts the service of this user, and returns when programs can join it. The process
// outlives this one if another program joins.
func startService(name, path string) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	cmd := exec.Command(self, ServiceName, "--"+detachFlag, name, path)
	cmd.ExtraFiles = []*os.File{w}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // signals of the terminal do not end it
	err = cmd.Start()
	_ = w.Close()
	if err != nil {
		return fmt.Errorf("start a node service: %w", err)
	}
	text, err := io.ReadAll(io.LimitReader(r, maxReport))
	_ = cmd.Wait() // it has started the service, or reported an error
	switch answer := string(text); {
	case err != nil:
		return err
	case answer == ready:
		return nil
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
