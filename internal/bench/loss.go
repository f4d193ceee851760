package bench

import (
	"errors"
	"fmt"
	"math"
	"net"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

const (
	xdpDrop = 1
	xdpPass = 2
)

// dropPackets drops a random share of the packets that iface receives with an XDP program, until
// undo is called. It is for packets of TCP; loopback.Inject drops those of gorxe. The program
// works wherever AF_XDP works, unlike tc's netem, which many kernels lack.
func dropPackets(iface string, share float64) (undo func() error, err error) {
	i, err := net.InterfaceByName(iface)
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", iface, err)
	}
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "gorxe_loss", Type: ebpf.XDP, AttachType: ebpf.AttachXDP, License: "Apache-2.0",
		Flags: unix.BPF_F_XDP_HAS_FRAGS,
		Instructions: asm.Instructions{
			asm.FnGetPrandomU32.Call(),
			asm.Mov.Reg32(asm.R1, asm.R0), // clears the upper half
			asm.Mov.Imm(asm.R0, xdpDrop),
			asm.LoadImm(asm.R2, int64(math.Round(share*(1<<32))), asm.DWord),
			asm.JLT.Reg(asm.R1, asm.R2, "out"),
			asm.Mov.Imm(asm.R0, xdpPass),
			asm.Return().WithSymbol("out"),
		},
	})
	if err != nil {
		return nil, fmt.Errorf("load the XDP program that drops packets: %w", err)
	}
	l, err := link.AttachXDP(link.XDPOptions{Program: prog, Interface: i.Index,
		Flags: link.XDPGenericMode})
	if err != nil {
		err = fmt.Errorf("attach the XDP program that drops packets to %s: %w", iface, err)
		return nil, errors.Join(err, prog.Close())
	}
	return func() error { return errors.Join(l.Close(), prog.Close()) }, nil
}
