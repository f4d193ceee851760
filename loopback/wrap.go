package loopback

import "github.com/gorxe/gorxe/roce/frame"

// statser is a Port that counts.
type statser interface{ Stats() frame.PortStats }

// layer is a wrapper around a Port.
type layer interface {
	frame.Port
	// Unwrap is the Port inside.
	Unwrap() frame.Port
	// self is the wrapper without its dress.
	self() any
}

// dress gives a wrapper the other interfaces of the Port inside, and only
// those that it really has, so that a type assertion tells the truth.
func dress(l layer, inner frame.Port) frame.Port {
	net, hasNet := inner.(frame.Network)
	st, hasStats := inner.(statser)
	switch {
	case hasNet && hasStats:
		return struct {
			layer
			frame.Network
			statser
		}{l, net, st}
	case hasNet:
		return struct {
			layer
			frame.Network
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
func outermost[T any](p frame.Port) (t T, ok bool) {
	for {
		if f, is := p.(interface{ self() any }); is {
			if t, ok = f.self().(T); ok {
				return t, true
			}
		}
		u, is := p.(interface{ Unwrap() frame.Port })
		if !is {
			return t, false
		}
		p = u.Unwrap()
	}
}
