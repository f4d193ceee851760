package ucma

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/internal/inside"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/roce/cm"
)

// Limits of a device. A program that exceeds one gets ENOMEM.
const (
	maxFiles   = 1 << 10
	maxIDs     = 1 << 15 // of all files; librdmacm supports handles up to 1<<16 - 1
	maxWaiters = 1 << 10 // threads of a file that wait for an event
	maxGroups  = 1 << 8  // multicast groups of an ID
	maxEvents  = 1 << 16 // of a file, that the program has not read, when it asks for more
	maxBacklog = 1 << 10 // requests to a listener that wait for an answer
)

// Device is an rdma_cm device, which programs see as /dev/infiniband/rdma_cm.
type Device struct {
	dev  *roce.Device
	guid [8]byte
	busy sync.WaitGroup // address lookups and deliveries of events
	ctx  context.Context
	stop context.CancelFunc // ends address lookups and watch

	watcher sync.WaitGroup

	// Owner of the loop only.
	files  map[*File]struct{}
	ids    map[uint32]*id
	groups map[uint32]*group
	last   uint32 // handle
	ports  map[portKey][]*id
	closed bool
}

// NewDevice returns an rdma_cm device on dev, which stays the caller's. guid is the node GUID of
// the verbs device.
func NewDevice(dev *roce.Device, guid [8]byte) *Device {
	d := &Device{dev: dev, guid: guid, files: map[*File]struct{}{}, ids: map[uint32]*id{},
		groups: map[uint32]*group{}, ports: map[portKey][]*id{}}
	d.ctx, d.stop = context.WithCancel(context.Background())
	d.watcher.Go(d.watch)
	return d
}

// watch tells programs when the device stops working.
func (d *Device) watch() {
	select {
	case <-d.ctx.Done():
		return
	case <-d.dev.Done():
	}
	_ = d.do(func(cm.Time, *cm.CM) syscall.Errno {
		for _, h := range slices.Sorted(maps.Keys(d.ids)) {
			d.ids[h].removed()
		}
		return 0
	})
}

// do runs f as the owner of the loop, then handles the events that it causes. It returns EIO if the
// device is closed.
func (d *Device) do(f func(now cm.Time, m *cm.CM) syscall.Errno) (no syscall.Errno) {
	if !inside.CM(d.dev, func(now cm.Time, m *cm.CM) { no = f(now, m) }) {
		return syscall.EIO
	}
	return no
}

// Open creates an open file of the device for the process pid.
func (d *Device) Open(pid int) (*File, error) {
	fd, ino, err := newPipe()
	if err != nil {
		return nil, fmt.Errorf("ucma: create the file of an event channel: %w", err)
	}
	f := &File{dev: d, fd: fd, ino: ino, pid: pid}
	no := d.do(func(cm.Time, *cm.CM) syscall.Errno {
		switch {
		case d.closed:
			return syscall.EIO
		case len(d.files) >= maxFiles:
			return syscall.ENOMEM
		}
		d.files[f] = struct{}{}
		return 0
	})
	if no != 0 {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("ucma: open an event channel: %w", no)
	}
	return f, nil
}

// Close closes all files.
func (d *Device) Close() error {
	var open []*File
	_ = d.do(func(cm.Time, *cm.CM) syscall.Errno {
		d.closed = true
		for f := range d.files {
			open = append(open, f)
		}
		return 0
	})
	for _, f := range open {
		f.Close()
	}
	d.stop()
	d.busy.Wait()
	d.watcher.Wait()
	return nil
}

// handle returns an unused handle. Handles of IDs and groups are different, and small.
func (d *Device) handle() (uint32, syscall.Errno) {
	if len(d.ids)+len(d.groups) >= maxIDs {
		return 0, syscall.ENOMEM
	}
	for {
		d.last = d.last%(2*maxIDs-1) + 1
		if d.ids[d.last] == nil && d.groups[d.last] == nil {
			return d.last, 0
		}
	}
}

// fileOf returns the file with this inode.
func (d *Device) fileOf(ino inode) *File {
	for f := range d.files {
		if f.ino == ino {
			return f
		}
	}
	return nil
}
