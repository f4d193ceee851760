// Package lab connects gorxe and kernel rxe guests by one Ethernet, for tests.
//
//	guest 1 (10.77.0.1, fd77::1) -- tap --+
//	                                      bridge -- veth -- gorxe (10.77.0.100, fd77::64), "gx0"
//	guest 2 (10.77.0.2, fd77::2) -- tap --+
//
// The bridge and gorxe's interface are in two anonymous network namespaces. Nothing has a name on
// the host and no file is created: namespaces, interfaces and guests disappear with the process,
// however it ends, so any number of labs can run concurrently.
//
// Reading order:
//
//   - lab.go: the lab.
//   - ns.go: a namespace and its thread.
//   - net.go, offload_unsafe.go: bridge, taps, veth.
//   - recorder.go: the recent frames on the bridge, for a pcap of a failure.
package lab
