package up

import (
	"errors"
	"fmt"
	"io/fs"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/spf13/pflag"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/internal/inside"
	"github.com/gorxe/gorxe/internal/service"
	"github.com/gorxe/gorxe/roce"
)

// node has the flags about the node service, and the service.
type node struct {
	path  string // "": the standard path
	mode  socketMode
	group string

	limits  device.Limits
	perUser cli.Int // programs
	flags   *pflag.FlagSet

	server *service.Server // nil: other programs cannot join
	why    string          // of a nil server, if it is not wanted so
}

func (n *node) register(fs *pflag.FlagSet) {
	n.flags = fs
	fs.StringVar(&n.path, "socket", "", "socket by which programs of this host share the interface, "+
		"or none (default: /run/gorxe/IFACE.sock for root, otherwise "+
		"$XDG_RUNTIME_DIR/gorxe/IFACE.sock)")
	n.mode = 0o600
	fs.Var(&n.mode, "socket-mode", "permissions of the socket: who may write to it can use the "+
		"interface; such as 0666 for all users")
	fs.StringVar(&n.group, "socket-group", "", "group of the socket: NAME or GID, with --socket-mode "+
		"0660 (default: that of the process)")
	n.limits.Register(fs, "each program that joins")
	n.perUser = cli.Int{N: service.DefaultPerUser, Min: 1, Max: driver.MaxSlot}
	fs.Var(&n.perUser, "user-programs", "largest number of programs of a user that join")
}

// open opens the device with opts and starts the node service. If the service at the standard path
// cannot be started, the device is opened without it.
func (n *node) open(f *device.Flags, opts []roce.Option) (*roce.Device, error) {
	if filepath.IsAbs(f.Iface) {
		return nil, cli.Usagef("%s is the socket of another service: name an interface", f.Iface)
	}
	gid, err := groupID(n.group)
	if err != nil {
		return nil, err
	}
	if n.path == service.NoSocket {
		if name := cli.Given(n.flags, "socket-mode", "socket-group", "user-programs", "program-qps",
			"program-mrs", "program-memory", "program-rate"); name != "" {
			return nil, cli.Usagef("--%s is about programs that join, and with --socket %s none can: "+
				"leave one of them out", name, service.NoSocket)
		}
		return f.Open(roce.Auto, append(opts, roce.WithoutService())...)
	}
	dev, err := n.start(f, gid, opts)
	if err == nil || n.path != "" {
		return dev, err
	}
	alone, failed := f.Open(roce.Auto, append(slices.Clip(opts), roce.WithoutService())...)
	if failed != nil {
		return nil, servedAlready(f.Iface, failed)
	}
	n.why = err.Error()
	return alone, nil
}

// servedAlready adds to the error of opening an interface that a service has it, if there is one,
// and how to use this service.
func servedAlready(iface string, err error) error {
	for _, path := range service.PathsOf(iface, 0) {
		switch no := service.Check(path); {
		case no == nil:
			return fmt.Errorf("%s belongs to the node service at %s: gorxe run, other commands of "+
				"gorxe and programs that open %s join it by themselves, or with -d %s; to start "+
				"another one, end it first: %w", iface, path, iface, path, err)
		case errors.Is(no, fs.ErrPermission):
			return fmt.Errorf("%w; %w", no, err)
		}
	}
	return err
}

// start opens the device with a node service whose socket has a group.
func (n *node) start(f *device.Flags, gid int, opts []roce.Option) (*roce.Device, error) {
	path := service.DefaultPath(f.Iface)
	if n.path != "" {
		var err error
		if path, err = filepath.Abs(n.path); err != nil { // programs may have other directories
			return nil, err
		}
	}
	s, err := service.New(path, service.Options{Mode: fs.FileMode(n.mode), Group: gid,
		PerUser: n.perUser.N, Limits: driver.Limits(n.limits.Value())})
	if err != nil {
		return nil, err
	}
	dev, err := f.Open(roce.Auto, append(slices.Clip(opts), inside.Host(s).(roce.Option))...)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	n.server = s
	return dev, nil
}

// close ends the service. Its programs get errors.
func (n *node) close() error {
	if n.server == nil {
		return nil
	}
	return n.server.Close()
}

// socket returns the path of the socket, "" if programs cannot join.
func (n *node) socket() string {
	if n.server == nil {
		return ""
	}
	return n.server.Path()
}

// describe says for the user whether programs can join.
func (n *node) describe() string {
	switch {
	case n.server != nil:
		return "programs of this host can join at " + n.server.Path()
	case n.why != "":
		return "programs of this host cannot join: " + n.why
	}
	return "programs of this host cannot join (--socket none)"
}

// groupID returns the number of a group, or 0 for "".
func groupID(name string) (int, error) {
	if name == "" {
		return 0, nil
	}
	if g, err := user.LookupGroup(name); err == nil {
		name = g.Gid
	}
	id, err := strconv.ParseUint(name, 10, 31)
	if err != nil {
		return 0, cli.Usagef("there is no group %q: name one (getent group), or write its number", name)
	}
	return int(id), nil
}

// socketMode is a flag value: permissions in octal.
type socketMode fs.FileMode

// Set implements pflag.Value.
func (m *socketMode) Set(text string) error {
	v, err := strconv.ParseUint(text, 8, 32)
	if err != nil || v&^uint64(fs.ModePerm) != 0 {
		return fmt.Errorf("%q are not permissions: write them in octal, such as 0660", text)
	}
	*m = socketMode(v)
	return nil
}

// String implements pflag.Value.
func (m *socketMode) String() string { return fmt.Sprintf("%04o", uint32(*m)) }

// Type implements pflag.Value.
func (m *socketMode) Type() string { return "mode" }
