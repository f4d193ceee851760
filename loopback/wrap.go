package loopback

import "github.com/gorxe/gorxe/driver"

// statser is a Port that counts.
type statser interface{ Stats() driver.Stats }

// layer is a wrapper around a Port.
type layer interface {
	driver.Port
	// Unwrap is the Port inside.
	Unwrap() driver.Port
	// self is the wrapper without its dress.
	self() any
}

// dress gives a wrapper the other interfaces of the Port inside, and only
// those that it really has, so that a type assertion tells the truth.
func dress(l layer, inner driver.Port) driver.Port {
	net, hasNet := inner.(driver.Network)
	st, hasStats := inner.(statser)
	switch {
	case hasNet && hasStats:
		return struct {
			layer
			driver.Network
			statser
		}{l, net, st}
	case hasNet:
		return struct {
			layer
			driver.Network
		}{l, net}
	case hasStats:
		return struct {
			layer
			statser
		}{l, st}
	}
	return l
}

// outermost finds the first wrapper of type T in a chain of wrappers.
func outermost[T any](p driver.Port) (t T, ok bool) {
	for {
		if f, is := p.(interface{ self() any }); is {
			if t, ok = f.self().(T); ok {
				return t, true
			}
		}
		u, is := p.(interface{ Unwrap() driver.Port })
		if !is {
			return t, false
		}
		p = u.Unwrap()
	}
}
