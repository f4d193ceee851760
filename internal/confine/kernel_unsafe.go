package confine

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/psx"
)

// getCaps returns the capabilities of the calling thread.
func getCaps() (c capState, err error) {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var d [2]unix.CapUserData
	if err := unix.Capget(&hdr, &d[0]); err != nil {
		return c, err
	}
	join := func(low, high uint32) capSet { return capSet(high)<<32 | capSet(low) }
	return capState{
		effective:   join(d[0].Effective, d[1].Effective),
		permitted:   join(d[0].Permitted, d[1].Permitted),
		inheritable: join(d[0].Inheritable, d[1].Inheritable),
	}, nil
}

// setCaps sets the capabilities of all threads.
func setCaps(c capState) error {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	d := [2]unix.CapUserData{
		{Effective: uint32(c.effective), Permitted: uint32(c.permitted),
			Inheritable: uint32(c.inheritable)},
		{Effective: uint32(c.effective >> 32), Permitted: uint32(c.permitted >> 32),
			Inheritable: uint32(c.inheritable >> 32)},
	}
	_, _, e := psx.Syscall3(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&hdr)),
		uintptr(unsafe.Pointer(&d[0])), 0)
	runtime.KeepAlive(&hdr)
	runtime.KeepAlive(&d)
	return errnoOf(e)
}

// landlockCreate calls landlock_create_ruleset with the first size bytes of attr. Without attr it
// returns the version of the ABI.
func landlockCreate(attr *unix.LandlockRulesetAttr, size uintptr, flags uint) (int, error) {
	n, _, e := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(attr)), size,
		uintptr(flags))
	return int(n), errnoOf(e)
}

// landlockAdd allows access to the files beneath a directory.
func landlockAdd(ruleset int, access uint64, dir int) error {
	attr := unix.LandlockPathBeneathAttr{Allowed_access: access, Parent_fd: int32(dir)}
	_, _, e := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(ruleset),
		unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&attr)), 0, 0, 0)
	return errnoOf(e)
}
