//go:build interop

package interop_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/syncbuf"
	"github.com/gorxe/gorxe/interop/guest"
)

// Programs on both sides: gorxe's own binary in its namespace, Debian's tools in the guest.

// gorxeBinary builds the command once. The file is open and has no name anymore, so a killed run
// leaves nothing. The result is its path as a descriptor of this process.
var gorxeBinary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "gorxe-interop-*")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "gorxe")
	cmd := exec.Command("go", "build", "-buildvcs=false", "-o", path, "../cmd/gorxe")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build gorxe: %w\n%s", err, out)
	}
	if gorxeFile, err = os.Open(path); err != nil {
		return "", err
	}
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), gorxeFile.Fd()), nil
})

// gorxeFile keeps the binary alive.
var gorxeFile *os.File

// gorxeProgram is a running gorxe binary.
type gorxeProgram struct {
	cmd  *exec.Cmd
	out  *syncbuf.Buffer
	done chan error
}

// gorxe starts gorxe's binary in its namespace of the lab. It is killed when the test ends.
func (r *rig) gorxe(t *testing.T, args ...string) *gorxeProgram {
	t.Helper()
	path, err := gorxeBinary()
	if err != nil {
		t.Fatal(err)
	}
	p := &gorxeProgram{cmd: exec.Command(path, args...), out: new(syncbuf.Buffer),
		done: make(chan error, 1)}
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.out
	if err := r.Host.Start(p.cmd); err != nil {
		t.Fatalf("start gorxe: %v", err)
	}
	ended := make(chan struct{})
	go func() {
		p.done <- p.cmd.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // an error means that it has ended
		<-ended
	})
	return p
}

// wait returns its output, and an error unless it ended with status 0 within d.
func (p *gorxeProgram) wait(d time.Duration) (string, error) {
	select {
	case err := <-p.done:
		p.done <- err
		return p.out.String(), err
	case <-time.After(d):
		return p.out.String(), fmt.Errorf("it still runs after %v: %w", d, context.DeadlineExceeded)
	}
}

// interrupt ends it like Ctrl-C.
func (p *gorxeProgram) interrupt() { _ = p.cmd.Process.Signal(syscall.SIGINT) }

// says waits until gorxe has printed a text.
func (p *gorxeProgram) says(t *testing.T, text string) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if strings.Contains(p.out.String(), text) {
			return
		}
		select {
		case err := <-p.done:
			t.Fatalf("gorxe has ended: %v\n%s", err, p.out.String())
		default:
		}
	}
	t.Fatalf("gorxe does not say %q but\n%s", text, p.out.String())
}

// guestProgram is a program in the guest.
type guestProgram struct{ p *guest.Process }

func (r *rig) guestProgram(t *testing.T, command string) *guestProgram {
	t.Helper()
	p, err := r.Guests[0].Start("sh", "-c", "exec "+command)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		select {
		case <-p.Done():
		default:
			_ = p.Signal(syscall.SIGKILL)
			<-p.Done()
		}
	})
	return &guestProgram{p}
}

func (g *guestProgram) wait(d time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	res, err := g.p.Wait(ctx)
	if err == nil && !res.OK() {
		err = fmt.Errorf("exit status %d", res.Status)
	}
	return res.Stdout + res.Stderr, err
}

// both waits for both sides of a tool and returns their output, gorxe's first. Both must succeed.
// When one has failed the other gets little more time.
func both(t *testing.T, g *gorxeProgram, k *guestProgram, d time.Duration) (gorxe, kernel string) {
	t.Helper()
	const mercy = 3 * time.Second
	end := time.Now().Add(d)
	select {
	case err := <-g.done:
		g.done <- err
		if err != nil {
			end = time.Now().Add(mercy)
		}
	case <-k.p.Done():
	case <-time.After(d):
	}
	kernel, kerr := k.wait(time.Until(end))
	if kerr != nil {
		end = time.Now().Add(mercy)
	}
	gorxe, gerr := g.wait(time.Until(end))
	if gerr != nil || kerr != nil {
		t.Fatalf("gorxe: %v\n%s\nthe kernel's side: %v\n%s", gerr, gorxe, kerr, kernel)
	}
	return gorxe, kernel
}

// awaitTCP waits until a program in the guest, or in gorxe's namespace if gorxe is set, listens on
// a TCP port.
func (r *rig) awaitTCP(t *testing.T, port int, gorxe bool) {
	t.Helper()
	// The kernel's table: local address and port in hexadecimal digits; state 0A is LISTEN.
	want := fmt.Sprintf(":%04X ", port)
	listens := func(table string) bool {
		for l := range strings.Lines(table) {
			if f := strings.Fields(l); len(f) > 3 && strings.Contains(f[1]+" ", want) &&
				f[3] == "0A" {
				return true
			}
		}
		return false
	}
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		var table string
		if gorxe {
			_ = r.Host.Do(func() error {
				for _, f := range []string{"tcp", "tcp6"} {
					b, _ := os.ReadFile("/proc/thread-self/net/" + f)
					table += string(b)
				}
				return nil
			})
		} else {
			table = r.guest(t, "cat /proc/net/tcp /proc/net/tcp6")
		}
		if listens(table) {
			return
		}
	}
	t.Fatalf("nothing listens on TCP port %d", port)
}

// awaitCM waits until a program in the guest listens on a port of rdma_cm.
func (r *rig) awaitCM(t *testing.T, port int) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		for l := range strings.Lines(r.guest(t, "rdma resource show cm_id")) {
			if strings.Contains(l, "LISTEN") && strings.Contains(l, fmt.Sprintf(":%d ", port)) {
				return
			}
		}
	}
	t.Fatalf("nothing listens on rdma_cm port %d", port)
}

// tool is one of Debian's programs and gorxe's counterpart. A new tool needs only a table entry.
type tool struct {
	name     string
	port     int
	cm       bool   // the kernel's server listens by rdma_cm, not on TCP
	ready    string // what gorxe prints when its server listens by rdma_cm
	service  bool   // gorxe's server runs until it is interrupted
	tcp4     bool   // the kernel's server listens on IPv4 only, whatever it uses afterwards
	meet4    bool   // the same, and its client connects over IPv4 only
	variants []variant
	// kernel returns the command in the guest, gorxe the arguments of gorxe. host is empty for a
	// server.
	kernel func(v variant, host string) string
	gorxe  func(v variant, host string) []string
	// check examines the output of both.
	check func(t *testing.T, v variant, gorxe, kernel string)
	time  time.Duration // 0 = a minute
}

// run runs a tool. If gorxe is active it is the client.
func (s *tool) run(t *testing.T, r *rig, v variant) {
	t.Helper()
	r.plugOut(t)
	r.watch(t)
	var g *gorxeProgram
	var k *guestProgram
	if v.gorxePassive {
		g = r.gorxe(t, s.gorxe(v, "")...)
		if s.cm {
			g.says(t, s.ready)
		} else {
			r.awaitTCP(t, s.port, true)
		}
		k = r.guestProgram(t, s.kernel(v, r.HostAddr(v.v6 && !s.meet4).String()))
	} else {
		k = r.guestProgram(t, s.kernel(v, ""))
		if s.cm {
			r.awaitCM(t, s.port)
		} else {
			r.awaitTCP(t, s.port, false)
		}
		g = r.gorxe(t, s.gorxe(v, r.Guests[0].Addr(v.v6 && !s.tcp4 && !s.meet4).String())...)
	}
	d := s.time
	if d == 0 {
		d = time.Minute
	}
	if s.service && v.gorxePassive {
		select {
		case <-k.p.Done():
			g.interrupt()
		case <-time.After(d):
		}
	}
	gorxe, kernel := both(t, g, k, d)
	if s.check != nil {
		s.check(t, v, gorxe, kernel)
	}
}
