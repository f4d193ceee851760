package confine

import (
	"os"

	"golang.org/x/sys/unix"
)

// rule allows a system call, if all checks of its arguments pass.
type rule struct {
	nr     int
	checks []check
}

// check passes if the bits of mask in the lower half of an argument, or in its upper half, have one
// of the values.
type check struct {
	arg    int
	upper  bool
	mask   uint32
	values []uint32
}

// anyBit is the mask for an argument that is compared completely.
const anyBit = 1<<32 - 1

// newestSyscall is the newest system call that this list has considered. Newer ones fail with
// ENOSYS, as on an older kernel.
const newestSyscall = unix.SYS_RSEQ_SLICE_YIELD

// frequent lists the system calls of the data path. They come first, for kernels before 5.11, which
// run the filter for each call.
var frequent = []int{
	unix.SYS_SENDTO, unix.SYS_PPOLL, unix.SYS_RECVFROM, unix.SYS_RECVMSG, unix.SYS_SENDMSG,
	unix.SYS_FUTEX, unix.SYS_READ, unix.SYS_WRITE, unix.SYS_EPOLL_PWAIT, unix.SYS_NANOSLEEP,
	unix.SYS_CLOCK_NANOSLEEP, unix.SYS_CLOCK_GETTIME, unix.SYS_SCHED_YIELD, unix.SYS_MADVISE,
	unix.SYS_GETSOCKOPT,
}

// common lists the other system calls that the Go runtime, the network packages and gorxe make.
var common = []int{
	// memory
	unix.SYS_MUNMAP, unix.SYS_BRK, unix.SYS_MREMAP, unix.SYS_MINCORE, unix.SYS_MEMBARRIER,
	// threads, signals and timers
	unix.SYS_EXIT, unix.SYS_EXIT_GROUP, unix.SYS_RESTART_SYSCALL, unix.SYS_SET_ROBUST_LIST,
	unix.SYS_RSEQ, unix.SYS_SET_TID_ADDRESS, unix.SYS_SCHED_GETAFFINITY,
	unix.SYS_SCHED_SETAFFINITY, unix.SYS_GETCPU, unix.SYS_RT_SIGACTION, unix.SYS_RT_SIGPROCMASK,
	unix.SYS_RT_SIGRETURN, unix.SYS_SIGALTSTACK, unix.SYS_SETITIMER, unix.SYS_TIMER_CREATE,
	unix.SYS_TIMER_SETTIME, unix.SYS_TIMER_DELETE, unix.SYS_CLOCK_GETRES, unix.SYS_GETTIMEOFDAY,
	unix.SYS_GETRANDOM,
	// information about the process
	unix.SYS_GETPID, unix.SYS_GETPPID, unix.SYS_GETTID, unix.SYS_GETUID, unix.SYS_GETEUID,
	unix.SYS_GETGID, unix.SYS_GETEGID, unix.SYS_GETGROUPS, unix.SYS_CAPGET, unix.SYS_UNAME,
	unix.SYS_SYSINFO, unix.SYS_GETRUSAGE, unix.SYS_TIMES,
	// descriptors
	unix.SYS_CLOSE, unix.SYS_CLOSE_RANGE, unix.SYS_DUP, unix.SYS_DUP3, unix.SYS_FCNTL,
	unix.SYS_PIPE2, unix.SYS_EVENTFD2, unix.SYS_EPOLL_CREATE1, unix.SYS_EPOLL_CTL,
	unix.SYS_EPOLL_PWAIT2, unix.SYS_PSELECT6, unix.SYS_READV, unix.SYS_WRITEV, unix.SYS_PREAD64,
	unix.SYS_PWRITE64, unix.SYS_PREADV, unix.SYS_PWRITEV, unix.SYS_LSEEK, unix.SYS_SENDFILE,
	unix.SYS_SPLICE, unix.SYS_FSTAT,
	// sockets
	unix.SYS_BIND, unix.SYS_LISTEN, unix.SYS_ACCEPT4, unix.SYS_CONNECT, unix.SYS_SHUTDOWN,
	unix.SYS_GETSOCKNAME, unix.SYS_GETPEERNAME, unix.SYS_SETSOCKOPT, unix.SYS_SENDMMSG,
	unix.SYS_RECVMMSG,
	// memory files that a node service passes to programs
	unix.SYS_MEMFD_CREATE,
	// names of files
	statAt, unix.SYS_STATX, unix.SYS_READLINKAT, unix.SYS_FACCESSAT, unix.SYS_FACCESSAT2,
	unix.SYS_GETCWD,
}

// files lists the system calls that change files. They are allowed only with Config.Dirs. Landlock
// allows symbolic links only with Config.Symlinks.
var files = []int{
	unix.SYS_OPENAT, unix.SYS_GETDENTS64, unix.SYS_MKDIRAT, unix.SYS_UNLINKAT, unix.SYS_RENAMEAT,
	unix.SYS_RENAMEAT2, unix.SYS_LINKAT, unix.SYS_FSYNC, unix.SYS_FDATASYNC, unix.SYS_SYNCFS,
	unix.SYS_SYNC_FILE_RANGE, unix.SYS_TRUNCATE, unix.SYS_FTRUNCATE, unix.SYS_FALLOCATE,
	unix.SYS_FADVISE64,
	unix.SYS_COPY_FILE_RANGE, unix.SYS_FCHMOD, unix.SYS_FCHMODAT, unix.SYS_FCHOWN,
	unix.SYS_UTIMENSAT, unix.SYS_FLOCK, unix.SYS_FCHMODAT2, unix.SYS_SYMLINKAT, unix.SYS_STATFS,
	unix.SYS_FSTATFS,
}

// namespaceFlags are the flags of clone that create namespaces.
const namespaceFlags = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS |
	unix.CLONE_NEWIPC | unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET

// Commands of bpf that use existing maps (linux/bpf.h).
const (
	bpfMapLookup  = 1
	bpfMapUpdate  = 2
	bpfMapDelete  = 3
	bpfMapGetNext = 4
	bpfObjInfo    = 15
)

// conditional returns the system calls that are allowed with certain arguments only.
func conditional(writeFiles bool) []rule {
	equal := func(arg int, values ...uint32) check {
		return check{arg: arg, mask: anyBit, values: values}
	}
	unset := func(arg int, bits uint32) check {
		return check{arg: arg, mask: bits, values: []uint32{0}}
	}
	null := func(arg int) []check {
		return []check{equal(arg, 0), {arg: arg, upper: true, mask: anyBit, values: []uint32{0}}}
	}
	list := []rule{
		// No executable memory, and no new processes.
		{unix.SYS_MMAP, []check{unset(2, unix.PROT_EXEC)}},
		{unix.SYS_MPROTECT, []check{unset(2, unix.PROT_EXEC)}},
		{unix.SYS_CLONE, []check{{mask: unix.CLONE_THREAD, values: []uint32{unix.CLONE_THREAD}},
			unset(0, namespaceFlags)}},
		// Signals to this process only.
		{unix.SYS_TGKILL, []check{equal(0, uint32(os.Getpid()))}},
		{unix.SYS_PRCTL, []check{equal(0, unix.PR_SET_VMA, unix.PR_SET_NAME, unix.PR_GET_NAME,
			unix.PR_SET_TIMERSLACK)}},
		{unix.SYS_PRLIMIT64, append([]check{equal(0, 0)}, null(2)...)}, // read the own limits
		{unix.SYS_IOCTL, []check{equal(1, unix.SIOCETHTOOL, unix.SIOCGIFNAME, unix.SIOCGIFINDEX,
			unix.TCGETS, unix.TIOCGWINSZ)}},
		// UDP and netlink. Listeners for TCP are open already.
		{unix.SYS_SOCKET, []check{equal(0, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK),
			{arg: 1, mask: socketType, values: []uint32{unix.SOCK_DGRAM, unix.SOCK_RAW}}}},
		// A node service has a socket pair with each program.
		{unix.SYS_SOCKETPAIR, []check{equal(0, unix.AF_UNIX)}},
		{unix.SYS_BPF, []check{equal(0, bpfMapLookup, bpfMapUpdate, bpfMapDelete, bpfMapGetNext,
			bpfObjInfo)}},
	}
	if !writeFiles {
		list = append(list, rule{unix.SYS_OPENAT,
			[]check{unset(2, unix.O_ACCMODE|unix.O_CREAT|unix.O_TRUNC|tmpFile)}})
	}
	return append(list, archRules...)
}

// socketType is the mask of the type in the second argument of socket.
const socketType = 0xf

// tmpFile is the bit of O_TMPFILE that is not O_DIRECTORY.
const tmpFile = unix.O_TMPFILE &^ unix.O_DIRECTORY

// missingCalls fail with ENOSYS, so that C libraries fall back to a system call whose arguments the
// filter can check.
var missingCalls = []int{unix.SYS_CLONE3, unix.SYS_OPENAT2}

// policy returns the rules for all system calls that are allowed.
func policy(writeFiles bool) []rule {
	var list []rule
	add := func(calls []int) {
		for _, nr := range calls {
			list = append(list, rule{nr: nr})
		}
	}
	add(frequent)
	list = append(list, conditional(writeFiles)...)
	add(common)
	add(archCalls)
	if writeFiles {
		add(files)
	}
	return list
}
