package lab

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// checksumOffloadOff makes the kernel complete checksums before it passes packets to iface. TCP
// segmentation offload ends with it. (SIOCETHTOOL, ETHTOOL_STXCSUM: the structures of
// linux/ethtool.h and linux/if.h.)
func checksumOffloadOff(iface string) error {
	const setTxChecksum = 0x17
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	value := struct{ cmd, data uint32 }{cmd: setTxChecksum}
	var req struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}
	copy(req.name[:unix.IFNAMSIZ-1], iface)
	req.data = unsafe.Pointer(&value)
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(s), unix.SIOCETHTOOL,
		uintptr(unsafe.Pointer(&req))); e != 0 {
		return fmt.Errorf("lab: checksum offload of %s off: %w", iface, e)
	}
	return nil
}
