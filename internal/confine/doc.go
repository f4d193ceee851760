// Package confine drops the privileges of the running process: its user, its capabilities, the
// right to gain new ones, most system calls, and access to files and TCP. A server calls [Apply]
// after it has opened its device and its listeners and before it talks to a peer.
//
// A [Config] says what the process still needs. Apply changes all threads of the process, with and
// without cgo, and cannot be undone. Its [Report] says what the process has kept. A kernel without
// seccomp or Landlock, or a sandbox that forbids them, is not an error; Report.Missing names what
// is missing.
//
// After Apply the process
//
//   - runs as Config.User, without supplementary groups;
//   - has the capabilities in Config.Keep and no others in its permitted and effective sets, none
//     in its inheritable and ambient sets, and is not dumpable;
//   - cannot gain privileges by executing a file (no_new_privs);
//   - can create only UDP and netlink sockets, can send signals only to itself, and cannot map
//     executable memory;
//   - can make only the system calls listed in syscalls.go. Others fail with EPERM, or with ENOSYS
//     if they are newer than this package, so that the Go runtime falls back to older ones. The
//     kernel logs them. System calls of another architecture end the process;
//   - can open only files beneath Config.Dirs (with cgo, it can also list its threads). Descriptors
//     that were open before, such as listeners, continue to work.
//
// Reading order:
//   - confine.go: Config, Apply and Report
//   - user.go: the user to switch to
//   - caps.go: capabilities, and raising them at the start
//   - syscalls.go, syscalls_amd64.go, syscalls_arm64.go: the system calls that are allowed
//   - seccomp.go: the filter program
//   - landlock.go: files and TCP
//   - threads_cgo.go, threads_nocgo.go: what changing all threads needs
//   - kernel_unsafe.go: system calls with pointers, on all threads
package confine
