package device

import (
	"fmt"
	"io"

	"github.com/vishvananda/netlink"
)

// WarnXDP tells the user if an interface on which UDP sockets were opened has an XDP program. That
// of another gorxe process takes the packets of all its addresses, and the sockets receive nothing.
// Programs of others may pass them on, so this is no error.
func WarnXDP(w io.Writer, name string) {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return
	}
	if x := l.Attrs().Xdp; x != nil && x.Attached {
		fmt.Fprintf(w, "gorxe: %s has XDP program %d. If a gorxe process has attached it, UDP sockets "+
			"receive nothing: join its node service (gorxe up), or end it.\n", name, x.ProgId)
	}
}
