package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/xdp/veth"
)

// copyBed is a receiver and directories of both sides.
type copyBed struct {
	*testing.T

	pair     *veth.Pair
	recv     *process
	host     string // of the receiver
	from, to string
}

func newCopyBed(t *testing.T, args ...string) *copyBed {
	t.Helper()
	b := &copyBed{T: t, pair: needRoot(t, veth.Options{}), from: t.TempDir(), to: t.TempDir()}
	b.host = b.pair.A.IPv4.Addr().String() + ":"
	b.serve(args...)
	return b
}

// serve starts recv.
func (b *copyBed) serve(args ...string) {
	b.Helper()
	b.recv = start(b.T, &b.pair.A, append([]string{"recv", "-d", b.pair.A.Iface, "--dir", b.to},
		args...)...)
	b.ready()
}

func (b *copyBed) ready() {
	b.Helper()
	eventually(b.T, "recv is confined", func() bool {
		select {
		case <-b.recv.ended:
			r := b.recv.wait()
			b.Fatalf("gorxe %s ended: status %d\n%s%s", r.args, r.status, r.stdout, r.err)
		default:
		}
		return restricted(b.T, b.recv)
	})
}

// send runs send. Arguments that begin with @ are paths below from.
func (b *copyBed) send(args ...string) *result {
	b.Helper()
	return b.starting(args...).wait()
}

func (b *copyBed) starting(args ...string) *process {
	b.Helper()
	args = append([]string{"send"}, args...)
	for i, a := range args {
		if rest, ok := strings.CutPrefix(a, "@"); ok {
			args[i] = filepath.Join(b.from, rest) + strings.Repeat("/",
				len(rest)-len(strings.TrimRight(rest, "/")))
		}
	}
	return start(b.T, &b.pair.B, args...)
}

// file creates a file of random bytes.
func (b *copyBed) file(name string, size int) string {
	b.Helper()
	name = filepath.Join(b.from, name)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		b.Fatal(err)
	}
	data := make([]byte, size)
	r := rand.New(rand.NewPCG(uint64(size), 1))
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	if err := os.WriteFile(name, data, 0o644); err != nil {
		b.Fatal(err)
	}
	return name
}

// same checks that two files or trees are the same.
func (b *copyBed) same(from, to string) {
	b.Helper()
	want, got := listing(b.T, from), listing(b.T, to)
	for name, text := range want {
		if got[name] != text {
			b.Errorf("%q: %.100q, want %.100q", name, got[name], text)
		}
	}
	if len(got) != len(want) {
		b.Errorf("%d names, want %d", len(got), len(want))
	}
}

// listing describes what a copy preserves.
func listing(t *testing.T, dir string) map[string]string {
	t.Helper()
	m := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		text := fmt.Sprint(info.Mode(), info.ModTime().UnixNano(), " ")
		if info.Mode().IsRegular() {
			data, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			text += string(data)
		}
		if info.Mode()&fs.ModeSymlink != 0 {
			link, err := os.Readlink(p)
			if err != nil {
				return err
			}
			text += link
		}
		if p != dir || !info.IsDir() {
			m[p[len(dir):]] = text
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// parts returns the number of temporary files of incomplete copies.
func (b *copyBed) parts() int {
	b.Helper()
	list, err := filepath.Glob(filepath.Join(b.to, ".gorxe-*.part"))
	if err != nil {
		b.Fatal(err)
	}
	return len(list)
}

// partly waits until a part of a large file was stored.
func (b *copyBed) partly() {
	b.Helper()
	eventually(b.T, "a part of the file arrives", func() bool {
		list, _ := filepath.Glob(filepath.Join(b.to, ".gorxe-*.part"))
		for _, name := range list {
			var st syscall.Stat_t
			if syscall.Stat(name, &st) == nil && st.Blocks*512 > 4<<20 {
				return true
			}
		}
		return false
	})
}

// Files and trees are pushed and pulled, over IPv4 and IPv6, with all their attributes, to a
// receiver that is confined.
func TestCopy(t *testing.T) {
	b := newCopyBed(t, "--allow-pull", "--allow-delete", "--json")
	b.file("tree/large", 3<<20)
	b.file("tree/empty", 0)
	b.file("tree/strange/new\nline", 100)
	b.file("tree/strange/\xff\xfe", 100)
	old := time.Date(2001, 2, 3, 4, 5, 6, 789, time.UTC)
	for i := range 200 {
		b.file(fmt.Sprintf("tree/small/f%d", i), i)
	}
	for _, err := range []error{
		os.Symlink("../nowhere", b.from+"/tree/link"), os.Mkdir(b.from+"/tree/dir", 0o700),
		os.Chmod(b.from+"/tree/empty", 0o751), os.Chtimes(b.from+"/tree/large", old, old),
		os.Chtimes(b.from+"/tree/dir", old, old),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	m := b.send("@tree", b.host, "--json").ok().json()[0]
	fields(t, m, "peer", "datapath", "block_bytes", "streams", "stored", "skipped", "deleted",
		"failed",
		"ignored", "bytes", "sent_bytes", "resumed_bytes", "seconds", "gbps", "complete")
	b.same(b.from+"/tree", b.to+"/tree")
	if m["stored"] != 209.0 || m["complete"] != true {
		t.Errorf("%v, want 209 stored entries", m)
	}
	if r := b.send("@tree", b.host).ok(); !strings.Contains(r.stdout, "209 skipped") {
		t.Errorf("the second copy prints %q", r.stdout)
	}
	// Several sources and streams, the contents of a directory, IPv6, and another name.
	six := "[" + b.pair.A.IPv6.Addr().String() + "]:"
	b.send("@tree/small", "@tree/", six+"other/place", "--exclude", "/small", "--exclude", "large",
		"--streams", "4", "--block", "64k").ok()
	b.send("@tree/small", six+"other/place").ok()
	b.send("@tree/large", six+"other/place/large", "--direct", "--class", "3").ok()
	b.same(b.from+"/tree", b.to+"/other/place")
	// Pull.
	pulled := t.TempDir()
	b.send("--from", b.host+"tree", "--from", b.host+"other/", pulled).ok()
	b.same(b.from+"/tree", pulled+"/tree")
	b.same(b.from+"/tree", pulled+"/place")
	b.send("--from", b.host+"tree/large", pulled+"/renamed").ok()
	b.same(b.from+"/tree/large", pulled+"/renamed")
	data, err := os.ReadFile(b.from + "/tree/large")
	if err != nil {
		t.Fatal(err)
	}
	if r := b.send("--from", b.host+"tree/large", "-").ok(); r.stdout != string(data) {
		t.Errorf("%d bytes on standard output, want %d", len(r.stdout), len(data))
	}
	// Delete, in a dry run first.
	if err := os.RemoveAll(b.from + "/tree/small"); err != nil {
		t.Fatal(err)
	}
	r := b.send("@tree", b.host, "--delete", "--dry-run").ok()
	if !strings.Contains("\n"+r.stdout, "\ndelete tree/small\n") {
		t.Errorf("the dry run prints %q", r.stdout)
	}
	b.send("@tree", b.host, "--delete").ok()
	b.same(b.from+"/tree", b.to+"/tree")
	b.recv.cmd.Process.Signal(syscall.SIGINT)
	lines := b.recv.wait().ok().json()
	if len(lines) != 10 {
		t.Errorf("recv prints %d lines, want 10: %v", len(lines), lines)
	}
	fields(t, lines[0], "peer", "target", "stored", "skipped", "deleted", "failed", "bytes",
		"resumed_bytes", "seconds")
}

// Standard input goes to a file or to the receiver's standard output, also without a known end.
func TestCopyStreams(t *testing.T) {
	b := newCopyBed(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p := startWith(t, &b.pair.B, func(c *exec.Cmd) { c.Stdin = r }, "send", "-", b.host+
		"sub/stream")
	data := bytes.Repeat([]byte("0123456789"), 300_000)
	go func() {
		w.Write(data)
		w.Close()
	}()
	p.wait().ok()
	if got, err := os.ReadFile(b.to + "/sub/stream"); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes, %v, want %d", len(got), err, len(data))
	}
	b.recv.cmd.Process.Signal(syscall.SIGINT)
	b.recv.wait().ok()
	b.recv = start(t, &b.pair.A, "recv", "-d", b.pair.A.Iface, "--dir", "-")
	b.ready()
	file := b.file("file", 1<<20)
	b.send("@file", b.host+"whatever").ok()
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got := b.recv.wait().ok().stdout; got != string(want) {
		t.Errorf("%d bytes on standard output, want %d", len(got), len(want))
	}
}

// What cannot be read or stored is named, and everything else arrives.
func TestCopyFailures(t *testing.T) {
	b := newCopyBed(t)
	for _, name := range []string{"d/dir\nname", "d/fine", "d/other"} {
		b.file(name, 1000)
	}
	if err := os.MkdirAll(b.to+"/d/dir\nname/x", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(b.from+"/d/fifo", 0o600); err != nil {
		t.Fatal(err)
	}
	r := b.send("@d", b.host)
	if r.status != 1 || !strings.Contains(r.err,
		`d/dir\nname": receiver: the receiver has a directory`) ||
		!strings.Contains(r.err, "fifo: not copied: it is a FIFO") ||
		!strings.Contains(r.err, "1 path not copied") || !strings.Contains(r.stdout, "1 failed") {
		t.Errorf("status %d\n%s%s", r.status, r.stdout, r.err)
	}
	for _, name := range []string{"/d/fine", "/d/other"} {
		b.same(b.from+name, b.to+name)
	}
	b.send("@nowhere", b.host).fails(1, "nowhere", "not exist")
	b.send("@d/fine", b.host+"d/other/x").fails(1, "refused", "not a directory")
	m := b.send("@d", b.host, "--json").json()[0]
	if m["failed"] != 1.0 || m["complete"] != false || len(m["failures"].([]any)) != 1 {
		t.Errorf("%v", m)
	}
}

// Special files of a pull are named by the receiver, which has them, and are no failure.
func TestPullSpecial(t *testing.T) {
	b := newCopyBed(t, "--allow-pull")
	for _, err := range []error{os.Mkdir(b.to+"/d", 0o755), unix.Mkfifo(b.to+"/d/fifo", 0o600),
		os.WriteFile(b.to+"/d/file", nil, 0o600)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	b.send("--from", b.host+"d", b.from).ok()
	b.recv.cmd.Process.Signal(syscall.SIGINT)
	r := b.recv.wait().ok()
	if !strings.Contains(r.err, "d/fifo: not copied: it is a FIFO") ||
		!strings.Contains(r.stdout, "0 failed, 1 special") {
		t.Errorf("recv prints %q and %q, want the FIFO", r.stdout, r.err)
	}
}

// Senders need the token and permission.
func TestCopyAccess(t *testing.T) {
	dir := t.TempDir()
	token := func(name, text string) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	good, bad := token("good", "correct horse"), token("bad", "wrong horse battery")
	b := newCopyBed(t, "--token-file", good, "--max-files", "3", "--max-bytes", "1m")
	b.file("a", 1000)
	b.send("@a", b.host).fails(1, "token", "--token-file")
	b.send("@a", b.host, "--token-file", bad).fails(1, "token", "wrong")
	b.send("@a", b.host, "--token-file", good, "--delete").fails(1, "--allow-delete")
	b.send("--from", b.host+"a", "--token-file", good, dir).fails(1, "--allow-pull")
	b.send("@a", b.host, "--token-file", token("short", "x")).fails(1, "use 8 to")
	b.send("@a", b.host, "--token-file", good).ok()
	b.file("large", 2<<20)
	if r := b.send("@large", b.host, "--token-file", good); r.status != 1 ||
		!strings.Contains(r.err, "at most 1048576 bytes") {
		t.Errorf("--max-bytes: status %d, %s", r.status, r.err)
	}
	for i := range 4 {
		b.file(fmt.Sprintf("many/f%d", i), 10)
	}
	r := b.send("@many", b.host, "--token-file", good)
	r.fails(1, "at most 3 files")
	if strings.Contains(r.err, "same command") {
		t.Errorf("send prints %q, want no advice to repeat it", r.err)
	}
	b.recv.cmd.Process.Signal(syscall.SIGINT)
	b.recv.wait().ok()
	// A receiver without a token cannot prove who it is.
	b.serve("--overwrite", "never")
	b.send("@a", b.host, "--token-file", good).fails(1, "token")
	b.file("a", 999)
	b.send("@a", b.host, "--overwrite", "always").ok()
	if info, err := os.Stat(b.to + "/a"); err != nil || info.Size() != 1000 {
		t.Errorf("a file was replaced: %v, %v", info, err)
	}
}

// A sender that is refused because there are too many is told so, and the log of the receiver says
// it: both name the flag that permits more.
func TestCopyTooMany(t *testing.T) {
	b := newCopyBed(t, "--max-sessions", "1")
	b.file("a", 100)
	b.file("large", largeSize)
	first := b.starting("@large", b.host, slowly)
	b.partly()
	first.cmd.Process.Kill() // the receiver notices that later
	first.wait()
	b.send("@a", b.host, atOnce).fails(1, "refused", "a larger --max-sessions")
	b.recv.cmd.Process.Signal(syscall.SIGINT)
	r := b.recv.wait().ok()
	if !strings.Contains(r.err, "too many senders at a time, of all addresses or of this one: start recv") {
		t.Errorf("recv prints %q, want the flag", r.err)
	}
}

// A full disk of the receiver is an error for the files that do not fit. With more space, the same
// command continues.
func TestCopyDiskFull(t *testing.T) {
	b := newCopyBed(t)
	b.recv.cmd.Process.Signal(syscall.SIGINT)
	b.recv.wait()
	mount := func(size int, flags uintptr) {
		t.Helper()
		if err := unix.Mount("tmpfs", b.to, "tmpfs", flags,
			fmt.Sprintf("size=%d", size)); err != nil {
			t.Fatal(err)
		}
	}
	mount(8<<20, 0)
	t.Cleanup(func() { _ = unix.Unmount(b.to, unix.MNT_DETACH) })
	b.serve()
	b.file("large", 10<<20)
	b.file("small", 1000)
	for range 2 {
		r := b.send("@large", "@small", b.host)
		if r.status != 1 || !strings.Contains(r.err, "large: receiver: no space left on device") {
			t.Errorf("status %d\n%s%s", r.status, r.stdout, r.err)
		}
		b.same(b.from+"/small", b.to+"/small")
		b.whole()
	}
	mount(32<<20, unix.MS_REMOUNT)
	b.send("@large", "@small", b.host).ok()
	b.same(b.from, b.to)
}

// With --once, recv exits with the status of the copy.
func TestRecvOnce(t *testing.T) {
	b := newCopyBed(t, "--once")
	b.file("a", 10)
	b.send("@a", b.host).ok()
	if r := b.recv.wait().ok(); !strings.Contains(r.stdout, "1 copied") {
		t.Errorf("recv prints %q", r.stdout)
	}
	if err := os.Mkdir(b.to+"/b", 0o755); err != nil {
		t.Fatal(err)
	}
	b.file("b", 10)
	b.serve("--once")
	if r := b.send("@b", b.host+"./"); r.status != 1 {
		t.Errorf("send: status %d, want 1", r.status)
	}
	if r := b.recv.wait(); r.status != 1 {
		t.Errorf("recv: status %d, want 1\n%s", r.status, r.err)
	}
}
