package osnet

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ethtool commands of linux/ethtool.h that x/sys does not name.
const (
	ethtoolSTXCSUM   = 0x17
	ethtoolGCHANNELS = 0x3c
	ethtoolSCHANNELS = 0x3d
	ethtoolGFLAGS    = 0x25

	flagRxVLAN = 1 << 8 // ETH_FLAG_RXVLAN: the NIC strips VLAN tags
)

type ethtoolValue struct{ cmd, data uint32 }

// Channels is what a driver says of its queues (struct ethtool_channels).
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

// ethtool performs one SIOCETHTOOL call in the thread's network namespace.
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
	_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req)))
	if e != 0 {
		return e
	}
	return nil
}

// TxChecksumOff turns transmit checksum offload off, so that UDP and TCP of
// the kernel leave iface with finished checksums. Segmentation offload goes
// with it, as it depends on checksums.
func TxChecksumOff(iface string) error {
	v := ethtoolValue{cmd: ethtoolSTXCSUM}
	if err := ethtool(iface, unsafe.Pointer(&v)); err != nil {
		return fmt.Errorf("turn transmit checksum offload of %s off: %w", iface, err)
	}
	return nil
}

// RxVLANStripped says whether the driver takes VLAN tags out of received frames
// before XDP sees them.
func RxVLANStripped(iface string) bool {
	v := ethtoolValue{cmd: ethtoolGFLAGS}
	return ethtool(iface, unsafe.Pointer(&v)) == nil && v.data&flagRxVLAN != 0
}

// GetChannels returns the queue counts of iface, or an error where the driver does
// not tell.
func GetChannels(iface string) (Channels, error) {
	c := Channels{cmd: ethtoolGCHANNELS}
	err := ethtool(iface, unsafe.Pointer(&c))
	return c, err
}

// Driver returns the name of the driver of iface, or "" where it does not tell.
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
