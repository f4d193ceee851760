// Package testbed provides two connected devices for tests, benchmarks, demos and simulations: on a
// link in memory in real time, on the same link in virtual time, or over AF_XDP on a veth pair in
// two network namespaces.
//
// Everything that a testbed creates is removed by Close, or when the process ends for any reason.
//
// Reading order:
//
//   - testbed.go: Config, Testbed, New and Close.
//   - ports.go: the two ports without devices, for measurements of bare frames.
//   - virtual.go: moving virtual time forward.
//   - watch.go: a port that counts how it is used.
//   - forge.go: connection requests of a host that does not answer.
package testbed
