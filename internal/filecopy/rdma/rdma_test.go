package rdma

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/internal/filecopy"
	"github.com/gorxe/gorxe/internal/filecopy/record"
	"github.com/gorxe/gorxe/internal/filecopy/source"
	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/transport/rftp"
)

const (
	testPort = 7490
	fileSize = 5<<20 + 123 // more than the pool
)

var testConfig = rftp.Config{BlockSize: 64 << 10, Pool: 2 << 20, SourcePool: 2 << 20, DataQPs: 2,
	Hold: true, Drive: true}

// rig is a client's and a server's device, and a listener. Both clients of a test use the same
// devices.
type rig struct {
	*testing.T
	*testbed.Testbed
	ctx context.Context
	l   *rftp.Listener
}

func newRig(t *testing.T) *rig {
	t.Helper()
	b, err := testbed.New(testbed.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	g := &rig{T: t, Testbed: b, ctx: ctx}
	g.l, err = rftp.Listen(b.Dev[1], g.addr(), rftp.ListenConfig{Config: testConfig})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(g.l.Close(), b.Close()); err != nil {
			t.Error(err)
		}
	})
	return g
}

func (g *rig) addr() netip.AddrPort { return g.Addr(1, testPort) }

// serve serves the next client. The channel returns the result.
func (g *rig) serve(s *Server) <-chan error {
	done := make(chan error, 1)
	go func() {
		c, err := g.l.Accept(g.ctx)
		if err == nil {
			_, err = s.Serve(g.ctx, c)
		}
		done <- err
	}()
	return done
}

// push sends a file or directory to a target of the server.
func (g *rig) push(path, target string) error {
	p, err := source.Open(path)
	if err != nil {
		return err
	}
	defer p.Close()
	c, err := Dial(g.ctx, g.Dev[0], g.addr(), nil, testConfig)
	if err != nil {
		return err
	}
	r := &record.Request{Target: target, Single: p.Single()}
	_, err = c.Push(g.ctx, r, source.Config{Paths: []*source.Path{p}}, nil)
	return errors.Join(err, c.Close())
}

// fill creates a large file and some small ones.
func fill(t *testing.T, dir string, seed byte) {
	t.Helper()
	for i := range 50 {
		size := i * 300
		if i == 0 {
			size = fileSize
		}
		data := bytes.Repeat([]byte{seed, byte(i), 3}, size/3+1)[:size]
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint("f", i)), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// same compares the files of two directories.
func same(t *testing.T, from, to string) {
	t.Helper()
	list, err := os.ReadDir(from)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		want, err1 := os.ReadFile(filepath.Join(from, e.Name()))
		got, err2 := os.ReadFile(filepath.Join(to, e.Name()))
		if err := errors.Join(err1, err2); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes, %v, want %d", e.Name(), len(got), err, len(want))
		}
	}
}

// TestTwoSenders sends two trees to one receiver at the same time.
func TestTwoSenders(t *testing.T) {
	g := newRig(t)
	to := t.TempDir()
	root, err := os.OpenRoot(to)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	from := []string{t.TempDir(), t.TempDir()}
	var served []<-chan error
	var clients sync.WaitGroup
	for i, dir := range from {
		fill(t, dir, byte(i))
		served = append(served, g.serve(&Server{Root: root}))
		clients.Go(func() {
			if err := g.push(dir+"/", fmt.Sprint("client", i)); err != nil {
				t.Errorf("client %d: %v", i, err)
			}
		})
	}
	clients.Wait()
	for i, s := range served {
		if err := <-s; err != nil {
			t.Error(err)
		}
		same(t, from[i], filepath.Join(to, fmt.Sprint("client", i)))
	}
}

// slowFile is a file whose writes wait until it is released.
type slowFile struct {
	bytes.Buffer
	writing chan struct{} // closed when the first write waits
	once    sync.Once
	release chan struct{}
}

func (f *slowFile) Write(b []byte) (int, error) {
	f.once.Do(func() { close(f.writing) })
	<-f.release
	return f.Buffer.Write(b)
}

// TestSlowDisk checks that a sender whose file cannot be written does not delay another one of the
// same receiver.
func TestSlowDisk(t *testing.T) {
	g := newRig(t)
	from, to := t.TempDir(), t.TempDir()
	fill(t, from, 1)
	root, err := os.OpenRoot(to)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	slow := &slowFile{writing: make(chan struct{}), release: make(chan struct{})}
	slowServed, slowSent := g.serve(&Server{Stdout: slow}), make(chan error, 1)
	go func() { slowSent <- g.push(from+"/f0", "") }()
	select {
	case <-slow.writing:
	case err := <-slowSent:
		t.Fatalf("the copy to the slow file has ended: %v", err)
	}
	for _, name := range []string{"a", "b"} {
		served := g.serve(&Server{Root: root})
		if err := errors.Join(g.push(from+"/", name), <-served); err != nil {
			t.Error(err)
		}
		same(t, from, filepath.Join(to, name))
	}
	select {
	case err := <-slowSent:
		t.Errorf("the copy to the slow file has ended: %v", err)
	default:
	}
	close(slow.release)
	if err := errors.Join(<-slowSent, <-slowServed); err != nil {
		t.Error(err)
	}
	want, err := os.ReadFile(from + "/f0")
	if err != nil || !bytes.Equal(slow.Bytes(), want) {
		t.Errorf("the slow file has %d bytes, %v, want %d", slow.Len(), err, len(want))
	}
}

// TestRemovedDir checks that a sender is told that the receiver's directory was removed, also if
// there is a new one of the same name.
func TestRemovedDir(t *testing.T) {
	g := newRig(t)
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "to")
	if err := os.Mkdir(to, 0o700); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(to)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if err := errors.Join(os.Remove(to), os.Mkdir(to, 0o700)); err != nil {
		t.Fatal(err)
	}
	served := g.serve(&Server{Root: root})
	err = g.push(from+"/", "")
	if !errors.Is(err, filecopy.ErrRefused) || !strings.Contains(err.Error(), errRemoved.Error()) {
		t.Errorf("the copy: %v, want %v", err, errRemoved)
	}
	if err := <-served; !errors.Is(err, errRemoved) {
		t.Errorf("the receiver: %v, want %v", err, errRemoved)
	}
}

// TestDescriptors checks that several copies at the same time do not use up the descriptors of a
// process. Each of them alone would use a good part of them. It runs in a process of its own, whose
// limit is that of many hosts.
func TestDescriptors(t *testing.T) {
	const child, copies, names, limit = "GORXE_TEST_DESCRIPTORS", 6, 300, 1024
	if os.Getenv(child) == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestDescriptors$")
		cmd.Env = append(os.Environ(), child+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
		t.Fatal(err)
	}
	g := newRig(t)
	from := t.TempDir()
	for i := range names {
		name := filepath.Join(from, fmt.Sprint("d", i))
		err := errors.Join(os.Mkdir(name, 0o700), os.WriteFile(name+"/f", []byte(name), 0o600))
		if err != nil {
			t.Fatal(err)
		}
	}
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	var clients sync.WaitGroup
	for i := range copies {
		served := g.serve(&Server{Root: root})
		clients.Go(func() {
			if err := errors.Join(g.push(from+"/", fmt.Sprint("client", i)), <-served); err != nil {
				t.Errorf("client %d: %v", i, err)
			}
		})
	}
	clients.Wait()
}
