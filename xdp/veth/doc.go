// Package veth creates two network namespaces joined by a veth pair. Tests, demos and benchmarks
// use it to get two hosts on one machine.
//
//	pair, err := veth.New(veth.Options{MTU: 4200})
//	if err != nil { ... }
//	defer pair.Close()
//	port, err := xdp.Open(pair.A.Iface, xdp.Options{NetNS: pair.A.Fd()})
//	err = pair.B.Do(func() error { ... }) // runs in B's namespace
//
// The namespaces have no name and no file. Only open descriptors and sockets refer to them, so the
// namespaces, both interfaces and their addresses disappear after Close or when the process ends
// for any reason.
//
// Creating network namespaces requires CAP_SYS_ADMIN and CAP_NET_ADMIN; root has both.
//
// Reading order:
//
//   - veth.go: Pair and its ends
//   - firewall.go: a firewall that refuses all packets
//   - shape.go: Options.Rate, a limit on what the ends send
package veth
