// Package up is the command "gorxe up": it makes an interface an RDMA NIC and runs the services for
// gorxe ping, gorxe perf, rping and perftest.
//
// Reading order:
//   - command.go: the command
//   - socket.go: the node service, by which other programs share the interface
//   - services.go: the services
//   - events.go: changes of the interface
//   - warn.go: warnings about suspicious packets
//   - network.go: loss and congestion
//   - metrics.go: the HTTP server of --metrics
//   - log.go: the flags about the log
//   - notify.go: telling the service manager that the device is ready
//   - print.go, output.go: the output; writing without waiting for its readers
package up
