package up

import (
	"net"
	"os"
)

// notifyVariable is the environment variable with the socket of the service manager. See the manual
// page sd_notify(3).
const notifyVariable = "NOTIFY_SOCKET"

// The messages to the service manager.
const (
	notifyReady    = "READY=1"
	notifyStopping = "STOPPING=1"
)

// manager is the connection to the service manager, nil if there is none.
type manager struct{ conn *net.UnixConn }

// connectManager connects to the service manager that has started this process. It must be called
// before the process is confined. Without a service manager, or if it does not answer, the result
// does nothing.
func connectManager() *manager {
	path := os.Getenv(notifyVariable)
	if path == "" {
		return new(manager)
	}
	// As for package net, a name that begins with @ is in the abstract namespace.
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return new(manager)
	}
	return &manager{conn: c}
}

// notify sends a message.
func (m *manager) notify(text string) {
	if m.conn != nil {
		// Without the message, systemd ends the process after a time-out.
		_, _ = m.conn.Write([]byte(text))
	}
}

func (m *manager) close() {
	if m.conn != nil {
		_ = m.conn.Close()
	}
}
