// Package supervisor runs a program whose access to RDMA devices it emulates: system calls on
// /dev/infiniband, /sys/class/infiniband and netlink sockets of NETLINK_RDMA are intercepted
// (package seccomp) and answered by this process.
//
// [Run] starts the program and returns its exit status when the program and all processes that it
// started have ended. It executes its own binary again as a shim, which installs the filter and
// then executes the program. The main function of the binary, and TestMain of a test, must call
// [Shim] first.
//
// The verbs themselves are not part of this package: [Config] has a [Device] for each character
// device.
//
// Reading order:
//   - supervisor.go: Config, Run
//   - shim.go: the process between the supervisor and the program
//   - limit.go: the descriptor numbers of emulated files
//   - child.go, orphans.go: waiting for processes, signals
//   - check.go, errors.go: whether programs can be run; errors that say what to do
//   - provider.go: whether the program finds the provider rxe
//   - handle.go: the intercepted calls
//   - paths.go, stat_unsafe.go: calls on files
//   - devices.go: character devices: Device, File, descriptors
//   - netlink.go: sockets of NETLINK_RDMA
package supervisor
