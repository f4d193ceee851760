package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/inside"
	"github.com/gorxe/gorxe/internal/nldev"
	"github.com/gorxe/gorxe/internal/supervisor"
	"github.com/gorxe/gorxe/internal/sysfs"
	"github.com/gorxe/gorxe/internal/ucma"
	"github.com/gorxe/gorxe/internal/uverbs"
	"github.com/gorxe/gorxe/roce"
)

// deviceName is the name of the emulated device.
const deviceName = "rxe0"

// defaultIface is the interface without --dev.
const defaultIface = "lo"

// run runs the program at path and returns its exit status.
func (f *flags) run(ctx context.Context, path string, args []string, diag io.Writer) (status int,
	err error) {
	if f.device.Iface == "" {
		f.device.Iface = defaultIface
	}
	if isForeign(path) {
		fmt.Fprintf(diag, "gorxe run: %s is a static binary without libibverbs: it cannot use "+
			"the device, but programs that it starts can\n", path)
	}
	if err := supervisor.Check(); err != nil {
		return 0, err
	}
	opts, err := f.faults.options()
	if err != nil {
		return 0, err
	}
	defer func() { err = f.faults.close(err) }()
	opts = append(opts, inside.ProgramName(filepath.Base(path)).(roce.Option),
		roce.WithLimits(f.limits.Value()))
	dev, err := f.open(ctx, diag, opts)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	ended := make(chan struct{})
	defer close(ended)
	go reportFailure(dev, ended, diag)
	uv, err := uverbs.NewDevice(dev, uverbs.Config{Name: deviceName})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, uv.Close()) }()
	cm := ucma.NewDevice(dev, uv.NodeGUID())
	defer func() { err = errors.Join(err, cm.Close()) }()
	d := &described{dev: dev, verbs: uv, cm: cm}
	if i, err := net.InterfaceByName(dev.Info().Name); err == nil {
		d.index = i.Index
	}
	shown := d.files()
	tree, err := newTree(&shown)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, tree.Close()) }()
	c := supervisor.Config{Path: path, Args: args, Env: os.Environ(), Tree: tree,
		Files: d.files, Netlink: d.netlink, Verbs: verbs{uv}, CM: manager{cm}, Log: diag}
	if f.trace {
		c.Trace = diag
	}
	s := supervisor.New(c)
	status, err = s.Run(ctx)
	if f.stats {
		printStats(diag, s.Stats(), dev.Counters())
	}
	return status, err
}

// reportFailure prints why the device has stopped working, if it does before the program has ended.
// The program only gets errors and an event.
func reportFailure(dev *roce.Device, ended <-chan struct{}, diag io.Writer) {
	select {
	case <-dev.Done():
	case <-ended:
		return
	}
	switch err := dev.Err(); {
	case errors.Is(err, roce.ErrServiceEnded):
		fmt.Fprintln(diag, "gorxe run: the node service has ended, and with it the program's "+
			"device: run the program again")
	case !errors.Is(err, roce.ErrClosed):
		fmt.Fprintln(diag, "gorxe run: the program's device has failed:", err)
	}
}

// printStats prints the counters that are not 0.
func printStats(w io.Writer, s supervisor.Stats, c roce.Counters) {
	t := cli.Table{Columns: []cli.Column{{Title: "counter"}, {Title: "value", Align: cli.Right}}}
	t.Row("intercepted_calls", s.Calls)
	t.Row("device_calls", s.Devices)
	for name, v := range c.All() {
		if v > 0 {
			t.Row(name, v)
		}
	}
	_ = t.Write(w)
}

// described describes a device to programs.
type described struct {
	dev   *roce.Device
	verbs *uverbs.Device
	cm    *ucma.Device
	index int // of the network interface
}

func (d *described) files() sysfs.Device {
	info := d.dev.Info()
	f := sysfs.Device{Name: deviceName, Interface: info.Name, MAC: info.MAC.String(),
		Up: info.Up, GUID: d.verbs.NodeGUID(), CM: true, Counters: d.counters}
	for _, g := range d.dev.GIDs() {
		f.GIDs = append(f.GIDs, sysfs.GID{Index: g.Index, GID: g.GID})
	}
	return f
}

func (d *described) netlink() nldev.Device {
	info := d.dev.Info()
	return nldev.Device{Name: deviceName, Interface: info.Name, Index: d.index, Up: info.Up,
		GUID: d.verbs.NodeGUID(), Uverbs: sysfs.UverbsNumber, CM: sysfs.CMNumber,
		Objects: d.objects, Counters: d.counters}
}

func (d *described) objects() nldev.Objects {
	o := d.verbs.Objects()
	o.IDs = d.cm.IDs()
	return o
}

// hwCounters are the counters of the kernel's rxe that gorxe has, too, in the order of rxe.
var hwCounters = []string{"sent_pkts", "rcvd_pkts", "duplicate_request", "out_of_seq_request",
	"rcvd_rnr_err", "send_rnr_err", "rcvd_seq_err", "retry_exceeded_err", "retry_rnr_exceeded_err",
	"completer_retry_err"}

// counters yields the current values of hwCounters.
func (d *described) counters(yield func(string, uint64) bool) {
	c := maps.Collect(d.dev.Counters().All())
	for _, name := range hwCounters {
		if !yield(name, c[name]) {
			return
		}
	}
}
