package xdp

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"github.com/gorxe/gorxe/bth"
	"golang.org/x/sys/unix"
)

// progName is how `ip link` and bpftool show the program.
const progName = "gorxe_roce"

// Verdicts and struct xdp_md of linux/bpf.h.
const (
	xdpPass        = 2
	mdData         = 0
	mdDataEnd      = 4
	mdRxQueueIndex = 16
)

// What the program compares with, and where, in bytes from the start of the (inner) EtherType's
// 14-byte header.
const (
	etherLen      = 14
	etherTypeOff  = 12
	vlanLen       = 4
	etherIPv4     = 0x0800
	etherIPv6     = 0x86dd
	etherVLAN     = 0x8100
	etherQinQ     = 0x88a8
	protoUDP      = 17
	ipv4Len       = 20
	ipv6Len       = 40
	udpLen        = 8
	udpDstOff     = 2
	ipv4NoOptions = 0x45   // version 4, header of 5 words
	ipv4Fragment  = 0x3fff // "more fragments" and the offset
)

// steering builds the program: UDP to port 4791, in IPv4 without options and not a fragment, or in IPv6 without
// extension headers, behind one VLAN tag at most, goes to the socket of its receive
// queue; if that has none, and everything else, goes on to the kernel untouched.
//
// Registers: R6 context, R2 start of the headers (moved by 4 behind a VLAN tag), R3 end of
// the packet, R4 and R5 scratch.
func steering(sockets asm.FDer) asm.Instructions {
	ins := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R2, asm.R6, mdData, asm.Word),
		asm.LoadMem(asm.R3, asm.R6, mdDataEnd, asm.Word),
	}
	ins = append(ins, need(etherLen)...)
	ins = append(ins,
		asm.LoadMem(asm.R5, asm.R2, etherTypeOff, asm.Half),
		asm.JEq.Imm(asm.R5, wire16(etherVLAN), "vlan"),
		asm.JNE.Imm(asm.R5, wire16(etherQinQ), "network"),
	)
	ins = append(ins, labelled("vlan", need(etherLen+vlanLen))...)
	ins = append(ins,
		asm.Add.Imm(asm.R2, vlanLen),
		asm.LoadMem(asm.R5, asm.R2, etherTypeOff, asm.Half),
		asm.JEq.Imm(asm.R5, wire16(etherIPv4), "ipv4").WithSymbol("network"),
		asm.JEq.Imm(asm.R5, wire16(etherIPv6), "ipv6"),
		asm.Ja.Label("pass"),
	)

	ins = append(ins, labelled("ipv4", need(etherLen+ipv4Len+udpLen))...)
	ins = append(ins,
		asm.LoadMem(asm.R4, asm.R2, etherLen, asm.Byte),
		asm.JNE.Imm(asm.R4, ipv4NoOptions, "pass"),
		asm.LoadMem(asm.R4, asm.R2, etherLen+6, asm.Half),
		asm.And.Imm(asm.R4, wire16(ipv4Fragment)),
		asm.JNE.Imm(asm.R4, 0, "pass"),
		asm.LoadMem(asm.R4, asm.R2, etherLen+9, asm.Byte),
		asm.JNE.Imm(asm.R4, protoUDP, "pass"),
		asm.LoadMem(asm.R4, asm.R2, etherLen+ipv4Len+udpDstOff, asm.Half),
		asm.Ja.Label("port"),
	)

	ins = append(ins, labelled("ipv6", need(etherLen+ipv6Len+udpLen))...)
	ins = append(ins,
		asm.LoadMem(asm.R4, asm.R2, etherLen+6, asm.Byte),
		asm.JNE.Imm(asm.R4, protoUDP, "pass"),
		asm.LoadMem(asm.R4, asm.R2, etherLen+ipv6Len+udpDstOff, asm.Half),
	)

	return append(ins,
		asm.JNE.Imm(asm.R4, wire16(bth.Port), "pass").WithSymbol("port"),
		asm.LoadMem(asm.R2, asm.R6, mdRxQueueIndex, asm.Word),
		asm.LoadMapPtr(asm.R1, sockets.FD()),
		asm.Mov.Imm(asm.R3, xdpPass), // what to do if the map has no socket for the queue
		asm.FnRedirectMap.Call(),
		asm.Return(),

		asm.Mov.Imm(asm.R0, xdpPass).WithSymbol("pass"),
		asm.Return(),
	)
}

// need goes to "pass" unless the packet has n bytes from R2 on.
func need(n int32) asm.Instructions {
	return asm.Instructions{
		asm.Mov.Reg(asm.R4, asm.R2),
		asm.Add.Imm(asm.R4, n),
		asm.JGT.Reg(asm.R4, asm.R3, "pass"),
	}
}

func labelled(label string, ins asm.Instructions) asm.Instructions {
	ins[0] = ins[0].WithSymbol(label)
	return ins
}

// wire16 is the value that a 16-bit load gives for v in network byte order.
func wire16(v uint16) int32 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], v)
	return int32(binary.NativeEndian.Uint16(b[:]))
}

// program is the loaded XDP program with its map of sockets, and once attached the link
// that holds it to the interface. The link has to stay referenced: when it is closed, by us or
// by the kernel because the process died, the program is detached.
type program struct {
	sockets *ebpf.Map
	prog    *ebpf.Program
	link    link.Link
	mode    Mode // Native or Generic, once attached
}

// loadProgram loads the program for an interface of that many queues. frags says
// whether it declares to cope with frames in several buffers, which drivers ask for before they
// take large MTUs.
func loadProgram(queues int, frags bool) (*program, error) {
	// Kernels before 5.11 count maps against RLIMIT_MEMLOCK.
	if err := rlimit.RemoveMemlock(); err != nil {
		// Without CAP_BPF the library cannot tell how the kernel counts, so users without
		// privileges end here on any kernel.
		return nil, fmt.Errorf("%w: run as root, or with CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF and CAP_IPC_LOCK (before Linux 5.11 CAP_SYS_RESOURCE, too): %w", ErrPermission, err)
	}
	p := new(program)
	var err error
	p.sockets, err = ebpf.NewMap(&ebpf.MapSpec{
		Name: "gorxe_xsks", Type: ebpf.XSKMap, KeySize: 4, ValueSize: 4, MaxEntries: uint32(queues),
	})
	if err != nil {
		return nil, bpfError("make the map of sockets", err)
	}
	spec := &ebpf.ProgramSpec{Name: progName, Type: ebpf.XDP, AttachType: ebpf.AttachXDP, License: "Apache-2.0", Instructions: steering(p.sockets)}
	if frags {
		spec.Flags = unix.BPF_F_XDP_HAS_FRAGS
	}
	if p.prog, err = ebpf.NewProgram(spec); err != nil {
		p.close()
		return nil, bpfError("load the XDP program", err)
	}
	return p, nil
}

func bpfError(what string, err error) error {
	switch {
	case errors.Is(err, unix.EPERM): // what the library adds about MEMLOCK would mislead
		return fmt.Errorf("%w: cannot %s: run as root, or with CAP_BPF and CAP_NET_ADMIN", ErrPermission, what)
	case errors.Is(err, unix.EACCES): // the verifier's word is in it
		return fmt.Errorf("%w: cannot %s: run as root, or with CAP_BPF and CAP_NET_ADMIN: %w", ErrPermission, what, err)
	case errors.Is(err, ebpf.ErrNotSupported), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS):
		return fmt.Errorf("%w: cannot %s on this kernel: %w", ErrUnsupported, what, err)
	}
	return fmt.Errorf("cannot %s: %w", what, err)
}

// attach puts the program on the interface; the thread has to be in its network namespace.
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

// serve lets frames of a queue go to its socket.
func (p *program) serve(q *queue) error {
	if err := p.sockets.Put(q.id, uint32(q.fd)); err != nil {
		return fmt.Errorf("steer queue %d to its socket: %w", q.id, err)
	}
	return nil
}

// close detaches the program, if it is attached, and lets go of it.
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
	return err
}
