package device

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/pflag"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/xdp"
)

// maxQueues is the largest value of the flag --queues.
const maxQueues = 256

// Flags are the flags about the device that commands have in common.
type Flags struct {
	Iface    string
	Datapath cli.Choice
	Mode     cli.Choice
	Queues   cli.Int
	GIDIndex GIDIndex
	PKey     PKey
	Window   cli.Int
	RingSize int // of AF_XDP ports, not a flag; 0: the default
	// OwnEvents is set by commands that read the events of the device, or whose program does.
	// Otherwise Open reports those of its port on standard error.
	OwnEvents bool

	Transport Transport
	Classes   Classes
}

// Register adds the flags for the XDP mode, the queues, the partition, the transport and the class
// map.
func (f *Flags) Register(fs *pflag.FlagSet) {
	auto, native, generic := xdp.Auto.String(), xdp.Native.String(), xdp.Generic.String()
	f.Mode = cli.Choice{Value: auto, Words: []string{auto, native, generic}}
	f.Queues = cli.Int{N: 0, Min: 0, Max: maxQueues}
	f.registerDatapath(fs)
	fs.Var(&f.Mode, "mode", "XDP mode: auto, native or generic (auto is generic on veth, "+
		"and on virtio_net for path MTU 4096; otherwise native)")
	fs.Var(&f.Queues, "queues", "number of the interface's receive queues to use, 0 = all")
	fs.Var(&f.PKey, "pkey", "partition key: ignore packets of other partitions "+
		"(default: 0xffff, the only one of the kernel's rxe)")
	f.Transport.Register(fs)
	f.Classes.Register(fs)
}

// registerDatapath adds the flag for the kind of port.
func (f *Flags) registerDatapath(fs *pflag.FlagSet) {
	auto, xdp, udp := roce.PortAuto.String(), roce.PortXDP.String(), roce.PortUDP.String()
	f.Datapath = cli.Choice{Value: auto, Words: []string{auto, xdp, udp}}
	fs.Var(&f.Datapath, "datapath", "how to send and receive packets: xdp (AF_XDP, needs root), "+
		"udp (UDP sockets, needs no privileges) or auto (xdp if permitted, otherwise udp)")
}

// RegisterIface adds the flag -d for the interface. byDefault describes the interface that is used
// without it.
func (f *Flags) RegisterIface(fs *pflag.FlagSet, byDefault string) {
	fs.StringVarP(&f.Iface, "dev", "d", "",
		"network interface, address of this host, or socket of a node service such as "+
			"/run/gorxe/eth0.sock (default: "+byDefault+")")
}

// kind returns the kind of port that the flags select. A command without them has PortAuto.
func (f *Flags) kind() roce.PortKind {
	kind, err := roce.ParsePortKind(f.Datapath.Value)
	if err != nil {
		kind = roce.PortAuto
	}
	return kind
}

// ListenAt returns the interface or address at which a server with the device listens for TCP
// connections. Iface may be the socket of a node service, which has the interface.
func (f *Flags) ListenAt(dev *roce.Device) string {
	if filepath.IsAbs(f.Iface) {
		return dev.Info().Name
	}
	return f.Iface
}

// WantsXDP reports whether the flags ask for AF_XDP, so that Open joins no node service.
func (f *Flags) WantsXDP() bool {
	return f.kind() == roce.PortXDP || f.XDP().Mode != xdp.Auto
}

// RegisterWindow adds the flag for the prefetch window, for commands that serve many QPs.
func (f *Flags) RegisterWindow(fs *pflag.FlagSet) {
	f.Window = cli.Int{N: roce.DefaultPrefetch, Max: roce.MaxPrefetch}
	fs.Var(&f.Window, "window", "prefetch window: number of QPs whose state is prefetched "+
		"before they are processed, 0 = off")
}

// RegisterGID adds the flag for the GID index, with a shorthand if it is not empty.
func (f *Flags) RegisterGID(fs *pflag.FlagSet, shorthand string) {
	f.GIDIndex = AnyGID
	fs.VarP(&f.GIDIndex, "gid-index", shorthand,
		"index of the GID to use, as listed by 'gorxe devices' "+
			"(default: the GID with the address that TCP uses)")
}

// XDP returns the options for package xdp.
func (f *Flags) XDP() xdp.Options {
	mode, err := xdp.ParseMode(f.Mode.Value)
	if err != nil {
		mode = xdp.Auto // the command has no --mode flag
	}
	return xdp.Options{Mode: mode, Queues: f.Queues.N}
}

// roceXDP returns the options for package roce.
func (f *Flags) roceXDP() roce.XDPOptions {
	o := f.XDP()
	return roce.XDPOptions{Mode: o.Mode, Queues: o.Queues, RingSize: f.RingSize}
}

// Options returns the options of the device, without those for package xdp.
func (f *Flags) Options() []roce.Option {
	opts := append(f.Transport.Options(), f.Classes.Options()...)
	if f.Window.Max > 0 { // the command has a --window flag
		opts = append(opts, roce.WithExpert(roce.Expert{Prefetch: new(f.Window.N)}))
	}
	if f.PKey != 0 {
		opts = append(opts, roce.WithPKeys(roce.PKey(f.PKey)))
	}
	return opts
}

// Open opens the interface with the options of the flags, which follow more. If Iface is an
// absolute path, Open joins the node service whose socket is there. It fails if the chosen GID
// index does not exist.
func (f *Flags) Open(progress roce.Progress, more ...roce.Option) (*roce.Device, error) {
	if mode := f.XDP().Mode; f.kind() == roce.PortUDP && mode != xdp.Auto {
		return nil, cli.Usagef("--datapath udp and --mode %v exclude each other: choose one of them",
			mode)
	}
	if f.WantsXDP() && isAddr(f.Iface) {
		return nil, cli.Usagef("AF_XDP uses all addresses of an interface: name the interface of %s, "+
			"or leave out --datapath xdp and --mode", f.Iface)
	}
	open := roce.Open
	if filepath.IsAbs(f.Iface) {
		if f.WantsXDP() {
			return nil, cli.Usagef("programs of the node service at %s do not choose the data path: "+
				"leave out --datapath xdp and --mode", f.Iface)
		}
		open = roce.OpenService
	}
	opts := append(slices.Clone(more), f.Options()...)
	dev, err := open(f.Iface, append(opts, roce.WithPort(f.kind()), roce.WithXDP(f.roceXDP()),
		roce.WithProgress(progress))...)
	if err != nil {
		return nil, err
	}
	if err := f.GIDIndex.check(dev); err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	if i := dev.Info(); i.Port == roce.PortUDP.String() && i.Service == "" {
		WarnXDP(os.Stderr, i.Name)
	}
	if !f.OwnEvents {
		go reportEvents(os.Stderr, dev)
	}
	return dev, nil
}

// OpenContext is Open for commands that a signal ends at once. If ctx ends first, for example while
// a node service does not answer, the error is the cause, and the command must end: the device may
// be opened after that.
func (f *Flags) OpenContext(ctx context.Context, progress roce.Progress, more ...roce.Option) (
	*roce.Device, error) {
	type result struct {
		dev *roce.Device
		err error
	}
	opened := make(chan result, 1)
	go func() {
		dev, err := f.Open(progress, more...)
		opened <- result{dev, err}
	}()
	select {
	case r := <-opened:
		return r.dev, r.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
