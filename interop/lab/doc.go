// Package lab puts gorxe and kernel rxe guests on one Ethernet, for tests.
//
//	guest 1 (10.77.0.1, fd77::1) -- tap --+
//	                                      bridge -- veth -- gorxe (10.77.0.100, fd77::64), interface "gx0"
//	guest 2 (10.77.0.2, fd77::2) -- tap --+
//
// Bridge and gorxe's end are in two anonymous network namespaces. Nothing has a name on the host and no file is
// made: namespaces, interfaces and guests vanish with the process, however it ends, so any number of labs
// can run at a time.
//
// Reading order: lab.go, ns.go (a namespace and its thread), net.go (bridge, taps, veth), recorder.go (the last frames on
// the bridge, for a pcap of what failed).
package lab
