package main

import (
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A directory that is created for the contents of a private one is private, in both directions.
func TestCopyNewTarget(t *testing.T) {
	b := newCopyBed(t, "--allow-pull")
	b.file("priv/f", 1000)
	past := time.Unix(1e9, 0)
	for _, err := range []error{os.Chmod(b.from+"/priv", 0o700),
		os.Chtimes(b.from+"/priv", past, past)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	b.send("@priv/", b.host+"x/new").ok()
	b.send("--from", b.host+"x/new/", b.from+"/back").ok()
	for _, name := range []string{b.to + "/x/new", b.from + "/back"} {
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o700 || !info.ModTime().Equal(past) {
			t.Errorf("%s has mode %v and time %v, want 0700 and %v", name, info.Mode(),
				info.ModTime(), past)
		}
	}
}

// A name of the target directory that cannot be deleted is named at the sender.
func TestCopyNotDeleted(t *testing.T) {
	b := newCopyBed(t, "--allow-delete")
	b.file("src/f", 10)
	if err := os.Mkdir(b.to+"/mnt", 0o755); err != nil {
		t.Fatal(err)
	}
	b.recv.cmd.Process.Kill()
	b.recv.wait()
	if err := unix.Mount("tmpfs", b.to+"/mnt", "tmpfs", 0, "size=4096"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(b.to+"/mnt", unix.MNT_DETACH) })
	b.serve("--allow-delete")
	r := b.send("@src/", b.host, "--delete")
	if r.status != 1 || !strings.Contains(r.err, "src: receiver: mnt was not deleted: device or") ||
		!strings.Contains(r.err, "1 path not copied or deleted") {
		t.Errorf("status %d\n%s%s", r.status, r.stdout, r.err)
	}
}
