package run

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/udp"
)

// The events of the device are left to the program: nothing else reads them.
func TestProgramGetsEvents(t *testing.T) {
	var f device.Flags
	f.Iface, f.Datapath.Value = udp.RandomLoopback().String(), roce.PortUDP.String()
	dev, err := openDevice(t.Context(), io.Discard, &f, []roce.Option{roce.WithoutService()})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	if !f.OwnEvents {
		t.Error("the command prints events that the program should get")
	}
}

// A signal ends the wait for a service that does not become ready. The processes end.
func TestStartServiceInterrupted(t *testing.T) {
	program := filepath.Join(t.TempDir(), "gorxe")
	started := program + ".started"
	if err := os.WriteFile(program, []byte("#!/bin/sh\ntouch $0.started; exec sleep 1000"),
		0o700); err != nil {
		t.Fatal(err)
	}
	defer func(f func() (string, error)) { executable = f }(executable)
	executable = func() (string, error) { return program, nil }
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	go func() {
		for {
			if _, err := os.Stat(started); err == nil {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		cancel(cli.ErrInterrupted)
	}()
	var diag bytes.Buffer
	if err := startService(ctx, &diag, "x", "/nowhere"); !errors.Is(err, cli.ErrInterrupted) {
		t.Errorf("startService() = %v, want the cause of the end", err)
	}
}

// The error of a service that cannot start, and one that says nothing.
func TestStartServiceFails(t *testing.T) {
	program := filepath.Join(t.TempDir(), "gorxe")
	defer func(f func() (string, error)) { executable = f }(executable)
	executable = func() (string, error) { return program, nil }
	for script, want := range map[string]string{"echo no sockets >&3": "no sockets",
		"exit 0": "ended early"} {
		if err := os.WriteFile(program, []byte("#!/bin/sh\n"+script), 0o700); err != nil {
			t.Fatal(err)
		}
		var diag bytes.Buffer
		if err := startService(t.Context(), &diag, "x", "/nowhere"); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("startService() = %v for %q, want %q", err, script, want)
		}
	}
}
