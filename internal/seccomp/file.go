package seccomp

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// FileOp is what a call on a file does.
type FileOp uint8

// Operations on files.
const (
	Open FileOp = iota + 1
	Stat
	Statx
	Access
	Readlink
	Xattr // reads or lists extended attributes
	Chdir
)

// FileCall has the arguments of a call on a file, in the same form for all variants of the call.
type FileCall struct {
	Op    FileOp
	Dir   int    // directory descriptor for a relative path, or AT_FDCWD
	Path  uint64 // address of the path; 0: the call is about the descriptor Dir
	Flags uint64 // O_* of Open, AT_* of the others
	Mode  uint32 // of Access: R_OK, W_OK and X_OK; of Statx: the mask
	Out   uint64 // address of the result
	Size  uint64 // capacity at Out, in bytes, of Readlink
}

// File decodes the arguments of a call of PathCalls.
func (c *Call) File() (f FileCall, ok bool) {
	if f, ok = c.oldFileCall(); ok {
		return f, true
	}
	f = FileCall{Dir: int(int32(c.Args[0])), Path: c.Args[1]}
	switch c.Nr {
	case unix.SYS_OPENAT:
		f.Op, f.Flags = Open, c.Args[2]
	case unix.SYS_OPENAT2:
		var how [8]byte // open_how.flags
		if c.ReadAt(how[:], c.Args[2]) != nil {
			return f, false
		}
		f.Op, f.Flags = Open, binary.NativeEndian.Uint64(how[:])
	case unix.SYS_NEWFSTATAT:
		f.Op, f.Out, f.Flags = Stat, c.Args[2], c.Args[3]
	case unix.SYS_FSTAT:
		f.Op, f.Path, f.Out = Stat, 0, c.Args[1]
	case unix.SYS_STATX:
		f.Op, f.Flags, f.Mode, f.Out = Statx, c.Args[2], uint32(c.Args[3]), c.Args[4]
	case unix.SYS_FACCESSAT:
		f.Op, f.Mode = Access, uint32(c.Args[2])
	case unix.SYS_FACCESSAT2:
		f.Op, f.Mode, f.Flags = Access, uint32(c.Args[2]), c.Args[3]
	case unix.SYS_READLINKAT:
		f.Op, f.Out, f.Size = Readlink, c.Args[2], c.Args[3]
	case unix.SYS_GETXATTR, unix.SYS_LGETXATTR, unix.SYS_LISTXATTR, unix.SYS_LLISTXATTR:
		f.Op, f.Dir, f.Path = Xattr, unix.AT_FDCWD, c.Args[0]
	case unix.SYS_CHDIR:
		f.Op, f.Dir, f.Path = Chdir, unix.AT_FDCWD, c.Args[0]
	default:
		return f, false
	}
	return f, true
}
