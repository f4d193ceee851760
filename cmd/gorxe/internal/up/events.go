package up

import (
	"context"
	"fmt"

	"github.com/gorxe/gorxe/roce"
)

// followEvents prints the device's events until ctx ends.
func followEvents(ctx context.Context, dev *roce.Device, show *printer) {
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-dev.Events():
			printEvent(dev, e.Kind, show)
		}
	}
}

func printEvent(dev *roce.Device, kind roce.EventKind, show *printer) {
	info := dev.Info()
	switch kind {
	case roce.EventPortActive:
		show.event("link-up", fmt.Sprintf("%s: the link is up again", info.Name))
	case roce.EventPortErr:
		show.event("link-down", fmt.Sprintf("%s: the link is down", info.Name))
	case roce.EventMTUChange:
		show.event("mtu", fmt.Sprintf("%s: the MTU is now %d, the path MTU %d", info.Name, info.MTU,
			info.ActiveMTU))
	case roce.EventGIDChange:
		show.gids(dev)
	}
}
