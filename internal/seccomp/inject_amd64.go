package seccomp

import "golang.org/x/sys/unix"

// canInject reports whether chdir is implemented.
const canInject = true

// sizeofSyscall is the size of the instruction SYSCALL.
const sizeofSyscall = 2

// chdir makes the thread change to the directory of its descriptor fd and close it. The thread has
// stopped after the instruction of a system call, and gets the result as that of this call.
func (t *tracee) chdir(fd int) error {
	if err := unix.PtraceSetOptions(t.tid, unix.PTRACE_O_TRACESYSGOOD); err != nil {
		return err
	}
	var before unix.PtraceRegs
	if err := unix.PtraceGetRegs(t.tid, &before); err != nil {
		return err
	}
	after := before
	return t.withoutSignals(func() (err error) {
		if after.Rax, err = t.call(before, unix.SYS_FCHDIR, fd); err != nil {
			return err
		}
		if _, err := t.call(before, unix.SYS_CLOSE, fd); err != nil {
			return err
		}
		return unix.PtraceSetRegs(t.tid, &after)
	})
}

// call executes a system call and returns its result. The thread has stopped after an instruction
// SYSCALL, with the given registers.
func (t *tracee) call(regs unix.PtraceRegs, nr, arg int) (uint64, error) {
	regs.Rax, regs.Rdi, regs.Rip = uint64(nr), uint64(arg), regs.Rip-sizeofSyscall
	regs.Orig_rax = ^uint64(0) // there is no call that could be restarted
	if err := unix.PtraceSetRegs(t.tid, &regs); err != nil {
		return 0, err
	}
	for range 2 { // stops before and after the call
		if err := unix.PtraceSyscall(t.tid, 0); err != nil {
			return 0, err
		}
		if err := t.await(atSyscall); err != nil {
			return 0, err
		}
	}
	err := unix.PtraceGetRegs(t.tid, &regs)
	return regs.Rax, err
}
