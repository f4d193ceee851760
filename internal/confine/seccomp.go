package confine

import (
	"errors"
	"fmt"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/internal/seccomp"
)

// Results of the filter.
const (
	allow = unix.SECCOMP_RET_ALLOW
	kill  = unix.SECCOMP_RET_KILL_PROCESS
	deny  = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
	noSys = unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
)

// filter compiles a policy.
func filter(rules []rule) []bpf.Instruction {
	load := func(off uint32) bpf.Instruction {
		return bpf.LoadAbsolute{Off: off, Size: seccomp.WordSize}
	}
	ret := func(v uint32) bpf.Instruction { return bpf.RetConstant{Val: v} }
	prog := []bpf.Instruction{
		load(seccomp.OffsetArch),
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: seccomp.AuditArch, SkipTrue: 1},
		ret(kill),
		load(seccomp.OffsetNr),
	}
	for _, r := range rules {
		body := []bpf.Instruction{}
		for _, c := range r.checks {
			off := uint32(seccomp.OffsetArgs + c.arg*seccomp.ArgSize)
			if c.upper {
				off += seccomp.WordSize
			}
			body = append(body, load(off))
			if c.mask != anyBit {
				body = append(body, bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: c.mask})
			}
			for i, v := range c.values { // skip the other values and the return
				body = append(body, bpf.JumpIf{Cond: bpf.JumpEqual, Val: v,
					SkipTrue: uint8(len(c.values) - i)})
			}
			body = append(body, ret(deny))
		}
		body = append(body, ret(allow))
		prog = append(prog,
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(r.nr), SkipFalse: uint8(len(body))})
		prog = append(prog, body...)
	}
	for _, nr := range missingCalls {
		prog = append(prog, bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(nr), SkipFalse: 1},
			ret(noSys))
	}
	return append(prog,
		bpf.JumpIf{Cond: bpf.JumpGreaterThan, Val: newestSyscall, SkipFalse: 1},
		ret(noSys),
		ret(deny))
}

// errThreads means that the threads of the process have different filters.
var errThreads = errors.New("a thread has another seccomp filter")

// filterFlags apply the filter to all threads, log denied calls, and keep kernels before 5.16 from
// turning off speculative execution, which would slow down the data path.
const filterFlags = unix.SECCOMP_FILTER_FLAG_TSYNC | unix.SECCOMP_FILTER_FLAG_LOG |
	unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW

// installFilter installs the filter on all threads.
func installFilter(writeFiles bool, r *Report) error {
	rules := policy(writeFiles)
	prog, err := bpf.Assemble(filter(rules))
	if err != nil {
		return err
	}
	thread, err := seccomp.Load(prog, filterFlags)
	switch {
	case lacks(err):
		r.missing("no seccomp filters in this kernel")
		return nil
	case forbidden(err):
		r.missing("seccomp filters are not permitted here")
		return nil
	case err != nil:
		return err
	case thread != 0:
		return fmt.Errorf("%w: thread %d", errThreads, thread)
	}
	r.Syscalls = len(rules)
	return nil
}
