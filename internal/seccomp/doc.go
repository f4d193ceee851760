// Package seccomp intercepts system calls of other processes with seccomp user notification: a
// filter in the kernel selects calls, and another process, the supervisor, answers them.
//
// A process that is about to execute a program calls [Policy.Install] on a locked OS thread and
// passes the listener descriptor to the supervisor. The supervisor calls [NewListener] and
// [Listener.Serve]. The program and all processes that it starts have the filter. A handler gets
// each intercepted call as a [Call]. It reads and writes the memory of the calling thread, installs
// descriptors, and answers the call or lets the kernel execute it. It can also answer later.
//
// The filter passes all calls of other ABIs of the same machine (i386 and x32 on amd64).
//
// Reading order:
//   - filter.go: Policy, which calls are intercepted, and the filter program
//   - syscalls_amd64.go, syscalls_arm64.go: the system calls
//   - listener.go: Listener, its loop and errors
//   - call.go: Call: answers, memory, descriptors
//   - file.go: FileCall, the arguments of calls on files
//   - chdir.go, inject_amd64.go, inject_arm64.go: chdir(2) on behalf of the program
//   - kernel_unsafe.go: system calls with pointers
package seccomp
