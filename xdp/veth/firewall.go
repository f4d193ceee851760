package veth

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Refuse makes the kernel refuse the IPv4 and IPv6 packets that programs in the namespace send
// (EPERM), as a firewall does, until the returned function is called. AF_XDP is not affected. It
// needs CAP_NET_ADMIN and CAP_BPF. The error wraps ErrUnsupported on kernels before 6.4.
func (e *End) Refuse() (undo func() error, err error) {
	drop, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.Netfilter, License: "GPL",
		AttachType:   ebpf.AttachNetfilter,
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}}) // NF_DROP
	switch {
	case errors.Is(err, unix.EINVAL), errors.Is(err, ebpf.ErrNotSupported):
		return nil, fmt.Errorf("%w: netfilter programs (Linux 6.4, CONFIG_NETFILTER_BPF_LINK): %w",
			ErrUnsupported, err)
	case err != nil:
		return nil, fmt.Errorf("load a netfilter program: %w", err)
	}
	defer drop.Close()
	var links []link.Link
	undo = func() (err error) {
		for _, l := range links {
			if e := l.Close(); e != nil {
				err = e
			}
		}
		links = nil
		return err
	}
	for _, family := range []link.NetfilterProtocolFamily{link.NetfilterProtoIPv4,
		link.NetfilterProtoIPv6} {
		err := e.Do(func() error {
			l, err := link.AttachNetfilter(link.NetfilterOptions{Program: drop,
				ProtocolFamily: family, Hook: link.NetfilterInetLocalOut, Priority: 1})
			if err == nil {
				links = append(links, l)
			}
			return err
		})
		if err != nil {
			_ = undo()
			return nil, fmt.Errorf("attach a netfilter program: %w", err)
		}
	}
	return undo, nil
}
