package loopback

import "github.com/gorxe/gorxe/driver"

// wrapper is a Port around another Port.
type wrapper interface {
	driver.Port
	driver.Wrapper
	// bare returns the wrapper without the interfaces added by withInterfaces.
	bare() any
}

// withInterfaces adds driver.Network and driver.StatsReader to a wrapper if the inner Port
// implements them, so that type assertions on the result are correct. driver.Find finds the other
// optional interfaces of the inner Port.
func withInterfaces(w wrapper, inner driver.Port) driver.Port {
	net, hasNet := inner.(driver.Network)
	st, hasStats := inner.(driver.StatsReader)
	switch {
	case hasNet && hasStats:
		return struct {
			wrapper
			driver.Network
			driver.StatsReader
		}{w, net, st}
	case hasNet:
		return struct {
			wrapper
			driver.Network
		}{w, net}
	case hasStats:
		return struct {
			wrapper
			driver.StatsReader
		}{w, st}
	}
	return w
}

// outermost finds the first wrapper of type T in a chain of wrappers.
func outermost[T any](p driver.Port) (t T, ok bool) {
	for {
		if f, is := p.(interface{ bare() any }); is {
			if t, ok = f.bare().(T); ok {
				return t, true
			}
		}
		u, is := p.(driver.Wrapper)
		if !is {
			return t, false
		}
		p = u.Unwrap()
	}
}
