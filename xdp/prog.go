//go:build linux

package xdp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"github.com/gorxe/gorxe/bth"
	"golang.org/x/sys/unix"
)

// progName is the name of the program in `ip link` and bpftool.
const progName = "gorxe_roce"

// Verdicts and offsets in struct xdp_md (linux/bpf.h).
const (
	xdpPass        = 2
	mdData         = 0
	mdDataEnd      = 4
	mdRxQueueIndex = 16
)

// Values that the program compares, and their offsets in bytes from the start of the Ethernet
// header (from 4 bytes later if there is a VLAN tag).
const (
	etherLen      = 14
	etherTypeOff  = 12
	vlanLen       = 4
	etherIPv4     = 0x0800
	etherIPv6     = 0x86dd
	etherVLAN     = 0x8100
	vlanID        = 0x0fff // the VLAN ID in the tag control information
	protoUDP      = 17
	ipv4Len       = 20
	ipv6Len       = 40
	udpLen        = 8
	udpDstOff     = 2
	destQPOff     = 5 // of the destination QPN in the BTH
	ipv4DstOff    = 16
	ipv6DstOff    = 24
	ipv4NoOptions = 0x45   // version 4, header of 5 32-bit words
	ipv4Fragment  = 0x3fff // "more fragments" flag and fragment offset
)

// steering builds the program. It redirects UDP packets to port 4791 of an own address to the
// socket of their receive queue: in IPv4 without options and fragments, or in IPv6 without
// extension headers, untagged or priority-tagged (VLAN ID 0), and with the destination MAC that
// belongs to the address. Other frames, and frames of a queue without a socket, go to the kernel
// unchanged.
//
// Registers: R6 is the context, R7 the start of the packet, R2 the start of the headers (4 bytes
// later after a VLAN tag), R3 the end of the packet, R0 the MAC that belongs to the address, R4 and
// R5 are scratch.
//
// With shared, packets whose destination QPN has a top byte other than 0 go to the kernel, too.
// They are for programs that use the node service of this interface, or for multicast groups, which
// several programs may have joined.
func steering(sockets asm.FDer, own *ownAddrs, shared bool) asm.Instructions {
	ins := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R2, asm.R6, mdData, asm.Word),
		asm.LoadMem(asm.R3, asm.R6, mdDataEnd, asm.Word),
		asm.Mov.Reg(asm.R7, asm.R2),
	}
	ins = append(ins, need(etherLen)...)
	ins = append(ins,
		asm.LoadMem(asm.R5, asm.R2, etherTypeOff, asm.Half),
		asm.JNE.Imm(asm.R5, wire16(etherVLAN), "network"),
	)
	ins = append(ins, need(etherLen+vlanLen)...)
	ins = append(ins,
		asm.LoadMem(asm.R5, asm.R2, etherLen, asm.Half),
		asm.And.Imm(asm.R5, wire16(vlanID)),
		asm.JNE.Imm(asm.R5, 0, "pass"),
		asm.Add.Imm(asm.R2, vlanLen),
		asm.LoadMem(asm.R5, asm.R2, etherTypeOff, asm.Half),
		asm.JEq.Imm(asm.R5, wire16(etherIPv4), "ipv4").WithSymbol("network"),
		asm.JEq.Imm(asm.R5, wire16(etherIPv6), "ipv6"),
		asm.Ja.Label("pass"),
	)

	ins = append(ins, labeled("ipv4", need(etherLen+ipv4Len+udpLen))...)
	ins = append(ins,
		asm.LoadMem(asm.R4, asm.R2, etherLen, asm.Byte),
		asm.JNE.Imm(asm.R4, ipv4NoOptions, "pass"),
		asm.LoadMem(asm.R4, asm.R2, etherLen+6, asm.Half),
		asm.And.Imm(asm.R4, wire16(ipv4Fragment)),
		asm.JNE.Imm(asm.R4, 0, "pass"),
		asm.LoadMem(asm.R4, asm.R2, etherLen+9, asm.Byte),
		asm.JNE.Imm(asm.R4, protoUDP, "pass"),
		asm.LoadMem(asm.R4, asm.R2, etherLen+ipv4Len+udpDstOff, asm.Half),
		asm.JNE.Imm(asm.R4, wire16(bth.Port), "pass"),
	)
	if shared {
		ins = append(ins, ownSlot(etherLen+ipv4Len+udpLen)...)
	}
	ins = append(ins, findFirst4(own.first.FD())...)
	ins = append(ins, loadKey(etherLen+ipv4DstOff, ipv4KeyLen)...)
	ins = append(ins,
		asm.LoadMapPtr(asm.R1, own.v4.FD()),
		asm.Ja.Label("lookup"),
	)

	ins = append(ins, labeled("ipv6", need(etherLen+ipv6Len+udpLen))...)
	ins = append(ins,
		asm.LoadMem(asm.R4, asm.R2, etherLen+6, asm.Byte),
		asm.JNE.Imm(asm.R4, protoUDP, "pass"),
		asm.LoadMem(asm.R4, asm.R2, etherLen+ipv6Len+udpDstOff, asm.Half),
		asm.JNE.Imm(asm.R4, wire16(bth.Port), "pass"),
	)
	if shared {
		ins = append(ins, ownSlot(etherLen+ipv6Len+udpLen)...)
	}
	ins = append(ins, findFirst6(own.first.FD())...)
	ins = append(ins, loadKey(etherLen+ipv6DstOff, ipv6KeyLen)...)
	ins = append(ins,
		asm.LoadMapPtr(asm.R1, own.v6.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP).WithSymbol("lookup"),
		asm.Add.Imm(asm.R2, -ipv6KeyLen),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "pass"),
	)
	ins = append(ins, labeled("mac", compareMAC())...)
	return append(ins,
		asm.LoadMem(asm.R2, asm.R6, mdRxQueueIndex, asm.Word),
		asm.LoadMapPtr(asm.R1, sockets.FD()),
		asm.Mov.Imm(asm.R3, xdpPass), // verdict if the map has no socket for the queue
		asm.FnRedirectMap.Call(),
		asm.Return(),

		asm.Mov.Imm(asm.R0, xdpPass).WithSymbol("pass"),
		asm.Return(),
	)
}

// ownSlot jumps to "pass" unless the BTH at R2+off is for a QP of slot 0.
func ownSlot(off int16) asm.Instructions {
	return append(need(int32(off)+bth.HeaderLen),
		asm.LoadMem(asm.R4, asm.R2, off+destQPOff, asm.Byte),
		asm.JNE.Imm(asm.R4, 0, "pass"),
	)
}

// need jumps to "pass" unless n bytes follow R2.
func need(n int32) asm.Instructions {
	return asm.Instructions{
		asm.Mov.Reg(asm.R4, asm.R2),
		asm.Add.Imm(asm.R4, n),
		asm.JGT.Reg(asm.R4, asm.R3, "pass"),
	}
}

// findFirst4 jumps to "mac" if the IPv4 destination is one of the first addresses. Comparing a few
// addresses takes much less time than a lookup in a hash map.
func findFirst4(first int) asm.Instructions {
	ins := asm.Instructions{
		asm.LoadMapValue(asm.R0, first, 0),
		asm.LoadMem(asm.R4, asm.R2, etherLen+ipv4DstOff, asm.Word),
	}
	for i := range int16(first4) {
		ins = append(ins,
			asm.LoadMem(asm.R5, asm.R0, first4Off+i*ipv4KeyLen, asm.Word),
			asm.JEq.Reg(asm.R4, asm.R5, "mac"),
		)
	}
	return ins
}

// findFirst6 is findFirst4 for IPv6.
func findFirst6(first int) asm.Instructions {
	const half = ipv6KeyLen / 2
	ins := asm.Instructions{
		asm.LoadMapValue(asm.R0, first, 0),
		asm.LoadMem(asm.R4, asm.R2, etherLen+ipv6DstOff, asm.DWord),
		asm.LoadMem(asm.R1, asm.R2, etherLen+ipv6DstOff+half, asm.DWord),
	}
	for i := range int16(first6) {
		off := first6Off + i*ipv6KeyLen
		ins = append(ins,
			asm.LoadMem(asm.R5, asm.R0, off, asm.DWord),
			asm.Xor.Reg(asm.R5, asm.R4),
			asm.LoadMem(asm.R3, asm.R0, off+half, asm.DWord),
			asm.Xor.Reg(asm.R3, asm.R1),
			asm.Or.Reg(asm.R5, asm.R3),
			asm.JEq.Imm(asm.R5, 0, "mac"),
		)
	}
	return ins
}

// compareMAC jumps to "pass" unless the frame's destination MAC is the one at R0.
func compareMAC() (ins asm.Instructions) {
	for off := int16(0); off < macLen; off += 2 {
		ins = append(ins,
			asm.LoadMem(asm.R4, asm.R7, off, asm.Half),
			asm.LoadMem(asm.R5, asm.R0, off, asm.Half),
			asm.JNE.Reg(asm.R4, asm.R5, "pass"),
		)
	}
	return ins
}

// loadKey copies n bytes at R2+off to the start of the key on the stack.
func loadKey(off int16, n int16) (ins asm.Instructions) {
	for i := int16(0); i < n; i += 4 {
		ins = append(ins,
			asm.LoadMem(asm.R4, asm.R2, off+i, asm.Word),
			asm.StoreMem(asm.RFP, i-ipv6KeyLen, asm.R4, asm.Word),
		)
	}
	return ins
}

func labeled(label string, ins asm.Instructions) asm.Instructions {
	ins[0] = ins[0].WithSymbol(label)
	return ins
}

// wire16 returns the result of a 16-bit load of v in network byte order.
func wire16(v uint16) int32 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], v)
	return int32(binary.NativeEndian.Uint16(b[:]))
}

// program is the loaded XDP program, its maps, and the link that attaches it to the
// interface. The program is detached when the link is closed, also by the kernel at the end of the
// process.
type program struct {
	sockets *ebpf.Map
	own     *ownAddrs
	prog    *ebpf.Program
	link    link.Link
	mode    Mode // Native or Generic, after attach
}

// loadProgram loads the program for an interface with the given number of queues. frags declares
// that the program accepts multi-buffer frames, which drivers require at large MTUs. shared is that
// of steering.
func loadProgram(queues int, frags, shared bool) (*program, error) {
	// Kernels before 5.11 count maps against RLIMIT_MEMLOCK. On newer ones the error has no
	// meaning: the library tries to find out how the kernel counts when the process starts, which
	// fails if the process raises its capabilities later.
	locked := rlimit.RemoveMemlock()
	p := new(program)
	var err error
	p.sockets, err = ebpf.NewMap(&ebpf.MapSpec{
		Name: "gorxe_xsks", Type: ebpf.XSKMap, KeySize: 4, ValueSize: 4, MaxEntries: uint32(queues),
	})
	if errors.Is(err, unix.EPERM) && locked != nil {
		return nil, fmt.Errorf("%w: %s (Linux before 5.11 also requires CAP_SYS_RESOURCE)",
			ErrPermission, remedy("run as root, or with CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF and "+
				"CAP_IPC_LOCK"))
	}
	if err != nil {
		return nil, bpfError("create the map of sockets", err)
	}
	if p.own, err = newOwnAddrs(); err != nil {
		p.close()
		return nil, bpfError("create the maps of addresses", err)
	}
	spec := &ebpf.ProgramSpec{Name: progName, Type: ebpf.XDP, AttachType: ebpf.AttachXDP,
		License: "Apache-2.0", Instructions: steering(p.sockets, p.own, shared)}
	if frags {
		spec.Flags = unix.BPF_F_XDP_HAS_FRAGS
	}
	if p.prog, err = ebpf.NewProgram(spec); err != nil {
		p.close()
		return nil, bpfError("load the XDP program", err)
	}
	return p, nil
}

// remedy returns what to do if bpf(2) fails with EPERM: missing if capabilities are missing,
// otherwise that something else forbids the call.
func remedy(missing string) string {
	enough, err := capable(func(d unix.CapUserData) uint32 { return d.Effective })
	if err != nil || !enough {
		return missing
	}
	return "this process has the capabilities, but may not call bpf(2): allow it in the seccomp " +
		"profile of the container, and use no user namespace (no rootless container)"
}

func bpfError(what string, err error) error {
	switch {
	case errors.Is(err, unix.EPERM): // omit the library's hint about MEMLOCK, which is misleading
		return fmt.Errorf("%w: cannot %s: %s", ErrPermission, what,
			remedy("run as root, or with CAP_BPF and CAP_NET_ADMIN"))
	case errors.Is(err, unix.EACCES): // err contains the verifier's message
		return fmt.Errorf("%w: cannot %s: run as root, or with CAP_BPF and CAP_NET_ADMIN: %w",
			ErrPermission, what, err)
	case errors.As(err, new(*fs.PathError)): // the library reads /proc/self/mountinfo
		return fmt.Errorf("%w: cannot %s without the files of /proc: mount it: %w", ErrUnsupported,
			what, err)
	case errors.Is(err, ebpf.ErrNotSupported), errors.Is(err, unix.EINVAL),
		errors.Is(err, unix.ENOSYS):
		return fmt.Errorf("%w: cannot %s on this kernel: %w", ErrUnsupported, what, err)
	}
	return fmt.Errorf("cannot %s: %w", what, err)
}

// attach attaches the program to an interface in the thread's network namespace.
func (p *program) attach(index int, m Mode) error {
	flags := link.XDPDriverMode
	if m == Generic {
		flags = link.XDPGenericMode
	}
	l, err := link.AttachXDP(link.XDPOptions{Program: p.prog, Interface: index, Flags: flags})
	if err != nil {
		return err
	}
	p.link, p.mode = l, m
	return nil
}

// addSocket makes the program redirect frames of a queue to its socket.
func (p *program) addSocket(q *queue) error {
	if err := p.sockets.Put(q.id, uint32(q.fd)); err != nil {
		return fmt.Errorf("steer queue %d to its socket: %w", q.id, err)
	}
	return nil
}

// close detaches and releases the program.
func (p *program) close() (err error) {
	if p.link != nil {
		err = p.link.Close()
		p.link = nil
	}
	if p.prog != nil {
		p.prog.Close()
	}
	if p.sockets != nil {
		p.sockets.Close()
	}
	if p.own != nil {
		p.own.close()
	}
	return err
}
