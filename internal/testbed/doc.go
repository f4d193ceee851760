// Package testbed provides two connected devices for tests, benchmarks, demos and simulations: on a
// link in memory in real time, on the same link in virtual time, or over AF_XDP on a veth pair in
// two network namespaces.
//
// Everything that a testbed creates is gone after Close, and after the process ends, however it
// ends.
//
// Reading order:
//
//   - testbed.go: Config, Testbed and its life.
//   - ports.go: the two ports alone, for those who measure bare frames.
//   - virtual.go: moving virtual time forward.
package testbed
