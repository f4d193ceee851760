package run

import (
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/gorxe/gorxe/internal/nldev"
	"github.com/gorxe/gorxe/internal/supervisor"
	"github.com/gorxe/gorxe/internal/sysfs"
	"github.com/gorxe/gorxe/roce"
)

// deviceName is the name of the emulated device.
const deviceName = "rxe0"

func (f *flags) run(path string, args []string) (status int, err error) {
	if f.device.Iface == "" {
		f.device.Iface = "lo"
	}
	opts, err := f.faults.options()
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.faults.close()) }()
	dev, err := f.device.Open(roce.Auto, opts...)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	d := &described{dev: dev}
	if i, err := net.InterfaceByName(dev.Info().Name); err == nil {
		d.index = i.Index
	}
	shown, _ := d.describe()
	tree, err := sysfs.New(os.TempDir(), &shown)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, tree.Close()) }()
	c := supervisor.Config{Path: path, Args: args, Env: os.Environ(), Tree: tree,
		Describe: d.describe}
	if f.trace {
		c.Trace = os.Stderr
	}
	s := supervisor.New(c)
	status, err = s.Run()
	if f.stats {
		fmt.Fprintf(os.Stderr, "%+v\n", s.Stats())
	}
	return status, err
}

// described describes a device to programs.
type described struct {
	dev   *roce.Device
	index int
	guid  [8]byte
}

func (d *described) describe() (sysfs.Device, nldev.Device) {
	info := d.dev.Info()
	files := sysfs.Device{Name: deviceName, Interface: info.Name, MAC: info.MAC.String(),
		Up: info.Up, GUID: d.guid}
	for _, g := range d.dev.GIDs() {
		files.GIDs = append(files.GIDs, sysfs.GID{Index: g.Index, GID: g.GID})
	}
	return files, nldev.Device{Name: deviceName, Interface: info.Name, Index: d.index,
		Up: info.Up, GUID: d.guid, Uverbs: sysfs.UverbsNumber}
}
