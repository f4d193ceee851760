//go:build linux

package xdp

import (
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// genlGet asks a generic netlink family for the object that attr identifies and returns its
// attributes by type. It asks for one object at a time, because the dumps of some families lack the
// flag that tells the netlink library that more messages follow.
func genlGet(family int, command, version uint8, attr *nl.RtAttr) (map[uint16][]byte, error) {
	req := nl.NewNetlinkRequest(family, 0)
	req.AddData(&nl.Genlmsg{Command: command, Version: version})
	req.AddData(attr)
	msgs, err := req.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil {
		return nil, err
	}
	if len(msgs) == 0 || len(msgs[0]) < nl.SizeofGenlmsg {
		return nil, unix.ENODATA
	}
	attrs, err := nl.ParseRouteAttr(msgs[0][nl.SizeofGenlmsg:])
	if err != nil {
		return nil, err
	}
	byType := make(map[uint16][]byte, len(attrs))
	for _, a := range attrs {
		byType[a.Attr.Type&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER)] = a.Value
	}
	return byType, nil
}
