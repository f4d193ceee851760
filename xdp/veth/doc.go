// Package veth makes two network namespaces joined by a veth pair, for tests,
// demos and benchmarks that want two hosts on one machine.
//
// The namespaces have no name and no file: only open descriptors (and
// sockets) hold them. When Close is called, or the process dies however it
// dies, SIGKILL included, the namespaces, both interfaces, their addresses
// and what was attached to them are gone.
//
//	pair, err := veth.New(veth.Options{MTU: 4200})
//	if err != nil { ... }
//	defer pair.Close()
//	port, err := xdp.Open(pair.A.Iface, xdp.Options{NetNS: pair.A.Fd()})
//	err = pair.B.Do(func() error { ... }) // runs in B's namespace
//
// Making network namespaces needs CAP_SYS_ADMIN and CAP_NET_ADMIN; root has both.
package veth
