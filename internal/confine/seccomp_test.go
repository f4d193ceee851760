package confine

import (
	"encoding/binary"
	"os"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/internal/seccomp"
)

// decide runs the filter on a system call.
func decide(t *testing.T, writeFiles bool, arch uint32, nr int, args ...uint64) uint32 {
	t.Helper()
	vm, err := bpf.NewVM(filter(policy(writeFiles)))
	if err != nil {
		t.Fatal(err)
	}
	// The VM loads words in network byte order, the kernel in that of the machine.
	data := make([]byte, seccomp.OffsetArgs+6*seccomp.ArgSize)
	binary.BigEndian.PutUint32(data[seccomp.OffsetNr:], uint32(nr))
	binary.BigEndian.PutUint32(data[seccomp.OffsetArch:], arch)
	for i, a := range args {
		binary.BigEndian.PutUint32(data[seccomp.OffsetArgs+i*seccomp.ArgSize:], uint32(a))
		binary.BigEndian.PutUint32(data[seccomp.OffsetArgs+i*seccomp.ArgSize+seccomp.WordSize:], uint32(a>>32))
	}
	v, err := vm.Run(data)
	if err != nil {
		t.Fatal(err)
	}
	return uint32(v)
}

func TestFilter(t *testing.T) {
	const (
		thread = unix.CLONE_VM | unix.CLONE_FS | unix.CLONE_FILES | unix.CLONE_SIGHAND |
			unix.CLONE_SYSVSEM | unix.CLONE_THREAD | unix.CLONE_SETTLS
		progLoad = 5
	)
	pid := uint64(os.Getpid())
	for _, c := range []struct {
		name  string
		nr    int
		args  []uint64
		plain uint32 // without files
		files uint32
	}{
		{"sendto", unix.SYS_SENDTO, nil, allow, allow},
		{"last rule", unix.SYS_GETCWD, nil, allow, allow},
		{"execve", unix.SYS_EXECVE, nil, deny, deny},
		{"execveat", unix.SYS_EXECVEAT, nil, deny, deny},
		{"ptrace", unix.SYS_PTRACE, nil, deny, deny},
		{"mount", unix.SYS_MOUNT, nil, deny, deny},
		{"setns", unix.SYS_SETNS, nil, deny, deny},
		{"unshare", unix.SYS_UNSHARE, nil, deny, deny},
		{"io_uring_setup", unix.SYS_IO_URING_SETUP, nil, deny, deny},
		{"kill", unix.SYS_KILL, []uint64{1, 9}, deny, deny},
		{"setuid", unix.SYS_SETUID, []uint64{0}, deny, deny},
		{"clone of a thread", unix.SYS_CLONE, []uint64{thread}, allow, allow},
		{"clone of a process", unix.SYS_CLONE, []uint64{17}, deny, deny},
		{"clone with a namespace", unix.SYS_CLONE, []uint64{thread | unix.CLONE_NEWUSER}, deny,
			deny},
		{"clone3", unix.SYS_CLONE3, nil, noSys, noSys},
		{"openat2", unix.SYS_OPENAT2, nil, noSys, noSys},
		{"call of the future", newestSyscall + 1, nil, noSys, noSys},
		{"x32 call", 0x40000000 + unix.SYS_WRITE, nil, noSys, noSys},
		{"bpf: change a map", unix.SYS_BPF, []uint64{bpfMapUpdate}, allow, allow},
		{"bpf: load a program", unix.SYS_BPF, []uint64{progLoad}, deny, deny},
		{"UDP socket", unix.SYS_SOCKET, []uint64{unix.AF_INET6, unix.SOCK_DGRAM | unix.SOCK_CLOEXEC}, allow, allow},
		{"netlink socket", unix.SYS_SOCKET, []uint64{unix.AF_NETLINK, unix.SOCK_RAW}, allow, allow},
		{"TCP socket", unix.SYS_SOCKET, []uint64{unix.AF_INET, unix.SOCK_STREAM}, deny, deny},
		{"packet socket", unix.SYS_SOCKET, []uint64{unix.AF_PACKET, unix.SOCK_RAW}, deny, deny},
		{"AF_XDP socket", unix.SYS_SOCKET, []uint64{unix.AF_XDP, unix.SOCK_RAW}, deny, deny},
		{"UNIX socket", unix.SYS_SOCKET, []uint64{unix.AF_UNIX, unix.SOCK_DGRAM}, deny, deny},
		{"own signal", unix.SYS_TGKILL, []uint64{pid, 7, 23}, allow, allow},
		{"signal to another process", unix.SYS_TGKILL, []uint64{pid + 1, 7, 9}, deny, deny},
		{"memory", unix.SYS_MMAP, []uint64{0, 4096, unix.PROT_READ | unix.PROT_WRITE}, allow,
			allow},
		{"executable memory", unix.SYS_MMAP, []uint64{0, 4096, unix.PROT_READ | unix.PROT_EXEC},
			deny, deny},
		{"make memory executable", unix.SYS_MPROTECT, []uint64{0, 4096, unix.PROT_EXEC}, deny,
			deny},
		{"read a limit", unix.SYS_PRLIMIT64, []uint64{0, 7, 0, 1 << 40}, allow, allow},
		{"set a limit", unix.SYS_PRLIMIT64, []uint64{0, 7, 1 << 40, 0}, deny, deny},
		{"limit of another process", unix.SYS_PRLIMIT64, []uint64{1, 7, 0, 0}, deny, deny},
		{"write to the terminal's input", unix.SYS_IOCTL, []uint64{0, unix.TIOCSTI}, deny, deny},
		{"name memory", unix.SYS_PRCTL, []uint64{unix.PR_SET_VMA}, allow, allow},
		{"end sleeps on time", unix.SYS_PRCTL, []uint64{unix.PR_SET_TIMERSLACK, 1}, allow, allow},
		{"become dumpable", unix.SYS_PRCTL, []uint64{unix.PR_SET_DUMPABLE, 1}, deny, deny},
		{"open to read", unix.SYS_OPENAT, []uint64{0, 0, unix.O_RDONLY | unix.O_CLOEXEC}, allow,
			allow},
		{"open a directory", unix.SYS_OPENAT, []uint64{0, 0, unix.O_DIRECTORY}, allow, allow},
		{"open to write", unix.SYS_OPENAT, []uint64{0, 0, unix.O_WRONLY}, deny, allow},
		{"create", unix.SYS_OPENAT, []uint64{0, 0, unix.O_CREAT}, deny, allow},
		{"temporary file", unix.SYS_OPENAT, []uint64{0, 0, unix.O_TMPFILE}, deny, allow},
		{"rename", unix.SYS_RENAMEAT, nil, deny, allow},
		{"remove", unix.SYS_UNLINKAT, nil, deny, allow},
	} {
		if got := decide(t, false, seccomp.AuditArch, c.nr, c.args...); got != c.plain {
			t.Errorf("%s: %#x without files, want %#x", c.name, got, c.plain)
		}
		if got := decide(t, true, seccomp.AuditArch, c.nr, c.args...); got != c.files {
			t.Errorf("%s: %#x with files, want %#x", c.name, got, c.files)
		}
	}
	if got := decide(t, true, unix.AUDIT_ARCH_I386, 4); got != kill {
		t.Errorf("32-bit call: %#x, want %#x", got, uint32(kill))
	}
}

// Each system call has one rule, because the first one decides.
func TestPolicyUnique(t *testing.T) {
	for _, writeFiles := range []bool{false, true} {
		seen := map[int]bool{}
		for _, r := range policy(writeFiles) {
			if seen[r.nr] {
				t.Errorf("system call %d has two rules", r.nr)
			}
			seen[r.nr] = true
		}
	}
}
