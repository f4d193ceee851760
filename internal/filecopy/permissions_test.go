package filecopy_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/internal/filecopy/part"
	"github.com/gorxe/gorxe/internal/filecopy/source"
)

// byNobody runs the test as another user if this one is root, who may do everything. It reports
// whether it has done that.
func byNobody(t *testing.T) bool {
	t.Helper()
	if os.Geteuid() != 0 {
		return false
	}
	const nobody = 65534
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Dir, cmd.Env = "/", append(os.Environ(), "TMPDIR=/tmp")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("--- PASS: "+t.Name())) {
		t.Fatalf("as user %d: %v\n%s", nobody, err, out)
	}
	return true
}

// Files and directories that the user must not read fail alone. What a receiver has left that was
// killed before it could rename a read-only file does not matter.
func TestPermissions(t *testing.T) {
	if byNobody(t) {
		return
	}
	j := newJob(t)
	write(t, j.from+"/secret", 10, 1)
	write(t, j.from+"/closed/f", 10, 1)
	write(t, j.from+"/fine", 100_000, 1)
	root, err := os.OpenRoot(j.to)
	must(t, err)
	defer root.Close()
	left, err := part.Create(root, "fine")
	must(t, err)
	left.Keep()
	temp, err := filepath.Glob(j.to + "/.gorxe-*")
	must(t, err, os.Chmod(temp[0], 0o444))
	must(t, os.Chmod(j.from+"/secret", 0), os.Chmod(j.from+"/closed", 0))
	t.Cleanup(func() { _ = os.Chmod(j.from+"/closed", 0o700) })
	j.fails(map[string]string{"secret": "permission denied", "closed": "permission denied"})
	sameFile(t, j.from+"/fine", j.to+"/fine")
}

// The owner can store files in directories whatever their permissions are.
func TestClosedDirectories(t *testing.T) {
	if byNobody(t) {
		return
	}
	j := newJob(t)
	for _, perm := range []os.FileMode{0, 0o100, 0o200, 0o300, 0o400, 0o500} {
		name := fmt.Sprintf("/%o", perm)
		write(t, j.from+name+"/f", 10, 1)
		must(t, os.Mkdir(j.to+name, perm))
	}
	j.ok()
	equal(t, j.from, j.to)
}

// The owner can delete the contents of directories whatever their permissions are. A directory that
// remains, because the rules exclude something in it, keeps them.
func TestDeleteInClosedDirectories(t *testing.T) {
	if byNobody(t) {
		return
	}
	j := newJob(t)
	modes := []os.FileMode{0, 0o100, 0o200, 0o300, 0o400, 0o500}
	for _, mode := range modes {
		for _, name := range []string{"gone", "mixed"} {
			dir := fmt.Sprintf("%s/%s%o", j.to, name, mode)
			write(t, dir+"/d/f", 10, 1)
			if name == "mixed" {
				write(t, dir+"/f.o", 10, 1)
			}
			must(t, os.Chmod(dir+"/d", mode), os.Chmod(dir, mode))
			t.Cleanup(func() { _ = os.Chmod(dir, 0o700) })
		}
	}
	j.rules = []string{"-*.o"}
	j.sink.Delete = true
	j.ok()
	left, err := os.ReadDir(j.to)
	must(t, err)
	if len(left) != len(modes) {
		t.Errorf("%q are left, want only what has an excluded file", left)
	}
	for _, mode := range modes {
		dir := fmt.Sprintf("%s/mixed%o", j.to, mode)
		info, err := os.Stat(dir)
		must(t, err)
		if info.Mode().Perm() != mode {
			t.Errorf("%s has the mode %v, want %v", dir, info.Mode(), mode)
		}
		must(t, os.Chmod(dir, 0o700))
		if list, err := os.ReadDir(dir); err != nil || len(list) != 1 {
			t.Errorf("%s has %q, %v, want f.o", dir, list, err)
		}
	}
}

// Attributes of a directory of another user, in which files may be stored, cannot be set. That is
// an error: the source's files could be readable by more users than at the source.
func TestForeignDirectory(t *testing.T) {
	const variable = "GORXE_TEST_FOREIGN"
	past := time.Unix(1e9, 0)
	if os.Geteuid() == 0 {
		dir, err := os.MkdirTemp("/tmp", "gorxe-foreign-")
		must(t, err, os.Chmod(dir, 0o777))
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		for _, name := range []string{"private", "time", "same"} {
			path := filepath.Join(dir, name)
			must(t, os.Mkdir(path, 0o700), os.Chmod(path, 0o777), os.Chtimes(path, past, past))
		}
		t.Setenv(variable, dir)
	}
	if byNobody(t) {
		return
	}
	j := newJob(t)
	if j.to = os.Getenv(variable); j.to == "" {
		t.Skip("only root can create directories of another user")
	}
	for name, perm := range map[string]os.FileMode{"private": 0o700, "time": 0o777, "same": 0o777} {
		path := filepath.Join(j.from, name)
		must(t, os.Mkdir(path, 0o700), os.Chmod(path, perm))
		if name != "same" {
			write(t, path+"/f", 100, 1)
		}
		must(t, os.Chtimes(path, past, past))
	}
	j.fails(map[string]string{
		"private": "its permissions stay 0777 instead of 0700: operation not permitted: set it as",
		"time":    "its modification time was not set: operation not permitted",
	})
	sameFile(t, j.from+"/private/f", j.to+"/private/f")
}

// What --delete cannot delete is an error, which the source is told.
func TestDeleteFails(t *testing.T) {
	j := newJob(t)
	must(t, os.MkdirAll(j.from+"/dir", 0o755))
	names := []string{"dir/locked/f", "dir/locked/g", "locked/h"}
	for _, name := range names { // mount points cannot be deleted
		path := j.to + "/" + name
		must(t, os.MkdirAll(path, 0o755))
		if err := unix.Mount("tmpfs", path, "tmpfs", 0, "size=4096"); err != nil {
			t.Skipf("mount a file system: %v", err)
		}
		t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
	}
	j.sink.Delete = true
	o := j.run()
	text, top := o.failed["dir"], o.failed[""]
	if !errors.Is(o.err, source.ErrFailed) || len(o.failed) != 2 || o.sum.Failed != 3 ||
		!strings.Contains(text, "was not deleted: device or resource busy, and 1 more") ||
		!strings.Contains(top, "locked/h was not deleted: device or resource busy") {
		t.Errorf("source: %v, failed %v, summary %+v", o.err, o.failed, o.sum)
	}
	for _, name := range names {
		if text := o.kfailed[name]; text != "not deleted: device or resource busy" {
			t.Errorf("%s: %q", name, text)
		}
	}
}
