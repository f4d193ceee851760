package uverbs

import (
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/mr"
)

// sleeper starts a process that ends when it is told to.
func sleeper(t *testing.T) (pid int, end func()) {
	t.Helper()
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	t.Cleanup(end)
	return cmd.Process.Pid, end
}

// Processes that have ended do not count against the limit, and those that are alive do.
func TestDeadProcessesDoNotCount(t *testing.T) {
	c := pair(t, testbed.Config{})[0].ctx
	c.mu.Lock()
	defer c.mu.Unlock()
	own, no := c.space(os.Getpid())
	if no != 0 {
		t.Fatal(no)
	}
	first, end := sleeper(t)
	dead, no := c.space(first)
	if no != 0 {
		t.Fatal(no)
	}
	end()
	for len(c.spaces) < maxSpaces {
		pid, _ := sleeper(t)
		if _, no := c.space(pid); no != 0 {
			t.Fatalf("process %d: %v", len(c.spaces), no)
		}
	}
	pid, _ := sleeper(t)
	if _, no := c.space(pid); no != 0 {
		t.Fatalf("another process after one has ended: %v", no)
	}
	if dead.fd != -1 || dead.read(make([]byte, 1), 0) || c.dev.spaces[first] != nil {
		t.Errorf("the space of the dead process is still used: %+v", dead)
	}
	pid, _ = sleeper(t)
	if _, no := c.space(pid); no != syscall.ENOMEM {
		t.Errorf("a process beyond the limit: %v, want ENOMEM", no)
	}
	if s, _ := c.space(os.Getpid()); s != own {
		t.Error("a process that is alive got another space")
	}
}

// A process that gets the PID of a dead one gets a space of its own.
func TestReusedPID(t *testing.T) {
	c := pair(t, testbed.Config{})[0].ctx
	c.mu.Lock()
	defer c.mu.Unlock()
	pid, end := sleeper(t)
	s, no := c.space(pid)
	if no != 0 {
		t.Fatal(no)
	}
	end()
	own := make([]byte, 1)
	c.spaces[os.Getpid()] = s // as if this process had got the PID
	next, no := c.space(os.Getpid())
	if no != 0 || next == s || !next.read(make([]byte, 1), mr.AddrOf(own)) {
		t.Errorf("the space of the new process: %v, the dead one: %v", no, next == s)
	}
}
