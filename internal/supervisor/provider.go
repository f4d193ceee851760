package supervisor

import (
	"fmt"
	"path"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/internal/seccomp"
)

// providerName begins the name of the library that libibverbs loads for the device.
const providerName = "librxe-rdmav"

// provider observes whether programs find this library.
type provider struct {
	mu     sync.Mutex
	wanted string // its name, after a program looked for it
	found  bool
}

// opened is called for each path that a program opens.
func (p *provider) opened(c *seccomp.Call, f *seccomp.FileCall, name string) {
	if f.Op != seccomp.Open || !strings.HasPrefix(path.Base(name), providerName) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.found {
		return
	}
	p.wanted = path.Base(name)
	at := fmt.Sprintf("/proc/%d/cwd/%s", c.PID(), name)
	if path.IsAbs(name) {
		at = fmt.Sprintf("/proc/%d/root%s", c.PID(), name)
	}
	p.found = unix.Access(at, unix.F_OK) == nil
}

// missing returns the name of the library if programs looked for it and never found it.
func (p *provider) missing() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.found {
		return ""
	}
	return p.wanted
}
