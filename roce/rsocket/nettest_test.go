package rsocket

import (
	"net"
	"testing"

	"golang.org/x/net/nettest"

	"github.com/gorxe/gorxe/internal/testbed"
)

// A Conn behaves as package net demands.
func TestConnConforms(t *testing.T) {
	bed := newTestbed(t, testbed.Config{})
	l := listenOn(t, bed, Config{})
	nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
		client, server, err := tryDial(bed, l, Config{})
		return client, server, func() {
			_ = client.Close() // the test may have closed it
			_ = server.Close()
		}, err
	})
}
