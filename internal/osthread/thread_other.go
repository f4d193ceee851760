//go:build !linux

package osthread

import (
	"errors"
	"runtime"
)

// Yield lets other goroutines run. It does not call the operating system.
func Yield() { runtime.Gosched() }

// Pin returns errors.ErrUnsupported.
func Pin(int) error { return errors.ErrUnsupported }

// SharpTimers does nothing.
func SharpTimers(bool) {}
