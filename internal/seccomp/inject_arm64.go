package seccomp

import "errors"

// canInject reports whether chdir is implemented. Tests under emulation could not try it.
const canInject = false

func (t *tracee) chdir(int) error { return errors.ErrUnsupported }
