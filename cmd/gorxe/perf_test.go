package main

import (
	"strings"
	"syscall"
	"testing"

	"github.com/gorxe/gorxe/udp"
)

// Stopping an endless test is no failure, also before its first result.
func TestPerfInterrupted(t *testing.T) {
	addr, port := udp.RandomLoopback().String(), unusedPort(t)
	server := start(t, nil, "perf", "write-bw", "-d", addr, "-p", port)
	awaitSocket(t, port, tcpListen, server)
	client, printed := startReading(t, "perf", "write-bw", "-d", udp.RandomLoopback().String(),
		"--run_infinitely", "-p", port, addr)
	eventually(t, "the test begins", func() bool { return strings.Contains(printed(), "#iterations") })
	if err := client.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	client.wait().ok()
	server.wait().ok()
}
