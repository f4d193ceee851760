package up

import (
	"context"
	"fmt"
	"net"

	"github.com/gorxe/gorxe/internal/status"
)

// programName is the name of this program in the list of programs.
const programName = "gorxe up"

// monitoring is the HTTP server of --metrics.
type monitoring struct {
	address  status.Address
	listener net.Listener // nil: the server is off
}

// listen opens the port of the server if the flag was given.
func (m *monitoring) listen(ctx context.Context) (err error) {
	if !m.address.IsSet() {
		return nil
	}
	if m.listener, err = status.Listen(ctx, &m.address); err != nil {
		return fmt.Errorf("--metrics %v: %w; choose another address or port", &m.address, err)
	}
	return nil
}

// close closes the port, if the server has not started.
func (m *monitoring) close() {
	if m.listener != nil {
		_ = m.listener.Close()
	}
}

// serve answers requests until ctx ends.
func (m *monitoring) serve(ctx context.Context, k *status.Collector, show *printer) {
	if m.listener == nil {
		return
	}
	show.event("metrics", fmt.Sprintf("status page http://%v/, metrics http://%[1]v/metrics",
		m.listener.Addr()))
	if err := status.Serve(ctx, m.listener, status.Handler(k, m.address.Host)); err != nil {
		show.event("error", fmt.Sprintf("--metrics: %v", err))
	}
}
