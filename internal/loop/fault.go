package loop

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
)

// ErrFault means that an access to a registered region failed.
var ErrFault = errors.New("registered memory cannot be accessed: " +
	"a mapped file was truncated, memory was unmapped before its region was closed, or memory that " +
	"is mapped read-only was registered for writing")

// catch is deferred around everything that accesses registered memory, with the result of
// debug.SetPanicOnFault(true). A region may be a mapped file, and if that is truncated, an access
// raises SIGBUS, which would end the process. Instead, the port is closed and the loop fails: what
// the engine was doing is incomplete. Other panics continue. Owner only.
func (l *Loop) catch(old bool) {
	debug.SetPanicOnFault(old)
	r := recover()
	if r == nil {
		return
	}
	fault, ok := r.(interface {
		runtime.Error
		Addr() uintptr
	})
	if !ok || l.isMemory == nil || !l.isMemory(fault.Addr()) {
		panic(r)
	}
	if l.holder != nil {
		l.holder.Unhold()
	}
	err := l.close()
	l.fail(errors.Join(fmt.Errorf("%w (address %#x)", ErrFault, fault.Addr()), err))
}

// guardedStep is step for a goroutine that is not the loop's own.
func (l *Loop) guardedStep() int {
	defer l.catch(debug.SetPanicOnFault(true))
	return l.step()
}
