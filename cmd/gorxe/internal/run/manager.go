package run

import (
	"encoding/binary"
	"syscall"

	"github.com/gorxe/gorxe/internal/supervisor"
	"github.com/gorxe/gorxe/internal/ucma"
)

// manager is the rdma_cm device for package supervisor.
type manager struct{ *ucma.Device }

// Open implements supervisor.Device.
func (m manager) Open(pid int) (supervisor.File, error) {
	f, err := m.Device.Open(pid)
	if err != nil {
		return nil, err
	}
	return eventChannel{f}, nil
}

// eventChannel is an open file of the rdma_cm device.
type eventChannel struct{ *ucma.File }

// Ioctl implements supervisor.File: the device has none.
func (f eventChannel) Ioctl(supervisor.Caller, uint64, uint64) (int64, syscall.Errno) {
	return 0, syscall.ENOTTY
}

// Write implements supervisor.File.
func (f eventChannel) Write(c supervisor.Caller, addr, n uint64) (int64, syscall.Errno) {
	return f.File.Write(c, addr, n)
}

// Name implements supervisor.File.
func (f eventChannel) Name(c supervisor.Caller, _ bool, addr, _ uint64) string {
	var code [4]byte
	if c.ReadAt(code[:], addr) != nil {
		return "write"
	}
	return "rdma_cm " + ucma.CommandName(binary.LittleEndian.Uint32(code[:]))
}
