package run

import (
	"encoding/binary"
	"syscall"

	"github.com/gorxe/gorxe/internal/supervisor"
	"github.com/gorxe/gorxe/internal/uverbs"
)

// verbs is the verbs device for package supervisor.
type verbs struct{ *uverbs.Device }

// Open implements supervisor.Device.
func (v verbs) Open(pid int) (supervisor.File, error) {
	c, err := v.Device.Open(pid)
	if err != nil {
		return nil, err
	}
	return verbsFile{c}, nil
}

// verbsFile is an open file of the verbs device.
type verbsFile struct{ *uverbs.Context }

// Ioctl implements supervisor.File.
func (f verbsFile) Ioctl(c supervisor.Caller, cmd, arg uint64) (int64, syscall.Errno) {
	return f.Context.Ioctl(c, cmd, arg)
}

// Write implements supervisor.File.
func (f verbsFile) Write(c supervisor.Caller, addr, n uint64) (int64, syscall.Errno) {
	return f.Context.Write(c, addr, n)
}

// Position implements supervisor.Writable.
func (f verbsFile) Position() int64 { return uverbs.DoorbellOffset }

// Name implements supervisor.File.
func (f verbsFile) Name(c supervisor.Caller, ioctl bool, arg1, arg2 uint64) string {
	if ioctl {
		return uverbs.Name(c, arg1, arg2)
	}
	var id [4]byte
	if c.ReadAt(id[:], arg1) != nil {
		return "write"
	}
	return uverbs.CommandName(binary.LittleEndian.Uint32(id[:]))
}
