package osnet

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ethtool commands of linux/ethtool.h that x/sys does not define.
const (
	ethtoolSTXCSUM   = 0x17
	ethtoolGCHANNELS = 0x3c
	ethtoolSCHANNELS = 0x3d
	ethtoolGFLAGS    = 0x25

	flagRxVLAN = 1 << 8 // ETH_FLAG_RXVLAN: the NIC strips VLAN tags
)

type ethtoolValue struct{ cmd, data uint32 }

// Channels holds the queue counts of a driver (struct ethtool_channels).
type Channels struct {
	cmd                                         uint32
	MaxRX, MaxTX, MaxOther, MaxCombined         uint32
	RXCount, TXCount, OtherCount, CombinedCount uint32
}

type ifreqData struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [24 - unsafe.Sizeof(uintptr(0))]byte
}

// ethtool performs a SIOCETHTOOL call in the thread's network namespace.
func ethtool(iface string, arg unsafe.Pointer) error {
	if len(iface) >= unix.IFNAMSIZ {
		return unix.ENODEV
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	req := ifreqData{data: arg}
	copy(req.name[:], iface)
	_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL,
		uintptr(unsafe.Pointer(&req)))
	if e != 0 {
		return e
	}
	return nil
}

// TxChecksumOff turns off transmit checksum offload, so that the kernel sends UDP and TCP packets
// with complete checksums. This also turns off segmentation offload, which depends on it.
func TxChecksumOff(iface string) error {
	v := ethtoolValue{cmd: ethtoolSTXCSUM}
	if err := ethtool(iface, unsafe.Pointer(&v)); err != nil {
		return fmt.Errorf("turn transmit checksum offload of %s off: %w", iface, err)
	}
	return nil
}

// RxVLANStripped reports whether the driver removes VLAN tags from received frames before XDP.
func RxVLANStripped(iface string) bool {
	v := ethtoolValue{cmd: ethtoolGFLAGS}
	return ethtool(iface, unsafe.Pointer(&v)) == nil && v.data&flagRxVLAN != 0
}

// GetChannels returns the queue counts of an interface, or an error if the driver does not report
// them.
func GetChannels(iface string) (Channels, error) {
	c := Channels{cmd: ethtoolGCHANNELS}
	err := ethtool(iface, unsafe.Pointer(&c))
	return c, err
}

// Driver returns the name of an interface's driver, or "" if it is unknown.
func Driver(iface string) string {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	info, err := unix.IoctlGetEthtoolDrvinfo(fd, iface)
	if err != nil {
		return ""
	}
	return unix.ByteSliceToString(info.Driver[:])
}
