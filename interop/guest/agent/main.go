//go:build linux

// Command agent is the guest's init and executes the controller's commands.
//
// As process 1 it mounts the usual file systems, loads the modules that the image lists, starts
// itself a second time and then only reaps orphans. The second process listens on the virtio-serial
// port and runs what it is asked to, any number of processes at a time (see package wire). When the
// controller disappears, the machine powers off.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/interop/guest/wire"
)

// modulesFile lists the paths of the modules to load at boot, one per line, in order.
const modulesFile = "/etc/gorxe/modules"

func main() {
	if os.Getpid() == 1 {
		boot()
	}
	port, err := openPort()
	if err == nil {
		err = newAgent(port).serve()
	}
	complain("agent: %v", err)
}

// complain writes to the guest's console, which the controller keeps.
func complain(format string, args ...any) {
	if f, err := os.OpenFile("/dev/console", os.O_WRONLY, 0); err == nil {
		fmt.Fprintf(f, format+"\n", args...)
		f.Close()
	}
}

var mounts = []struct{ dir, kind string }{
	{"/proc", "proc"}, {"/sys", "sysfs"}, {"/dev", "devtmpfs"}, {"/dev/pts", "devpts"},
	{"/dev/shm", "tmpfs"},
	{"/tmp", "tmpfs"}, {"/run", "tmpfs"}, {"/sys/kernel/debug", "debugfs"},
	{"/sys/kernel/config", "configfs"}, {"/sys/fs/bpf", "bpf"},
}

// boot never returns.
func boot() {
	for _, m := range mounts {
		// Directories inside sysfs cannot be created, and a kernel may lack one of the optional
		// kinds. What is really missing is reported later by name.
		_ = os.MkdirAll(m.dir, 0o755)
		_ = unix.Mount(m.kind, m.dir, m.kind, 0, "")
	}
	os.Setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
	os.Setenv("HOME", "/root")
	// Peers pin their memory regions.
	_ = unix.Setrlimit(unix.RLIMIT_MEMLOCK,
		&unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY})
	loadModules()
	cmd := exec.Command("/init")
	if err := cmd.Start(); err != nil {
		complain("init: cannot start the agent: %v", err)
		powerOff()
	}
	for {
		pid, err := unix.Wait4(-1, nil, 0, nil)
		if err == nil && pid == cmd.Process.Pid {
			powerOff() // without a controller the machine has no purpose
		}
	}
}

func powerOff() {
	// qemu runs with -no-reboot: a restart ends it without ACPI.
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
	select {}
}

func loadModules() {
	list, err := os.ReadFile(modulesFile)
	if err != nil {
		complain("init: %v", err)
	}
	for _, path := range strings.Fields(string(list)) {
		if err := loadModule(path); err != nil {
			complain("init: module %s: %v", filepath.Base(path), err)
		}
	}
}

func loadModule(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil && err != unix.EEXIST {
		return err
	}
	return nil
}

// openPort waits for the port and for its other side.
func openPort() (*os.File, error) {
	const patience, pause = 10 * time.Second, 5 * time.Millisecond
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(pause) {
		names, _ := filepath.Glob("/sys/class/virtio-ports/*/name")
		for _, n := range names {
			b, _ := os.ReadFile(n)
			if strings.TrimSpace(string(b)) == wire.PortName {
				return os.OpenFile("/dev/"+filepath.Base(filepath.Dir(n)), os.O_RDWR, 0)
			}
		}
	}
	return nil, fmt.Errorf("no virtio-serial port named %s", wire.PortName)
}
