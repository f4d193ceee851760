package kit

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Commands of linux/ethtool.h that x/sys does not define.
const (
	ethtoolSTSO = 0x1f
	ethtoolSGSO = 0x24
)

type ethtoolValue struct{ cmd, data uint32 }

type ifreqData struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [24 - unsafe.Sizeof(uintptr(0))]byte
}

// SetOffload switches segmentation offload of an interface in this network namespace, including
// GSO. Without it each TCP segment is a packet from the socket on, as on a wire. Checksum offload
// stays on in both cases.
func SetOffload(iface string, on bool) error {
	data := uint32(0)
	if on {
		data = 1
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("create a socket: %w", err)
	}
	defer unix.Close(fd)
	for _, cmd := range [...]uint32{ethtoolSTSO, ethtoolSGSO} {
		v := ethtoolValue{cmd: cmd, data: data}
		req := ifreqData{data: unsafe.Pointer(&v)}
		copy(req.name[:unix.IFNAMSIZ-1], iface)
		_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL,
			uintptr(unsafe.Pointer(&req)))
		if e != 0 {
			return fmt.Errorf("switch segmentation offload of %s: %w", iface, e)
		}
	}
	return nil
}
