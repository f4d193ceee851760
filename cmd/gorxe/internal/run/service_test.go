package run

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
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

// joinThenFail joins the service when it reports that it is ready, and does not read the report.
type joinThenFail struct {
	t      *testing.T
	path   string
	joined chan *roce.Device
}

func (j *joinThenFail) Write([]byte) (int, error) {
	dev, err := roce.OpenService(j.path)
	if err != nil {
		j.t.Error(err)
	}
	j.joined <- dev
	return 0, syscall.EPIPE
}

func (j *joinThenFail) Close() error { return nil }

// The 'gorxe run' that starts a service gets a signal, and another one has joined the service when
// it is ready. The service ends after this program, not before.
func TestServeStarterInterrupted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	report := &joinThenFail{t: t, path: path, joined: make(chan *roce.Device, 1)}
	ended := make(chan error, 1)
	go func() { ended <- serve(t.Context(), udp.RandomLoopback().String(), path, "test", report) }()
	select {
	case err := <-ended:
		t.Fatalf("serve() = %v while a program uses the service", err)
	case <-time.After(300 * time.Millisecond):
	}
	dev := <-report.joined
	if err := dev.Err(); err != nil {
		t.Errorf("the device of the program has failed: %v", err)
	}
	if err := dev.Close(); err != nil {
		t.Error(err)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("serve() = %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Error("the service has not ended after its last program")
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
