package driver

// Wrapper is an optional interface of a Port around another Port.
type Wrapper interface {
	// Unwrap returns the inner Port.
	Unwrap() Port
}

// Find returns the outermost implementation of T in p and the Ports that p wraps. Use it instead of
// a type assertion to look for an optional interface, so that wrappers need to implement only the
// interfaces whose behavior they change.
func Find[T any](p Port) (t T, ok bool) {
	for p != nil {
		if t, ok = p.(T); ok {
			return t, true
		}
		w, is := p.(Wrapper)
		if !is {
			break
		}
		p = w.Unwrap()
	}
	return t, false
}
