package up

import (
	"context"

	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/roce"
)

// followEvents prints the device's events until ctx ends or dev is closed.
func followEvents(ctx context.Context, dev *roce.Device, show *printer) {
	for {
		select {
		case <-ctx.Done():
			return
		case e, ok := <-dev.Events():
			if !ok {
				return
			}
			printEvent(dev, &e, show)
		}
	}
}

// eventNames are the names of events in the output of --json.
var eventNames = map[roce.EventKind]string{roce.EventPortActive: "link-up",
	roce.EventPortErr: "link-down", roce.EventMTUChange: "mtu", roce.EventPortNote: "note"}

func printEvent(dev *roce.Device, e *roce.Event, show *printer) {
	if e.Kind == roce.EventGIDChange {
		show.gids(dev)
	} else if name := eventNames[e.Kind]; name != "" {
		show.event(name, dev.Info().Name+": "+device.EventText(dev, e))
	}
}
