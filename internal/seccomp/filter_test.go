package seccomp

import (
	"encoding/binary"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// run executes the filter for a call.
func run(t *testing.T, p *Policy, arch uint32, nr int, args ...uint64) uint32 {
	t.Helper()
	vm, err := bpf.NewVM(p.Program())
	if err != nil {
		t.Fatal(err)
	}
	// The machine reads words in network byte order, the kernel in that of the host.
	var b [64]byte
	put := func(off int, v uint32) { binary.BigEndian.PutUint32(b[off:], v) }
	put(OffsetNr, uint32(nr))
	put(OffsetArch, arch)
	for i, a := range args {
		put(OffsetArgs+i*ArgSize, uint32(a))
		put(OffsetArgs+i*ArgSize+WordSize, uint32(a>>32))
	}
	v, err := vm.Run(b[:])
	if err != nil {
		t.Fatal(err)
	}
	return uint32(v)
}

func TestProgram(t *testing.T) {
	const cmd = 0xc0181b01
	p := &Policy{
		Calls:   PathCalls(),
		FDCalls: []int{unix.SYS_WRITE, unix.SYS_SENDMSG},
		FDs:     FDRange{896, 128},
		Ioctl:   cmd,
		Sockets: []Socket{{unix.AF_NETLINK, unix.NETLINK_RDMA}},
	}
	for _, c := range []struct {
		name string
		nr   int
		args []uint64
		want uint32
	}{
		{"openat", unix.SYS_OPENAT, nil, notify},
		{"fstat", unix.SYS_FSTAT, []uint64{3}, notify},
		{"listxattr", unix.SYS_LISTXATTR, nil, notify},
		{"read", unix.SYS_READ, []uint64{900}, allow},
		{"write below the range", unix.SYS_WRITE, []uint64{895}, allow},
		{"write to the first", unix.SYS_WRITE, []uint64{896}, notify},
		{"write to the last", unix.SYS_WRITE, []uint64{1023}, notify},
		{"write above the range", unix.SYS_WRITE, []uint64{1024}, allow},
		{"write to -1", unix.SYS_WRITE, []uint64{1<<64 - 1}, allow},
		{"sendmsg", unix.SYS_SENDMSG, []uint64{900}, notify},
		{"sendto", unix.SYS_SENDTO, []uint64{900}, allow},
		{"verbs ioctl", unix.SYS_IOCTL, []uint64{5, cmd}, notify},
		{"ioctl with bits that the kernel ignores", unix.SYS_IOCTL, []uint64{5, 1<<32 | cmd}, notify},
		{"another ioctl", unix.SYS_IOCTL, []uint64{cmd, unix.TIOCGWINSZ}, allow},
		{"NETLINK_RDMA socket", unix.SYS_SOCKET,
			[]uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_RDMA}, notify},
		{"NETLINK_ROUTE socket", unix.SYS_SOCKET,
			[]uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE}, allow},
		{"IP socket", unix.SYS_SOCKET,
			[]uint64{unix.AF_INET, unix.SOCK_RAW, unix.NETLINK_RDMA}, allow},
		{"execve", unix.SYS_EXECVE, nil, allow},
		{"mmap", unix.SYS_MMAP, []uint64{0, 4096, 3, 1, 900}, allow},
	} {
		if got := run(t, p, AuditArch, c.nr, c.args...); got != c.want {
			t.Errorf("%s: filter returns %#x, want %#x", c.name, got, c.want)
		}
		if got := run(t, p, AuditArch+1, c.nr, c.args...); got != allow {
			t.Errorf("%s of another ABI: filter returns %#x, want %#x", c.name, got, allow)
		}
	}
}

// An empty policy intercepts nothing.
func TestEmptyPolicy(t *testing.T) {
	for _, nr := range append(PathCalls(), unix.SYS_IOCTL, unix.SYS_WRITE, unix.SYS_SOCKET) {
		if got := run(t, &Policy{}, AuditArch, nr); got != allow {
			t.Errorf("system call %d: filter returns %#x, want %#x", nr, got, allow)
		}
	}
}

func TestFileCalls(t *testing.T) {
	const dir, name, out = 7, 0x1000, 0x2000
	for _, c := range []struct {
		call Call
		want FileCall
	}{
		{Call{Nr: unix.SYS_OPENAT, Args: [6]uint64{dir, name, unix.O_RDWR}},
			FileCall{Op: Open, Dir: dir, Path: name, Flags: unix.O_RDWR}},
		{Call{Nr: unix.SYS_NEWFSTATAT, Args: [6]uint64{dir, name, out, unix.AT_EMPTY_PATH}},
			FileCall{Op: Stat, Dir: dir, Path: name, Out: out, Flags: unix.AT_EMPTY_PATH}},
		{Call{Nr: unix.SYS_FSTAT, Args: [6]uint64{dir, out}},
			FileCall{Op: Stat, Dir: dir, Out: out}},
		{Call{Nr: unix.SYS_STATX, Args: [6]uint64{dir, name, 1, 2, out}},
			FileCall{Op: Statx, Dir: dir, Path: name, Flags: 1, Mode: 2, Out: out}},
		{Call{Nr: unix.SYS_FACCESSAT, Args: [6]uint64{dir, name, unix.W_OK, 0xff}},
			FileCall{Op: Access, Dir: dir, Path: name, Mode: unix.W_OK}},
		{Call{Nr: unix.SYS_FACCESSAT2, Args: [6]uint64{dir, name, unix.W_OK, 1}},
			FileCall{Op: Access, Dir: dir, Path: name, Mode: unix.W_OK, Flags: 1}},
		{Call{Nr: unix.SYS_READLINKAT, Args: [6]uint64{dir, name, out, 100}},
			FileCall{Op: Readlink, Dir: dir, Path: name, Out: out, Size: 100}},
		{Call{Nr: unix.SYS_GETXATTR, Args: [6]uint64{name, 1, out}},
			FileCall{Op: Xattr, Dir: unix.AT_FDCWD, Path: name}},
	} {
		got, ok := c.call.File()
		if !ok || got != c.want {
			t.Errorf("system call %d: File() = %+v, %v, want %+v", c.call.Nr, got, ok, c.want)
		}
	}
	if f, ok := (&Call{Nr: unix.SYS_READ}).File(); ok {
		t.Errorf("read: File() = %+v, want no file call", f)
	}
}
