//go:build !linux

package osthread

import (
	"errors"
	"fmt"
	"runtime"
)

// Yield lets other goroutines run. Other systems have no call that is as cheap as Linux's.
func Yield() { runtime.Gosched() }

// Pin returns an error: threads can be pinned on Linux only.
func Pin(cpu int) error {
	return fmt.Errorf("pin a thread to CPU %d on %s: %w", cpu, runtime.GOOS, errors.ErrUnsupported)
}

// SharpTimers does nothing: timers have no slack that can be set.
func SharpTimers(bool) {}
