package service

import (
	"net"
	"net/netip"
	"slices"

	"github.com/gorxe/gorxe/internal/osnet"
)

// PathsOf returns the standard paths of the services that may serve an interface or address of a
// network namespace: for an address also those of its interface. ns is a file descriptor of the
// namespace; 0 or a negative value: that of the process.
func PathsOf(name string, ns int) (paths []string) {
	names := []string{name}
	_ = osnet.In(ns, func() error {
		if a, err := netip.ParseAddr(name); err == nil {
			names = append(names, interfacesOf(a.Unmap().WithZone(""))...)
		} else {
			names[0] = osnet.MainName(name)
		}
		return nil
	})
	for _, n := range names {
		paths = append(paths, Paths(n)...)
	}
	return paths
}

// interfacesOf returns the names of the interfaces that have an address.
func interfacesOf(a netip.Addr) (names []string) {
	list, _ := net.Interfaces()
	for i := range list {
		if slices.Contains(osnet.AddrsOf(&list[i]), a) {
			names = append(names, list[i].Name)
		}
	}
	return names
}

// Serves reports whether a service at a standard path may serve an address of this host, and this
// user may connect to it.
func Serves(a netip.Addr) bool {
	for _, path := range PathsOf(a.String(), 0) {
		if Answers(path) {
			return true
		}
	}
	return false
}
