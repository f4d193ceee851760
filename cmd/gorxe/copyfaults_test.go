package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/internal/syncbuf"
)

const (
	largeSize = 30 << 20
	slowly    = "--limit=10m" // so that a large file takes 3 s
	atOnce    = "--retry=0"   // fail at once
)

// interrupted checks that a copy has failed with an error, without a torn file, and that the same
// command continues.
func (b *copyBed) interrupted(r *result, words ...string) {
	b.Helper()
	if r.status != 1 {
		b.Errorf("gorxe %s: status %d, want 1\n%s%s", r.args, r.status, r.stdout, r.err)
	}
	for _, w := range append(words, "run the same command again") {
		if !strings.Contains(r.err, w) {
			b.Errorf("gorxe %s: want %q on stderr: %s", r.args, w, r.err)
		}
	}
	b.whole()
	if b.parts() != 1 {
		b.Errorf("%d files to resume, want 1", b.parts())
	}
}

// whole checks that no incomplete file has its name.
func (b *copyBed) whole() {
	b.Helper()
	if _, err := os.Stat(b.to + "/large"); err == nil {
		b.Error("an incomplete file has appeared")
	}
}

// resumes runs the copy again. It must send less than the whole file.
func (b *copyBed) resumes() {
	b.Helper()
	m := b.send("@large", b.host, "--json").ok().json()[0]
	if m["resumed_bytes"].(float64) < 1<<20 || m["sent_bytes"].(float64) > largeSize-1<<20 {
		b.Errorf("%v, want a part of the file from the earlier run", m)
	}
	b.arrived()
}

// arrived checks that the file is complete, and removes it.
func (b *copyBed) arrived() {
	b.Helper()
	b.same(b.from+"/large", b.to+"/large")
	if b.parts() != 0 {
		b.Error("temporary files remain")
	}
	if err := os.Remove(b.to + "/large"); err != nil {
		b.Fatal(err)
	}
}

// After kill -9 of the receiver or the sender, the copy fails with an error, and the same command
// continues it.
func TestCopyKilled(t *testing.T) {
	t.Parallel() // most of the time it waits
	b := newCopyBed(t)
	b.file("large", largeSize)
	p := b.starting("@large", b.host, slowly, atOnce)
	b.partly()
	b.recv.cmd.Process.Kill()
	b.recv.wait()
	b.interrupted(p.wait(), "connection lost")
	b.serve()
	b.resumes()

	p = b.starting("@large", b.host, slowly)
	b.partly()
	p.cmd.Process.Kill()
	p.wait()
	b.whole()
	b.resumes() // waits for the end of the session of the killed process
}

// After Ctrl-C on either side, the same command continues.
func TestCopyInterrupted(t *testing.T) {
	t.Parallel() // most of the time it waits
	b := newCopyBed(t)
	b.file("large", largeSize)
	p := b.starting("@large", b.host, slowly)
	b.partly()
	p.cmd.Process.Signal(syscall.SIGINT)
	b.interrupted(p.wait(), "interrupted")
	b.resumes()
	p = b.starting("@large", b.host, slowly)
	b.partly()
	b.recv.cmd.Process.Signal(syscall.SIGINT)
	b.recv.wait().ok()
	b.interrupted(p.wait(), "interrupted")
	// A sender that retries continues by itself when the receiver is there again.
	p = b.starting("@large", b.host, slowly, "--retry", "50")
	time.Sleep(200 * time.Millisecond)
	b.serve()
	p.wait().ok()
	b.same(b.from+"/large", b.to+"/large")
}

// A side that is stopped for longer than the network's timeouts, or an interface that is down, ends
// the connection. The sender connects again and goes on. With --retry 0 the copy fails, and the
// same command continues it.
func TestCopyStopped(t *testing.T) {
	t.Parallel() // most of the time it waits
	for name, faults := range map[string]func(k *copyBed) (stop, cont func() error){
		"receiver stopped": func(k *copyBed) (stop, cont func() error) {
			return func() error { return k.recv.cmd.Process.Signal(syscall.SIGSTOP) },
				func() error { return k.recv.cmd.Process.Signal(syscall.SIGCONT) }
		},
		"interface down": func(k *copyBed) (stop, cont func() error) {
			h, link := linkOf(k.T, &k.pair.A)
			return func() error { return h.LinkSetDown(link) },
				func() error { return h.LinkSetUp(link) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newCopyBed(t)
			k.file("large", largeSize)
			stop, cont := faults(k)
			p := k.starting("@large", k.host, slowly, atOnce)
			k.partly()
			if err := stop(); err != nil {
				t.Fatal(err)
			}
			r := p.wait()
			if err := cont(); err != nil {
				t.Fatal(err)
			}
			k.interrupted(r, "connection lost")
			// IPv6 needs a moment after the interface is up again; IPv4 does not.
			k.resumes()
			var diag syncbuf.Buffer
			p = startWith(t, &k.pair.B, func(c *exec.Cmd) { c.Stderr = &diag }, "send",
				k.from+"/large", k.host, slowly)
			k.partly()
			if err := stop(); err != nil {
				t.Fatal(err)
			}
			eventually(t, "send tries again", func() bool {
				return strings.Contains(diag.String(), "trying again until")
			})
			if err := cont(); err != nil {
				t.Fatal(err)
			}
			p.wait().ok()
			if !strings.Contains(diag.String(), "connection lost") {
				t.Errorf("send prints %q, want the reason", diag.String())
			}
			k.arrived()
		})
	}
}

// stopped starts to copy a large file, and stops the sender in the middle. cont lets it continue.
func (b *copyBed) stopped() (p *process, cont func()) {
	b.Helper()
	b.file("large", largeSize)
	p = b.starting("@large", b.host, slowly)
	b.partly()
	signal := func(s syscall.Signal) {
		b.Helper()
		if err := p.cmd.Process.Signal(s); err != nil {
			b.Fatal(err)
		}
	}
	signal(syscall.SIGSTOP)
	return p, func() { signal(syscall.SIGCONT) }
}

// A side that is stopped for a short time only finishes.
func TestCopyPaused(t *testing.T) {
	t.Parallel() // most of the time it waits
	b := newCopyBed(t)
	p, cont := b.stopped()
	time.Sleep(time.Second)
	cont()
	if r := p.wait().ok(); r.err != "" {
		t.Errorf("send prints %q, want nothing", r.err)
	}
	b.arrived()
}

// A sender that was stopped, like a host that was suspended, goes on when it continues, although
// the receiver has ended the connection.
func TestCopySenderStopped(t *testing.T) {
	t.Parallel() // most of the time it waits
	b := newCopyBed(t)
	p, cont := b.stopped()
	eventually(t, "the receiver gives up", func() bool {
		list, _ := filepath.Glob(filepath.Join(b.to, ".gorxe-*.part"))
		if len(list) != 1 {
			return false
		}
		f, err := os.Open(list[0])
		if err != nil {
			return false
		}
		defer f.Close()
		return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil // closing unlocks it
	})
	b.whole()
	cont()
	if r := p.wait().ok(); !strings.Contains(r.err, "trying again until") {
		t.Errorf("send prints %q, want that it tries again", r.err)
	}
	b.arrived()
}

// A copy from standard input cannot be repeated. It continues after a pause of the receiver that
// ends other connections.
func TestCopyStreamPaused(t *testing.T) {
	t.Parallel() // most of the time it waits
	b := newCopyBed(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p := startWith(t, &b.pair.B, func(c *exec.Cmd) { c.Stdin = r }, "send", "-", b.host+"stream")
	r.Close()
	data := bytes.Repeat([]byte("0123456789"), 100_000) // more than a pipe holds
	write := func() {
		b.Helper()
		if _, err := w.Write(data); err != nil {
			b.Errorf("Write: %v", err)
		}
	}
	write() // returns when the copy has begun
	if err := b.recv.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	write()
	time.Sleep(7 * time.Second) // files: 4.3 s
	if err := b.recv.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	write()
	w.Close()
	p.wait().ok()
	got, err := os.ReadFile(b.to + "/stream")
	if err != nil || !bytes.Equal(got, bytes.Repeat(data, 3)) {
		t.Errorf("%d bytes, %v, want %d", len(got), err, 3*len(data))
	}
}
