package main

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/status"
	"github.com/gorxe/gorxe/udp"
)

// up tells the service manager when it is ready and when it stops. Meanwhile, confined, it answers
// gorxe ps and top, and HTTP.
func TestUpStatus(t *testing.T) {
	dir := t.TempDir()
	notify, err := net.ListenUnixgram("unixgram",
		&net.UnixAddr{Name: filepath.Join(dir, "notify"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer notify.Close()
	message := func() string {
		t.Helper()
		buf := make([]byte, 100)
		if err := notify.SetReadDeadline(time.Now().Add(limit)); err != nil {
			t.Fatal(err)
		}
		n, err := notify.Read(buf)
		if err != nil {
			t.Fatalf("no message to the service manager: %v", err)
		}
		return string(buf[:n])
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address, socket := free.Addr().String(), filepath.Join(dir, "s.sock")
	free.Close()
	up := startWith(t, nil, func(c *exec.Cmd) {
		c.Env = append(os.Environ(), "NOTIFY_SOCKET="+notify.LocalAddr().String())
	}, "up", udp.RandomLoopback().String(), "--services", "none", "--socket", socket, "--metrics",
		address, "--json")
	if got := message(); got != "READY=1" {
		t.Errorf("the service manager received %q, want READY=1", got)
	}

	var list []status.Snapshot
	ps := run(t, nil, "ps", "--socket", socket, "--json").ok()
	if err := json.Unmarshal([]byte(ps.stdout), &list); err != nil || len(list) != 1 ||
		len(list[0].Programs) != 1 || list[0].Programs[0].PID != up.cmd.Process.Pid {
		t.Errorf("gorxe ps --json prints %s (%v)", ps.stdout, err)
	}
	if top := run(t, nil, "top", "--socket", socket, "-i", "1").ok(); !strings.Contains(top.stdout,
		"b/s") {
		t.Errorf("gorxe top prints %s", top.stdout)
	}
	for path, want := range map[string]string{
		"/": "<!DOCTYPE html>", "/status.json": `"socket":"` + socket + `"`,
		"/metrics": "\ngorxe_device_up{",
	} {
		var body []byte
		eventually(t, "up answers over HTTP", func() bool { // the server starts after READY
			resp, err := http.Get("http://" + address + path)
			if err != nil {
				return false
			}
			defer resp.Body.Close()
			body, err = io.ReadAll(resp.Body)
			return err == nil
		})
		if !strings.Contains(string(body), want) {
			t.Errorf("%s does not contain %q: %.300s", path, want, body)
		}
	}
	up.cmd.Process.Signal(syscall.SIGINT)
	if got := message(); got != "STOPPING=1" {
		t.Errorf("the service manager received %q, want STOPPING=1", got)
	}
	for _, m := range up.wait().ok().json() {
		if m["event"] == "up" && m["socket"] != socket {
			t.Errorf("event up: socket %v, want %v", m["socket"], socket)
		}
	}
}
