package service

import (
	"golang.org/x/sys/unix"
)

// destSlot is the offset of the top byte of the destination QPN in the BTH.
const destSlot = 5

const (
	udpLen  = 8
	acceptN = 0xffffffff
)

func loadByte(offset uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: offset}
}

func ret(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }

// ifEqual skips the next instruction unless the loaded byte is k.
func ifEqual(k uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: k, Jf: 1}
}

// selectProgram returns the program that selects a socket of a group. index[slot] is the number of
// its socket. Packets for other slots go to the socket of slot 0, the service. The kernel runs the
// program on the bytes after the UDP header. Of packets that end before the QPN, socket 0 gets
// them, because a load out of bounds returns 0.
func selectProgram(index map[uint8]int) []unix.SockFilter {
	p := []unix.SockFilter{loadByte(destSlot)}
	for slot := 1; slot < slots; slot++ {
		if i, ok := index[uint8(slot)]; ok {
			p = append(p, ifEqual(uint32(slot)), ret(uint32(i)))
		}
	}
	return append(p, ret(uint32(index[0])))
}

// slots is the number of slots with that of the service and the one that multicast QPNs have.
const slots = 256

// attachSelect attaches the program to the group of a socket.
func attachSelect(fd int, index map[uint8]int) error {
	return setProgram(fd, unix.SO_ATTACH_REUSEPORT_CBPF, selectProgram(index))
}

// restrict makes the kernel drop all packets to a socket that are not for a slot, and forbids
// changes of this filter. It also forbids to attach a program to the group through this socket. The
// kernel runs the filter on the bytes from the UDP header on.
func restrict(fd int, slot uint8) error {
	if err := setProgram(fd, unix.SO_ATTACH_FILTER, []unix.SockFilter{
		loadByte(udpLen + destSlot), ifEqual(uint32(slot)), ret(acceptN), ret(0)}); err != nil {
		return err
	}
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_LOCK_FILTER, 1)
}

func setProgram(fd, option int, p []unix.SockFilter) error {
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, option,
		&unix.SockFprog{Len: uint16(len(p)), Filter: &p[0]})
}
